"""The rows of a new run: itself, its jobs, their needs and the first deadlines.

Whether the run may be made at all is decided in `forgeyard.store.runs`.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import sqlalchemy as sa

from forgeyard.model.ids import new_id
from forgeyard.model.job import JobSpec
from forgeyard.model.run import GitSource, RunSpec
from forgeyard.model.transitions import JobState, RunState
from forgeyard.store import changes, codec, jobs, scopes, tables
from forgeyard.store.changes import JOB, RUN, DeadlineKind

HELD_CHECK = 60_000
"""How often a run that waits for another one looks by itself; the other's end calls it at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """A run to make; `reused` maps names of jobs to those whose success they take over."""

    run_id: str
    spec: RunSpec
    document: str
    source_digest: str | None
    submitted_by: str
    partition: str
    git: GitSource | None = None
    rerun_of: str | None = None
    reused: Mapping[str, str] = field(default_factory=dict[str, str])
    scopes: tuple[str, str, str, str]
    """The tenant, organization, project and queue that it belongs to."""
    held: bool = False
    """Whether it waits for another run of its concurrency group."""


def draw_id(prefix: str, *, now: int, rng: random.Random) -> str:
    """Make an identifier from the database's clock."""
    return new_id(prefix, now=datetime.fromtimestamp(now / 1000, UTC), rng=rng)


def give_birth(connection: sa.Connection, birth: Birth, *, now: int, rng: random.Random) -> None:
    """Insert the run and everything that belongs to it, then wake the loop."""
    ids = _job_ids(birth.spec, now=now, rng=rng)
    rows = [
        _job_row(birth, spec, position=position, job_id=ids[spec.name], now=now)
        for position, spec in enumerate(birth.spec.jobs)
    ]
    run = _run_row(birth, rows, now=now)
    changes.born(connection, RUN, [run], reason=f"submitted by {birth.submitted_by}", now=now)
    changes.born(connection, JOB, rows, reason="submitted", now=now)
    _insert_needs(connection, birth, ids)
    _insert_deadlines(connection, birth, rows, now=now)
    if not birth.held and any(_is_undecided(row) for row in rows):
        jobs.start(connection, run, reason="it waits for nothing", now=now)
    changes.wake_if_waiting(connection, birth.partition, reason=f"run {birth.spec.name} submitted")


def _job_ids(spec: RunSpec, *, now: int, rng: random.Random) -> dict[str, str]:
    """Draw ids that sort as the jobs are written: where all else is equal, that is their order."""
    drawn = sorted(draw_id("job", now=now, rng=rng) for _ in spec.jobs)
    return {job.name: job_id for job, job_id in zip(spec.jobs, drawn, strict=True)}


def _is_undecided(row: Mapping[str, object]) -> bool:
    """Tell a job that waits for no other: its matrix may have no place, or it can never run."""
    return row["state"] == JobState.PENDING and not row["waiting_needs"]


def _run_row(birth: Birth, rows: list[dict[str, object]], *, now: int) -> dict[str, object]:
    group = birth.spec.concurrency
    return {
        "run_id": birth.run_id,
        "name": birth.spec.name,
        "state": RunState.QUEUED.value,
        "version": 1,
        "partition": birth.partition,
        "tenant_id": birth.scopes[0],
        "document": birth.document,
        "source_digest": birth.source_digest,
        "git": None if birth.git is None else codec.encode(birth.git),
        "rerun_of": birth.rerun_of,
        "submitted_by": birth.submitted_by,
        "concurrency_group": None if group is None else group.group,
        "cancel_in_progress": int(group is not None and group.cancel_in_progress),
        "timeout_ms": birth.spec.timeout,
        "open_jobs": sum(1 for row in rows if row["state"] != JobState.SUCCEEDED),
        "created_at": now,
        "ready_at": None if birth.held else now,
    }


def _job_row(
    birth: Birth, spec: JobSpec, *, position: int, job_id: str, now: int
) -> dict[str, object]:
    cell = spec.matrix
    waiting = sum(1 for need in set(spec.needs) if need not in birth.reused)
    state = _first_state(birth, spec, waiting=waiting)
    return {
        "job_id": job_id,
        "run_id": birth.run_id,
        "name": spec.name,
        "position": position,
        "state": state.value,
        "version": 1,
        "partition": birth.partition,
        **dict(zip(scopes.PATH, birth.scopes, strict=True)),
        "spec": codec.encode(spec),
        "condition": spec.condition.value,
        "continue_on_error": int(spec.continue_on_error),
        "matrix": None if cell is None else cell.of,
        "fail_fast": int(cell is not None and cell.fail_fast),
        "max_parallel": None if cell is None else cell.max_parallel,
        "priority": spec.priority.value,
        "requirement_class": jobs.requirement_class(spec),
        "cpu_milli": spec.resources.cpu,
        "memory_bytes": spec.resources.memory,
        "disk_bytes": spec.resources.disk,
        "slots": spec.resources.slots,
        "waiting_needs": waiting,
        "reused_from": birth.reused.get(spec.name),
        "created_at": now,
        "eligible_at": now if state is JobState.ELIGIBLE else None,
        "finished_at": now if state is JobState.SUCCEEDED else None,
        "wishes": codec.encode(spec.wishes),
        "lasts_ms": spec.timeouts.preparation + spec.timeouts.execution + spec.timeouts.upload,
        "has_inputs": int(birth.source_digest is not None or bool(spec.needs)),
        "scheduling_class": spec.wishes.scheduling_class,
    }


def _first_state(birth: Birth, spec: JobSpec, *, waiting: int) -> JobState:
    """Tell where a job starts: the needs that have ended are successes taken over."""
    if spec.name in birth.reused:
        return JobState.SUCCEEDED
    if birth.held or (spec.matrix is not None and spec.matrix.max_parallel is not None):
        return JobState.PENDING
    succeeded = [jobs.Need(state=JobState.SUCCEEDED, continue_on_error=False)] * len(spec.needs)
    if not waiting and jobs.is_met(spec.condition, succeeded):
        return JobState.ELIGIBLE
    return JobState.PENDING


def _insert_needs(connection: sa.Connection, birth: Birth, ids: Mapping[str, str]) -> None:
    rows = [
        {"job_id": ids[spec.name], "need_id": ids[need], "position": position}
        for spec in birth.spec.jobs
        for position, need in enumerate(dict.fromkeys(spec.needs))
    ]
    if rows:
        connection.execute(sa.insert(tables.job_needs), rows)


def _insert_deadlines(
    connection: sa.Connection, birth: Birth, rows: list[dict[str, object]], *, now: int
) -> None:
    queue = [
        {
            "kind": DeadlineKind.QUEUE.value,
            "entity_id": row["job_id"],
            "partition": birth.partition,
            "due_at": now + spec.timeouts.queue,
        }
        for row, spec in zip(rows, birth.spec.jobs, strict=True)
        if row["state"] == JobState.ELIGIBLE
    ]
    kind, within = (
        (DeadlineKind.HELD, HELD_CHECK) if birth.held else (DeadlineKind.RUN, birth.spec.timeout)
    )
    end = {
        "kind": kind.value,
        "entity_id": birth.run_id,
        "partition": birth.partition,
        "due_at": now + within,
    }
    connection.execute(sa.insert(tables.deadlines), [end, *queue])
