"""A copy of every row of a database, and putting it back: what a dump and its restore do."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from forgeyard.store import tables
from tests.unguarded import unguarded

Copy = Mapping[str, Sequence[Mapping[str, Any]]]


def take(engine: sa.Engine) -> Copy:
    """Copy every row, all of one instant."""
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            return {
                table.name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
                for table in tables.metadata.sorted_tables
            }


def put_back(engine: sa.Engine, copy: Copy) -> None:
    """Replace every row by the copied ones, and let numbers go on from there."""
    with engine.begin() as connection, unguarded(connection):
        for table in reversed(tables.metadata.sorted_tables):
            connection.execute(sa.delete(table))
        for table in tables.metadata.sorted_tables:
            rows = copy[table.name]
            if rows:
                connection.execute(sa.insert(table), list(rows))
            if connection.dialect.name == "postgresql":
                _number_on(connection, table)


def _number_on(connection: sa.Connection, table: sa.Table) -> None:
    for column in table.primary_key:
        sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
        if connection.execute(sa.select(sequence)).scalar() is not None:
            newest = sa.select(sa.func.coalesce(sa.func.max(column), 1)).scalar_subquery()
            connection.execute(sa.select(sa.func.setval(sequence, newest)))
