"""Past the triggers that keep the audit trail: for tests that put back a database, or harm it."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

_TRIGGERS = sa.text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")


@contextmanager
def unguarded(connection: sa.Connection) -> Iterator[None]:
    """Let a block do within its transaction what only an owner of the database can."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SET LOCAL session_replication_role = replica"))
        yield
        connection.execute(sa.text("SET LOCAL session_replication_role = origin"))
        return
    triggers = connection.execute(_TRIGGERS).all()
    for name, _ in triggers:
        connection.execute(sa.text(f"DROP TRIGGER {name}"))
    yield
    for _, statement in triggers:
        connection.exec_driver_sql(statement)
