"""The only ways to change a row that has a state, and what every change leaves behind.

A transition checks its table, expects the version it read, and writes history in the same
transaction; outbox events, deadlines and wakes are written beside it by the caller.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from forgeyard.errors import Conflict, NotFound
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.image import ImageState, RolloutState
from forgeyard.model.transitions import (
    ATTEMPT_TRANSITIONS,
    CAPACITY_TRANSITIONS,
    IMAGE_TRANSITIONS,
    JOB_TRANSITIONS,
    LEASE_TRANSITIONS,
    ROLLOUT_TRANSITIONS,
    RUN_TRANSITIONS,
    SESSION_TRANSITIONS,
    AttemptState,
    JobState,
    LeaseState,
    RunState,
    SessionState,
    check,
)
from forgeyard.redaction import redacted
from forgeyard.store import fleet_tables, image_tables, tables
from forgeyard.store.engine import principal_of

Row = Mapping[str, Any]


class DeadlineKind(StrEnum):
    """What happens to its entity when a deadline row is due."""

    QUEUE = "queue"  # a job waited too long
    PREPARATION = "preparation"  # an attempt
    EXECUTION = "execution"  # an attempt
    UPLOAD = "upload"  # an attempt
    SETTLE = "settle"  # an attempt ended and nobody settled it
    RETRY = "retry"  # a job may be tried again
    RUN = "run"  # a run took too long
    MAINTENANCE = "maintenance"  # of a pool is over
    HELD = "held"  # look whether a run still waits for another of its concurrency group


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A table whose rows have a state."""

    name: str
    table: sa.Table
    key: str
    states: type[StrEnum]
    transitions: Mapping[Any, frozenset[Any]]

    def state(self, row: Row) -> StrEnum:
        """Read a row's state as its enum."""
        return self.states(row["state"])


RUN = Kind(
    name="run", table=tables.runs, key="run_id", states=RunState, transitions=RUN_TRANSITIONS
)
JOB = Kind(
    name="job", table=tables.jobs, key="job_id", states=JobState, transitions=JOB_TRANSITIONS
)
ATTEMPT = Kind(
    name="attempt",
    table=tables.attempts,
    key="attempt_id",
    states=AttemptState,
    transitions=ATTEMPT_TRANSITIONS,
)
LEASE = Kind(
    name="lease",
    table=tables.leases,
    key="lease_id",
    states=LeaseState,
    transitions=LEASE_TRANSITIONS,
)
SESSION = Kind(
    name="session",
    table=tables.sessions,
    key="session_id",
    states=SessionState,
    transitions=SESSION_TRANSITIONS,
)
INSTANCE = Kind(
    name="instance",
    table=fleet_tables.capacity_instances,
    key="instance_id",
    states=CapacityInstanceState,
    transitions=CAPACITY_TRANSITIONS,
)
IMAGE = Kind(
    name="image",
    table=image_tables.runner_images,
    key="digest",
    states=ImageState,
    transitions=IMAGE_TRANSITIONS,
)
ROLLOUT = Kind(
    name="rollout",
    table=image_tables.fleet_rollouts,
    key="rollout_id",
    states=RolloutState,
    transitions=ROLLOUT_TRANSITIONS,
)


def move(
    connection: sa.Connection,
    kind: Kind,
    row: Row,
    after: StrEnum,
    *,
    reason: str,
    now: int,
    **values: object,
) -> Row:
    """Change one row's state, with its history; return the row as it is now.

    Raises:
        IllegalTransition: the table does not list this arrow.
        Conflict: the row is not at the version that was read.
    """
    check(kind.transitions, kind.state(row), after)
    changed = {"state": after.value, "version": row["version"] + 1, **values}
    result = connection.execute(
        _move_one(kind.table, kind.key, tuple(changed)),
        {"own_key": row[kind.key], "own_version": row["version"], **changed},
    )
    if result.rowcount != 1:
        raise Conflict(f"{kind.name} {row[kind.key]} changed meanwhile", field="version")
    moved = {**row, **changed}
    connection.execute(
        sa.insert(tables.history),
        [_history(kind, moved, before=row["state"], reason=reason, now=now)],
    )
    return moved


@lru_cache(maxsize=256)
def _move_one(table: sa.Table, key: str, names: tuple[str, ...]) -> sa.Update:
    same_version = table.c.version == sa.bindparam("own_version")
    return update_of(table, key, names).where(same_version)


@lru_cache(maxsize=256)
def update_of(table: sa.Table, key: str, names: tuple[str, ...]) -> sa.Update:
    """Build a statement once, for that takes longer than to run it: `own_key` says which row."""
    return (
        sa.update(table)
        .where(table.c[key] == sa.bindparam("own_key"))
        .values({name: sa.bindparam(name) for name in names})
    )


