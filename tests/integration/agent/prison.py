"""Places in which the steps of jobs are shut in, whoever runs the tests."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from forgeyard.agent import isolation, metadata
from forgeyard.agent.account import job_account
from forgeyard.agent.cell import Cell
from forgeyard.agent.confine import SYSTEM_PATH
from forgeyard.agent.isolation import Isolation
from forgeyard.agent.workspace import folders_of, prepare_work_dir
from forgeyard.machine_settings import AgentConfig
from forgeyard.model.equipment import NetworkMode
from forgeyard.model.ids import LeaseId

USER = "nobody"
ORDINARY = 61_234
"""A user id that nobody has."""
GROUND = "FORGEYARD_TEST_GROUND"
IS_ROOT = os.geteuid() == 0
_numbers = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prison:
    """A work directory whose jobs are shut in."""

    isolation: Isolation
    work_dir: Path

    def cell(self, *, network: NetworkMode = NetworkMode.HOST, memory: int = 0) -> Cell:
        """Describe a cell for one attempt."""
        name = LeaseId(f"lea{os.getpid()}n{next(_numbers)}")
        confinement = self.isolation.confinement
        assert confinement is not None
        return Cell(
            confinement=confinement,
            folders=folders_of(self.work_dir, name),
            network=network,
            group=self.isolation.group(name),
            memory=memory,
        )


@contextmanager
def some_ground() -> Iterator[Path]:
    """Make a directory that is neither in /tmp nor closed to others, where that can be had."""
    base = os.environ.get(GROUND) or ("/run" if IS_ROOT else None)
    folder = Path(tempfile.mkdtemp(prefix="forgeyard-test-", dir=base))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def usual(**changed: object) -> dict[str, object]:
    """Set what makes a prison for whoever runs this; skip the test where the system forbids it."""
    refusal = _refusal_of_namespaces()
    if refusal:
        pytest.skip(f"this system lets nobody have namespaces: {refusal}")
    user = {"job_user": USER} if IS_ROOT else {}
    return {"sandbox": "linux_namespace", **user, **changed}


@cache
def _refusal_of_namespaces() -> str:
    """Ask the system without the product, whose own failures must not look like the system's."""
    own = () if IS_ROOT else ("--user", "--map-root-user")
    spaces = ("--mount", "--pid", "--ipc", "--net", "--fork", "--mount-proc")
    tries = ("mount", "-t", "tmpfs", "tests", "/dev/shm")
    done = subprocess.run(
        ("unshare", *own, *spaces, *tries), capture_output=True, text=True, check=False
    )
    return done.stderr.strip() if done.returncode else ""


def need_control_groups() -> None:
    """Skip the test where nobody may make control groups, or none that bounds memory."""
    root = Path("/sys/fs/cgroup")
    unified = root / "cgroup.controllers"
    known = unified.read_text().split() if unified.exists() else os.listdir(root)
    bases = [root] if unified.exists() else [root / "memory", root / "pids"]
    is_open = {"memory", "pids"} <= set(known) and all(os.access(it, os.W_OK) for it in bases)
    if not IS_ROOT or not is_open or os.statvfs(bases[0]).f_flag & os.ST_RDONLY:
        pytest.skip("this system lets this user have no control groups")


def a_prison(ground: Path, *hidden: Path, **settings: object) -> Prison:
    """Shut jobs in as configured."""
    work_dir = prepare_work_dir(str(ground / "agent"), name="x")
    config = AgentConfig.model_validate(settings)
    found = isolation.establish(config, work_dir, hidden)
    return Prison(isolation=found, work_dir=work_dir)


@contextmanager
def rules_undone() -> Iterator[None]:
    """Take back what keeps the user of jobs from the metadata of clouds."""
    try:
        yield
    finally:
        account = job_account(USER) if IS_ROOT else None
        for address in metadata.ADDRESSES if account is not None else ():
            family, length = ("-6", 128) if ":" in address else ("-4", 32)
            users = f"{account.uid}-{account.uid}" if account else ""
            rule = ("to", f"{address}/{length}", "uidrange", users, "pref", metadata.PREFERENCE)
            with suppress(FileNotFoundError):
                subprocess.run(
                    ("ip", family, "rule", "del", *rule, "prohibit"),
                    env={"PATH": SYSTEM_PATH},
                    capture_output=True,
                    check=False,
                )


def as_somebody_ordinary(command: tuple[str, ...]) -> tuple[str, ...]:
    """Let root run a command as a user without any rights, who can read what it needs.

    Where this interpreter lies in a directory that is closed to others, a mount namespace opens it.
    """
    needed = {Path(sys.base_prefix).resolve(), Path(sys.prefix), Path.cwd()}
    script = ["set -e", "mount -t tmpfs -o mode=1777 tests /dev/shm"]
    for number, closed in enumerate(sorted({it for path in needed for it in _closed(path)})):
        inside = [path for path in needed if closed in path.parents]
        script += [f"mkdir -p /dev/shm/open{number}"]
        for place, path in enumerate(inside):
            script += [f"mkdir -p /dev/shm/open{number}/{place}"]
            script += [f"mount --bind {path} /dev/shm/open{number}/{place}"]
        script += [f"mount -t tmpfs -o mode=0755 tests {closed}"]
        for place, path in enumerate(inside):
            script += [f"mkdir -p {path}", f"mount --bind /dev/shm/open{number}/{place} {path}"]
    user = ("--reuid", str(ORDINARY), "--regid", str(ORDINARY), "--clear-groups")
    script += ['exec "$@"']
    alone = ("unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script), "sh")
    return (*alone, "setpriv", *user, "--bounding-set=-all", "--inh-caps=-all", *command)


def _closed(path: Path) -> list[Path]:
    """Name the outermost directory above a path that others may not enter, if there is one."""
    above = reversed(path.parents)
    return [it for it in above if not it.stat().st_mode & 0o001][:1]


@contextmanager
def a_cloud() -> Iterator[str]:
    """Set up two network namespaces: in one a metadata service listens, the other reaches it."""
    host, cloud = f"fyhost{os.getpid()}", f"fycloud{os.getpid()}"
    inside = ("ip", "netns", "exec")
    steps = (
        ("ip", "netns", "add", host),
        ("ip", "netns", "add", cloud),
        ("ip", "-n", host, "link", "add", "to0", "type", "veth", "peer", "name", "of0"),
        ("ip", "-n", host, "link", "set", "of0", "netns", cloud),
        ("ip", "-n", host, "addr", "add", "169.254.1.1/16", "dev", "to0"),
        ("ip", "-n", cloud, "addr", "add", "169.254.169.254/16", "dev", "of0"),
        *(("ip", "-n", host, "link", "set", link, "up") for link in ("lo", "to0")),
        *(("ip", "-n", cloud, "link", "set", link, "up") for link in ("lo", "of0")),
    )
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"this system has no network namespaces: {done.stderr}")
        serve = "import socket\nwith socket.create_server(('', 80)) as s:\n while s.accept(): pass"
        listener = subprocess.Popen((*inside, cloud, sys.executable, "-c", serve))
        try:
            yield host
        finally:
            listener.kill()
            listener.wait()
    finally:
        for name in (host, cloud):
            subprocess.run(("ip", "netns", "del", name), capture_output=True, check=False)
