"""A control group for every job: it bounds memory and processes, and ends whatever is in it.

In version 2 of the kernel's control groups a job has one directory, in version 1 one for each
controller; the files in them differ in name only.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forgeyard.agent.host import parse_cgroup, parse_counters
from forgeyard.errors import InvalidRequest
from forgeyard.model.ids import LeaseId

OWN = "own"
"""The setting that means the agent's own control group."""
CONTROLLERS = ("memory", "pids")
_ROUNDS = 40
_PAUSE_S = 0.05
_SELF = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """The control group of one job."""

    folders: tuple[Path, ...]

    def make(self, *, memory: int, processes: int) -> None:
        """Make it, with limits; 0 bytes of memory are no limit.

        Raises:
            OSError: the kernel refuses.
        """
        limits = {"pids.max": processes}
        if memory:
            # Without the second of each pair a job would be swapped out instead of ended.
            limits |= {"memory.max": memory, "memory.swap.max": 0, "memory.oom.group": 1}
            limits |= {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
        for folder in self.folders:
            folder.mkdir()
            for name, value in limits.items():
                if (folder / name).exists():
                    (folder / name).write_text(str(value))

    @property
    def doors(self) -> tuple[Path, ...]:
        """Name the files through which a process joins."""
        return tuple(folder / "cgroup.procs" for folder in self.folders)

    def kills(self) -> int:
        """Count the processes that were killed because the group had no memory left."""
        names = ("memory.events", "memory.oom_control")
        files = (folder / name for folder in self.folders for name in names)
        return sum(parse_counters(_text(file)).get("oom_kill", 0) for file in files)

    def remove(self) -> bool:
        """Kill whatever is in it, then take it away; tell whether that went well. Blocks."""
        for _ in range(_ROUNDS):
            left = [folder for folder in self.folders if folder.exists()]
            if not left:
                return True
            for folder in left:
                _kill(folder)
                with suppress(OSError):
                    folder.rmdir()
            threading.Event().wait(_PAUSE_S if any(it.exists() for it in left) else 0)
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroups:
    """Where the groups of jobs are made."""

    bases: tuple[Path, ...]

    def of(self, lease_id: LeaseId) -> JobGroup:
        """Name the group of a job, which may not be there yet."""
        return JobGroup(folders=tuple(base / f"forgeyard-{lease_id}" for base in self.bases))


def find(setting: str, root: Path = Path("/sys/fs/cgroup")) -> ControlGroups | None:
    """Prepare the control group that was configured; `None` if none was.

    Raises:
        InvalidRequest: there is none that this agent may write.
    """
    if not setting:
        return None
    try:
        unified = (root / "cgroup.controllers").exists()
        bases = _unified(setting, root) if unified else tuple(_by_controller(setting, root))
    except OSError as error:
        raise InvalidRequest(
            f"jobs cannot have control groups: {error}",
            field="agent.cgroup",
            value=setting,
            allowed=f"{OWN!r}, where it is delegated to this agent, or a group it may write",
        ) from error
    return ControlGroups(bases=bases)


def _unified(setting: str, root: Path) -> tuple[Path, ...]:
    base = _below(root, setting, "")
    if setting == OWN:
        # Whoever has groups below may have no processes beside them.
        (base / "agent").mkdir(exist_ok=True)
        (base / "agent" / "cgroup.procs").write_text(str(os.getpid()))
    base.mkdir(exist_ok=True)
    (base / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
    return (base,)


def _by_controller(setting: str, root: Path) -> Iterator[Path]:
    for name in CONTROLLERS:
        base = _below(root / name, setting, name)
        base.mkdir(exist_ok=True)
        yield base


def _below(root: Path, setting: str, controller: str) -> Path:
    path = parse_cgroup(_SELF.read_text(), controller) if setting == OWN else setting
    if path is None or ".." in path.split("/"):
        raise FileNotFoundError(f"no control group {setting!r} for {controller or 'processes'}")
    return root / path.strip("/")


def _kill(folder: Path) -> None:
    switch = folder / "cgroup.kill"
    with suppress(OSError):
        if switch.exists():
            switch.write_text("1")
            return
    for pid in _text(folder / "cgroup.procs").split():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(int(pid), signal.SIGKILL)


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text()
    return ""
