"""How a lease is taken away from an agent: it expired, was fenced, or its attempt took too long.

Each of these looks again under its locks and by the database's clock, and does nothing unless the
reason still holds; so the sweep, a workflow's backstop and a new session may all call it.
"""

import sqlalchemy as sa

from forgeyard.model.job import FailureClass
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.runner import Suspicion
from forgeyard.model.transitions import LIVE_LEASE_STATES, AttemptState, JobState, LeaseState
from forgeyard.store import changes, fence, jobs, liveness, penalties, phases, sightings, tables
from forgeyard.store.changes import JOB, Row
from forgeyard.store.engine import database_now, now_ms
from forgeyard.store.release import (
    Held,
    end_attempt,
    end_offer,
    lock_attempt,
    lock_lease,
    lock_scopes_of_offers,
)


def expire(connection: sa.Connection, lease_id: str, *, policy: SchedulingPolicy) -> bool:
    """End a lease whose time has passed; tell whether it had."""
    held = lock_lease(connection, lease_id)
    now = database_now(connection)
    if liveness.renewals_are_out(connection, now=now, policy=policy):
        return False
    return _expire(connection, held, now=now, policy=policy.lease)


def _expire(connection: sa.Connection, held: Held, *, now: int, policy: LeasePolicy) -> bool:
    lease = held.lease
    if not fence.has_lapsed(lease, now):
        return False
    offered = lease["state"] == LeaseState.OFFERED
    reason = "the offer was not accepted in time" if offered else "the runner stopped renewing"
    _lose(connection, held, LeaseState.EXPIRED, reason=reason, now=now, policy=policy)
    if offered:
        refuse(connection, held.lease, reason=reason, until=now + policy.refusal_memory)
    else:
        _suspect(connection, held.lease)
    changes.wake_if_waiting(connection, held.job["partition"], reason=reason)
    return True


def revoke(
    connection: sa.Connection, held: Held, *, reason: str, now: int, policy: LeasePolicy
) -> None:
    """Take a live lease from a session that has ended; the caller wakes."""
    if held.lease["state"] in LIVE_LEASE_STATES:
        _lose(connection, held, LeaseState.REVOKED, reason=reason, now=now, policy=policy)


def _lose(
    connection: sa.Connection,
    held: Held,
    lease: LeaseState,
    *,
    reason: str,
    now: int,
    policy: LeasePolicy,
) -> None:
    """Lose an attempt: before acceptance its job waits again, after it `settle` has the word.

    What is lost with a machine that its provider took away is nobody's fault (SPT-008).
    """
    lost, failure = AttemptState.LOST, FailureClass.RUNNER_LOST
    if sightings.is_taken_away(connection, held.lease["runner_id"]):
        failure = FailureClass.INFRASTRUCTURE
        reason = f"its machine was taken away by its provider: {reason}"
    blame = failure.value
    # Scopes before runners, as whoever grants locks them; blaming locks the runner.
    lock_scopes_of_offers(connection, [held])
    penalties.blame(connection, held.lease["runner_id"], failure, now=now, policy=policy)
    if held.lease["state"] == LeaseState.OFFERED:
        end_offer(connection, held, lost, lease=lease, reason=reason, now=now, failure_class=blame)
        jobs.give_back(connection, held.run, held.job, reason=reason, now=now)
        return
    end_attempt(
        connection,
        held,
        lost,
        lease=lease,
        reason=reason,
        now=now,
        policy=policy,
        failure_class=blame,
    )
    changes.move(connection, JOB, held.job, JobState.LOST, reason=reason, now=now)


def refuse(connection: sa.Connection, lease: Row, *, reason: str, until: int) -> None:
    """Remember not to offer a job to this runner for a while."""
    values = {"reason": reason, "until_at": until}
    keys = {"job_id": lease["job_id"], "runner_id": lease["runner_id"]}
    changes.upsert(connection, tables.refusals, {**keys, **values}, changes=values)


def _suspect(connection: sa.Connection, lease: Row) -> None:
    """Give nothing more to a runner that lost a lease, until it is heard of again."""
    runners, sessions = tables.runners, tables.sessions
    connection.execute(
        sa.update(runners)
        .where(runners.c.runner_id == lease["runner_id"])
        .values(
            suspect=sa.case(
                (runners.c.suspect == Suspicion.NONE.value, Suspicion.LOSS.value),
                else_=runners.c.suspect,
            ),
            changed_at=now_ms(),
        )
    )
    connection.execute(
        sa.update(sessions)
        .where(sessions.c.session_id == lease["session_id"])
        .values(losses=sessions.c.losses + 1)
    )


def time_out(connection: sa.Connection, attempt_id: str, *, policy: SchedulingPolicy) -> bool:
    """End an accepted attempt whose current phase took too long; tell whether it had."""
    held = lock_attempt(connection, attempt_id)
    now = database_now(connection)
    if liveness.renewals_are_out(connection, now=now, policy=policy):
        return False
    return _time_out(connection, held, now=now, policy=policy.lease)


def _time_out(connection: sa.Connection, held: Held, *, now: int, policy: LeasePolicy) -> bool:
    attempt_id = held.attempt["attempt_id"]
    due = [kind for kind, at in phases.deadlines_of(connection, attempt_id).items() if at <= now]
    if held.lease["state"] != LeaseState.ACTIVE:
        # Whoever ended it cleared these rows; one that is left would come up in every sweep.
        changes.clear_deadlines(connection, attempt_id, *due)
        return False
    if not due:
        return False
    reason = f"{due[0].value} took longer than its timeout"
    end_attempt(
        connection,
        held,
        AttemptState.TIMED_OUT,
        lease=LeaseState.REVOKED,
        reason=reason,
        now=now,
        policy=policy,
        failure_class=FailureClass.TIMEOUT.value,
    )
    changes.wake_if_waiting(connection, held.job["partition"], reason=reason)
    return True


def overtake(connection: sa.Connection, attempt_id: str, *, policy: SchedulingPolicy) -> Held:
    """Apply whichever deadline of an attempt has passed, and return its rows, locked."""
    held = lock_attempt(connection, attempt_id)
    now = database_now(connection)
    if liveness.renewals_are_out(connection, now=now, policy=policy):
        return held
    if _expire(connection, held, now=now, policy=policy.lease) or _time_out(
        connection, held, now=now, policy=policy.lease
    ):
        return lock_attempt(connection, attempt_id)
    return held
