"""Scopes as the rule sees them: their shares and limits, and what their jobs hold.

What a scope uses is never stored: it is the sum over the reservations of its jobs (QUO-007).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from forgeyard.model.units import Bytes, MilliCpu, Resources
from forgeyard.scheduler.scopes import (
    ROOT,
    Charge,
    Quota,
    SchedulingScope,
    Tags,
    Usage,
    service,
)
from forgeyard.store import batch, bulk, codec, tables
from forgeyard.store.changes import Row

PATH = ("tenant_id", "organization_id", "project_id", "queue_id")
"""The columns that name a job's scopes, outermost first."""
_scopes, _reservations = tables.scopes, tables.reservations
_ALL = sa.select(_scopes)
_HOLDERS = (*PATH, "pool_id")
_SUMMED = ("cpu_milli", "memory_bytes")
_LIMITS = ("max_jobs", "max_cpu_milli", "max_memory_bytes")


def path_of(row: Row) -> tuple[str, str, str, str]:
    """Read the scopes of a job, outermost first."""
    tenant, organization, project, queue = (str(row[name]) for name in PATH)
    return (tenant, organization, project, queue)


def load(connection: sa.Connection) -> dict[str, SchedulingScope]:
    """Read every scope with what its jobs hold now."""
    rows = [dict(row) for row in connection.execute(_ALL).mappings()]
    return seen(rows, usage(connection) if are_limited(rows) else {})


def lock_for_refunds(connection: sa.Connection, jobs: Iterable[Row]) -> None:
    """Lock the scopes of jobs whose offers are to be ended, before any runner is locked.

    Whoever grants locks scopes first and runners after them.
    """
    named = {row[name] for row in jobs for name in PATH}
    if named:
        lock(connection, named)


def lock(connection: sa.Connection, named: Collection[str]) -> list[Row]:
    """Lock scopes and the root, outermost first, and read them."""
    texts = {"scope_ids": batch.rows_text(sorted({ROOT, *named}))}
    return batch.ask(connection, _lock(connection.dialect), texts)["scopes"]


@lru_cache(maxsize=32)
def _lock(dialect: sa.Dialect) -> batch.Batch:
    query = (
        sa.select(_scopes)
        .where(batch.among(dialect, _scopes.c.scope_id, "scope_ids"))
        .order_by(_scopes.c.level, _scopes.c.scope_id)
        .with_for_update()
    )
    return batch.questions_of(dialect, {"scopes": query})


def are_limited(rows: Iterable[Row]) -> bool:
    """Tell whether it matters what the jobs of these scopes hold."""
    return any(row[name] is not None for row in rows for name in _LIMITS)


def seen(rows: Iterable[Row], used: Mapping[str, Usage]) -> dict[str, SchedulingScope]:
    """Read rows of scopes, beside what their jobs hold."""
    return {row["scope_id"]: _scope(row, used) for row in rows}


def _scope(row: Row, used: Mapping[str, Usage]) -> SchedulingScope:
    cpu, memory = row["max_cpu_milli"], row["max_memory_bytes"]
    return SchedulingScope(
        scope_id=row["scope_id"],
        name=row["name"],
        kind=row["kind"],
        parent_id=row["parent_id"],
        weight=row["weight"],
        finish_tag=row["finish_tag"],
        clock=row["clock"],
        paused=bool(row["paused"]),
        note=row["note"] or "",
        quota=Quota(
            jobs=row["max_jobs"],
            cpu=None if cpu is None else MilliCpu(cpu),
            memory=None if memory is None else Bytes(memory),
            burst_percent=row["burst_percent"],
        ),
        used=used.get(row["scope_id"], Usage()),
    )


def usage(connection: sa.Connection) -> dict[str, Usage]:
    """Add up the reservations of every scope."""
    return added_up(dict(row) for row in connection.execute(usage_query()).mappings())


def usage_query() -> sa.Select[Any]:
    """Sum up the reservations of those who share all their scopes."""
    columns = [_reservations.c[name] for name in _HOLDERS]
    # Not as the decimals that PostgreSQL makes of sums.
    sums = (sa.cast(sa.func.sum(_reservations.c[name]), sa.BigInteger) for name in _SUMMED)
    labelled = (total.label(name) for total, name in zip(sums, _SUMMED, strict=True))
    return sa.select(*columns, sa.func.count().label("jobs"), *labelled).group_by(*columns)


def added_up(rows: Iterable[Row]) -> dict[str, Usage]:
    """Add the rows of `usage_query` up, by scope."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        for scope_id in (ROOT, *(row[name] for name in _HOLDERS)):
            total = sums.setdefault(scope_id, [0, 0, 0])
            for place, name in enumerate(("jobs", *_SUMMED)):
                total[place] += row[name]
    return {
        scope_id: Usage(jobs=jobs, cpu=MilliCpu(cpu), memory=Bytes(memory))
        for scope_id, (jobs, cpu, memory) in sums.items()
    }


def charge(
    scopes: Mapping[str, SchedulingScope], served: Iterable[tuple[Sequence[str], Resources]]
) -> tuple[list[tuple[Charge, ...]], list[Row]]:
    """Count service to locked scopes, in the order in which it was given.

    Tells each one's price, and what has to be written of which scopes.
    """
    tags = Tags(scopes)
    charges = [tags.charge(path, service(wanted)) for path, wanted in served]
    return charges, _changed(scopes, tags)


def refund(connection: sa.Connection, job: Row, lease: Row) -> None:
    """Take back what a job was charged whose offer came to nothing; nobody served it.

    Who holds the runner's lock already has taken these before, with `lock_for_refunds`.
    """
    if lease["charged"] is None:
        return  # granted by a release that charged nothing
    path = [job[name] for name in PATH]
    scopes = {row["scope_id"]: _scope(row, {}) for row in lock(connection, path)}
    tags = Tags(scopes)
    tags.refund(path, codec.decode(tuple[Charge, ...], lease["charged"]))
    bulk.update(connection, _scopes, _changed(scopes, tags), keys=("scope_id",))


def _changed(scopes: Mapping[str, SchedulingScope], tags: Tags) -> list[Row]:
    return [
        {"scope_id": name, "finish_tag": tags.finish[name], "clock": tags.clock[name]}
        for name, scope in scopes.items()
        if (tags.finish[name], tags.clock[name]) != (scope.finish_tag, scope.clock)
    ]