def move_all(
    connection: sa.Connection,
    kind: Kind,
    rows: Sequence[Row],
    after: StrEnum,
    *,
    reason: str,
    now: int,
    **values: object,
) -> list[Row]:
    """Change many rows alike, in two statements; return them as they are now.

    Raises:
        IllegalTransition: the table does not list one of these arrows.
        Conflict: a row is not at the version that was read.
    """
    if not rows:
        return []
    for row in rows:
        check(kind.transitions, kind.state(row), after)
    table = kind.table
    read = [(row[kind.key], row["version"]) for row in rows]
    changed = {"state": after.value, "version": table.c.version + 1, **values}
    result = connection.execute(
        sa.update(table)
        .where(sa.tuple_(table.c[kind.key], table.c.version).in_(read))
        .values(changed)
    )
    if result.rowcount != len(rows):
        raise Conflict(f"some {kind.name} among {len(rows)} changed meanwhile", field="version")
    moved: list[Row] = [
        {**row, "state": after.value, "version": row["version"] + 1, **values} for row in rows
    ]
    befores = [row["state"] for row in rows]
    lines = [
        _history(kind, row, before=before, reason=reason, now=now)
        for row, before in zip(moved, befores, strict=True)
    ]
    connection.execute(sa.insert(tables.history), lines)
    return moved


def born(
    connection: sa.Connection, kind: Kind, rows: Sequence[Row], *, reason: str, now: int
) -> None:
    """Insert new rows of one kind together with the first line of their history."""
    if not rows:
        return
    connection.execute(sa.insert(kind.table), [dict(row) for row in rows])
    connection.execute(
        sa.insert(tables.history),
        [
            _history(kind, {"version": 1, **row}, before=None, reason=reason, now=now)
            for row in rows
        ],
    )


def _history(
    kind: Kind, row: Row, *, before: str | None, reason: str, now: int
) -> dict[str, object]:
    return {
        "kind": kind.name,
        "entity_id": row[kind.key],
        "run_id": row.get("run_id"),
        "before": before,
        "after": str(row["state"]),
        "version": row["version"],
        "reason": reason,
        "at": now,
    }


def find(connection: sa.Connection, kind: Kind, key: str, *, lock: bool = False) -> Row:
    """Read one row, locked against others until the transaction ends if asked.

    Raises:
        NotFound: there is no such row.
    """
    query = _locked(kind.table, kind.key) if lock else _found(kind.table, kind.key)
    row = connection.execute(query, {"own_key": key}).mappings().one_or_none()
    if row is None:
        raise NotFound(f"no {kind.name} {key}", field=f"{kind.name}_id", value=key)
    return dict(row)


def part_of(connection: sa.Connection, kind: Kind, key: str, name: str) -> str:
    """Read one text of a row that never changes; a whole row costs many times as much.

    Raises:
        NotFound: there is no such row.
    """
    query = _part(kind.table, kind.key, name)
    found = connection.execute(query, {"own_key": key}).scalar_one_or_none()
    if found is None:
        raise NotFound(f"no {kind.name} {key}", field=f"{kind.name}_id", value=key)
    return str(found)


@lru_cache(maxsize=32)
def _part(table: sa.Table, key: str, name: str) -> sa.Select[Any]:
    return _found(table, key).with_only_columns(table.c[name])


@lru_cache(maxsize=32)
def _found(table: sa.Table, key: str) -> sa.Select[Any]:
    return sa.select(table).where(table.c[key] == sa.bindparam("own_key"))


@lru_cache(maxsize=32)
def _locked(table: sa.Table, key: str) -> sa.Select[Any]:
    return _found(table, key).with_for_update()


def lock_run_and_job(connection: sa.Connection, job_id: str) -> tuple[Row, Row]:
    """Lock a job's run, then the job: the order that every transition keeps."""
    run_id = part_of(connection, JOB, job_id, "run_id")
    return find(connection, RUN, run_id, lock=True), find(connection, JOB, job_id, lock=True)


def emit(
    connection: sa.Connection, *, stream: str, kind: str, payload: Mapping[str, Any], now: int
) -> str:
    """Append an event to a stream's outbox; the caller holds the lock that orders the stream."""
    outbox = tables.outbox
    highest = sa.select(sa.func.coalesce(sa.func.max(outbox.c.sequence), 0)).where(
        outbox.c.stream == stream
    )
    sequence = connection.execute(highest).scalar_one() + 1
    event_id = f"evt_{stream}_{sequence}"
    connection.execute(
        sa.insert(outbox).values(
            event_id=event_id,
            stream=stream,
            sequence=sequence,
            kind=kind,
            payload=json.dumps(payload, separators=(",", ":")),
            created_at=now,
        )
    )
    return event_id


def upsert(
    connection: sa.Connection,
    table: sa.Table,
    values: Mapping[str, Any],
    *,
    changes: Mapping[str, Any],
    keys: Sequence[str] = (),
) -> None:
    """Insert a row, or apply `changes` to the one that has its keys (or primary key) already.

    An expression among the changes is best built once, for then the statement is, too.
    """
    upsert_all(connection, table, [values], changes=changes, keys=keys)


