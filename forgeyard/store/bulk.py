"""Writing many rows in one statement on PostgreSQL, and in one prepared statement on SQLite.

PostgreSQL takes each column as one array, so the statement is the same text for every batch size.
"""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql


def insert(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, object]]
) -> None:
    """Insert rows that all name the same columns."""
    if not rows:
        return
    if connection.dialect.name != "postgresql":
        connection.execute(sa.insert(table), [dict(row) for row in rows])
        return
    names = list(rows[0])
    arrays = sa.select(*(sa.func.unnest(_array(table, name)) for name in names))
    connection.execute(
        sa.insert(table).from_select(names, arrays, include_defaults=False), _columns(rows, names)
    )


def update(
    connection: sa.Connection,
    table: sa.Table,
    rows: Sequence[Mapping[str, object]],
    *,
    keys: Sequence[str],
) -> None:
    """Set the other columns of each row where its keys match; all rows name the same columns."""
    if not rows:
        return
    names = list(rows[0])
    values = [name for name in names if name not in keys]
    if connection.dialect.name != "postgresql":
        statement = (
            sa.update(table)
            .where(*(table.c[name] == sa.bindparam(_renamed(name)) for name in keys))
            .values({name: sa.bindparam(_renamed(name)) for name in values})
        )
        connection.execute(
            statement, [{_renamed(name): row[name] for name in names} for row in rows]
        )
        return
    given = sa.select(
        *(sa.func.unnest(_array(table, name)).label(name) for name in names)
    ).subquery("given")
    statement = (
        sa.update(table)
        .where(*(table.c[name] == given.c[name] for name in keys))
        .values({name: given.c[name] for name in values})
    )
    connection.execute(statement, _columns(rows, names))


def _array(table: sa.Table, name: str) -> sa.ColumnElement[Sequence[object]]:
    kind: postgresql.ARRAY[object] = postgresql.ARRAY(table.c[name].type)
    return sa.bindparam(_renamed(name), type_=kind)


def _columns(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> dict[str, list[object]]:
    return {_renamed(name): [row[name] for row in rows] for name in names}


def _renamed(name: str) -> str:
    """Avoid the parameter names that SQLAlchemy keeps for a table's own columns."""
    return f"given_{name}"
