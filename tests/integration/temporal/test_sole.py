"""One scheduler on a SQLite file: a second worker refuses to start, however the first one ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forgeyard.config import StoreConfig
from forgeyard.store import migrate
from forgeyard.store.engine import open_engine

pytestmark = pytest.mark.integration
Start = Callable[[str], subprocess.Popen]
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start workers as an operator does, with no Temporal to talk to; end them afterwards."""
    begun: list[subprocess.Popen] = []

    def begin(url: str) -> subprocess.Popen:
        environment = {
            **os.environ,
            "FORGEYARD_DATA_DIR": str(tmp_path),
            "FORGEYARD_STORE__URL": url,
            "FORGEYARD_TEMPORAL__ADDRESS": NOWHERE,
        }
        command = (sys.executable, "-m", "forgeyard.cli.main", "worker")
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.kill()
        process.wait(20)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def holder(file: Path) -> str:
    """Read which process says that it holds a database."""
    lock = file.with_name(f"{file.name}.worker.lock")
    return lock.read_text().strip() if lock.exists() else ""


def until_held(file: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 60
    while holder(file) != str(process.pid):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_second_worker_on_a_sqlite_file_refuses_and_the_next_one_after_a_kill_starts(
    start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "forgeyard.db"
    engine = open_engine(f"sqlite:///{file}", StoreConfig())
    migrate.upgrade(engine)
    engine.dispose()
    first = start(f"sqlite:///{file}")
    until_held(file, first)
    second = start(f"sqlite:///{file}")
    _, said = second.communicate(timeout=60)
    assert second.returncode == 4, said
    assert f"pid {first.pid}" in said
    assert "one scheduler" in said
    assert "PostgreSQL" in said
    assert first.poll() is None
    first.send_signal(signal.SIGKILL)
    first.wait(20)
    until_held(file, start(f"sqlite:///{file}"))


def test_several_workers_on_one_postgresql_server_are_welcome(
    start: Start, postgresql_url: str, tmp_path: Path
) -> None:
    workers = [start(postgresql_url) for _ in range(2)]
    for worker in workers:
        assert worker.stderr is not None
        assert "does not answer; trying again" in worker.stderr.readline()
    assert list(tmp_path.glob("*.lock")) == []
