"""A Temporal development server as a child process, for tests that also need it to be away."""

import socket
import subprocess
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

from worker.standalone import TEMPORAL_TUNING


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(kw_only=True)
class Server:
    """The embedded server on a port of its own; in memory unless it is given a file."""

    port: int = field(default_factory=free_port)
    file: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Tell where it listens."""
        return f"127.0.0.1:{self.port}"

    def start(self, *, within_s: float = 30.0) -> None:
        """Start it and wait until it serves, which is later than that it listens."""
        binary = Path(sysconfig.get_path("scripts")) / "temporal"
        command = [str(binary), "server", "start-dev", "--headless", "--log-level", "never"]
        command += ["--ip", "127.0.0.1", "--port", str(self.port)]
        for setting in TEMPORAL_TUNING:
            command += ["--dynamic-config-value", setting]
        if self.file:
            command += ["--db-filename", str(self.file), "--sqlite-pragma", "journal_mode=wal"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        deadline = time.monotonic() + within_s
        while not (self._listens() and self._is_healthy(binary)):
            assert self.process.poll() is None, "the Temporal server ended"
            assert time.monotonic() < deadline, "the Temporal server does not serve"
            time.sleep(0.02)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _is_healthy(self, binary: Path) -> bool:
        ask = [str(binary), "operator", "cluster", "health", "--address", self.address]
        return subprocess.run(ask, capture_output=True, timeout=30, check=False).returncode == 0
