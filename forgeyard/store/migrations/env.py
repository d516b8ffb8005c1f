"""Run by Alembic: apply revisions on the connection that `forgeyard.store.migrate` hands over."""

import sqlalchemy as sa
from alembic import context

from forgeyard.store import tables

# Any number that nobody else locks; it makes processes that start together migrate in turn.
ADVISORY_LOCK = 4_702_111_834


def migrate(connection: sa.Connection) -> None:
    """Apply the revisions, on PostgreSQL alone and with every statement bounded."""
    if connection.dialect.name != "postgresql":
        _apply(connection)
        return
    _take_turn(connection)
    try:
        _apply(connection)
    finally:
        connection.rollback()
        _run(connection, "RESET lock_timeout", "RESET statement_timeout")
        _run(connection, f"SELECT pg_advisory_unlock({ADVISORY_LOCK})")


def _take_turn(connection: sa.Connection) -> None:
    """Wait long for our turn, but never long for a table: the others have work to do."""
    _run(connection, "SET lock_timeout = '60s'", "SET statement_timeout = '60s'")
    _run(connection, f"SELECT pg_advisory_lock({ADVISORY_LOCK})")
    _run(connection, "SET lock_timeout = '4s'", "SET statement_timeout = '5s'")


def _run(connection: sa.Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(sa.text(statement))
    connection.commit()


def _apply(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=tables.metadata,
        transaction_per_migration=True,
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()


migrate(context.config.attributes["connection"])
