"""One process of ours that can be killed, frozen and thawed."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(kw_only=True)
class Process:
    """One process of ours; what it prints goes to a file."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    popen: "subprocess.Popen[bytes]"

    @property
    def pid(self) -> int:
        """Tell its number."""
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        """Tell whether it has not ended."""
        return self.popen.poll() is None

    def kill(self) -> None:
        """End it as a crash would."""
        self.popen.kill()
        self.popen.wait(10)

    def freeze(self) -> None:
        """Let it do nothing, and notice nothing of that."""
        self.popen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.popen.send_signal(signal.SIGCONT)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, and insist."""
        if self.is_running:
            self.thaw()
            self.popen.send_signal(number)
            try:
                self.popen.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()


def family(pid: int) -> list[psutil.Process]:
    """List a process and all that it started, itself first."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def kill_families(*pids: int) -> None:
    """Kill processes with all that they started, as if the power went."""
    for process in [one for pid in pids for one in family(pid)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
