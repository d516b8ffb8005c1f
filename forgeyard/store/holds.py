"""Rows of held room: read by every plan and commit, chosen when a plan is stored.

A hold whose job does not wait any more, or whose time is over, counts for nothing wherever it is
read; the next plan of its partition deletes it.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from forgeyard.model.transitions import JobState
from forgeyard.model.units import Resources
from forgeyard.scheduler.holds import BackfillWish, HeldRoom, HoldKind, earliest
from forgeyard.store import bulk, changes, tables
from forgeyard.store.amounts import DIMENSIONS, resources_of
from forgeyard.store.changes import Row
from forgeyard.store.engine import now_ms

_held, _jobs = tables.held_room, tables.jobs
_runners, _reservations = tables.runners, tables.reservations


def _counts(now: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
    return sa.and_(
        _jobs.c.state == JobState.ELIGIBLE.value,
        _jobs.c.cancel_reason.is_(None),
        sa.or_(_held.c.kind == HoldKind.BACKFILL.value, _held.c.deadline_at > now),
    )


_OF_JOBS = sa.select(_held).join(_jobs, _jobs.c.job_id == _held.c.job_id).order_by(_held.c.job_id)
_COUNTING_ROWS = _OF_JOBS.where(_counts(sa.bindparam("now", type_=sa.BigInteger())))
_COUNTING = _COUNTING_ROWS.with_only_columns(_held.c.job_id).order_by(None).scalar_subquery()
_DELETE_OLD = sa.delete(_held).where(
    _held.c.partition == sa.bindparam("partition"), _held.c.job_id.not_in(_COUNTING)
)

_BACKFILL = sa.select(_held).where(
    _held.c.partition == sa.bindparam("partition"), _held.c.kind == HoldKind.BACKFILL.value
)


def load(connection: sa.Connection, *, now: int) -> tuple[HeldRoom, ...]:
    """Read the holds that count now."""
    rows = connection.execute(_COUNTING_ROWS, {"now": now}).mappings()
    return tuple(_hold(dict(row)) for row in rows)


def query() -> sa.Select[Any]:
    """Ask for all holds, and whether each counts now."""
    return _OF_JOBS.add_columns(sa.case((_counts(now_ms()), 1), else_=0).label("counts"))


def counting(rows: Iterable[Row]) -> tuple[HeldRoom, ...]:
    """Keep the holds that count, among the rows of `query`."""
    return tuple(_hold(row) for row in rows if row["counts"])


def _hold(row: Row) -> HeldRoom:
    return HeldRoom(
        job_id=row["job_id"],
        kind=HoldKind(row["kind"]),
        partition=row["partition"],
        runner_id=row["runner_id"],
        room=resources_of(row),
        since=row["since_at"],
        deadline=row["deadline_at"],
    )


def keep(connection: sa.Connection, partition: str, wish: BackfillWish | None, *, now: int) -> None:
    """Hold room for the job that a plan names, and for no other one of its partition.

    The runner is the one that is sure to have room first; a hold that stands keeps its runner.
    """
    connection.execute(_DELETE_OLD, {"partition": partition, "now": now})
    row = connection.execute(_BACKFILL, {"partition": partition}).mappings().first()
    if row is not None:
        if wish is not None and (row["job_id"], row["runner_id"]) == (wish.job_id, wish.runners[0]):
            return
        connection.execute(sa.delete(_held).where(_held.c.job_id == row["job_id"]))
    if wish is not None:
        _choose(connection, partition, wish, now=now)


def _choose(connection: sa.Connection, partition: str, wish: BackfillWish, *, now: int) -> None:
    chosen = earliest(wish, _free(connection, wish.runners), _releases(connection, wish.runners))
    if chosen is None:
        return
    runner_id, at = chosen
    put(
        connection,
        HeldRoom(
            job_id=wish.job_id,
            kind=HoldKind.BACKFILL,
            partition=partition,
            runner_id=runner_id,
            room=wish.resources,
            since=now,
            deadline=max(now, at),
        ),
    )


def put(connection: sa.Connection, hold: HeldRoom) -> None:
    """Write a hold, in place of another one of its job."""
    amounts = (hold.room.cpu, hold.room.memory, hold.room.disk, hold.room.slots)
    values = {
        "kind": hold.kind.value,
        "partition": hold.partition,
        "runner_id": hold.runner_id,
        **dict(zip(DIMENSIONS, amounts, strict=True)),
        "since_at": hold.since,
        "deadline_at": hold.deadline,
    }
    changes.upsert(connection, _held, {"job_id": hold.job_id, **values}, changes=values)


def _free(connection: sa.Connection, runner_ids: Collection[str]) -> dict[str, Resources]:
    """Tell what is left on runners once others have what is held for them."""
    query = sa.select(_runners).where(bulk.among(connection, _runners.c.runner_id, runner_ids))
    free = {
        row["runner_id"]: resources_of(dict(row), "total_")
        .minus(resources_of(dict(row), "headroom_"))
        .minus(resources_of(dict(row), "reserved_"))
        for row in connection.execute(query).mappings()
    }
    held = sa.select(_held).where(bulk.among(connection, _held.c.runner_id, runner_ids))
    for row in connection.execute(held).mappings():
        if row["runner_id"] in free:
            free[row["runner_id"]] = free[row["runner_id"]].minus(resources_of(dict(row)))
    return free


def _releases(
    connection: sa.Connection, runner_ids: Collection[str]
) -> dict[str, Sequence[tuple[int, Resources]]]:
    """List by when, at the latest, each reservation on these runners is given back."""
    query = sa.select(_reservations).where(
        bulk.among(connection, _reservations.c.runner_id, runner_ids)
    )
    found: dict[str, list[tuple[int, Resources]]] = {}
    for row in connection.execute(query).mappings():
        release = (int(row["ends_by"]), resources_of(dict(row)))
        found.setdefault(row["runner_id"], []).append(release)
    return {name: tuple(releases) for name, releases in found.items()}
