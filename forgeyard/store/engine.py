"""Connections, transactions and the database's clock, alike on PostgreSQL and SQLite.

A write transaction on SQLite begins IMMEDIATE, so it is alone; on PostgreSQL callers lock rows in
the order scopes, run, jobs by id, lease and attempt, runners by id, wake.
"""

import sqlite3
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, TypeAlias, cast

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from forgeyard.config import StoreConfig
from forgeyard.errors import AccountingCorrupt, StoreUnavailable

_WRITE = "forgeyard_write"
_PRINCIPAL = "forgeyard_principal"
# Threads of one process take turns here: SQLite's own waiting backs off for seconds under load.
_TURN = "forgeyard_turn"
# A host that vanished is given up in half a minute, not in the kernel's quarter of an hour.
DEAD_PEER: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_Turn: TypeAlias = AbstractContextManager[object]


class now_ms(GenericFunction[int]):
    """The database's clock in epoch milliseconds, read when the statement runs."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(now_ms, "postgresql")
def _now_postgresql(_element: now_ms, _compiler: SQLCompiler, **_options: object) -> str:
    return "(extract(epoch from clock_timestamp()) * 1000)::bigint"


@compiles(now_ms, "sqlite")
def _now_sqlite(_element: now_ms, _compiler: SQLCompiler, **_options: object) -> str:
    return "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


_NOW = sa.select(now_ms())


def database_now(connection: sa.Connection) -> int:
    """Read the clock that decides about every deadline."""
    return int(connection.execute(_NOW).scalar_one())


def open_engine(url: str, config: StoreConfig) -> sa.Engine:
    """Open a pool on a database; nothing is created or migrated."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(parsed, config)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    limits = (
        f"-c statement_timeout={config.statement_timeout_ms}"
        f" -c lock_timeout={config.lock_timeout_ms}"
        f" -c idle_in_transaction_session_timeout={config.idle_timeout_ms}"
        # Nearly everything is looked up by its key; without this a hundred rows of two thousand
        # are found by reading the whole table.
        " -c random_page_cost=1.1"
    )
    return sa.create_engine(
        parsed,
        pool_size=config.pool,
        max_overflow=0,
        pool_timeout=config.lock_timeout_ms / 1000,
        pool_pre_ping=True,
        connect_args={"options": limits, "connect_timeout": 5, **DEAD_PEER},
    )


def _open_sqlite(url: sa.URL, config: StoreConfig) -> sa.Engine:
    engine = sa.create_engine(
        url,
        pool_size=config.pool,
        max_overflow=0,
        connect_args={"isolation_level": None, "timeout": config.busy_timeout_ms / 1000},
        execution_options={_TURN: threading.Lock()},
    )

    @event.listens_for(engine, "connect")
    def _set_up(connection: sqlite3.Connection, _record: ConnectionPoolEntry) -> None:  # pyright: ignore[reportUnusedFunction]
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        writes = connection.get_execution_options().get(_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextmanager
def write(engine: sa.Engine, *, principal: str = "") -> Generator[sa.Connection]:
    """Open one write transaction; commit at the end, roll back on any error.

    Lines that it writes into the audit trail name the principal whose token it acts for.

    Raises:
        StoreUnavailable: the database is down, too busy, or broke a deadlock; try again.
        AccountingCorrupt: a constraint that backs up our own arithmetic fired.
    """
    turn = cast("_Turn", engine.get_execution_options().get(_TURN, nullcontext()))
    with _translated(), turn, engine.connect() as connection:
        connection.execution_options(**{_WRITE: True, _PRINCIPAL: principal})
        with connection.begin():
            yield connection


def principal_of(connection: sa.Connection) -> str:
    """Tell for whom a transaction was opened; empty if the system acts by itself."""
    return str(connection.get_execution_options().get(_PRINCIPAL, ""))


@contextmanager
def read(engine: sa.Engine) -> Generator[sa.Connection]:
    """Open one read transaction: on SQLite a snapshot, on PostgreSQL read committed.

    Raises:
        StoreUnavailable: the database is down or too busy; try again.
    """
    with _translated(), engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        raise StoreUnavailable(f"the database does not answer: {_first_line(error)}") from error
    except exc.IntegrityError as error:
        if "reserved_not_negative" in str(error):
            raise AccountingCorrupt("a runner would hold less than nothing") from error
        raise
    except exc.DBAPIError as error:
        if error.connection_invalidated:  # such as after having idled in a transaction
            raise StoreUnavailable(f"the database hung up: {_first_line(error)}") from error
        raise


def _first_line(error: Exception) -> str:
    return str(error.__cause__ or error).splitlines()[0]
