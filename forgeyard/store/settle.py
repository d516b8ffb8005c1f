"""What follows from an attempt that ended: the end of its job, or another try.

The workflow of the attempt and the sweep both call this; whoever comes second changes nothing.
Success is no matter of settling: `complete` has ended the job already.
"""

from dataclasses import dataclass, replace

import sqlalchemy as sa

from forgeyard.model.job import FailureClass
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.transitions import (
    FINAL_ATTEMPT_STATES,
    AttemptState,
    JobState,
    RunState,
)
from forgeyard.scheduler.retry import Retry, decide
from forgeyard.store import changes, jobs, specs, stopping, tables
from forgeyard.store.changes import JOB, DeadlineKind, Row
from forgeyard.store.engine import database_now
from forgeyard.store.release import Held, lock_attempt

CHARGED = frozenset({AttemptState.FAILED, AttemptState.TIMED_OUT, AttemptState.LOST})
"""Ends that use up one of a job's attempts, if the attempt had been accepted."""
DECIDABLE = frozenset(
    {JobState.PREPARING, JobState.RUNNING, JobState.UPLOADING_OUTPUTS, JobState.LOST}
)
"""States in which a job waits for its attempt to be settled."""
_BLAME = {
    AttemptState.FAILED: FailureClass.INTERNAL,
    AttemptState.TIMED_OUT: FailureClass.TIMEOUT,
    AttemptState.CANCELLED: FailureClass.CANCELLED,
    AttemptState.LOST: FailureClass.RUNNER_LOST,
}
_ENDS = {
    AttemptState.FAILED: JobState.FAILED,
    AttemptState.TIMED_OUT: JobState.TIMED_OUT,
    AttemptState.CANCELLED: JobState.CANCELLED,
    AttemptState.LOST: JobState.FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The states of attempt and job afterwards, and the decision in one readable line."""

    attempt_state: str
    job_state: str
    decision: str


def settle(connection: sa.Connection, attempt_id: str, *, policy: LeasePolicy) -> Settlement:
    """Confirm how an attempt ended and decide, once, on another try.

    Raises:
        NotFound: there is no such attempt.
    """
    held = lock_attempt(connection, attempt_id)
    attempt, job = held.attempt, held.job
    state = AttemptState(attempt["state"])
    if state not in FINAL_ATTEMPT_STATES:
        return _settlement(attempt, job, decision=f"not ended yet: {state}")
    if attempt["settled_at"] is not None:
        return _settlement(attempt, job, decision=f"settled before; the job is {job['state']}")
    now = database_now(connection)
    _mark(connection, attempt, now=now)
    if not _is_undecided(attempt, job):
        return _settlement(attempt, job, decision=f"nothing to decide; the job is {job['state']}")
    job, decision = _decide(connection, held, state, now=now, policy=policy)
    changes.wake_if_waiting(connection, job["partition"], reason=f"job {job['name']}: {decision}")
    return _settlement(attempt, job, decision=decision)


def _settlement(attempt: Row, job: Row, *, decision: str) -> Settlement:
    return Settlement(attempt_state=attempt["state"], job_state=job["state"], decision=decision)


def _mark(connection: sa.Connection, attempt: Row, *, now: int) -> None:
    table, attempt_id = tables.attempts, attempt["attempt_id"]
    connection.execute(
        sa.update(table).where(table.c.attempt_id == attempt_id).values(settled_at=now)
    )
    changes.clear_deadlines(connection, attempt_id, DeadlineKind.SETTLE)


def _is_undecided(attempt: Row, job: Row) -> bool:
    """Tell whether the job still waits for the verdict on this very attempt, no success."""
    if attempt["state"] == AttemptState.SUCCEEDED:
        return False
    newest = attempt["number"] == job["attempts_made"]
    return newest and attempt["accepted_at"] is not None and JobState(job["state"]) in DECIDABLE


def _decide(
    connection: sa.Connection, held: Held, state: AttemptState, *, now: int, policy: LeasePolicy
) -> tuple[Row, str]:
    """Move the job to where the retry policy wants it; return it and why."""
    attempt, run = held.attempt, held.run
    blame, charged = blame_of(attempt)
    job = _charge(connection, held.job) if charged else held.job
    stopped = job["cancel_reason"] is not None or run["state"] == RunState.CANCELLING
    verdict = decide(specs.retry(job), blame, job["attempts_charged"], cancelled=stopped)
    if isinstance(verdict, Retry):
        return _try_again(connection, run, job, verdict, blame=blame, now=now)
    end = jobs.Ending(
        job=job,
        state=JobState.CANCELLED if stopped else _ENDS[state],
        reason=verdict.reason,
        failure_class=FailureClass.CANCELLED if stopped else blame,
        message=job["cancel_reason"] if stopped else attempt["message"],
    )
    return _give_up(connection, run, end, now=now, policy=policy)


def blame_of(attempt: Row) -> tuple[FailureClass, bool]:
    """Say why an attempt ended, and whether that uses up one of its job's attempts."""
    state = AttemptState(attempt["state"])
    blame = FailureClass(attempt["failure_class"] or _BLAME[state])
    return blame, state in CHARGED and blame is not FailureClass.PREEMPTED


def _charge(connection: sa.Connection, job: Row) -> Row:
    table, charged = tables.jobs, job["attempts_charged"] + 1
    connection.execute(
        sa.update(table).where(table.c.job_id == job["job_id"]).values(attempts_charged=charged)
    )
    return {**job, "attempts_charged": charged}


def _try_again(
    connection: sa.Connection, run: Row, job: Row, verdict: Retry, *, blame: FailureClass, now: int
) -> tuple[Row, str]:
    """Let the job wait for its delay, or for a runner at once when there is none."""
    wait = f"in {verdict.delay} ms" if verdict.delay else "at once"
    decision = f"try again {wait} after {blame}"
    job = changes.move(connection, JOB, job, JobState.RETRY_WAITING, reason=decision, now=now)
    if not verdict.delay:
        jobs.make_eligible(connection, run, job, reason=decision, now=now)
        return {**job, "state": JobState.ELIGIBLE.value}, decision
    changes.set_deadline(
        connection,
        DeadlineKind.RETRY,
        job["job_id"],
        partition=job["partition"],
        due_at=now + verdict.delay,
    )
    return job, decision


def _give_up(
    connection: sa.Connection, run: Row, end: jobs.Ending, *, now: int, policy: LeasePolicy
) -> tuple[Row, str]:
    """End the job the way its attempt ended, or as cancelled if that was asked for."""
    decision = f"{end.state}: {end.reason}"
    end = replace(end, reason=decision, message=end.message or decision)
    stopping.fail(connection, run, end, now=now, policy=policy)
    return {**end.job, "state": end.state.value}, decision
