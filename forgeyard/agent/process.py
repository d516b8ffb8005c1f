"""Runs a command in a process group of its own and leaves nothing of it behind.

The leader is reaped only after its group was killed: as long as it is a zombie its number, and
with it the group's, cannot be given to a stranger. Processes that left the group are known by a
mark in their environment. Refuses to know about leases, logs and steps.
"""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from forgeyard import proctable
from forgeyard.model.units import Millis

_ROUNDS = 40
_PAUSE_S = 0.05
# The kernel reports kibibytes, macOS bytes.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run, where, and with nothing but this environment."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)
    feed: bytes = field(default=b"", repr=False)
    """What it reads from its standard input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a group's leader ended; `code` is negative for a signal."""

    code: int
    cpu: Millis
    peak_memory: int
    """Of one process of the leader's; 0 where the kernel's number says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupId:
    """A process group that a restarted agent will recognise."""

    pid: int
    started: int
    boot: str


class ProcessGroup:
    """A running command and everything it starts."""

    def __init__(
        self, popen: "subprocess.Popen[bytes]", *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._popen = popen
        self._loop = loop
        self._exited = asyncio.Event()
        self._own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        process = proctable.find(popen.pid)
        self.id = GroupId(
            pid=popen.pid,
            started=process.started if process else 0,
            boot=proctable.boot_id(),
        )
        threading.Thread(target=self._await_exit, name=f"wait-{popen.pid}", daemon=True).start()

    def _await_exit(self) -> None:
        """Notice the leader's end without reaping it."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        with suppress(RuntimeError):  # the loop has closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._exited.set)

    async def wait(self) -> None:
        """Wait until the leader has ended; its children may live on."""
        await self._exited.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the group."""
        send(self.id.pid, number)

    async def terminate(self, *, kill_after: float, give_up: Callable[[], bool]) -> None:
        """Ask the group to end; kill it after `kill_after` seconds, or once `give_up` says so."""
        self.signal(signal.SIGTERM)
        deadline = self._loop.time() + kill_after
        while self._loop.time() < deadline and not give_up():
            if self._exited.is_set() and not await asyncio.to_thread(
                proctable.members, self.id.pid
            ):
                return
            await asyncio.sleep(_PAUSE_S)
        self.signal(signal.SIGKILL)

    async def reap(self) -> Exit:
        """Kill what is left of the group, then collect its leader."""
        self.signal(signal.SIGKILL)
        await self._exited.wait()
        self.signal(signal.SIGKILL)
        end = self._collect()
        await asyncio.to_thread(_await_empty, self.id.pid)
        return end

    def _collect(self) -> Exit:
        """Take the leader, which has ended, out of the process table."""
        _, status, usage = os.wait4(self._popen.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._popen.returncode = code  # tells Popen that the process was collected
        return Exit(
            code=code,
            cpu=Millis(round((usage.ru_utime + usage.ru_stime) * 1000)),
            peak_memory=self._peak(usage.ru_maxrss),
        )

    def _peak(self, reported: int) -> int:
        """Read the kernel's peak, which begins at our own: a child is born as our image."""
        return reported * _RSS_UNIT if reported > self._own_peak else 0


def start(command: Command, *, output: int) -> ProcessGroup:
    """Start a command in a new session, its output (both streams) going to a descriptor.

    Raises:
        OSError: there is no such program or directory, or the arguments are too long.
        ValueError: an argument or variable holds a NUL.
    """
    with _feeding(command.feed) as stdin:
        popen = subprocess.Popen(
            command.argv,
            cwd=command.cwd,
            env=dict(command.env),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return ProcessGroup(popen, loop=asyncio.get_running_loop())


@contextmanager
def _feeding(feed: bytes) -> Generator[int]:
    """Lay something out to be read, in memory only."""
    if not feed:
        yield subprocess.DEVNULL
        return
    with os.fdopen(os.memfd_create("feed"), "wb+") as file:
        file.write(feed)
        file.seek(0)
        yield file.fileno()


def send(group: int, number: signal.Signals) -> None:
    """Send a signal to a group, if there is one and we may."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _await_empty(group: int) -> None:
    """Wait, for about a second, until the killed members have really ended."""
    for _ in range(_ROUNDS):
        if not proctable.members(group):
            return
        threading.Event().wait(_PAUSE_S)


def kill_recorded(group: GroupId) -> bool:
    """Kill a group that an earlier agent started, unless its number has a new owner; blocking."""
    leader = proctable.find(group.pid)
    if group.boot != proctable.boot_id() or leader is None or leader.started != group.started:
        return False
    send(group.pid, signal.SIGKILL)
    _await_empty(group.pid)
    return True


def kill_marked(mark: str) -> int:
    """Kill every process that carries `NAME=value`, until none is left; blocking.

    This finds daemons, which leave their group and session but keep their environment.
    """
    killed = 0
    for _ in range(_ROUNDS):
        strays = proctable.carriers(mark)
        if not strays:
            break
        killed += sum(_kill_exactly(stray) for stray in strays)
        threading.Event().wait(_PAUSE_S)
    return killed


def _kill_exactly(process: proctable.Process) -> bool:
    """Kill this very process and not one that got its number meanwhile."""
    with suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(process.pid)
        try:
            found = proctable.find(process.pid)
            if found is not None and found.started == process.started:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False
