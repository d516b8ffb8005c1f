"""Stopping running jobs for an urgent one: all victims and the hold on their runner, or nothing.

What no agent has accepted ends at once. An agent that works on a victim is asked to stop it, and
bounded in time; the victim is tried again without being charged (PRE-005).
"""

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.transitions import (
    LIVE_LEASE_STATES,
    AttemptState,
    JobState,
    LeaseState,
)
from forgeyard.model.wishes import Preemptibility
from forgeyard.scheduler.holds import HeldRoom, HoldKind
from forgeyard.scheduler.preempt import Nomination
from forgeyard.scheduler.snapshot import RunningJob
from forgeyard.store import changes, devices, holds, jobs, release, stopping, tables, wishes
from forgeyard.store.amounts import DIMENSIONS, resources_of
from forgeyard.store.changes import JOB, Row
from forgeyard.store.engine import database_now
from forgeyard.store.release import Held
from forgeyard.store.sessions import lock_runner

_leases, _jobs = tables.leases, tables.jobs
_attempts, _reservations = tables.attempts, tables.reservations


def running(connection: sa.Connection) -> tuple[RunningJob, ...]:
    """List the jobs that hold a lease and said that they may be stopped."""
    query = (
        sa.select(
            _leases.c.lease_id,
            _leases.c.runner_id,
            _leases.c.offered_at,
            _leases.c.accepted_at,
            _leases.c.cancel_requested,
            _jobs.c.job_id,
            _jobs.c.priority,
            _jobs.c.state,
            _jobs.c.wishes,
            _jobs.c.attempts_made,
            _jobs.c.preempted_at,
            *(_jobs.c[name] for name in DIMENSIONS),
        )
        .join(_jobs, _jobs.c.job_id == _leases.c.job_id)
        .where(_leases.c.state.in_([state.value for state in LIVE_LEASE_STATES]))
        .order_by(_leases.c.lease_id)
    )
    found = [_running(dict(row)) for row in connection.execute(query).mappings()]
    held = devices.of_leases(connection, [one.lease_id for one in found])
    return tuple(
        replace(one, devices=held.get(one.lease_id, ()))
        for one in found
        if one.preemption is not Preemptibility.NEVER
    )


def _running(row: Row) -> RunningJob:
    return RunningJob(
        lease_id=row["lease_id"],
        job_id=row["job_id"],
        runner_id=row["runner_id"],
        resources=resources_of(row),
        priority=Priority(row["priority"]),
        preemption=wishes.read(row["wishes"]).preemption,
        since=row["accepted_at"] or row["offered_at"],
        attempts_made=row["attempts_made"],
        is_uploading=row["state"] == JobState.UPLOADING_OUTPUTS,
        is_stopping=bool(row["cancel_requested"]),
        preempted_at=row["preempted_at"],
    )


def clear(
    connection: sa.Connection, nomination: Nomination, partition: str, *, policy: SchedulingPolicy
) -> bool:
    """Ask every victim to stop and hold the room for the urgent job; tell whether it was done.

    If anything has changed that the nomination rests on, nothing happens.
    """
    victims = [release.lock_lease(connection, one) for one in _in_order(connection, nomination)]
    urgent = changes.find(connection, JOB, nomination.job_id)
    now = database_now(connection)
    waits = urgent["state"] == JobState.ELIGIBLE and urgent["cancel_reason"] is None
    if not waits or not all(_may_stop(one, nomination) for one in victims):
        return False
    release.lock_scopes_of_offers(connection, victims)
    lock_runner(connection, nomination.runner_id)
    reason = f"stopped to make room for {urgent['name']}"
    for one in victims:
        _stop(connection, one, nomination, reason=reason, now=now, policy=policy)
    holds.put(
        connection,
        HeldRoom(
            job_id=nomination.job_id,
            kind=HoldKind.NOMINATION,
            partition=partition,
            runner_id=nomination.runner_id,
            room=nomination.resources,
            since=now,
            deadline=now + policy.preemption.patience,
        ),
    )
    changes.audit(
        connection,
        actor="scheduler",
        channel="policy",
        action="job.preempt",
        target=nomination.job_id,
        detail=f"{', '.join(one.job['job_id'] for one in victims)} on {nomination.runner_id}",
        now=now,
    )
    return True


def _in_order(connection: sa.Connection, nomination: Nomination) -> Sequence[str]:
    """List the victims in the order in which runs and jobs are locked."""
    query = (
        sa.select(_leases.c.lease_id)
        .join(_jobs, _jobs.c.job_id == _leases.c.job_id)
        .where(_leases.c.lease_id.in_(nomination.victims))
        .order_by(_jobs.c.run_id, _jobs.c.job_id)
    )
    return list(connection.execute(query).scalars())


def _may_stop(held: Held, nomination: Nomination) -> bool:
    lease = held.lease
    return (
        lease["runner_id"] == nomination.runner_id
        and lease["state"] in LIVE_LEASE_STATES
        and not lease["cancel_requested"]
        and held.job["cancel_reason"] is None
    )


def _stop(
    connection: sa.Connection,
    held: Held,
    nomination: Nomination,
    *,
    reason: str,
    now: int,
    policy: SchedulingPolicy,
) -> None:
    marked = {"preempted_for": nomination.job_id}
    lease_id = held.lease["lease_id"]
    connection.execute(sa.update(_leases).where(_leases.c.lease_id == lease_id).values(marked))
    connection.execute(
        sa.update(_jobs).where(_jobs.c.job_id == held.job["job_id"]).values(preempted_at=now)
    )
    if held.lease["state"] == LeaseState.ACTIVE:
        stopping.ask_lease(connection, held.lease, now=now, policy=policy.lease)
        return
    release.end_offer(
        connection,
        Held(run=held.run, job=held.job, attempt=held.attempt, lease={**held.lease, **marked}),
        AttemptState.CANCELLED,
        lease=LeaseState.REVOKED,
        reason=reason,
        now=now,
    )
    jobs.give_back(connection, held.run, held.job, reason=reason, now=now)
