"""What waits to be placed or told: partitions without cycles, parked classes, shares, events."""

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from forgeyard.model.transitions import JobState
from forgeyard.scheduler.findings import Finding, FindingKind
from forgeyard.scheduler.scopes import PER_MILLI, POOL, PRECISION
from forgeyard.store import changes, generations, outbox, scopes, tables
from forgeyard.store.reconcile.look import Comparison, Look

FORGOTTEN: Final = 3
"""After so many patiences without a cycle a partition is forgotten: its loop looks every minute."""
GRANTS_AHEAD: Final = 1_000
"""So many grants in one batch may come to nothing; a scope is never further ahead of its time."""
_jobs, _cycles, _parked = tables.jobs, tables.cycles, tables.parked_classes
_scopes, _runners, _outbox = tables.scopes, tables.runners, tables.outbox


def _find_forgotten(connection: sa.Connection, look: Look) -> list[Finding]:
    """Find partitions with jobs that a cycle would look at, while none has for long."""
    since = look.now - FORGOTTEN * look.policy.reconcile.patience
    parked = sa.exists().where(
        _parked.c.partition == _jobs.c.partition,
        _parked.c.requirement_class == _jobs.c.requirement_class,
        _parked.c.generation == generations.OF_FLEET,
    )
    looked = sa.exists().where(
        _cycles.c.partition == _jobs.c.partition, _cycles.c.created_at >= since
    )
    query = (
        sa.select(_jobs.c.partition, sa.func.count(), sa.func.min(_jobs.c.eligible_at))
        .where(
            look.inside(_jobs.c.partition),
            look.of_partition(_jobs.c.partition),
            _jobs.c.state == JobState.ELIGIBLE.value,
            _jobs.c.cancel_reason.is_(None),
            _jobs.c.eligible_at < since,
            ~parked,
            ~looked,
        )
        .group_by(_jobs.c.partition)
        .order_by(_jobs.c.partition)
    )
    return [
        Finding(
            kind=FindingKind.QUEUE_FORGOTTEN,
            entity=partition,
            within=partition,
            found=f"{waiting} jobs wait, the first for {(look.now - oldest) // 1_000} s, no cycle",
            expected="its loop is woken",
        )
        for partition, waiting, oldest in connection.execute(query)
    ]


def _wake(connection: sa.Connection, found: Sequence[Finding], _look: Look) -> None:
    changes.wake(connection, found[0].within, reason="jobs were forgotten")


def _find_parkings(connection: sa.Connection, look: Look) -> list[Finding]:
    """Find classes that would count as parked when the fleet's generation comes to be theirs."""
    query = (
        sa.select(
            _parked.c.partition,
            _parked.c.requirement_class,
            _parked.c.generation,
            generations.OF_FLEET,
        )
        .where(
            look.inside(_parked.c.partition),
            look.of_partition(_parked.c.partition),
            _parked.c.generation > generations.OF_FLEET,
        )
        .order_by(_parked.c.partition, _parked.c.requirement_class)
    )
    return [
        Finding(
            kind=FindingKind.PARKING_AHEAD,
            entity=kind,
            within=partition,
            found=f"parked under generation {parked}",
            expected=f"{present} at most",
        )
        for partition, kind, parked, present in connection.execute(query)
    ]


def _unpark(connection: sa.Connection, found: Sequence[Finding], _look: Look) -> None:
    partition = found[0].within
    connection.execute(
        sa.delete(_parked).where(
            _parked.c.partition == partition, _parked.c.generation > generations.OF_FLEET
        )
    )
    changes.wake_if_waiting(connection, partition, reason="a class is parked no longer")


def _find_shares(connection: sa.Connection, look: Look) -> list[Finding]:
    """Find scopes that would wait for service which nobody had.

    Who is served starts where the clock above then stands, so that its tag is ahead of that clock
    by what it was just charged; no job asks for more than the largest runner has.
    """
    above = _scopes.alias("above")
    largest = sa.select(
        sa.func.max(
            sa.case(
                (
                    _runners.c.total_memory_bytes > _runners.c.total_cpu_milli * PER_MILLI,
                    _runners.c.total_memory_bytes // PER_MILLI,
                ),
                else_=_runners.c.total_cpu_milli,
            )
        )
    ).scalar_subquery()
    room = GRANTS_AHEAD * PRECISION * largest
    query = (
        sa.select(_scopes.c.scope_id, _scopes.c.finish_tag, above.c.clock)
        .join(above, above.c.scope_id == _scopes.c.parent_id)
        .where(
            look.inside(_scopes.c.scope_id),
            _scopes.c.kind != POOL,
            sa.or_(_scopes.c.finish_tag > above.c.clock + room, _scopes.c.finish_tag < 0),
        )
        .order_by(_scopes.c.scope_id)
    )
    return [
        Finding(
            kind=FindingKind.SHARE_AHEAD,
            entity=scope_id,
            within=scope_id,
            found=f"finish tag {tag}",
            expected=f"{clock}, the clock above it",
        )
        for scope_id, tag, clock in connection.execute(query)
    ]


def _lock_share(connection: sa.Connection, scope_id: str) -> None:
    """Lock a scope and the one above it, which is nearer to the root."""
    query = sa.select(_scopes.c.parent_id).where(_scopes.c.scope_id == scope_id)
    scopes.lock(connection, {scope_id, str(connection.execute(query).scalar_one())})


def _fix_share(connection: sa.Connection, found: Sequence[Finding], _look: Look) -> None:
    scope_id = found[0].within
    parent = sa.select(_scopes.c.parent_id).where(_scopes.c.scope_id == scope_id).scalar_subquery()
    clock = connection.execute(
        sa.select(_scopes.c.clock).where(_scopes.c.scope_id == parent)
    ).scalar_one()
    mine = _scopes.c.scope_id == scope_id
    connection.execute(sa.update(_scopes).where(mine).values(finish_tag=max(0, clock)))
    changes.wake_all_waiting(connection, reason="a share was repaired")


def _find_events(connection: sa.Connection, look: Look) -> list[Finding]:
    attempts = tables.attempts
    known = sa.exists().where(attempts.c.attempt_id == _outbox.c.stream)
    query = (
        sa.select(_outbox.c.event_id, _outbox.c.kind, _outbox.c.stream)
        .where(look.inside(_outbox.c.stream), _outbox.c.delivered_at.is_(None), ~known)
        .order_by(_outbox.c.stream, _outbox.c.sequence)
    )
    return [
        Finding(
            kind=FindingKind.EVENT_ORPHAN,
            entity=event_id,
            within=stream,
            found=f"{kind} waits to be told to {stream}",
            expected="put away: there is no such attempt",
        )
        for event_id, kind, stream in connection.execute(query)
    ]


def _put_away(connection: sa.Connection, found: Sequence[Finding], _look: Look) -> None:
    outbox.delivered(connection, [one.entity for one in found])


def _lock_nothing(_connection: sa.Connection, _within: str) -> None:
    """Lock nothing: whoever repairs the same at once does the same."""


FORGOTTEN_JOBS = Comparison(
    name="forgotten jobs", find=_find_forgotten, lock=_lock_nothing, fix=_wake
)
PARKED = Comparison(name="parked classes", find=_find_parkings, lock=_lock_nothing, fix=_unpark)
SHARES = Comparison(name="shares", find=_find_shares, lock=_lock_share, fix=_fix_share)
EVENTS = Comparison(name="events", find=_find_events, lock=_lock_nothing, fix=_put_away)
