"""Other hosts: network namespaces, each joined to this one by a cable of its own."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest

PROCESSES = 4_096
"""Numbers and addresses repeat after so many process numbers."""


@dataclass(frozen=True, kw_only=True)
class OtherHost:
    """A network of its own; its name and addresses are like no other process's."""

    number: int = 0
    """Which of this process's, from 0 to 3."""

    @property
    def namespace(self) -> str:
        """Give the name `ip netns` knows."""
        return f"fy{os.getpid() % PROCESSES}n{self.number}"

    @property
    def cable(self) -> str:
        """Give the name of our end of the cable."""
        return f"{self.namespace}a"

    @property
    def far_cable(self) -> str:
        """Give the name of its end of the cable."""
        return f"{self.namespace}b"

    @property
    def here(self) -> str:
        """Give our address."""
        return self._address(1)

    @property
    def there(self) -> str:
        """Give its address."""
        return self._address(2)

    def _address(self, which: int) -> str:
        block = (os.getpid() % PROCESSES * 4 + self.number) * 4
        return f"10.213.{block // 256}.{block % 256 + which}"

    def command(self, *command: str) -> tuple[str, ...]:
        """Give the command that runs there."""
        return ("ip", "netns", "exec", self.namespace, *command)

    def processes(self) -> list[int]:
        """List who runs there."""
        return [int(pid) for pid in ip("netns", "pids", self.namespace).split()]

    def crash(self) -> None:
        """End everything there at once, as a power cut would."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def make(self) -> None:
        """Set it up, after taking away what a killed test of the same number has left."""
        self.unmake()
        ip("netns", "add", self.namespace)
        ip("link", "add", self.cable, "type", "veth", "peer", "name", self.far_cable)
        ip("link", "set", self.far_cable, "netns", self.namespace)
        ip("addr", "add", f"{self.here}/30", "dev", self.cable)
        ip("link", "set", self.cable, "up")
        ip("-n", self.namespace, "addr", "add", f"{self.there}/30", "dev", self.far_cable)
        ip("-n", self.namespace, "link", "set", self.far_cable, "up")
        ip("-n", self.namespace, "route", "add", "default", "via", self.here)

    def unmake(self) -> None:
        """Take it away with all that runs there: a namespace goes only after its last user."""
        with suppress(subprocess.CalledProcessError):
            self.crash()
        for words in (("link", "del", self.cable), ("netns", "del", self.namespace)):
            subprocess.run(("ip", *words), check=False, capture_output=True)


def ip(*words: str) -> str:
    """Run `ip`; return what it printed."""
    done = subprocess.run(("ip", *words), check=True, capture_output=True, text=True, timeout=30)
    return done.stdout


@contextmanager
def other_hosts(count: int) -> Iterator[list[OtherHost]]:
    """Make some; skip the test where that cannot be done."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("making other hosts takes root and ip")
    made = [OtherHost(number=number) for number in range(count)]
    try:
        for host in made:
            try:
                host.make()
            except subprocess.CalledProcessError as error:
                if "exists" in error.stderr:
                    raise
                pytest.skip(f"this system makes no network namespaces: {error.stderr}")
        yield made
    finally:
        for host in made:
            host.unmake()
