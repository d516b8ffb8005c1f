"""The sweep: enforces every deadline that has passed, and repairs what crashes left behind.

It finds candidates without locks and hands each to its transition in a transaction of its own,
which looks again; so any number of sweeps may run at once, and one bad row stops nothing else.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from forgeyard.errors import Conflict, StoreUnavailable
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.transitions import JobState, LeaseState, RunState
from forgeyard.scheduler.findings import FindingOutcome
from forgeyard.store import (
    beats,
    changes,
    groups,
    jobs,
    lapse,
    lineage,
    liveness,
    queue_timeout,
    runs,
    settle,
    silence,
    tables,
)
from forgeyard.store.changes import DeadlineKind
from forgeyard.store.engine import database_now, read, write
from forgeyard.store.reconcile.look import Look
from forgeyard.store.reconcile.passes import QUICK, repair
from forgeyard.store.release import ATTEMPT_DEADLINES

DUE_PER_SWEEP = 200
REPAIRS_PER_SWEEP = 20
EXPIRING_FOR = 4_000
"""So long a sweep goes on with batches of lapsed leases; the next one begins at once then."""
STUCK_AFTER = 30_000
POSTPONED = 60_000
"""After so long a deadline that could not be enforced is tried again."""
logger = logging.getLogger(__name__)
Enforce = Callable[[sa.Connection, str, SchedulingPolicy], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What one sweep did; `alert` is what an operator should know, or empty."""

    expired: int
    due: int
    settled: int
    repaired: int
    offers: int = 0
    """How many of the expired were offers that nobody had accepted."""
    alert: str = ""
    more: bool = False
    """Whether leases are left that have lapsed, so that the next sweep should not wait."""


@dataclass(slots=True)
class _Tally:
    """What went through and what did not, while a sweep goes on."""

    done: dict[DeadlineKind | str, int] = field(default_factory=dict["DeadlineKind | str", int])
    alerts: list[str] = field(default_factory=list[str])


def sweep(engine: sa.Engine, partition: str, policy: SchedulingPolicy) -> SweepResult:
    """Enforce what is due in a partition and repair its runners' reservations, once over.

    While the store is held it only tells so.
    """
    with read(engine) as connection:
        held = lineage.why_held(connection)
    if held:
        _beat(engine, partition)
        alert = f"nothing is enforced: {held}; {lineage.ADVICE}"
        return SweepResult(expired=0, due=0, settled=0, repaired=0, alert=alert)
    tally = _Tally()
    more = _expire_all(engine, partition, policy, tally)
    with read(engine) as connection:
        due = _due(connection, partition)
        look = Look(policy=policy, now=database_now(connection))
    for kind, entity_id in due:
        _apply(engine, kind, entity_id, _ENFORCE[kind], policy, tally)
    _apply(engine, "sessions", partition, _lose_sessions, policy, tally)
    _apply(engine, "woken", partition, _wake_stuck, policy, tally)
    mended = repair(engine, QUICK, look, limit=REPAIRS_PER_SWEEP).findings
    repaired = len({one.within for one in mended if one.outcome is FindingOutcome.REPAIRED})
    if repaired:
        tally.alerts.append(f"the reservations of {repaired} runners were wrong and are repaired")
    _beat(engine, partition)
    done = tally.done
    return SweepResult(
        expired=done.get(LeaseState.OFFERED, 0) + done.get(LeaseState.ACTIVE, 0),
        offers=done.get(LeaseState.OFFERED, 0),
        due=sum(done.get(kind, 0) for kind in DeadlineKind if kind is not DeadlineKind.SETTLE),
        settled=done.get(DeadlineKind.SETTLE, 0),
        repaired=repaired,
        alert="; ".join(tally.alerts),
        more=more,
    )


def _beat(engine: sa.Engine, partition: str) -> None:
    """Say that the sweep came by."""
    with write(engine) as connection:
        beats.beat(connection, beats.sweep_of(partition))


def _apply(
    engine: sa.Engine,
    what: DeadlineKind | str,
    entity_id: str,
    enforce: Enforce,
    policy: SchedulingPolicy,
    tally: _Tally,
) -> None:
    """Enforce one thing in its own transaction; an error is reported and the next is tried."""
    try:
        with write(engine) as connection:
            # It may be held since the candidates were looked for.
            done = not lineage.is_held(connection) and enforce(connection, entity_id, policy)
    except (StoreUnavailable, Conflict) as error:
        tally.alerts.append(f"{what} of {entity_id} failed: {error.message}")
        return
    except Exception as error:
        # Whatever is wrong with one row, the others are due as well.
        logger.exception("%s of %s failed", what, entity_id)
        tally.alerts.append(f"{what} of {entity_id} failed: {error}")
        _postpone(engine, what, entity_id)
        return
    tally.done[what] = tally.done.get(what, 0) + int(done)


