"""How jobs end, and what their end means for the jobs that need them and for their run.

Callers hold the run's lock. Nothing here wakes the scheduler loop: the wake row is hot and locked
last, so callers end with `changes.wake_if_waiting`.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa

from forgeyard.model.job import Condition, FailureClass, JobSpec
from forgeyard.model.transitions import JobState, RunState
from forgeyard.store import changes, codec, specs, tables
from forgeyard.store.changes import JOB, RUN, DeadlineKind, Row

BAD_ENDS = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT})
_jobs, _needs, _runs = tables.jobs, tables.job_needs, tables.runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one job ends."""

    job: Row
    state: JobState
    reason: str
    failure_class: FailureClass | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A needed job, as far as a condition looks at it."""

    state: JobState
    continue_on_error: bool


def requirement_class(spec: JobSpec) -> str:
    """Name the requirements and resources of a job; jobs alike in both share the name."""
    shape = json.loads(codec.encode(spec))
    wanted = {"requires": shape["requires"], "resources": shape["resources"]}
    wanted["requires"]["toolchains"].sort(key=partial(json.dumps, sort_keys=True))
    canonical = json.dumps(wanted, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def make_eligible(connection: sa.Connection, run: Row, job: Row, *, reason: str, now: int) -> None:
    """Let a job wait for a runner from now on, with a fresh queue deadline."""
    endings = _make_eligible(connection, [job], since=now, reason=reason, now=now)
    finish_jobs(connection, run, endings, now=now)


def give_back(connection: sa.Connection, run: Row, job: Row, *, reason: str, now: int) -> None:
    """Let a job whose offer came to nothing wait on: no runner took it, so its clock runs on.

    Else a job that every runner turns down would never reach its queue timeout.
    """
    since = job["eligible_at"]
    endings = _make_eligible(connection, [job], since=since, reason=reason, now=now)
    finish_jobs(connection, run, endings, now=now)


def _make_eligible(
    connection: sa.Connection, rows: Sequence[Row], *, since: int, reason: str, now: int
) -> list[Ending]:
    """Let jobs wait; return how those end instead whose specification cannot be read."""
    readable = [(row, spec) for row in rows if (spec := specs.find(row)) is not None]
    waiting = [row for row, _ in readable]
    _forget_deadlines(connection, waiting)
    deadlines = [
        {
            "kind": DeadlineKind.QUEUE.value,
            "entity_id": row["job_id"],
            "partition": row["partition"],
            "due_at": since + spec.timeouts.queue,
        }
        for row, spec in readable
    ]
    if deadlines:
        connection.execute(sa.insert(tables.deadlines), deadlines)
    changes.move_all(
        connection, JOB, waiting, JobState.ELIGIBLE, reason=reason, now=now, eligible_at=since
    )
    return [parked(row) for row in rows if row not in waiting]


def parked(job: Row) -> Ending:
    """Say how a job ends whose stored specification cannot be read."""
    message = specs.PARKED_MESSAGE
    return Ending(
        job=job,
        state=JobState.CANCELLED,
        reason=message,
        failure_class=specs.PARKED,
        message=message,
    )


def _forget_deadlines(connection: sa.Connection, rows: Sequence[Row]) -> None:
    """Take away both deadlines that a job itself can have."""
    deadlines = tables.deadlines
    connection.execute(
        sa.delete(deadlines).where(
            deadlines.c.kind.in_((DeadlineKind.QUEUE.value, DeadlineKind.RETRY.value)),
            deadlines.c.entity_id.in_([row["job_id"] for row in rows]),
        )
    )


def finish_job(
    connection: sa.Connection,
    run: Row,
    job: Row,
    state: JobState,
    *,
    reason: str,
    now: int,
    failure_class: FailureClass | None = None,
    message: str | None = None,
) -> Row:
    """End a job for good, then promote or skip its dependents; return the run as it is now."""
    ending = Ending(
        job=job, state=state, reason=reason, failure_class=failure_class, message=message
    )
    return finish_jobs(connection, run, [ending], now=now)


def finish_jobs(connection: sa.Connection, run: Row, endings: Sequence[Ending], *, now: int) -> Row:
    """End several jobs of one run for good, and with them whatever can never run any more.

    Skipping a job may decide about the jobs that need it, so this goes on until nothing changes.
    """
    while endings:
        _end(connection, endings, now=now)
        run = _count(connection, run, endings)
        ended = [ending.job["job_id"] for ending in endings]
        endings = promote(connection, run, ended, now=now)
    return _end_run(connection, run, now=now) if run["open_jobs"] == 0 else run


def promote(
    connection: sa.Connection, run: Row, ended: Collection[str], *, now: int
) -> list[Ending]:
    """Make eligible what waited only for these jobs; return the dependents that end instead."""
    _stop_waiting(connection, ended)
    endings: list[Ending] = []
    met: list[Row] = []
    for job, needs in _ready(connection, ended):
        condition = Condition(job["condition"])
        if run["state"] == RunState.CANCELLING:
            reason = "the run is being cancelled"
            endings.append(Ending(job=job, state=JobState.CANCELLED, reason=reason))
        elif is_met(condition, needs):
            met.append(job)
        else:
            reason = unmet(condition)
            endings.append(Ending(job=job, state=JobState.SKIPPED, reason=reason, message=reason))
    reason = "its needs have ended"
    return [*endings, *_make_eligible(connection, met, since=now, reason=reason, now=now)]


def is_met(condition: Condition, needs: Iterable[Need]) -> bool:
    """Judge a job's condition once all its needs have ended."""
    if condition is Condition.ALWAYS:
        return True
    if condition is Condition.FAILURE:
        return any(need.state in BAD_ENDS for need in needs)
    return all(
        need.state is JobState.SUCCEEDED or (need.state in BAD_ENDS and need.continue_on_error)
        for need in needs
    )


