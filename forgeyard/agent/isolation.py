"""Finds out, by trying it, what the steps of jobs can be shut in on this host.

What was configured and cannot be had keeps the agent from starting; what was left to chance is
said in the log. Nothing is reported that a trial did not show.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from forgeyard.agent import cgroup, metadata
from forgeyard.agent.account import SETTING, Account, job_account
from forgeyard.agent.cell import Cell
from forgeyard.agent.cgroup import ControlGroups, JobGroup
from forgeyard.agent.confine import SYSTEM_PATH, Confinement, Owner
from forgeyard.agent.process import Command
from forgeyard.agent.workspace import Folders, folders_of, jobs_dir
from forgeyard.errors import InvalidRequest
from forgeyard.machine_settings import AgentConfig
from forgeyard.model.equipment import NetworkMode, SandboxKind
from forgeyard.model.ids import LeaseId
from forgeyard.model.job import JobSpec

TIMEOUT_S = 20.0
SPACES = ("mnt", "pid", "ipc")
_SANDBOX = "agent.sandbox"
_LOOK = """
echo uid $(id -u)
echo gid $(id -g)
echo groups $(id -G)
grep NoNewPrivs /proc/self/status
for it in mnt pid ipc net; do echo $it $(readlink /proc/self/ns/$it); done
if [ -e "$1" ]; then echo secret seen; else echo secret hidden; fi
if [ -r "$1" ]; then echo secrets read; else echo secrets closed; fi
: > file
: > "$TMPDIR/file"
"""
"""What a trial says of itself, in lines of a name and a value."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What jobs are shut in on this host, as trials have shown."""

    confinement: Confinement | None = None
    groups: ControlGroups | None = None
    memory_percent: int = 0
    networks: tuple[NetworkMode, ...] = (NetworkMode.HOST,)

    @property
    def sandboxes(self) -> tuple[SandboxKind, ...]:
        """Name what every job is shut in here."""
        shut_in = self.confinement is not None and self.confinement.has_namespaces
        return (SandboxKind.LINUX_NAMESPACE if shut_in else SandboxKind.NONE,)

    def cell(self, spec: JobSpec, folders: Folders, lease_id: LeaseId) -> Cell | None:
        """Shut an attempt in; `None` where nothing was configured."""
        if self.confinement is None:
            return None
        return Cell(
            confinement=self.confinement,
            folders=folders,
            network=spec.requires.equipment.network or NetworkMode.HOST,
            group=self.group(lease_id),
            memory=spec.resources.memory * self.memory_percent // 100,
        )

    def group(self, lease_id: LeaseId) -> JobGroup | None:
        """Name the control group of an attempt."""
        return None if self.groups is None else self.groups.of(lease_id)


NOTHING = Isolation()
"""Jobs run as the agent does, and see what it sees."""


def establish(config: AgentConfig, work_dir: Path, hidden: Sequence[Path] = ()) -> Isolation:
    """Set up what was configured, and try out what jobs will be shut in; blocking.

    Raises:
        InvalidRequest: something that was configured cannot be had here.
    """
    account, groups = job_account(config.job_user), cgroup.find(config.cgroup)
    owner = Owner(uid=os.geteuid(), gid=os.getegid())
    if owner.is_root and account is None:
        _log.warning("jobs run as root and may do anything to this host: set agent.job_user")
    if config.memory_limit_percent and groups is None:
        raise InvalidRequest(
            "memory cannot be limited without a control group",
            field="agent.memory_limit_percent",
            value=config.memory_limit_percent,
            allowed="0, or any number where agent.cgroup is set",
        )
    if account is not None:
        for folder in (work_dir, jobs_dir(work_dir)):
            folder.chmod(0o711)
    plain = Confinement(agent=owner, account=account, processes=config.max_processes)
    isolation = _in_namespaces(config, work_dir, plain, hidden)
    if isolation is None and account is None and groups is None:
        return NOTHING
    if isolation is None:
        isolation = Isolation(confinement=plain)
        _insist(_trial(isolation, work_dir), config.job_user, field=SETTING)
    isolation = replace(isolation, groups=groups, memory_percent=config.memory_limit_percent)
    if groups is not None:
        _insist(_trial(isolation, work_dir), config.cgroup, field="agent.cgroup")
    _say(isolation, account)
    return isolation