def _postpone(engine: sa.Engine, what: DeadlineKind | str, entity_id: str) -> None:
    """Put a deadline that cannot be enforced behind the others; it is tried again in a while."""
    deadlines = tables.deadlines
    with write(engine) as connection:
        now = database_now(connection)
        connection.execute(
            sa.update(deadlines)
            .where(
                deadlines.c.kind == str(what),
                deadlines.c.entity_id == entity_id,
                deadlines.c.due_at <= now,
            )
            .values(due_at=now + POSTPONED)
        )


def _expire_all(engine: sa.Engine, partition: str, policy: SchedulingPolicy, tally: _Tally) -> bool:
    """Expire what has lapsed, batch after batch for a while; tell whether any is left (SP-066).

    Before each batch it is asked anew whether renewals are served; more than one is an alert.
    """
    limit, after, until = policy.sweep.expiries_per_sweep, (0, ""), 0
    while True:
        with read(engine) as connection:
            now = database_now(connection)
            lapsed = _lapsed(connection, partition, policy, tally, after=after)
        until = until or now + EXPIRING_FOR
        for _, lease_id, state in lapsed[:limit]:
            _apply(engine, state, lease_id, _expire, policy, tally)
        if len(lapsed) <= limit:
            return False
        if not any(alert.startswith(_MANY) for alert in tally.alerts):
            tally.alerts.append(f"{_MANY} {limit} leases lapsed at once; they end in batches")
        if now >= until:
            return True
        # Those that could not be ended are passed over; the next sweep tries them again.
        expires_at, lease_id, _ = lapsed[limit - 1]
        after = (expires_at, lease_id)


_MANY = "more than"


def _lapsed(
    connection: sa.Connection,
    partition: str,
    policy: SchedulingPolicy,
    tally: _Tally,
    *,
    after: tuple[int, str],
) -> list[tuple[int, str, LeaseState]]:
    """List leases whose time has passed, oldest first, unless nobody could renew them."""
    now = database_now(connection)
    given = {
        "now": now,
        "after": after[0],
        "after_id": after[1],
        "partition": partition,
        "most": policy.sweep.expiries_per_sweep + 1,
    }
    rows = connection.execute(_LAPSED, given)
    found = [(expires_at, lease_id, LeaseState(state)) for expires_at, lease_id, state in rows]
    if found and liveness.renewals_are_out(connection, now=now, policy=policy):
        tally.alerts.append("renewals are not being served; no lease is expired meanwhile")
        return []
    return found


_leases, _attempts, _deadlines = tables.leases, tables.attempts, tables.deadlines
_OFFERED = _leases.c.state == LeaseState.OFFERED.value
_ACTIVE = _leases.c.state == LeaseState.ACTIVE.value
_NOW = sa.bindparam("now", type_=sa.BigInteger())
_LAPSED = (
    sa.select(_leases.c.expires_at, _leases.c.lease_id, _leases.c.state)
    .join(_attempts, _attempts.c.attempt_id == _leases.c.attempt_id)
    .where(
        sa.or_(
            sa.and_(_OFFERED, _leases.c.expires_at < _NOW),
            sa.and_(_ACTIVE, _leases.c.expires_at + _leases.c.grace_ms < _NOW),
        ),
        # The bare bound lets the index serve; a grace only makes a lease live longer.
        _leases.c.expires_at < _NOW,
        sa.tuple_(_leases.c.expires_at, _leases.c.lease_id)
        > sa.tuple_(
            sa.bindparam("after", type_=sa.BigInteger()), sa.bindparam("after_id", type_=sa.Text())
        ),
        _attempts.c.partition == sa.bindparam("partition"),
    )
    .order_by(_leases.c.expires_at, _leases.c.lease_id)
    .limit(sa.bindparam("most", type_=sa.Integer()))
)
_DUE = (
    sa.select(_deadlines.c.kind, _deadlines.c.entity_id)
    .where(
        _deadlines.c.partition == sa.bindparam("partition"),
        _deadlines.c.due_at <= _NOW,
        # A newer release may have written kinds that this one does not know.
        _deadlines.c.kind.in_([kind.value for kind in DeadlineKind]),
    )
    .order_by(_deadlines.c.due_at, _deadlines.c.entity_id)
    .limit(DUE_PER_SWEEP)
)


