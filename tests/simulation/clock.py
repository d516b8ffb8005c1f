"""Virtual time, which the database takes for its own; processes have clocks that mean nothing.

On SQLite `julianday` is replaced on every connection. On PostgreSQL a schema that is searched
before the built-in one has a `clock_timestamp` of its own, which every transaction sets.
"""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from unittest import mock

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import ConnectionPoolEntry

from forgeyard import clock

BEGINNING = 1_800_000_000_000
"""Where virtual time starts, in epoch milliseconds."""
_MS_PER_DAY = 86_400_000
_EPOCH = 2_440_587.5
_SIMULATED = (
    "CREATE SCHEMA IF NOT EXISTS simulated",
    "CREATE OR REPLACE FUNCTION simulated.clock_timestamp() RETURNS timestamptz LANGUAGE sql"
    " VOLATILE AS $$ SELECT to_timestamp(current_setting('simulated.now')::numeric / 1000) $$",
)


class VirtualTime:
    """The one time of a simulation; it only goes forward."""

    def __init__(self) -> None:
        self.now_ms = BEGINNING

    def restart(self) -> None:
        """Begin again, for another seed on the same database."""
        self.now_ms = BEGINNING

    def reach(self, at_ms: int) -> None:
        """Let time pass until then, unless it has."""
        self.now_ms = max(self.now_ms, at_ms)

    def julian(self, _moment: str) -> float:
        """Tell the time the way SQLite does."""
        return self.now_ms / _MS_PER_DAY + _EPOCH


def govern(engine: sa.Engine, time: VirtualTime) -> None:
    """Make a database take virtual time for its own; before its first connection."""
    if engine.dialect.name == "sqlite":
        _govern_sqlite(engine, time)
    else:
        _govern_postgresql(engine, time)


def _govern_sqlite(engine: sa.Engine, time: VirtualTime) -> None:
    @event.listens_for(engine, "connect")
    def _replace(connection: sqlite3.Connection, _record: ConnectionPoolEntry) -> None:
        connection.create_function("julianday", 1, time.julian)
        connection.execute("PRAGMA synchronous = OFF")  # nobody pulls the plug here


def _govern_postgresql(engine: sa.Engine, time: VirtualTime) -> None:
    with engine.begin() as connection:
        for statement in _SIMULATED:
            connection.exec_driver_sql(statement)
    engine.dispose()

    @event.listens_for(engine, "begin")
    def _tell(connection: sa.Connection) -> None:
        connection.exec_driver_sql(
            "SET LOCAL search_path = simulated, pg_catalog, public;"
            f" SET LOCAL simulated.now = '{time.now_ms}'"
        )


@contextmanager
def clocks_that_jump(seed: int) -> Iterator[None]:
    """Let the clock of this process jump to and fro at every look; nothing may depend on it."""
    rng = random.Random(f"{seed}/clocks")

    def somewhen() -> float:
        return rng.uniform(0, 4e9)

    def some_day() -> datetime:
        return datetime.fromtimestamp(somewhen(), UTC)

    with mock.patch.multiple(clock, now=some_day, monotonic=somewhen, boottime=somewhen):
        yield
