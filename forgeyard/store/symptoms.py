"""What the doctor looks at: the snapshot that a cycle would see, and what was left undone."""

import sqlalchemy as sa

from forgeyard.model.policy import HOUR, SchedulingPolicy
from forgeyard.model.transitions import LeaseState
from forgeyard.scheduler.doctor import LATE, PoolStanding, Symptoms
from forgeyard.store import (
    beats,
    figures,
    findings,
    liveness,
    outbox,
    parked_classes,
    snapshot,
    tables,
)
from forgeyard.store.contention import contention
from forgeyard.store.engine import database_now
from forgeyard.store.reconcile import books
from forgeyard.store.reconcile.look import Look

_leases = tables.leases


def read_symptoms(connection: sa.Connection, partition: str, policy: SchedulingPolicy) -> Symptoms:
    """Read everything that a check judges; change nothing."""
    now = database_now(connection)
    # Only what two sweeps have passed over is late.
    swept = now - 2 * policy.sweep.period - LATE
    offers, oldest = _offers(connection)
    return Symptoms(
        snapshot=snapshot.load(connection, partition, policy, standing=parked_classes.ALL_OPEN),
        pools=_pools(connection),
        strays=_strays(connection),
        misreserved=tuple(books.find(connection, Look(policy=policy, now=now))),
        found_lately=findings.recent(connection, now=now, most=findings.MOST),
        swept_ms=beats.age_ms(connection, beats.sweep_of(partition), now=now),
        reconciled_ms=beats.age_ms(connection, beats.reconciliation_of(partition), now=now),
        offers=offers,
        oldest_offer_ms=None if oldest is None else max(0, now - oldest),
        overdue_leases=figures.overdue_leases(connection, now=swept),
        overdue_deadlines=_overdue_deadlines(connection, partition, now=swept),
        outbox_lag_ms=outbox.lag_ms(connection),
        undelivered=outbox.undelivered(connection),
        renewal_beat_ms=liveness.beat_age_ms(connection, now=now),
        contention=contention(connection, partition, since=now - figures.RECENT_MS),
        last_commit_ms=_last_commit_ms(connection, partition, now=now),
    )


def _pools(connection: sa.Connection) -> tuple[PoolStanding, ...]:
    pools = tables.pools
    query = sa.select(pools.c.pool_id, pools.c.name, pools.c.state).order_by(pools.c.name)
    return tuple(
        PoolStanding(pool_id=pool_id, name=name, state=state)
        for pool_id, name, state in connection.execute(query)
    )


def _strays(connection: sa.Connection) -> tuple[str, ...]:
    runners, pools = tables.runners, tables.pools
    query = (
        sa.select(runners.c.pool_id)
        .outerjoin(pools, pools.c.pool_id == runners.c.pool_id)
        .where(pools.c.pool_id.is_(None))
        .order_by(runners.c.runner_id)
    )
    return tuple(connection.execute(query).scalars())


def _offers(connection: sa.Connection) -> tuple[int, int | None]:
    query = sa.select(sa.func.count(), sa.func.min(_leases.c.offered_at)).where(
        _leases.c.state == LeaseState.OFFERED.value
    )
    total, oldest = connection.execute(query).one()
    return int(total), oldest


def _overdue_deadlines(connection: sa.Connection, partition: str, *, now: int) -> int:
    deadlines = tables.deadlines
    query = sa.select(sa.func.count()).where(
        deadlines.c.partition == partition, deadlines.c.due_at < now
    )
    return int(connection.execute(query).scalar_one())


def _last_commit_ms(connection: sa.Connection, partition: str, *, now: int) -> int | None:
    cycles = tables.cycles
    query = sa.select(sa.func.max(cycles.c.committed_at)).where(
        cycles.c.partition == partition, cycles.c.created_at >= now - HOUR
    )
    committed_at = connection.execute(query).scalar_one()
    return None if committed_at is None else max(0, now - committed_at)
