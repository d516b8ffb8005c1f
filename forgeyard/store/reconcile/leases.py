"""Leases, attempts and jobs against each other: whoever is worked on is so by exactly one lease.

What is found here nothing else would ever end: a lease that outlived its job, an attempt without a
lease, a job that waits for an attempt which is over. Each goes on by the arrows that there are, and
no attempt is charged for it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import sqlalchemy as sa

from forgeyard.model.ids import new_id
from forgeyard.model.job import FailureClass
from forgeyard.model.policy import DAY, LeasePolicy
from forgeyard.model.transitions import (
    FINAL_ATTEMPT_STATES,
    FINAL_JOB_STATES,
    AttemptState,
    JobState,
    LeaseState,
)
from forgeyard.scheduler.findings import Finding, FindingKind
from forgeyard.store import changes, jobs, release, settle, tables
from forgeyard.store.changes import ATTEMPT, JOB, DeadlineKind, Row
from forgeyard.store.engine import database_now
from forgeyard.store.reconcile.books import LIVE
from forgeyard.store.reconcile.look import Comparison, Look
from forgeyard.store.release import Held

REASON: Final = "found without its counterpart by a reconciliation"
WORKED_ON: Final = (JobState.PREPARING, JobState.RUNNING, JobState.UPLOADING_OUTPUTS)
ON_THE_WAY: Final = (
    *(JobState.LOST, JobState.RETRY_WAITING, JobState.ELIGIBLE, JobState.LEASED),
    *WORKED_ON,
)
"""The states of a job that go forward, in their order."""
_jobs, _leases, _attempts = tables.jobs, tables.leases, tables.attempts
_ENDED = [state.value for state in FINAL_ATTEMPT_STATES]
_OPEN = [state.value for state in JobState if state not in FINAL_JOB_STATES]


def _find_leases(connection: sa.Connection, look: Look) -> list[Finding]:
    """Find live leases whose attempt or job is not what a live lease has."""
    fits = sa.or_(
        sa.and_(
            _leases.c.state == LeaseState.OFFERED.value,
            _attempts.c.state == AttemptState.LEASED.value,
            _jobs.c.state == JobState.LEASED.value,
        ),
        sa.and_(
            _leases.c.state == LeaseState.ACTIVE.value,
            _attempts.c.state.in_(WORKED_ON),
            _jobs.c.state == _attempts.c.state,
        ),
    )
    query = (
        sa.select(
            _leases.c.lease_id,
            _leases.c.state,
            _leases.c.epoch,
            _attempts.c.state.label("attempt_state"),
            _jobs.c.job_id,
            _jobs.c.state.label("job_state"),
            _jobs.c.epoch.label("job_epoch"),
        )
        .join(_attempts, _attempts.c.attempt_id == _leases.c.attempt_id)
        .join(_jobs, _jobs.c.job_id == _leases.c.job_id)
        .where(
            _leases.c.state.in_(LIVE),
            look.inside(_leases.c.lease_id),
            look.of_partition(_jobs.c.partition),
            sa.or_(~fits, _leases.c.epoch != _jobs.c.epoch),
        )
        .order_by(_leases.c.lease_id)
    )
    return [_of_lease(dict(row)) for row in connection.execute(query).mappings()]


def _of_lease(row: Row) -> Finding:
    goal = _goal(row)
    if goal is not None:
        return Finding(
            kind=FindingKind.JOB_BEHIND,
            entity=row["job_id"],
            within=row["lease_id"],
            found=row["job_state"],
            expected=f"{goal}, like its attempt",
        )
    said = (
        f"{row['state']} of epoch {row['epoch']}; its attempt is {row['attempt_state']}, its job"
        f" {row['job_state']} at epoch {row['job_epoch']}"
    )
    kind, lease_id = FindingKind.LEASE_ORPHAN, row["lease_id"]
    return Finding(
        kind=kind, entity=lease_id, within=lease_id, found=said, expected="ended: it is in vain"
    )


def _goal(row: Row) -> JobState | None:
    """Tell where the job of a live lease should be, if it can still get there."""
    offered = row["state"] == LeaseState.OFFERED
    fitting = (AttemptState.LEASED,) if offered else tuple(AttemptState(x) for x in WORKED_ON)
    known = row["job_state"] in _OPEN
    if not known or row["epoch"] != row["job_epoch"] or row["attempt_state"] not in fitting:
        return None
    goal = JobState(row["attempt_state"])
    return goal if _place(JobState(row["job_state"])) < _place(goal) else None


def _place(state: JobState) -> int:
    """Tell how far a job is; one that is pending may go on as if it waited for a retry."""
    return ON_THE_WAY.index(JobState.RETRY_WAITING if state is JobState.PENDING else state)


def _lock_lease(connection: sa.Connection, lease_id: str) -> None:
    release.lock_lease(connection, lease_id)


def _fix_lease(connection: sa.Connection, found: Sequence[Finding], look: Look) -> None:
    (finding,) = found
    held = release.lock_lease(connection, finding.within)
    now = database_now(connection)
    if finding.kind is FindingKind.JOB_BEHIND:
        _walk(connection, held.job, JobState(held.attempt["state"]), now=now)
        return
    _end_lease(connection, held, now=now, policy=look.policy.lease)
    changes.wake_if_waiting(connection, held.job["partition"], reason=REASON)


def _walk(connection: sa.Connection, job: Row, goal: JobState, *, now: int) -> Row:
    """Move a job forward by every arrow between."""
    begun, wanted = _place(JobState(job["state"])), _place(goal)
    changes.clear_deadlines(connection, job["job_id"], DeadlineKind.QUEUE, DeadlineKind.RETRY)
    for state in ON_THE_WAY[begun + 1 : wanted + 1]:
        job = changes.move(connection, JOB, job, state, reason=REASON, now=now)
    return job


def _end_lease(connection: sa.Connection, held: Held, *, now: int, policy: LeasePolicy) -> None:
    """Take a lease away that serves nothing; its agent learns of it like of any other loss."""
    revoked, lost = LeaseState.REVOKED, AttemptState.LOST
    if held.attempt["state"] in FINAL_ATTEMPT_STATES:
        release.release(connection, held.lease, to=revoked, reason=REASON, now=now)
        return
    if held.attempt["state"] == AttemptState.LEASED:
        release.end_offer(connection, held, lost, lease=revoked, reason=REASON, now=now)
        return
    release.end_attempt(
        connection, held, lost, lease=revoked, reason=REASON, now=now, policy=policy
    )
    settle.settle(connection, held.attempt["attempt_id"], policy=policy)


def _find_attempts(connection: sa.Connection, look: Look) -> list[Finding]:
    """Find attempts without a live lease, and ended ones that nothing will settle."""
    alive = sa.exists().where(
        _leases.c.attempt_id == _attempts.c.attempt_id, _leases.c.state.in_(LIVE)
    )
    deadlines = tables.deadlines
    due = sa.exists().where(
        deadlines.c.entity_id == _attempts.c.attempt_id,
        deadlines.c.kind == DeadlineKind.SETTLE.value,
    )
    ended = _attempts.c.state.in_(_ENDED)
    query = (
        sa.select(_attempts.c.attempt_id, _attempts.c.state)
        .where(
            look.inside(_attempts.c.attempt_id),
            look.of_partition(_attempts.c.partition),
            _attempts.c.settled_at.is_(None) | ~ended,
            sa.case((ended, ~due), else_=~alive),
            _attempts.c.attempt_id.in_(_recent(look)),
        )
        .order_by(_attempts.c.attempt_id)
    )
    return [_of_attempt(attempt_id, state) for attempt_id, state in connection.execute(query)]


def _recent(look: Look) -> sa.CompoundSelect[Any]:
    """Choose the attempts of open jobs, and all of the last day: indexes find both."""
    since = datetime.fromtimestamp((look.now - DAY) / 1000, UTC)
    first = new_id("att", now=since, rng=Random(0))
    of_open = (
        sa.select(_attempts.c.attempt_id)
        .join(_jobs, _jobs.c.job_id == _attempts.c.job_id)
        .where(_jobs.c.state.in_(_OPEN))
    )
    return of_open.union_all(
        sa.select(_attempts.c.attempt_id).where(_attempts.c.attempt_id >= first)
    )


def _of_attempt(attempt_id: str, state: str) -> Finding:
    ended = state in FINAL_ATTEMPT_STATES
    return Finding(
        kind=FindingKind.ATTEMPT_UNSETTLED if ended else FindingKind.ATTEMPT_ORPHAN,
        entity=attempt_id,
        within=attempt_id,
        found=f"{state}, not settled" if ended else f"{state} without a live lease",
        expected="settled" if ended else "lost",
    )


def _lock_attempt(connection: sa.Connection, attempt_id: str) -> None:
    job_id = changes.find(connection, ATTEMPT, attempt_id)["job_id"]
    changes.lock_run_and_job(connection, job_id)
    changes.find(connection, ATTEMPT, attempt_id, lock=True)


def _fix_attempt(connection: sa.Connection, found: Sequence[Finding], look: Look) -> None:
    (finding,) = found
    now = database_now(connection)
    attempt = changes.find(connection, ATTEMPT, finding.entity)
    if finding.kind is FindingKind.ATTEMPT_ORPHAN:
        values = {"finished_at": now, "message": REASON, "settled_at": now}
        blame = FailureClass.RUNNER_LOST.value
        lost = AttemptState.LOST
        changes.move(
            connection,
            ATTEMPT,
            attempt,
            lost,
            reason=REASON,
            now=now,
            failure_class=blame,
            **values,
        )
        changes.clear_deadlines(connection, finding.entity, *release.ATTEMPT_DEADLINES)
        return
    settle.settle(connection, finding.entity, policy=look.policy.lease)


def _find_jobs(connection: sa.Connection, look: Look) -> list[Finding]:
    """Find jobs that only an attempt could end, although no attempt will or one already has."""
    alive = sa.exists().where(_leases.c.job_id == _jobs.c.job_id, _leases.c.state.in_(LIVE))
    mine = _attempts.c.job_id == _jobs.c.job_id
    success = AttemptState.SUCCEEDED.value
    undecided = sa.exists().where(
        mine, _attempts.c.settled_at.is_(None), _attempts.c.state != success
    )
    attended = _jobs.c.state.in_((JobState.LEASED, *WORKED_ON, JobState.LOST))
    won = sa.exists().where(mine, _attempts.c.state == success)
    query = (
        sa.select(_jobs.c.job_id, _jobs.c.state)
        .where(
            look.inside(_jobs.c.job_id),
            look.of_partition(_jobs.c.partition),
            _jobs.c.state.in_(_OPEN),
            sa.or_(sa.and_(attended, ~undecided), won),
            ~alive,
        )
        .order_by(_jobs.c.job_id)
    )
    return [
        Finding(
            kind=FindingKind.JOB_ORPHAN,
            entity=job_id,
            within=job_id,
            found=f"{state}, and no attempt will end that",
            expected="as its attempts left it",
        )
        for job_id, state in connection.execute(query)
    ]


def _lock_job(connection: sa.Connection, job_id: str) -> None:
    changes.lock_run_and_job(connection, job_id)


def _fix_job(connection: sa.Connection, found: Sequence[Finding], _look: Look) -> None:
    """Let a job end as its last attempt did if that succeeded, else wait for another."""
    run, job = changes.lock_run_and_job(connection, found[0].entity)
    now = database_now(connection)
    if _succeeded(connection, job):
        job = _walk(connection, job, JobState.UPLOADING_OUTPUTS, now=now)
        won = JobState.SUCCEEDED
        jobs.finish_job(connection, run, job, won, reason=REASON, now=now)
    elif job["state"] == JobState.LEASED:
        jobs.give_back(connection, run, job, reason=REASON, now=now)
    else:
        if job["state"] != JobState.LOST:
            job = changes.move(connection, JOB, job, JobState.LOST, reason=REASON, now=now)
        _try_again(connection, run, job, now=now)
    changes.wake_if_waiting(connection, job["partition"], reason=REASON)


def _succeeded(connection: sa.Connection, job: Row) -> bool:
    query = sa.select(_attempts.c.attempt_id).where(
        _attempts.c.job_id == job["job_id"], _attempts.c.state == AttemptState.SUCCEEDED.value
    )
    return connection.execute(query.limit(1)).first() is not None


def _try_again(connection: sa.Connection, run: Row, job: Row, *, now: int) -> None:
    if job["cancel_reason"] is not None:
        ending = jobs.Ending(
            job=job,
            state=JobState.CANCELLED,
            reason=job["cancel_reason"],
            failure_class=FailureClass.CANCELLED,
            message=job["cancel_reason"],
        )
        jobs.finish_jobs(connection, run, [ending], now=now)
        return
    waiting = JobState.RETRY_WAITING
    job = changes.move(connection, JOB, job, waiting, reason=REASON, now=now)
    jobs.make_eligible(connection, run, job, reason=REASON, now=now)


LEASES = Comparison(name="leases", find=_find_leases, lock=_lock_lease, fix=_fix_lease)
ATTEMPTS = Comparison(name="attempts", find=_find_attempts, lock=_lock_attempt, fix=_fix_attempt)
JOBS = Comparison(name="jobs", find=_find_jobs, lock=_lock_job, fix=_fix_job)
