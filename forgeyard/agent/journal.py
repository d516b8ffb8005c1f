"""What an agent must remember when it dies: which leases it took, which processes it started.

A SQLite file in the work directory, with an exclusive lock beside it: two agents that shared a
work directory would kill each other's jobs.
"""

import fcntl
import os
import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from forgeyard.agent.process import GroupId
from forgeyard.errors import Conflict, Corrupt, Unavailable
from forgeyard.model.ids import LeaseId

REMEMBER = timedelta(days=1)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS leases (
    lease_id TEXT PRIMARY KEY,
    taken_at INTEGER NOT NULL,
    ended_at INTEGER
);
CREATE TABLE IF NOT EXISTS process_groups (
    lease_id TEXT NOT NULL REFERENCES leases(lease_id) ON DELETE CASCADE,
    pid INTEGER NOT NULL,
    started INTEGER NOT NULL,
    boot TEXT NOT NULL,
    PRIMARY KEY (lease_id, pid, started)
);
CREATE TABLE IF NOT EXISTS store_mark (
    name TEXT PRIMARY KEY,
    mark TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A lease that an earlier agent took and never ended, and the groups it started."""

    lease_id: LeaseId
    groups: tuple[GroupId, ...]


class Journal:
    """The file, open and locked; every method may be called from any thread."""

    def __init__(self, work_dir: Path) -> None:
        """Open the journal of a work directory.

        Raises:
            Conflict: another agent uses this work directory.
            Corrupt: the file is not a journal.
        """
        self._lock_file = _private(work_dir / "lock")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock_file.close()
            raise Conflict(
                f"another agent works in {work_dir}",
                field="agent.work_dir",
                value=work_dir,
                allowed="a directory of its own for every agent",
            ) from None
        self._mutex = threading.Lock()
        # Made first, for the database and the files beside it take its mode.
        _private(work_dir / "journal.db").close()
        self._database = sqlite3.connect(
            work_dir / "journal.db", isolation_level=None, check_same_thread=False
        )
        try:
            self._set_up()
        except Corrupt:
            self.close()
            raise

    def _set_up(self) -> None:
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute("PRAGMA foreign_keys = ON")
            self._database.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise Corrupt(f"the agent's journal cannot be read: {error}") from error

    def __enter__(self) -> Self:
        """Hold the work directory."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the work directory go."""
        self.close()

    def close(self) -> None:
        """Close the file and release the lock."""
        self._database.close()
        self._lock_file.close()

    def take(self, lease_id: LeaseId, *, now: datetime) -> bool:
        """Remember a lease before anything is done for it; False if it was taken before."""
        with self._writing() as database:
            result = database.execute(
                "INSERT INTO leases (lease_id, taken_at) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (lease_id, _millis(now)),
            )
            return result.rowcount == 1

    def knows(self, lease_id: LeaseId) -> bool:
        """Tell whether a lease was taken within the last day."""
        with self._writing() as database:
            query = "SELECT 1 FROM leases WHERE lease_id = ?"
            return database.execute(query, (lease_id,)).fetchone() is not None

    def started(self, lease_id: LeaseId, group: GroupId) -> None:
        """Remember a process group of a lease."""
        with self._writing() as database:
            database.execute(
                "INSERT OR REPLACE INTO process_groups VALUES (?, ?, ?, ?)",
                (lease_id, group.pid, group.started, group.boot),
            )

    def ended(self, lease_id: LeaseId, *, now: datetime) -> None:
        """Note that nothing of a lease is left on this host, and forget the old ones."""
        with self._writing() as database:
            database.execute("DELETE FROM process_groups WHERE lease_id = ?", (lease_id,))
            database.execute(
                "UPDATE leases SET ended_at = ? WHERE lease_id = ?", (_millis(now), lease_id)
            )
            database.execute("DELETE FROM leases WHERE ended_at < ?", (_millis(now - REMEMBER),))

    def keep_mark(self, mark: str) -> None:
        """Remember the newest mark of the server's store: an older store does not know it."""
        with self._writing() as database:
            database.execute("INSERT OR REPLACE INTO store_mark VALUES ('newest', ?)", (mark,))

    def mark(self) -> str:
        """Tell the mark that was kept last; empty if there is none."""
        with self._writing() as database:
            row = database.execute("SELECT mark FROM store_mark").fetchone()
            return "" if row is None else str(row[0])

    def leftovers(self) -> tuple[Leftover, ...]:
        """List the leases that never ended."""
        with self._writing() as database:
            leases = database.execute(
                "SELECT lease_id FROM leases WHERE ended_at IS NULL ORDER BY taken_at"
            ).fetchall()
            return tuple(
                Leftover(lease_id=LeaseId(lease_id), groups=_groups(database, lease_id))
                for (lease_id,) in leases
            )

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        with self._mutex:
            try:
                with self._database:
                    self._database.execute("BEGIN IMMEDIATE")
                    yield self._database
            except sqlite3.OperationalError as error:
                raise Unavailable(f"the agent's journal cannot be written: {error}") from error


def _private(path: Path) -> BinaryIO:
    """Open a file for writing that nobody else may read, and leave what is in it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "wb")


def _groups(database: sqlite3.Connection, lease_id: str) -> tuple[GroupId, ...]:
    rows = database.execute(
        "SELECT pid, started, boot FROM process_groups WHERE lease_id = ?", (lease_id,)
    )
    return tuple(GroupId(pid=pid, started=started, boot=boot) for pid, started, boot in rows)


def _millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