def _in_namespaces(
    config: AgentConfig, work_dir: Path, plain: Confinement, hidden: Sequence[Path]
) -> Isolation | None:
    """Try namespaces if they are wanted; `None` if they are not, or need not be had."""
    if config.sandbox == "none":
        return None
    if plain.agent.is_root and plain.account is None:
        problem = "root would find its way out of it: it needs agent.job_user"
    else:
        secrets = (Path(config.secrets_file),) if config.secrets_file else ()
        # The shallow ones first: what lies in them is hidden with them.
        covered = sorted({path.absolute() for path in (work_dir, *hidden, *secrets)})
        shut_in = replace(plain, has_namespaces=True, hidden=tuple(covered))
        isolation = Isolation(confinement=shut_in)
        problem = _trial(isolation, work_dir)
        if not problem:
            return _with_networks(isolation, work_dir)
    if config.sandbox == "auto":
        _log.warning("jobs run without a sandbox", reason=problem)
        return None
    raise _refusal(problem, config.sandbox, field=_SANDBOX)


def _with_networks(isolation: Isolation, work_dir: Path) -> Isolation:
    problem = _trial(isolation, work_dir, network=NetworkMode.DENIED)
    if problem:
        _log.warning("no job can be denied the network here", reason=problem)
        return isolation
    return replace(isolation, networks=(NetworkMode.HOST, NetworkMode.DENIED))


def _say(isolation: Isolation, account: Account | None) -> None:
    """Log what is in force, and what is not."""
    problem = "jobs run as the agent's user" if account is None else metadata.forbid(account)
    if problem:
        _log.warning("jobs that have a network can reach cloud metadata", reason=problem)
    _log.info(
        "jobs are shut in",
        user="the agent's" if account is None else account.name,
        sandbox=isolation.sandboxes[0].value,
        networks=", ".join(isolation.networks),
        control_group="none" if isolation.groups is None else str(isolation.groups.bases[0]),
        metadata="reachable" if problem else "forbidden",
    )


def _insist(problem: str, value: str, *, field: str) -> None:
    if problem:
        raise _refusal(problem, value, field=field)


def _refusal(problem: str, value: str, *, field: str) -> InvalidRequest:
    return InvalidRequest(
        f"jobs cannot be shut in as configured: {problem}",
        field=field,
        value=value,
        allowed="what a trial at the start shows to work on this host",
    )


def _trial(isolation: Isolation, work_dir: Path, *, network: NetworkMode = NetworkMode.HOST) -> str:
    """Run a script as a step runs, and look at what it is shut in; empty if all is as it should."""
    confinement = isolation.confinement
    if confinement is None:
        return ""
    # Several agents may have one control group in common.
    name = LeaseId(f"trial{os.getpid()}")
    folders, secret = folders_of(work_dir, name), jobs_dir(work_dir) / "secret"
    group = isolation.group(name)
    cell = Cell(confinement=confinement, folders=folders, network=network, group=group)
    try:
        folders.remove()
        if not cell.close():
            return "the control group of an earlier trial cannot be removed"
        folders.make()
        secret.touch(mode=0o600)
        cell.open()
        said = _run(cell, secret)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        secret.unlink(missing_ok=True)
        cell.close()
        folders.remove()
    return "; ".join(_wrongs(cell, dict(line.split(None, 1) for line in said if " " in line)))


def _run(cell: Cell, secret: Path) -> list[str]:
    step = Command(
        argv=("sh", "-euc", _LOOK, "sh", str(secret)),
        cwd=cell.folders.workspace,
        env={"PATH": SYSTEM_PATH, "TMPDIR": str(cell.folders.tmp)},
    )
    command = cell.around(step)
    done = subprocess.run(
        command.argv,
        cwd=command.cwd,
        env=dict(command.env),
        input=command.feed,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0 or not cell.was_reached:
        said = done.stderr.decode(errors="replace").strip() or f"it exited with {done.returncode}"
        raise OSError(said[:500])
    return done.stdout.decode(errors="replace").replace("\t", " ").splitlines()


def _wrongs(cell: Cell, found: dict[str, str]) -> Iterator[str]:
    """Compare what the script saw with what it should have seen."""
    confinement = cell.confinement
    user = confinement.account or confinement.agent
    if (found.get("uid"), found.get("gid")) != (str(user.uid), str(user.gid)):
        yield f"a step runs as {found.get('uid')}:{found.get('gid')}"
    if confinement.account is not None and found.get("groups") != str(user.gid):
        yield f"a step keeps the groups {found.get('groups')}"
    if confinement.account is None and not confinement.has_namespaces:
        return
    if found.get("NoNewPrivs:") != "1":
        yield "a step may gain privileges"
    if found.get("secrets") != "closed":
        yield "a step can read what is the agent's"
    if confinement.has_namespaces:
        denied = ("net",) if cell.network is NetworkMode.DENIED else ()
        for space in (*SPACES, *denied):
            if found.get(space) in (None, os.readlink(f"/proc/self/ns/{space}")):
                yield f"a step shares the {space} namespace of the agent"
        if found.get("secret") != "hidden":
            yield "a step sees the agent's directory"
