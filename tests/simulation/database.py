"""A database that loses transactions, or the news of them, and is never anybody's alone.

The product opens its transactions as always; what happens to them is decided where it takes its
turn to write, and where the driver would commit.
"""

import shutil
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import TracebackType

import sqlalchemy as sa
from sqlalchemy import event, exc

from forgeyard.config import StoreConfig
from forgeyard.store import migrate
from forgeyard.store.engine import open_engine
from tests.conftest import _EMPTY
from tests.simulation.clock import VirtualTime, govern


class Mishap(StrEnum):
    """What becomes of a write transaction that does not simply succeed."""

    BROKEN = "database broke a transaction off"
    UNDONE = "database rolled back at commit"
    UNHEARD = "database committed and nobody heard"


class Turn:
    """Stands where the product waits for its turn to write."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] = lambda: None
        """Lets others act before the transaction begins."""
        self.draw: Callable[[], Mishap | None] = lambda: None
        """Decides what becomes of the next transaction."""
        self.mishap: Mishap | None = None
        self.left = 0
        """Statements until a transaction breaks off."""
        self.taken = 0
        """How many transactions began, so that one may see whether anything was written."""

    def __enter__(self) -> None:
        self.meanwhile()
        self.mishap, self.left = self.draw(), 3
        self.taken += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.mishap = None


class Database:
    """One database for many seeds, emptied in between."""

    def __init__(self, engine: sa.Engine, empty: Callable[[], None], time: VirtualTime) -> None:
        self.time = time
        self.turn = Turn()
        self._empty = empty
        self._bare = engine
        govern(engine, time)
        _spoil(engine, self.turn)
        self.engine = engine.execution_options(forgeyard_turn=self.turn)

    def restart(self) -> None:
        """Throw everything away, time included."""
        self._bare.dispose()
        self._empty()
        self.time.restart()

    def close(self) -> None:
        """Let the connections go."""
        self._bare.dispose()


def on_sqlite(folder: Path) -> Database:
    """Make a database in a folder."""
    template, path = folder / "template.db", folder / "simulated.db"
    made = open_engine(f"sqlite:///{template}", StoreConfig())
    migrate.upgrade(made)
    made.dispose()

    def empty() -> None:
        for leftover in folder.glob(f"{path.name}*"):
            leftover.unlink()
        shutil.copyfile(template, path)

    return Database(open_engine(f"sqlite:///{path}", StoreConfig()), empty, VirtualTime())


def on_postgresql(url: str) -> Database:
    """Use a database on a server, and everything in it: each seed begins by emptying it."""
    engine = open_engine(url, StoreConfig())
    migrate.upgrade(engine)

    def empty() -> None:
        bare = sa.create_engine(engine.url, poolclass=sa.NullPool)
        with bare.begin() as connection:
            for statement in _EMPTY:
                connection.execute(sa.text(statement))
            for sequence in connection.exec_driver_sql(_SEQUENCES).scalars().all():
                connection.exec_driver_sql(f"ALTER SEQUENCE {sequence} RESTART")
        bare.dispose()

    return Database(engine, empty, VirtualTime())


_SEQUENCES = "SELECT sequencename FROM pg_sequences WHERE schemaname = 'public'"


def _spoil(engine: sa.Engine, turn: Turn) -> None:
    """Let write transactions end the way their mishap says."""

    @event.listens_for(engine, "commit")
    def _commit(connection: sa.Connection) -> None:
        mishap = turn.mishap
        if mishap is None or not connection.get_execution_options().get("forgeyard_write"):
            return
        turn.mishap = None
        if mishap is Mishap.UNHEARD:
            connection.exec_driver_sql("COMMIT")
        raise _lost(mishap)

    @event.listens_for(engine, "before_cursor_execute")
    def _execute(*_: object) -> None:
        if turn.mishap is Mishap.BROKEN:
            turn.left -= 1
            if turn.left <= 0:
                turn.mishap = None
                raise _lost(Mishap.BROKEN)


def _lost(mishap: Mishap) -> exc.OperationalError:
    return exc.OperationalError(mishap.value, None, Exception(mishap.value))
