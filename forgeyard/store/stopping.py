"""How a run, a job or the rest of a matrix is stopped, whoever wants it stopped.

Whatever no agent has accepted ends at once. What an agent is working on is flagged; the agent
learns of it from its next poll or renewal, and a deadline backs that up.
"""

import sqlalchemy as sa

from forgeyard.model.job import FailureClass
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.transitions import (
    FINAL_JOB_STATES,
    AttemptState,
    JobState,
    LeaseState,
    RunState,
)
from forgeyard.store import changes, jobs, release, scopes, tables
from forgeyard.store.changes import RUN, DeadlineKind, Row

UNATTENDED = frozenset({JobState.PENDING, JobState.ELIGIBLE, JobState.RETRY_WAITING, JobState.LOST})
"""States in which no agent holds the job."""
_FAILURES = frozenset({JobState.FAILED, JobState.TIMED_OUT})


def stop_run(
    connection: sa.Connection, run: Row, *, ending: str, reason: str, now: int, policy: LeasePolicy
) -> str:
    """Turn a run to Cancelling and stop its jobs; it ends here if no agent works on it.

    The caller wakes.
    """
    run = changes.move(
        connection,
        RUN,
        run,
        RunState.CANCELLING,
        reason=reason,
        now=now,
        ending=ending,
        note=reason,
    )
    changes.clear_deadlines(connection, run["run_id"], DeadlineKind.RUN, DeadlineKind.HELD)
    open_jobs = [
        job
        for job in lock_jobs(connection, run["run_id"]).values()
        if JobState(job["state"]) not in FINAL_JOB_STATES
    ]
    endings = _stop_all(connection, open_jobs, reason=reason, now=now, policy=policy)
    if endings:
        run = jobs.finish_jobs(connection, run, endings, now=now)
    return str(run["state"])


def fail(
    connection: sa.Connection, run: Row, ending: jobs.Ending, *, now: int, policy: LeasePolicy
) -> Row:
    """End a job that did not succeed; where its matrix fails fast, stop the other cells as well.

    The caller holds the locks of run and job, and of no runner.
    """
    endings, job = [ending], ending.job
    if job["fail_fast"] and not job["continue_on_error"] and ending.state in _FAILURES:
        reason = f"{job['name']} did not succeed, and its matrix fails fast"
        others = _lock_other_cells(connection, job)
        endings += _stop_all(connection, others, reason=reason, now=now, policy=policy)
    return jobs.finish_jobs(connection, run, endings, now=now)


def _lock_other_cells(connection: sa.Connection, job: Row) -> list[Row]:
    """Lock by id the other cells of a job's matrix that have not ended and are not stopping."""
    table = tables.jobs
    query = (
        sa.select(table)
        .where(
            table.c.run_id == job["run_id"],
            table.c.matrix == job["matrix"],
            table.c.job_id != job["job_id"],
            table.c.state.not_in(FINAL_JOB_STATES),
            table.c.cancel_reason.is_(None),
        )
        .order_by(table.c.job_id)
        .with_for_update()
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def _stop_all(
    connection: sa.Connection, rows: list[Row], *, reason: str, now: int, policy: LeasePolicy
) -> list[jobs.Ending]:
    """Stop locked jobs; return how those end that end now."""
    leased = [row for row in rows if row["state"] == JobState.LEASED]
    scopes.lock_for_refunds(connection, leased)
    _lock_runners(connection, rows)
    stopped = (stop_job(connection, j, reason=reason, now=now, policy=policy) for j in rows)
    return [one for one in stopped if one is not None]


def stop_job(
    connection: sa.Connection, job: Row, *, reason: str, now: int, policy: LeasePolicy
) -> jobs.Ending | None:
    """Say how a job ends now, or ask the agent that works on it and return None."""
    state = JobState(job["state"])
    if state not in UNATTENDED and state is not JobState.LEASED:
        _ask_agent(connection, job, reason=reason, now=now, policy=policy)
        return None
    if state is JobState.LEASED:
        _revoke_offer(connection, job, reason=reason, now=now)
    return jobs.Ending(
        job=job,
        state=JobState.CANCELLED,
        reason=reason,
        failure_class=FailureClass.CANCELLED,
        message=reason,
    )


def _revoke_offer(connection: sa.Connection, job: Row, *, reason: str, now: int) -> None:
    lease = _current_lease(connection, job)
    if lease is not None and lease["state"] == LeaseState.OFFERED:
        release.end_offer(
            connection,
            release.lock_lease(connection, lease["lease_id"]),
            AttemptState.CANCELLED,
            lease=LeaseState.REVOKED,
            reason=reason,
            now=now,
            failure_class=FailureClass.CANCELLED.value,
        )


def _ask_agent(
    connection: sa.Connection, job: Row, *, reason: str, now: int, policy: LeasePolicy
) -> None:
    """Flag the job, and its lease if that still lives, and give the agent a bounded time."""
    table = tables.jobs
    connection.execute(
        sa.update(table).where(table.c.job_id == job["job_id"]).values(cancel_reason=reason)
    )
    lease = _current_lease(connection, job)
    if lease is None or lease["state"] != LeaseState.ACTIVE:
        return  # the attempt has ended, and `settle` will see the reason
    ask_lease(connection, lease, now=now, policy=policy)


def ask_lease(connection: sa.Connection, lease: Row, *, now: int, policy: LeasePolicy) -> None:
    """Ask the agent that holds an active lease to stop, and give it a bounded time."""
    leases, deadlines = tables.leases, tables.deadlines
    connection.execute(
        sa.update(leases).where(leases.c.lease_id == lease["lease_id"]).values(cancel_requested=1)
    )
    # An agent that renews but does not stop: as late as one that may be cut off and stop itself.
    latest = now + policy.execution_ttl + lease["grace_ms"] + policy.deadline_slack
    connection.execute(
        sa.update(deadlines)
        .where(
            deadlines.c.entity_id == lease["attempt_id"],
            deadlines.c.kind.in_([kind.value for kind in release.ATTEMPT_DEADLINES]),
            deadlines.c.due_at > latest,
        )
        .values(due_at=latest)
    )


def _current_lease(connection: sa.Connection, job: Row) -> Row | None:
    leases = tables.leases
    query = sa.select(leases).where(
        leases.c.job_id == job["job_id"], leases.c.epoch == job["epoch"]
    )
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def lock_jobs(connection: sa.Connection, run_id: str) -> dict[str, Row]:
    """Lock the jobs of a run by id; return them by name."""
    table = tables.jobs
    query = (
        sa.select(table).where(table.c.run_id == run_id).order_by(table.c.job_id).with_for_update()
    )
    return {row["name"]: dict(row) for row in connection.execute(query).mappings()}


def _lock_runners(connection: sa.Connection, rows: list[Row]) -> None:
    """Lock by id the runners that get something back, for the jobs come in another order."""
    leases, runners = tables.leases, tables.runners
    offered = sa.select(leases.c.runner_id).where(
        leases.c.job_id.in_([row["job_id"] for row in rows]),
        leases.c.state == LeaseState.OFFERED.value,
    )
    query = sa.select(runners.c.runner_id).where(runners.c.runner_id.in_(offered))
    connection.execute(query.order_by(runners.c.runner_id).with_for_update()).all()
