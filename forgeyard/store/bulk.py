"""Writing many rows of texts and numbers in one statement, or on SQLite one prepared statement.

PostgreSQL takes all rows as one JSON parameter, so the statement is the same for every size of
batch; dumping arrays in the driver cost three times as much.
"""

import json
from collections.abc import Collection, Mapping, Sequence

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
    given = _given(table, names)
    chosen = sa.select(*(given.c[name] for name in names))
    statement = sa.insert(table).from_select(names, chosen, include_defaults=False)
    connection.execute(statement, {"given_rows": _dumped(rows)})


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
            .where(*(table.c[name] == sa.bindparam(f"given_{name}") for name in keys))
            .values({name: sa.bindparam(f"given_{name}") for name in values})
        )
        connection.execute(
            statement, [{f"given_{name}": row[name] for name in names} for row in rows]
        )
        return
    given = _given(table, names)
    statement = (
        sa.update(table)
        .where(*(table.c[name] == given.c[name] for name in keys))
        .values({name: given.c[name] for name in values})
    )
    connection.execute(statement, {"given_rows": _dumped(rows)})


def among(
    connection: sa.Connection, column: sa.ColumnElement[str], values: Collection[str]
) -> sa.ColumnElement[bool]:
    """Compare a column of texts with many values, in the same statement however many there are."""
    if connection.dialect.name != "postgresql":
        return column.in_(values)
    array: postgresql.ARRAY[str] = postgresql.ARRAY(sa.Text())
    return column == sa.any_(sa.literal(list(values), array))


def among_given(dialect: str, column: sa.ColumnElement[str], name: str) -> sa.ColumnElement[bool]:
    """Compare a column of texts with a parameter of many, in a statement that is built once."""
    if dialect != "postgresql":
        return column.in_(sa.bindparam(name, expanding=True))
    array: postgresql.ARRAY[str] = postgresql.ARRAY(sa.Text())
    return column == sa.any_(sa.bindparam(name, type_=array))


def _given(table: sa.Table, names: Sequence[str]) -> sa.TableValuedAlias:
    """Present the parameter as a table with these columns of the real one."""
    rows = sa.cast(sa.bindparam("given_rows", type_=sa.Text()), postgresql.JSON())
    columns = (sa.column(name, table.c[name].type) for name in names)
    return (
        sa.func.json_to_recordset(rows)
        .table_valued(*columns)
        .render_derived(name="given", with_types=True)
    )


def _dumped(rows: Sequence[Mapping[str, object]]) -> str:
    return json.dumps([dict(row) for row in rows], ensure_ascii=False, separators=(",", ":"))
