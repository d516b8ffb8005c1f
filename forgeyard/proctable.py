"""Reads the kernel's process table: who is in a group, since when, and how much it uses.

Where there is no /proc the table is empty, and callers are left with what signals can do.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forgeyard.model.units import Millis

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_GONE = "ZX"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One line of the table; pid and `started` together never repeat until a reboot."""

    pid: int
    state: str
    group: int
    started: int
    cpu: Millis
    resident: int

    @property
    def is_alive(self) -> bool:
        """Tell whether it can still do anything."""
        return self.state not in _GONE


def parse_stat(text: str) -> Process:
    """Read /proc/PID/stat; the command name in it may hold spaces and parentheses."""
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(")")[2].split()
    return Process(
        pid=int(pid),
        state=fields[0],
        group=int(fields[2]),
        started=int(fields[19]),
        cpu=Millis((int(fields[11]) + int(fields[12])) * 1000 // _TICKS),
        resident=max(0, int(fields[21])) * _PAGE,
    )


def processes() -> Iterator[Process]:
    """List every process there is; those that vanish meanwhile are left out."""
    for pid in _pids():
        if (process := find(pid)) is not None:
            yield process


def _pids() -> Iterator[int]:
    with suppress(FileNotFoundError):
        yield from (int(name) for name in os.listdir(_PROC) if name.isdigit())


def find(pid: int) -> Process | None:
    """Read one process, if it exists."""
    try:
        return parse_stat(_read(pid, "stat").decode(errors="replace"))
    except (OSError, IndexError, ValueError):
        return None


def members(group: int) -> tuple[Process, ...]:
    """List the living processes of a group."""
    return tuple(p for p in processes() if p.group == group and p.is_alive)


def boot_id() -> str:
    """Name this boot of the machine; process numbers mean nothing across boots."""
    with suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def carriers(mark: str) -> tuple[Process, ...]:
    """List the living processes of ours that carry `NAME=value` in their first environment."""
    wanted = mark.encode()
    marked = (find(pid) for pid in _pids() if _carries(pid, wanted))
    return tuple(process for process in marked if process is not None and process.is_alive)


def dwellers(folder: Path) -> tuple[Process, ...]:
    """List the living processes that began with a HOME below a folder."""
    home = f"HOME={folder}/".encode()
    at_home = (find(pid) for pid in _pids() if _begins(_environ(pid), home))
    return tuple(process for process in at_home if process is not None and process.is_alive)


def _begins(environ: bytes, start: bytes) -> bool:
    return start in environ and any(entry.startswith(start) for entry in environ.split(b"\0"))


def _carries(pid: int, mark: bytes) -> bool:
    if pid == os.getpid():
        return False
    environ = _environ(pid)
    return mark in environ and mark in environ.split(b"\0")


def _environ(pid: int) -> bytes:
    try:
        return _read(pid, "environ")
    except OSError:
        return b""


def _read(pid: int, name: str) -> bytes:
    """Read a file of a process without buffers and paths: the whole table is read for every job."""
    with open(f"{_PROC}/{pid}/{name}", "rb", buffering=0) as file:
        return file.read()
