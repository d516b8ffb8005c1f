"""Ending a job that no runner took in time, and the time that does not count (FAR-016, SP-079).

While the class of a job is parked there is no runner that could take it; if machines have to be
started first, that is not the job's fault. As much of it as the policy allows does not count.
"""

import sqlalchemy as sa

from forgeyard.model.job import FailureClass
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.transitions import JobState
from forgeyard.model.units import duration_text
from forgeyard.store import changes, generations, jobs, parked_classes, specs, stopping, waiting
from forgeyard.store.changes import DeadlineKind, Row

QUEUE_TIMEOUT = "QueueTimeout"


def enforce(
    connection: sa.Connection, run: Row, job: Row, *, policy: SchedulingPolicy, now: int
) -> bool:
    """End a locked job whose time is up, or set its deadline anew if some of it did not count."""
    parked = parked_classes.find(connection, job)
    excused = _excused(job, parked, policy.cold_start_allowance, now=now)
    spec = specs.find(job)
    due_at = now if spec is None else job["eligible_at"] + spec.timeouts.queue + excused
    if excused and due_at > now:
        changes.set_deadline(
            connection,
            DeadlineKind.QUEUE,
            job["job_id"],
            partition=job["partition"],
            due_at=due_at,
        )
        return False
    limit = "" if spec is None else f" of {duration_text(spec.timeouts.queue)}"
    message = f"{QUEUE_TIMEOUT}: no runner took it within its queue timeout{limit}"
    if excused:
        message += f", of which {duration_text(excused)} were not counted"
    ending = jobs.Ending(
        job=job,
        state=JobState.TIMED_OUT,
        reason=message,
        failure_class=FailureClass.TIMEOUT,
        message=f"{message}. {_last_word(connection, job, parked)}".rstrip(" ."),
    )
    stopping.fail(connection, run, ending, now=now, policy=policy.lease)
    changes.wake_if_waiting(connection, job["partition"], reason=message)
    return True


def _excused(job: Row, parked: Row | None, allowance: int, *, now: int) -> int:
    """Measure for how long its class was parked while it waited, up to the allowance."""
    if parked is None:
        return 0
    until = now if parked["until_at"] is None else int(parked["until_at"])
    return max(0, min(allowance, until - max(int(parked["since_at"]), int(job["eligible_at"]))))


def _last_word(connection: sa.Connection, job: Row, parked: Row | None) -> str:
    """Repeat what was said last of why the job waits."""
    if parked is not None and parked["generation"] == generations.current(connection):
        return waiting.diagnosis_of(parked) or ""
    return waiting.diagnosis_of(job) or ""
