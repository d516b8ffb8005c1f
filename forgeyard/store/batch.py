"""Statements that are built once and sent together: on PostgreSQL in one round trip.

What they are about comes as JSON texts, so that neither a statement nor the number of statements
depends on how much there is. SQLite, which is in the process, runs them one after the other.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from forgeyard.store import codec
from forgeyard.store.changes import Row

Query: TypeAlias = sa.Select[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Statements for one kind of database; `parameters` are those that never change."""

    text: str = ""
    """All of them as one, for PostgreSQL."""
    parameters: Mapping[str, object] = field(default_factory=dict[str, object])
    each: tuple[tuple[str, sa.Executable], ...] = ()
    """By name and in order, for SQLite."""


def given(
    dialect: sa.Dialect,
    name: str,
    *,
    texts: Sequence[str] = (),
    numbers: Sequence[str] = (),
    objects: Sequence[str] = (),
) -> sa.CTE:
    """Present a parameter, which `rows_text` wrote, as a table; objects come as their JSON text."""
    parameter = sa.bindparam(name, type_=sa.Text())
    if dialect.name == "postgresql":
        typed: tuple[sa.ColumnClause[Any], ...] = (
            *(sa.column(column, sa.Text()) for column in texts),
            *(sa.column(column, sa.BigInteger()) for column in numbers),
            *(sa.column(column, postgresql.JSON()) for column in objects),
        )
        table = sa.func.json_to_recordset(sa.cast(parameter, postgresql.JSON()))
        rows = table.table_valued(*typed).render_derived(name=f"{name}_rows", with_types=True)
        plain = (rows.c[column] for column in (*texts, *numbers))
        written = (sa.cast(rows.c[column], sa.Text()).label(column) for column in objects)
        return sa.select(*plain, *written).cte(name)
    value = sa.func.json_each(parameter).table_valued("value").c.value
    columns = (*texts, *numbers, *objects)
    taken = (sa.func.json_extract(value, f"$.{column}").label(column) for column in columns)
    return sa.select(*taken).cte(name)


def among(dialect: sa.Dialect, column: sa.ColumnElement[str], name: str) -> sa.ColumnElement[bool]:
    """Compare a column with the texts of a parameter, which is a JSON array."""
    text = sa.bindparam(name, type_=sa.Text())
    if dialect.name == "postgresql":
        each = sa.func.json_array_elements_text(sa.cast(text, postgresql.JSON()))
        return column == sa.any_(sa.func.array(sa.select(each.column_valued()).scalar_subquery()))
    return column.in_(sa.select(sa.func.json_each(text).table_valued("value").c.value))


def changes_of(dialect: sa.Dialect, statements: Sequence[sa.UpdateBase]) -> Batch:
    """Prepare changes that see the rows as they were before all of them, in either database.

    On SQLite that is up to their order: who reads a row comes before whoever changes it.
    """
    if dialect.name != "postgresql":
        return Batch(each=tuple((str(place), one) for place, one in enumerate(statements)))
    parts = [one.cte(f"change_{place}") for place, one in enumerate(statements)]
    return _compiled(dialect, sa.select(sa.literal_column("1", sa.Integer())).add_cte(*parts))


def questions_of(dialect: sa.Dialect, queries: Mapping[str, Query]) -> Batch:
    """Prepare queries that are all asked, and answered in this order."""
    if dialect.name != "postgresql":
        return Batch(each=tuple(queries.items()))
    answers = [
        sa.select(
            sa.literal_column(f"'{name}'", sa.Text()).label("name"),
            sa.select(sa.cast(sa.func.json_agg(sa.column(name)), sa.Text()))
            .select_from(query.subquery(name))
            .scalar_subquery()
            .label("answer"),
        )
        for name, query in queries.items()
    ]
    return _compiled(dialect, sa.union_all(*answers))


def _compiled(dialect: sa.Dialect, statement: sa.ClauseElement) -> Batch:
    """Compile for good: even to look a long statement up takes longer than to run it."""
    compiled = statement.compile(dialect=dialect)
    return Batch(text=str(compiled), parameters=dict(compiled.params or {}))


def change(connection: sa.Connection, batch: Batch, parameters: Mapping[str, object]) -> None:
    """Make all changes of a batch."""
    if batch.text:
        connection.exec_driver_sql(batch.text, {**batch.parameters, **parameters})
    for _, statement in batch.each:
        connection.execute(statement, parameters)


def ask(
    connection: sa.Connection, batch: Batch, parameters: Mapping[str, object]
) -> dict[str, list[Row]]:
    """Ask all queries of a batch; the rows are given under the queries' names."""
    if batch.text:
        found = connection.exec_driver_sql(batch.text, {**batch.parameters, **parameters})
        return {name: json.loads(rows or "[]") for name, rows in found}
    return {
        name: [dict(row) for row in connection.execute(query, parameters).mappings()]
        for name, query in batch.each
    }


def rows_text(rows: Sequence[Mapping[str, object]] | Sequence[str]) -> str:
    """Write rows, or texts, as a parameter."""
    return codec.encode(rows)
