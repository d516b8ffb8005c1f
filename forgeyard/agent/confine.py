"""Shuts the steps of a job in: as another user, in namespaces of their own, under limits.

A chain of the system's own small programs, each of which does its part and becomes the next one.
What a job says, its environment above all, reaches none that still has the agent's rights. Refuses
to know what this host is capable of: `isolation` tries that out.
"""

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from forgeyard.agent.account import Account, give
from forgeyard.agent.process import Command
from forgeyard.agent.workspace import Folders
from forgeyard.model.equipment import NetworkMode

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where the programs of the chain are looked for, whatever PATH jobs have."""
MOST_FILES = 65_536
"""How many files a process of a job may hold open."""
STARTED = "started"
"""A file that says that the chain came as far as the job itself."""
_OF_THE_SHELL = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"})
"""Variables that no shell lets anybody set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whom the agent runs as."""

    uid: int
    gid: int

    @property
    def is_root(self) -> bool:
        """Tell whether it may do what it wants."""
        return self.uid == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """What the steps of every job on this host are shut in."""

    agent: Owner
    account: Account | None = None
    """Whom steps run as; `None` is the agent itself."""
    has_namespaces: bool = False
    hidden: tuple[Path, ...] = ()
    """Files and directories of the agent's, of which steps in namespaces see nothing."""
    processes: int = 4096

    def take_over(self, folders: Folders) -> None:
        """Let the steps of an attempt have its directories; before any of them runs; blocking."""
        # /tmp for everything in there, whoever it runs as.
        folders.tmp.chmod(0o1777)
        if self.account is None:
            return
        # The directory itself stays ours: whoever owned it could put another in its place.
        os.chown(folders.root, self.agent.uid, self.account.gid)
        folders.root.chmod(0o710)
        for folder in (folders.workspace, folders.home):
            give(folder, self.account)

    def shut_in(
        self, step: Command, folders: Folders, *, network: NetworkMode, groups: Sequence[Path] = ()
    ) -> Command:
        """Put a step's command at the end of the chain; `groups` are control groups to join."""
        started(folders).unlink(missing_ok=True)
        chain = (
            *self._enter(folders, groups),
            *self._limit(),
            *(self._unshare(folders, network) if self.has_namespaces else ()),
            *self._drop(),
            *_EXPORT,
            *step.argv,
        )
        return replace(step, argv=chain, env={"PATH": SYSTEM_PATH}, feed=exports(step.env))

    def _enter(self, folders: Folders, groups: Sequence[Path]) -> tuple[str, ...]:
        """Join control groups while there is one process only, which all others come from."""
        script = ["set -e", *(f"echo 0 > {quote(str(group))}" for group in groups)]
        if not self.has_namespaces:
            script.append(f": > {quote(str(started(folders)))}")
        return ("sh", "-c", "\n".join((*script, 'exec "$@"')), "sh")

    def _limit(self) -> tuple[str, ...]:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft, hard = (_at_most(MOST_FILES, limit) for limit in files)
        most = _at_most(self.processes, resource.getrlimit(resource.RLIMIT_NPROC)[1])
        # The kernel counts by user: where that is the agent's own, its namespace tells them apart.
        is_counted = self.account is not None or self.has_namespaces
        count = (f"--nproc={most}",) if is_counted else ()
        return ("prlimit", "--core=0", f"--nofile={soft}:{hard}", *count)

    def _unshare(self, folders: Folders, network: NetworkMode) -> tuple[str, ...]:
        own = () if self.agent.is_root else ("--user", "--map-root-user")
        is_cut_off = network is NetworkMode.DENIED
        return (
            *("unshare", "--mount", "--propagation", "private", "--ipc", "--pid", "--mount-proc"),
            *("--fork", "--kill-child", *own, *(("--net",) if is_cut_off else ())),
            *("sh", "-c", self._init(folders, is_cut_off=is_cut_off), "sh"),
        )

    def _init(self, folders: Folders, *, is_cut_off: bool) -> str:
        """Write what the first process in the namespaces does.

        The directories of the attempt are bound by where this process stands, for their path is
        covered first. It stays as long as the step runs: what is left then dies with it.
        """
        root, marker = quote(str(folders.root)), quote(f"./{STARTED}")
        bind = "mount --no-canonicalize --bind"
        return "\n".join(
            (
                "set -e",
                f"cd {root}",
                *(_hide(quote(str(path))) for path in self.hidden),
                "mount -t tmpfs -o mode=1777 forgeyard /dev/shm",
                f"for it in /tmp /var/tmp; do [ ! -d $it ] || {bind} ./tmp $it; done",
                f"mkdir -p {root}",
                f"{bind} . {root}",
                *(("ip link set lo up",) if is_cut_off else ()),
                f": > {marker}",
                f"cd {quote(str(folders.workspace))}",
                "set +e",
                # What the shell says of how a step ended is not the step's.
                "exec 4>&2 2>/dev/null",
                '(exec 2>&4 4>&-; exec "$@")',
                "exit $?",
            )
        )

    def _drop(self) -> tuple[str, ...]:
        """Give up every right that the step is not to have."""
        if self.account is not None:
            uid, gid = str(self.account.uid), str(self.account.gid)
            return (
                *("setpriv", "--reuid", uid, "--regid", gid, "--clear-groups"),
                *("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"),
            )
        if self.has_namespaces:
            # Root of the namespaces no more, but the user that the agent is outside.
            mapped = (f"--map-user={self.agent.uid}", f"--map-group={self.agent.gid}")
            return ("unshare", "--user", *mapped, "setpriv", "--no-new-privs")
        return ()


_EXPORT = ("sh", "-c", 'eval "$(cat)"; exec "$@" </dev/null', "sh")
"""Reads the job's environment, now that its rights are the job's."""


def started(folders: Folders) -> Path:
    """Name the file that is there once the job itself was reached."""
    return folders.root / STARTED


def exports(env: Mapping[str, str]) -> bytes:
    """Write an environment as a shell reads it.

    Raises:
        ValueError: a name is not one that a shell knows, or something holds a NUL.
    """
    lines: list[str] = []
    for name, value in env.items():
        if not (name.isascii() and name.isidentifier()) or "\0" in value:
            raise ValueError(f"not a variable: {name!r}")
        if name not in _OF_THE_SHELL:
            lines.append(f"export {name}={quote(value)}\n")
    return os.fsencode("".join(lines))


def _at_most(wanted: int, granted: int) -> int:
    """Ask for no more than was granted to the agent itself."""
    return wanted if granted == resource.RLIM_INFINITY else min(wanted, granted)


def _hide(path: str) -> str:
    return (
        f"if [ -d {path} ]; then mount -t tmpfs -o mode=0711,size=1m forgeyard {path};"
        f" elif [ -e {path} ]; then mount --bind /dev/null {path}; fi"
    )
