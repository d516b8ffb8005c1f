"""Whether agents could reach us: an outage of the renewal service must not cost anybody a lease.

Every API process that serves renewals beats here. While nobody beats, nothing that an agent would
have kept alive may lapse; the first beat afterwards moves those deadlines by the length of the gap,
once, for the row is locked and the gap is gone when the next beat reads it.
"""

import sqlalchemy as sa

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.transitions import LIVE_LEASE_STATES, LeaseState, SessionState
from forgeyard.store import beats, changes, lineage, tables
from forgeyard.store.engine import database_now
from forgeyard.store.release import ATTEMPT_DEADLINES

RENEWAL = "renewal"
_liveness = tables.liveness
_HERE = _liveness.c.service == RENEWAL
_LOCK_BEAT = sa.select(_liveness.c.beat_at).where(_HERE).with_for_update()
_BEAT = (
    sa.update(_liveness)
    .where(_HERE)
    .values(beat_at=sa.bindparam("now"), gaps=_liveness.c.gaps + sa.bindparam("more"))
)


def beat_renewal(connection: sa.Connection, *, policy: SchedulingPolicy) -> int:
    """Say that renewals are served, bridging an outage that ends now; return its length or 0."""
    first = {"service": RENEWAL, "beat_at": database_now(connection), "gaps": 0}
    changes.upsert(connection, _liveness, first, changes={})
    beat_at: int = connection.execute(_LOCK_BEAT).scalar_one()
    now = database_now(connection)
    gap = outage(now - beat_at, policy)
    connection.execute(_BEAT, {"now": now, "more": 1 if gap else 0})
    if gap:
        bridge(connection, gap, now=now, policy=policy)
    return gap


def bridged(expires_at: int, *, gap: int, now: int, ttl: int, back_off: int) -> int:
    """Tell until when a lease lives after an outage of ours: it loses nothing, and may call first.

    Whoever held it may wait out its longest back-off before it notices that we are back.
    """
    return max(expires_at + gap, now + ttl + back_off)


def renewals_are_out(connection: sa.Connection, *, now: int, policy: SchedulingPolicy) -> bool:
    """Tell whether the renewal service is silent; one that never spoke cannot have failed.

    While the store is held nobody's silence counts either, for what was renewed may be lost.
    """
    if lineage.is_held(connection):
        return True
    age = beat_age_ms(connection, now=now)
    return age is not None and outage(age, policy) > 0


def outage(age: int, policy: SchedulingPolicy) -> int:
    """Tell how long renewals are out if the last beat is so old; 0 while that is no outage."""
    return age if age > policy.sweep.renewal_gap else 0


def beat_age_ms(connection: sa.Connection, *, now: int) -> int | None:
    """Tell how long ago renewals were served; None if they never were."""
    return beats.age_ms(connection, RENEWAL, now=now)


def bridge(connection: sa.Connection, gap: int, *, now: int, policy: SchedulingPolicy) -> None:
    """Move everything that only an agent's call could have kept alive."""
    extended = _extend_leases(connection, gap, now=now, policy=policy)
    sessions, deadlines = tables.sessions, tables.deadlines
    connection.execute(
        sa.update(sessions)
        .where(sessions.c.state == SessionState.OPEN.value)
        .values(last_seen_at=sessions.c.last_seen_at + gap)
    )
    connection.execute(
        sa.update(deadlines)
        .where(deadlines.c.kind.in_([kind.value for kind in ATTEMPT_DEADLINES]))
        .values(due_at=deadlines.c.due_at + gap)
    )
    changes.audit(
        connection,
        actor="system",
        channel="store",
        action="renewal.gap_bridged",
        target=RENEWAL,
        detail=f"{gap} ms without renewals; {extended} leases extended",
        now=now,
    )


def _extend_leases(
    connection: sa.Connection, gap: int, *, now: int, policy: SchedulingPolicy
) -> int:
    """Give every live lease its lost time back, and time enough for agents to call again."""
    leases, jobs = tables.leases, tables.jobs
    live = leases.c.state.in_([state.value for state in LIVE_LEASE_STATES])
    rows = connection.execute(
        sa.select(leases.c.lease_id, leases.c.state, leases.c.expires_at)
        .join(jobs, jobs.c.job_id == leases.c.job_id)
        .where(live)
        .order_by(jobs.c.run_id, jobs.c.job_id)
        .with_for_update(of=leases)
    ).all()
    lease = policy.lease
    ttl = {LeaseState.OFFERED: lease.offer_ttl, LeaseState.ACTIVE: lease.execution_ttl}
    moved = [
        {
            "moved_id": lease_id,
            "moved_to": bridged(
                expires_at,
                gap=gap,
                now=now,
                ttl=ttl[LeaseState(state)],
                back_off=lease.longest_back_off,
            ),
        }
        for lease_id, state, expires_at in rows
    ]
    if moved:
        statement = (
            sa.update(leases)
            .where(leases.c.lease_id == sa.bindparam("moved_id"))
            .values(expires_at=sa.bindparam("moved_to"))
        )
        connection.execute(statement, moved)
    return len(moved)
