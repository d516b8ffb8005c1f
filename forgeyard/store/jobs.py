"""How jobs end, and what their end means for the jobs that need them and for their run.

Callers hold the run's lock. Nothing here wakes the scheduler loop: the wake row is hot and locked
last, so callers end with `changes.wake_if_waiting`.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import sqlalchemy as sa

from forgeyard.model.job import Condition, FailureClass, JobSpec
from forgeyard.model.transitions import FINAL_JOB_STATES, JobState, RunState
from forgeyard.store import changes, codec, specs, tables
from forgeyard.store.changes import JOB, RUN, DeadlineKind, Row

HOLD_NO_PLACE = frozenset({JobState.PENDING, *FINAL_JOB_STATES})
"""States in which a cell takes no place among those that may run at a time."""
_STOPPED = {"timeout": RunState.TIMED_OUT, "superseded": RunState.SUPERSEDED}
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
    connection.execute(_FORGET, {"jobs": [row["job_id"] for row in rows]})


_FORGET = sa.delete(tables.deadlines).where(
    tables.deadlines.c.kind.in_((DeadlineKind.QUEUE.value, DeadlineKind.RETRY.value)),
    tables.deadlines.c.entity_id.in_(sa.bindparam("jobs", expanding=True)),
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
        endings = promote(connection, run, [ending.job for ending in endings], now=now)
    return _end_run(connection, run, now=now) if run["open_jobs"] == 0 else run


def is_held(run: Row) -> bool:
    """Tell whether a run waits for another of its concurrency group, and so starts nothing.

    The release before this one knows no groups and leaves `ready_at` empty.
    """
    return run["concurrency_group"] is not None and run["ready_at"] is None


def start(connection: sa.Connection, run: Row, *, reason: str, now: int) -> Row:
    """Let every job wait for a runner that waits for nothing else, and end what can never run."""
    endings = _judge(connection, run, _jobs.c.run_id == run["run_id"], reason=reason, now=now)
    return finish_jobs(connection, run, endings, now=now)


def promote(connection: sa.Connection, run: Row, ended: Sequence[Row], *, now: int) -> list[Ending]:
    """Make eligible what waited only for these jobs; return the dependents that end instead.

    Besides the jobs that needed them, these are the cells that waited for their matrix to have a
    place free.
    """
    ids = [row["job_id"] for row in ended]
    _stop_waiting(connection, ids)
    if is_held(run):
        return []
    freed = {row["matrix"] for row in ended if row["max_parallel"] is not None}
    dependents = sa.select(_needs.c.job_id).where(_needs.c.need_id.in_(ids))
    among: list[sa.ColumnElement[bool]] = [_jobs.c.job_id.in_(dependents)]
    if freed:
        among.append(sa.and_(_jobs.c.run_id == run["run_id"], _jobs.c.matrix.in_(freed)))
    reason = "it waits for nothing more"
    return _judge(connection, run, sa.or_(*among), reason=reason, now=now)


def _judge(
    connection: sa.Connection,
    run: Row,
    among: sa.ColumnElement[bool],
    *,
    reason: str,
    now: int,
) -> list[Ending]:
    """Make eligible what waits for nothing among these jobs; return those that end instead."""
    endings: list[Ending] = []
    met: list[Row] = []
    for job, needs in _ready(connection, among):
        condition = Condition(job["condition"])
        if run["state"] == RunState.CANCELLING:
            stopped = "the run is being cancelled"
            endings.append(Ending(job=job, state=JobState.CANCELLED, reason=stopped))
        elif is_met(condition, needs):
            met.append(job)
        else:
            skipped = unmet(condition)
            endings.append(Ending(job=job, state=JobState.SKIPPED, reason=skipped, message=skipped))
    met = _with_places(connection, run, met)
    return [*endings, *_make_eligible(connection, met, since=now, reason=reason, now=now)]


def _with_places(connection: sa.Connection, run: Row, met: Sequence[Row]) -> list[Row]:
    """Keep the jobs that need no place in a matrix, and of the others as many as have one."""
    free = {row["matrix"]: row["max_parallel"] for row in met if row["max_parallel"] is not None}
    if free:
        query = (
            sa.select(_jobs.c.matrix, sa.func.count())
            .where(
                _jobs.c.run_id == run["run_id"],
                _jobs.c.matrix.in_(free),
                _jobs.c.state.not_in(HOLD_NO_PLACE),
            )
            .group_by(_jobs.c.matrix)
        )
        for matrix, taken in connection.execute(query):
            free[matrix] -= taken
    kept: list[Row] = []
    for row in sorted(met, key=itemgetter("position")):
        if row["max_parallel"] is not None:
            free[row["matrix"]] -= 1
            if free[row["matrix"]] < 0:
                continue
        kept.append(row)
    return kept


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
    connection.execute(_STOP_WAITING, {"ended": list(ended)})


_ENDED = _needs.c.need_id.in_(sa.bindparam("ended", expanding=True))
_HITS = (
    sa.select(sa.func.count()).where(_needs.c.job_id == _jobs.c.job_id, _ENDED).scalar_subquery()
)
_STOP_WAITING = (
    sa.update(_jobs)
    .where(_jobs.c.job_id.in_(sa.select(_needs.c.job_id).where(_ENDED)))
    .values(waiting_needs=_jobs.c.waiting_needs - _HITS)
)


def _ready(
    connection: sa.Connection, among: sa.ColumnElement[bool]
) -> list[tuple[Row, list[Need]]]:
    """Read which of these jobs wait for nothing more, by id, with all that they need."""
    waiting = (
        sa.select(_jobs)
        .where(
            among,
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
    changes.clear_deadlines(connection, run["run_id"], DeadlineKind.RUN, DeadlineKind.HELD)
    if run["concurrency_group"] is not None:
        _call_next(connection, run["concurrency_group"], now=now)
    if run["state"] == RunState.QUEUED:
        # Everything ended without an agent: skipped, cancelled one by one, or out of time.
        run = changes.move(
            connection, RUN, run, RunState.RUNNING, reason="its jobs ended", now=now, started_at=now
        )
    state, reason = _verdict(run)
    return changes.move(connection, RUN, run, state, reason=reason, now=now, finished_at=now)


def _call_next(connection: sa.Connection, group: str, *, now: int) -> None:
    """Have the sweep look now at the run that waits in a concurrency group.

    The group itself is locked before any run, so it is too late to do that here.
    """
    deadlines = tables.deadlines
    waiting = sa.select(_runs.c.run_id).where(
        _runs.c.concurrency_group == group,
        _runs.c.state == RunState.QUEUED.value,
        _runs.c.ready_at.is_(None),
    )
    connection.execute(
        sa.update(deadlines)
        .where(deadlines.c.kind == DeadlineKind.HELD.value, deadlines.c.entity_id.in_(waiting))
        .values(due_at=now)
    )


def _verdict(run: Row) -> tuple[RunState, str]:
    if run["state"] == RunState.CANCELLING:
        return _STOPPED.get(run["ending"], RunState.CANCELLED), "every job has stopped"
    if run["failed_jobs"]:
        return RunState.FAILED, f"{run['failed_jobs']} jobs did not succeed"
    return RunState.SUCCEEDED, "every job has ended well"