def upsert_all(
    connection: sa.Connection,
    table: sa.Table,
    rows: Sequence[Mapping[str, Any]],
    *,
    changes: Mapping[str, Any],
    keys: Sequence[str] = (),
) -> None:
    """Insert rows that all name the same columns, or apply `changes` to those that are there."""
    if not rows:
        return
    plain = {x: value for x, value in changes.items() if not isinstance(value, sa.ColumnElement)}
    computed = tuple((x, value) for x, value in changes.items() if x not in plain)
    statement = _upsert_of(
        connection.dialect.name, table, tuple(rows[0]), tuple(plain), computed, tuple(keys)
    )
    new = {f"new_{name}": value for name, value in plain.items()}
    given = [{f"own_{name}": value for name, value in row.items()} | new for row in rows]
    connection.execute(statement, given if len(given) > 1 else given[0])


@lru_cache(maxsize=256)
def _upsert_of(
    dialect_name: str,
    table: sa.Table,
    names: tuple[str, ...],
    plain: tuple[str, ...],
    computed: tuple[tuple[str, sa.ColumnElement[Any]], ...],
    keys: tuple[str, ...],
) -> sa.Insert:
    dialect = postgresql if dialect_name == "postgresql" else sqlite
    keys = keys or tuple(column.name for column in table.primary_key)
    statement: postgresql.Insert | sqlite.Insert = dialect.insert(table).values(
        {x: sa.bindparam(f"own_{x}") for x in names}
    )
    changes: dict[str, sa.ColumnElement[Any]] = dict(computed)
    changes |= {x: sa.bindparam(f"new_{x}") for x in plain}
    return (
        statement.on_conflict_do_update(index_elements=keys, set_=changes)
        if changes
        else statement.on_conflict_do_nothing(index_elements=keys)
    )


def set_deadline(
    connection: sa.Connection, kind: DeadlineKind, entity_id: str, *, partition: str, due_at: int
) -> None:
    """Write or move one deadline of an entity."""
    row = {"kind": kind.value, "entity_id": entity_id, "partition": partition, "due_at": due_at}
    upsert(connection, tables.deadlines, row, changes={"due_at": due_at})


_CLEAR = sa.delete(tables.deadlines).where(
    tables.deadlines.c.entity_id == sa.bindparam("entity"),
    tables.deadlines.c.kind.in_(sa.bindparam("kinds", expanding=True)),
)


def clear_deadlines(connection: sa.Connection, entity_id: str, *kinds: DeadlineKind) -> None:
    """Forget the named deadlines of an entity."""
    named = {"entity": entity_id, "kinds": [kind.value for kind in kinds]}
    connection.execute(_CLEAR, named)


def wake(connection: sa.Connection, partition: str, *, reason: str) -> None:
    """Ask the partition's loop to look again; call it last, for the row is hot."""
    upsert(
        connection,
        tables.wakes,
        {"partition": partition, "generation": 1, "reason": reason},
        changes={"generation": _NEXT_WAKE, "reason": reason},
    )


_NEXT_WAKE = tables.wakes.c.generation + 1


def wake_if_waiting(connection: sa.Connection, partition: str, *, reason: str) -> None:
    """Wake the loop only if some job could use what has just become free."""
    if connection.execute(_WAITING_IN, {"own": partition}).first() is not None:
        wake(connection, partition, reason=reason)


def wake_all_waiting(connection: sa.Connection, *, reason: str) -> None:
    """Wake every partition with jobs that wait, for what changed may serve any of them."""
    for partition in connection.execute(_WAITING).scalars().all():
        wake(connection, partition, reason=reason)


_jobs = tables.jobs
_ELIGIBLE = _jobs.c.state == JobState.ELIGIBLE.value
_WAITING = sa.select(_jobs.c.partition).where(_ELIGIBLE).distinct().order_by(_jobs.c.partition)
_WAITING_IN = (
    sa.select(_jobs.c.job_id).where(_jobs.c.partition == sa.bindparam("own"), _ELIGIBLE).limit(1)
)


def audit(
    connection: sa.Connection,
    *,
    actor: str,
    channel: str,
    action: str,
    target: str,
    detail: str = "",
    before: str | None = None,
    after: str | None = None,
    now: int,
) -> None:
    """Append one line to the audit trail; `before` and `after` are digests of what was changed.

    What looks like a credential stays out of it.
    """
    connection.execute(
        sa.insert(tables.audit).values(
            at=now,
            actor=actor,
            channel=channel,
            action=action,
            target=target,
            detail=redacted(detail),
            principal=principal_of(connection),
            before_digest=before,
            after_digest=after,
        )
    )


def digest(value: Mapping[str, object]) -> str:
    """Name the contents of something that is changed, for the audit trail."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
