"""Changing the priority of jobs that have been submitted already (FAR-039, FAR-040)."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.errors import Conflict
from forgeyard.model.job import Priority
from forgeyard.model.policy import PriorityPolicy
from forgeyard.model.transitions import FINAL_JOB_STATES, JobState
from forgeyard.scheduler.elevation import check_elevation
from forgeyard.store import bulk, changes, tables, wishes
from forgeyard.store.changes import RUN, Row
from forgeyard.store.engine import database_now
from forgeyard.store.shares import Intent
from forgeyard.store.stopping import lock_jobs

MOST_ADJUSTMENT = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Reordering:
    """What is to change about a job's place; `None` leaves it as it is."""

    priority: Priority | None = None
    adjustment: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reordered:
    """A job, and what its place in the queue is made of from now on."""

    job_id: str
    name: str
    state: JobState
    priority: Priority
    adjustment: int


def reprioritise_job(
    connection: sa.Connection,
    job_id: str,
    wanted: Reordering,
    *,
    policy: PriorityPolicy,
    intent: Intent,
) -> Reordered:
    """Change the priority of one job; it counts from the next cycle on.

    Raises:
        NotFound: there is no such job.
        Conflict: it has ended.
        Forbidden: the policy allows nobody this priority.
    """
    _, job = changes.lock_run_and_job(connection, job_id)
    if JobState(job["state"]) in FINAL_JOB_STATES:
        raise Conflict(f"{job['name']} has ended already: {job['state']}", field="job_id")
    (changed,) = _reprioritise(connection, [job], wanted, policy=policy, intent=intent)
    return changed


def reprioritise_run(
    connection: sa.Connection,
    run_id: str,
    wanted: Reordering,
    *,
    policy: PriorityPolicy,
    intent: Intent,
) -> tuple[Reordered, ...]:
    """Change the priority of every job of a run that has not ended.

    Raises:
        NotFound: there is no such run.
        Conflict: all its jobs have ended.
        Forbidden: the policy allows nobody this priority.
    """
    run = changes.find(connection, RUN, run_id, lock=True)
    jobs = lock_jobs(connection, run_id).values()
    waiting = [job for job in jobs if JobState(job["state"]) not in FINAL_JOB_STATES]
    if not waiting:
        raise Conflict(f"every job of run {run['name']} has ended already", field="run_id")
    return _reprioritise(connection, waiting, wanted, policy=policy, intent=intent)


def _reprioritise(
    connection: sa.Connection,
    jobs: Sequence[Row],
    wanted: Reordering,
    *,
    policy: PriorityPolicy,
    intent: Intent,
) -> tuple[Reordered, ...]:
    """Write it to locked jobs of one run, with an audit line for each; then wake."""
    changed = tuple(_changed(job, wanted) for job in jobs)
    for job, after in zip(jobs, changed, strict=True):
        named = wishes.read(job["wishes"]).scheduling_class
        # Who only lowers or adjusts asks for nothing above what the job has.
        if after.priority != job["priority"]:
            check_elevation(after.priority, named, policy, reason=intent.reason, field="priority")
    rows = [
        {"job_id": it.job_id, "priority": it.priority.value, "adjustment": it.adjustment}
        for it in changed
    ]
    bulk.update(connection, tables.jobs, rows, keys=("job_id",))
    now = database_now(connection)
    for job, after in zip(jobs, changed, strict=True):
        changes.audit(
            connection,
            actor=intent.actor,
            channel=intent.channel,
            action="job.reprioritise",
            target=after.job_id,
            detail=f"{_place(job)} to {after.priority} {after.adjustment:+}: {intent.reason}",
            now=now,
        )
    changes.wake_if_waiting(connection, jobs[0]["partition"], reason="jobs were reprioritised")
    return changed


def _changed(job: Row, wanted: Reordering) -> Reordered:
    adjustment = job["adjustment"] if wanted.adjustment is None else wanted.adjustment
    return Reordered(
        job_id=job["job_id"],
        name=job["name"],
        state=JobState(job["state"]),
        priority=wanted.priority or Priority(job["priority"]),
        adjustment=adjustment,
    )


def _place(job: Row) -> str:
    return f"{job['priority']} {job['adjustment']:+}"