def unmet(condition: Condition) -> str:
    """Say why a job is skipped."""
    if condition is Condition.FAILURE:
        return "skipped: it runs only after a failure, and no need failed"
    return "skipped: a job that it needs did not succeed"


def _end(connection: sa.Connection, endings: Sequence[Ending], *, now: int) -> None:
    """Move every job to its end; those that end alike share a statement."""
    alike: dict[tuple[JobState, str, FailureClass | None, str | None], list[Row]] = {}
    for ending in endings:
        how = (ending.state, ending.reason, ending.failure_class, ending.message)
        alike.setdefault(how, []).append(ending.job)
    for (state, reason, failure_class, message), rows in alike.items():
        changes.move_all(
            connection,
            JOB,
            rows,
            state,
            reason=reason,
            now=now,
            finished_at=now,
            failure_class=None if failure_class is None else failure_class.value,
            message=message,
            diagnosis=None,
        )
    _forget_deadlines(connection, [ending.job for ending in endings])


def _count(connection: sa.Connection, run: Row, endings: Sequence[Ending]) -> Row:
    """Keep the run's counters; the row comes back fresh, whatever the caller held."""
    failed = sum(
        1 for ending in endings if ending.state in BAD_ENDS and not ending.job["continue_on_error"]
    )
    counted = connection.execute(
        sa.update(_runs)
        .where(_runs.c.run_id == run["run_id"])
        .values(
            open_jobs=_runs.c.open_jobs - len(endings), failed_jobs=_runs.c.failed_jobs + failed
        )
        .returning(*_runs.c)
    )
    return dict(counted.mappings().one())


def _stop_waiting(connection: sa.Connection, ended: Collection[str]) -> None:
    """Take the ended jobs off the count of every job that needs them."""
    hits = (
        sa.select(sa.func.count())
        .where(_needs.c.job_id == _jobs.c.job_id, _needs.c.need_id.in_(ended))
        .scalar_subquery()
    )
    dependents = sa.select(_needs.c.job_id).where(_needs.c.need_id.in_(ended))
    connection.execute(
        sa.update(_jobs)
        .where(_jobs.c.job_id.in_(dependents))
        .values(waiting_needs=_jobs.c.waiting_needs - hits)
    )


def _ready(connection: sa.Connection, ended: Collection[str]) -> list[tuple[Row, list[Need]]]:
    """Read the dependents that wait for nothing more, by id, with all that they need."""
    dependents = sa.select(_needs.c.job_id).where(_needs.c.need_id.in_(ended))
    waiting = (
        sa.select(_jobs)
        .where(
            _jobs.c.job_id.in_(dependents),
            _jobs.c.state == JobState.PENDING.value,
            _jobs.c.waiting_needs == 0,
        )
        .order_by(_jobs.c.job_id)
    )
    rows: dict[str, Row] = {
        row["job_id"]: dict(row) for row in connection.execute(waiting).mappings()
    }
    needs: dict[str, list[Need]] = {job_id: [] for job_id in rows}
    query = (
        sa.select(_needs.c.job_id, _jobs.c.state, _jobs.c.continue_on_error)
        .join(_jobs, _jobs.c.job_id == _needs.c.need_id)
        .where(_needs.c.job_id.in_(rows))
    )
    for job_id, state, forgiven in connection.execute(query) if rows else ():
        needs[job_id].append(Need(state=JobState(state), continue_on_error=bool(forgiven)))
    return [(row, needs[job_id]) for job_id, row in rows.items()]


def _end_run(connection: sa.Connection, run: Row, *, now: int) -> Row:
    """Close a run whose jobs have all ended."""
    changes.clear_deadlines(connection, run["run_id"], DeadlineKind.RUN)
    if run["state"] == RunState.QUEUED:
        # Everything ended without an agent: skipped, cancelled one by one, or out of time.
        run = changes.move(
            connection, RUN, run, RunState.RUNNING, reason="its jobs ended", now=now, started_at=now
        )
    state, reason = _verdict(run)
    return changes.move(connection, RUN, run, state, reason=reason, now=now, finished_at=now)


def _verdict(run: Row) -> tuple[RunState, str]:
    if run["state"] == RunState.CANCELLING:
        timed_out = run["ending"] == "timeout"
        state = RunState.TIMED_OUT if timed_out else RunState.CANCELLED
        return state, "every job has stopped"
    if run["failed_jobs"]:
        return RunState.FAILED, f"{run['failed_jobs']} jobs did not succeed"
    return RunState.SUCCEEDED, "every job has ended well"
