"""Read models: what people and programs are shown, with states explained in words.

Instants are epoch milliseconds by the database's clock and end in `_at`, durations end in `_ms`.
Nothing here changes a row, locks one, or decides anything.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce

import sqlalchemy as sa

from forgeyard.errors import InvalidRequest
from forgeyard.model.protocol import StepResult, TestCounts
from forgeyard.model.run import GitSource
from forgeyard.model.transitions import FINAL_RUN_STATES, RunState
from forgeyard.model.units import LARGEST, Millis
from forgeyard.store import (
    artifacts,
    codec,
    estimates,
    parked_classes,
    scopes,
    shares,
    specs,
    tables,
    waiting,
    wishes,
)
from forgeyard.store.artifacts import Artifact
from forgeyard.store.changes import DeadlineKind, Row
from forgeyard.store.engine import database_now
from forgeyard.store.jobs import is_held
from forgeyard.store.naming import is_of
from forgeyard.store.naming import run_id_of as run_id_of
from forgeyard.store.overview import CapacityView as CapacityView
from forgeyard.store.overview import QueueView as QueueView
from forgeyard.store.overview import RunnerView as RunnerView
from forgeyard.store.overview import SchedulerStatus as SchedulerStatus
from forgeyard.store.overview import capacity as capacity
from forgeyard.store.overview import queues as queues
from forgeyard.store.overview import runners as runners
from forgeyard.store.overview import scheduler_status as scheduler_status
from forgeyard.store.waiting import Surroundings

_ID = re.compile(r"[0-9A-Za-z_]{1,64}")
_DECODED = ("runner", "pool", "steps", "tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """One try of a job, and what it cost."""

    attempt_id: str
    number: int
    state: str
    runner: str
    pool: str
    trust: str
    capability_digest: str
    policy_digest: str
    """By what the runner was judged when it got the job (POL-006, POL-008)."""
    score: int
    failure_class: str | None
    exit_code: int | None
    message: str | None
    steps: tuple[StepResult, ...]
    tests: TestCounts | None
    created_at: int
    accepted_at: int | None
    started_at: int | None
    uploading_at: int | None
    finished_at: int | None
    settled_at: int | None
    wall_ms: int | None
    cpu_ms: int | None
    peak_memory_bytes: int | None
    bytes_fetched: int | None
    bytes_uploaded: int | None
    log_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputView:
    """An output that can be downloaded."""

    name: str
    path: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job; `waiting` says in one sentence why it does not run yet."""

    job_id: str
    name: str
    state: str
    needs: tuple[str, ...]
    condition: str
    continue_on_error: bool
    priority: str
    adjustment: int
    """What an operator adds to its priority."""
    scheduling_class: str
    exclusive: tuple[str, ...]
    """Its exclusivity keys."""
    waiting: str | None
    starts: str | None
    """When it may start, with the word *estimate* in it."""
    failure_class: str | None
    message: str | None
    cancel_reason: str | None
    reused_from: str | None
    matrix: str | None
    """The job of the run file of which this is one cell, and the values of that cell."""
    matrix_values: Mapping[str, str] | None
    attempts: tuple[AttemptView, ...]
    outputs: tuple[OutputView, ...]
    created_at: int
    eligible_at: int | None
    leased_at: int | None
    finished_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run and everything in it, jobs in the order they were written.

    `waits_for` is the run of its concurrency group that has to end first.
    """

    run_id: str
    name: str
    state: str
    ending: str | None
    note: str | None
    submitted_by: str
    source_digest: str | None
    git: GitSource | None
    rerun_of: str | None
    concurrency_group: str | None
    waits_for: str | None
    queue: str
    """The path of the queue that its jobs wait in."""
    timeout_ms: int
    created_at: int
    ready_at: int | None
    started_at: int | None
    finished_at: int | None
    tests: TestCounts | None
    """The sums over the latest attempts of its jobs; the failing ones are named there."""
    jobs: tuple[JobView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in a list; `waits_for` is the run of its group that has to end first."""

    run_id: str
    name: str
    state: str
    note: str | None
    waits_for: str | None
    submitted_by: str
    git: GitSource | None
    rerun_of: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    jobs: int
    open_jobs: int
    failed_jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Some runs, newest first; `next` is the `before` of the following page."""

    runs: tuple[RunSummary, ...]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLine:
    """One change of state: `before` is None where something began."""

    kind: str
    entity_id: str
    name: str
    before: str | None
    after: str
    reason: str
    at: int


def run(connection: sa.Connection, run_id_or_prefix: str) -> RunView:
    """Show a run with its jobs and their attempts; the same number of queries for any size."""
    run_id = run_id_of(connection, run_id_or_prefix)
    query = sa.select(tables.runs, _waits_for()).where(tables.runs.c.run_id == run_id)
    row = dict(connection.execute(query).mappings().one())
    jobs = _jobs(connection, run_id)
    surroundings = Surroundings(
        now=database_now(connection),
        jobs={job["job_id"]: job for job in jobs},
        needs=_needs(connection, run_id),
        attempts=_attempts(connection, run_id),
        retries=_retries(connection, run_id),
        held=_held(row),
        parked=parked_classes.sentences(
            connection, row["partition"], {job["requirement_class"] for job in jobs}
        ),
    )
    starts = estimates.starts(connection, jobs, now=surroundings.now)
    outputs = _outputs(artifacts.of_run(connection, run_id))
    shown = tuple(
        _job_view(
            job, surroundings, outputs.get(job["job_id"], []), starts=starts.get(job["job_id"])
        )
        for job in jobs
    )
    return RunView(
        run_id=run_id,
        queue=shares.path_of(connection, scopes.path_of(jobs[0])) if jobs else "",
        git=specs.git(row),
        **{
            name: row[name]
            for name in (
                *("name", "state", "ending", "note", "submitted_by", "source_digest"),
                *("rerun_of", "concurrency_group", "waits_for", "timeout_ms", "created_at"),
                *("ready_at", "started_at", "finished_at"),
            )
        },
        tests=_sum([job.attempts[-1].tests for job in shown if job.attempts]),
        jobs=shown,
    )


def _sum(counts: Collection[TestCounts | None]) -> TestCounts | None:
    counted = [one for one in counts if one is not None]
    return reduce(_added, counted, TestCounts()) if counted else None


def _added(one: TestCounts, other: TestCounts) -> TestCounts:
    return TestCounts(
        tests=min(LARGEST, one.tests + other.tests),
        failures=min(LARGEST, one.failures + other.failures),
        errors=min(LARGEST, one.errors + other.errors),
        skipped=min(LARGEST, one.skipped + other.skipped),
        time=Millis(min(LARGEST, one.time + other.time)),
        files=min(LARGEST, one.files + other.files),
        unreadable=min(LARGEST, one.unreadable + other.unreadable),
    )


def _waits_for() -> sa.Label[str | None]:
    """Name the run that a run of the outer query waits for, if it waits for one."""
    runs, other = tables.runs, tables.runs.alias("other")
    query = (
        sa.select(other.c.run_id)
        .where(
            runs.c.ready_at.is_(None),
            runs.c.state == RunState.QUEUED.value,
            other.c.concurrency_group == runs.c.concurrency_group,
            other.c.tenant_id == runs.c.tenant_id,
            other.c.state.in_([s.value for s in RunState if s not in FINAL_RUN_STATES]),
            other.c.ready_at.is_not(None),
        )
        .order_by(other.c.run_id)
        .limit(1)
    )
    return query.correlate(runs).scalar_subquery().label("waits_for")


def _held(run: Row) -> str | None:
    """Say what a run waits for that may not go on yet."""
    if not is_held(run):
        return None
    group = f"its concurrency group {run['concurrency_group']}"
    return f"waits for {run['waits_for'] or 'another run'} of {group} to end"


def _jobs(connection: sa.Connection, run_id: str) -> list[Row]:
    jobs = tables.jobs
    query = sa.select(jobs).where(jobs.c.run_id == run_id).order_by(jobs.c.position)
    return [dict(row) for row in connection.execute(query).mappings()]


def _needs(connection: sa.Connection, run_id: str) -> dict[str, list[str]]:
    needs, jobs = tables.job_needs, tables.jobs
    query = (
        sa.select(needs.c.job_id, needs.c.need_id)
        .join(jobs, jobs.c.job_id == needs.c.job_id)
        .where(jobs.c.run_id == run_id)
        .order_by(needs.c.job_id, needs.c.position)
    )
    found: dict[str, list[str]] = {}
    for row in connection.execute(query):
        found.setdefault(row.job_id, []).append(row.need_id)
    return found


def _attempts(connection: sa.Connection, run_id: str) -> dict[str, list[Row]]:
    attempts, runners, pools = tables.attempts, tables.runners, tables.pools
    query = (
        sa.select(attempts, runners.c.name.label("runner"), pools.c.name.label("pool"))
        .outerjoin(runners, runners.c.runner_id == attempts.c.runner_id)
        .outerjoin(pools, pools.c.pool_id == attempts.c.pool_id)
        .where(attempts.c.run_id == run_id)
        .order_by(attempts.c.number)
    )
    found: dict[str, list[Row]] = {}
    for row in connection.execute(query).mappings():
        found.setdefault(row["job_id"], []).append(dict(row))
    return found


def _outputs(found: Collection[Artifact]) -> dict[str, list[OutputView]]:
    outputs: dict[str, list[OutputView]] = {}
    for one in found:
        outputs.setdefault(one.job_id, []).append(
            OutputView(name=one.name, path=one.path, digest=one.digest, size_bytes=one.size_bytes)
        )
    return outputs


def _retries(connection: sa.Connection, run_id: str) -> dict[str, int]:
    deadlines, jobs = tables.deadlines, tables.jobs
    query = (
        sa.select(deadlines.c.entity_id, deadlines.c.due_at)
        .join(jobs, jobs.c.job_id == deadlines.c.entity_id)
        .where(jobs.c.run_id == run_id, deadlines.c.kind == DeadlineKind.RETRY.value)
    )
    return {row.entity_id: row.due_at for row in connection.execute(query)}


def _job_view(
    job: Row, around: Surroundings, outputs: Collection[OutputView], *, starts: str | None
) -> JobView:
    job_id = job["job_id"]
    spec = specs.find(job) if job["matrix"] else None
    cell = spec.matrix if spec else None
    wished = wishes.find(job["wishes"])
    return JobView(
        scheduling_class=wishes.class_of(wished, job["priority"]),
        exclusive=wished.keys,
        matrix_values=cell.values if cell else None,
        needs=tuple(around.jobs[need]["name"] for need in around.needs.get(job_id, ())),
        continue_on_error=bool(job["continue_on_error"]),
        waiting=waiting.sentence(job, around),
        starts=starts,
        attempts=tuple(_attempt_view(row) for row in around.attempts.get(job_id, ())),
        outputs=tuple(outputs),
        **{
            name: job[name]
            for name in (
                *("job_id", "name", "state", "condition", "priority", "adjustment"),
                *(
                    "failure_class",
                    "message",
                    "cancel_reason",
                    "reused_from",
                    "matrix",
                    "created_at",
                    "eligible_at",
                ),
                *("leased_at", "finished_at"),
            )
        },
    )


def _attempt_view(row: Row) -> AttemptView:
    return AttemptView(
        runner=row["runner"] or row["runner_id"],
        pool=row["pool"] or row["pool_id"],
        steps=codec.decode(tuple[StepResult, ...], row["steps"]) if row["steps"] else (),
        tests=codec.decode(TestCounts, row["tests"]) if row["tests"] else None,
        **{name: row[name] for name in AttemptView.__slots__ if name not in _DECODED},
    )


def list_runs(
    connection: sa.Connection,
    *,
    limit: int,
    before: str | None = None,
    state: RunState | None = None,
    tenant_id: str | None = None,
) -> RunPage:
    """List runs, newest first, from after the cursor `before`; where one is given, a tenant's.

    Raises:
        InvalidRequest: the cursor is none of ours.
    """
    runs, jobs = tables.runs, tables.jobs
    of_run = sa.select(sa.func.count()).where(jobs.c.run_id == runs.c.run_id)
    query = sa.select(runs, of_run.scalar_subquery().label("jobs"), _waits_for())
    query = query.where(is_of(runs, tenant_id))
    if before is not None:
        query = query.where(
            sa.tuple_(runs.c.created_at, runs.c.run_id)
            < _position(connection, before, tenant_id=tenant_id)
        )
    if state is not None:
        query = query.where(runs.c.state == RunState(state).value)
    query = query.order_by(runs.c.created_at.desc(), runs.c.run_id.desc()).limit(limit + 1)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    shown = tuple(_summary(row) for row in rows[:limit])
    return RunPage(runs=shown, next=shown[-1].run_id if len(rows) > limit else None)


def _summary(row: Row) -> RunSummary:
    plain = (name for name in RunSummary.__slots__ if name != "git")
    return RunSummary(git=specs.git(row), **{name: row[name] for name in plain})


def _position(connection: sa.Connection, run_id: str, *, tenant_id: str | None) -> sa.Tuple:
    """Find where a page ended: the cursor is the id of its last run."""
    runs = tables.runs
    query = sa.select(runs.c.created_at).where(runs.c.run_id == run_id, is_of(runs, tenant_id))
    created_at = connection.execute(query).scalar_one_or_none() if _ID.fullmatch(run_id) else None
    if created_at is None:
        raise InvalidRequest(
            "before: not a cursor",
            field="before",
            value=run_id,
            allowed="the `next` of an earlier answer",
        )
    return sa.tuple_(sa.literal(created_at), sa.literal(run_id))


def history_of_run(connection: sa.Connection, run_id: str) -> tuple[HistoryLine, ...]:
    """Tell every change of state of a run, its jobs, attempts and leases, in the order written."""
    history = tables.history
    names = _names(connection, run_id)
    query = sa.select(history).where(history.c.run_id == run_id).order_by(history.c.history_id)
    return tuple(
        HistoryLine(
            name=names.get(row["entity_id"], str(row["entity_id"])),
            **{column: row[column] for column in HistoryLine.__slots__ if column != "name"},
        )
        for row in connection.execute(query).mappings()
    )


def _names(connection: sa.Connection, run_id: str) -> dict[str, str]:
    """Name what a run's history is about: the run, `JOB`, and `JOB #2` for attempt and lease."""
    runs, jobs, attempts, leases = tables.runs, tables.jobs, tables.attempts, tables.leases
    found = sa.select(runs.c.run_id, runs.c.name).where(runs.c.run_id == run_id)
    names = {row.run_id: row.name for row in connection.execute(found)}
    names |= {job["job_id"]: job["name"] for job in _jobs(connection, run_id)}
    query = (
        sa.select(attempts.c.attempt_id, attempts.c.number, jobs.c.name, leases.c.lease_id)
        .join(jobs, jobs.c.job_id == attempts.c.job_id)
        .outerjoin(leases, leases.c.attempt_id == attempts.c.attempt_id)
        .where(attempts.c.run_id == run_id)
    )
    for row in connection.execute(query):
        names[row.attempt_id] = names[row.lease_id] = f"{row.name} #{row.number}"
    return names