def _due(connection: sa.Connection, partition: str) -> list[tuple[DeadlineKind, str]]:
    rows = connection.execute(_DUE, {"partition": partition, "now": database_now(connection)})
    return [(DeadlineKind(kind), entity_id) for kind, entity_id in rows]


def _expire(connection: sa.Connection, lease_id: str, policy: SchedulingPolicy) -> bool:
    return lapse.expire(connection, lease_id, policy=policy)


def _time_out_attempt(connection: sa.Connection, attempt_id: str, policy: SchedulingPolicy) -> bool:
    return lapse.time_out(connection, attempt_id, policy=policy)


def _settle(connection: sa.Connection, attempt_id: str, policy: SchedulingPolicy) -> bool:
    settle.settle(connection, attempt_id, policy=policy.lease)
    changes.clear_deadlines(connection, attempt_id, DeadlineKind.SETTLE)
    return True


def _time_out_run(connection: sa.Connection, run_id: str, policy: SchedulingPolicy) -> bool:
    state = runs.time_out_run(connection, run_id, policy=policy.lease)
    return state not in (RunState.QUEUED, RunState.RUNNING)


def _release_run(connection: sa.Connection, run_id: str, _policy: SchedulingPolicy) -> bool:
    return groups.release(connection, run_id)


def _time_out_job(connection: sa.Connection, job_id: str, policy: SchedulingPolicy) -> bool:
    """End a job that nobody could take in time."""
    run, job = changes.lock_run_and_job(connection, job_id)
    now = database_now(connection)
    if not _take(connection, DeadlineKind.QUEUE, job_id, now=now):
        return False
    if job["state"] != JobState.ELIGIBLE:
        return False
    return queue_timeout.enforce(connection, run, job, policy=policy, now=now)


def _retry(connection: sa.Connection, job_id: str, _policy: SchedulingPolicy) -> bool:
    """Let a job whose delay is over wait for a runner again."""
    run, job = changes.lock_run_and_job(connection, job_id)
    now = database_now(connection)
    if not _take(connection, DeadlineKind.RETRY, job_id, now=now):
        return False
    if job["state"] != JobState.RETRY_WAITING:
        return False
    jobs.make_eligible(connection, run, job, reason="its retry delay is over", now=now)
    changes.wake(connection, job["partition"], reason="a job is to be tried again")
    return True


def _reopen_pool(connection: sa.Connection, window_id: str, _policy: SchedulingPolicy) -> bool:
    """Let jobs wait no longer for a pool whose maintenance is over."""
    if not _take(connection, DeadlineKind.MAINTENANCE, window_id, now=database_now(connection)):
        return False
    changes.wake_all_waiting(connection, reason="the maintenance of a pool is over")
    return True


def _take(connection: sa.Connection, kind: DeadlineKind, entity_id: str, *, now: int) -> bool:
    """Remove a deadline that is due, under the entity's lock; tell whether it still was."""
    deadlines = tables.deadlines
    taken = connection.execute(
        sa.delete(deadlines).where(
            deadlines.c.kind == kind.value,
            deadlines.c.entity_id == entity_id,
            deadlines.c.due_at <= now,
        )
    )
    return taken.rowcount == 1


_ENFORCE: Mapping[DeadlineKind, Enforce] = {
    DeadlineKind.QUEUE: _time_out_job,
    DeadlineKind.SETTLE: _settle,
    DeadlineKind.RETRY: _retry,
    DeadlineKind.RUN: _time_out_run,
    DeadlineKind.HELD: _release_run,
    DeadlineKind.MAINTENANCE: _reopen_pool,
    **dict.fromkeys(ATTEMPT_DEADLINES, _time_out_attempt),
}


def _lose_sessions(connection: sa.Connection, _partition: str, policy: SchedulingPolicy) -> bool:
    return silence.lose_silent_sessions(connection, policy=policy) > 0


def _wake_stuck(connection: sa.Connection, partition: str, _policy: SchedulingPolicy) -> bool:
    """Remind a loop that was told nothing for long although jobs wait."""
    row = connection.execute(_WAKE, {"partition": partition}).one_or_none()
    if row is not None:
        recent = database_now(connection) - row.signalled_at < STUCK_AFTER
        if recent or row.generation > row.signalled:
            return False
    changes.wake_if_waiting(connection, partition, reason="jobs have waited for long")
    return True


_WAKE = sa.select(
    tables.wakes.c.generation, tables.wakes.c.signalled, tables.wakes.c.signalled_at
).where(tables.wakes.c.partition == sa.bindparam("partition"))
