"""Deadlines against what they are of: every wait has one, and every one is of something."""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from forgeyard.model.transitions import FINAL_JOB_STATES, JobState, LeaseState, RunState
from forgeyard.scheduler.findings import Finding, FindingKind
from forgeyard.store import changes, phases, specs, tables
from forgeyard.store.changes import ATTEMPT, JOB, RUN, DeadlineKind, Row
from forgeyard.store.reconcile.look import Comparison, Look
from forgeyard.store.release import ATTEMPT_DEADLINES

_runs, _jobs, _attempts = tables.runs, tables.jobs, tables.attempts
_leases, _deadlines = tables.leases, tables.deadlines
_GOING_ON: Final = (RunState.QUEUED.value, RunState.RUNNING.value)
_PHASE: Final = "phase"
_HELD = _runs.c.concurrency_group.is_not(None) & _runs.c.ready_at.is_(None)


def _lacks(key: sa.ColumnElement[str], *kinds: DeadlineKind) -> sa.ColumnElement[bool]:
    values = [kind.value for kind in kinds]
    return ~sa.exists().where(_deadlines.c.entity_id == key, _deadlines.c.kind.in_(values))


def _waits() -> sa.Subquery:
    """Select every wait that lacks a deadline: what lacks which, in which run and partition."""
    going_on = _runs.c.state.in_(_GOING_ON)
    runs = (
        _wait(_runs, _runs.c.run_id, kind).where(going_on, condition, _lacks(_runs.c.run_id, kind))
        for kind, condition in ((DeadlineKind.RUN, ~_HELD), (DeadlineKind.HELD, _HELD))
    )
    of_jobs = (
        (DeadlineKind.QUEUE, JobState.ELIGIBLE),
        (DeadlineKind.RETRY, JobState.RETRY_WAITING),
    )
    jobs = (
        _wait(_jobs, _jobs.c.job_id, kind).where(
            _jobs.c.state == state.value, _lacks(_jobs.c.job_id, kind)
        )
        for kind, state in of_jobs
    )
    key = _attempts.c.attempt_id
    attempts = (
        _wait(_attempts, key, _PHASE)
        .join(_leases, _leases.c.attempt_id == key)
        .where(
            _leases.c.state == LeaseState.ACTIVE.value,
            _attempts.c.state.in_(phases.PHASES[1:]),
            _lacks(key, *ATTEMPT_DEADLINES),
        )
    )
    return sa.union_all(*runs, *jobs, attempts).subquery()


def _wait(table: sa.Table, key: sa.ColumnElement[str], lacks: str) -> sa.Select[str, str, Any, Any]:
    return sa.select(
        key.label("entity"),
        sa.literal(str(lacks)).label("lacks"),
        table.c.run_id.label("of_run"),
        table.c.partition.label("partition"),
    )


def _rows(connection: sa.Connection, look: Look) -> Sequence[tuple[str, str, str]]:
    """Read what lacks a deadline: what it is, the deadline that it lacks, and its run."""
    waits = _waits()
    query = (
        sa.select(waits.c.entity, waits.c.lacks, waits.c.of_run)
        .where(look.inside(waits.c.of_run), look.of_partition(waits.c.partition))
        .order_by(waits.c.of_run, waits.c.entity)
    )
    return [(entity_id, kind, of_run) for entity_id, kind, of_run in connection.execute(query)]


def _find(connection: sa.Connection, look: Look) -> list[Finding]:
    return [
        Finding(
            kind=FindingKind.DEADLINE_MISSING,
            entity=entity_id,
            within=of_run,
            found="none",
            expected=f"a deadline of its {kind}",
        )
        for entity_id, kind, of_run in _rows(connection, look)
    ]


def _lock(connection: sa.Connection, run_id: str) -> None:
    changes.find(connection, RUN, run_id, lock=True)
    query = sa.select(_jobs.c.job_id).where(
        _jobs.c.run_id == run_id, _jobs.c.state.not_in(list(FINAL_JOB_STATES))
    )
    connection.execute(query.order_by(_jobs.c.job_id).with_for_update()).all()


def _fix(connection: sa.Connection, found: Sequence[Finding], look: Look) -> None:
    """Give each wait the deadline that it should have had; what is over by now is due at once."""
    for entity_id, kind, _ in _rows(connection, look.at(found[0].within)):
        if kind == _PHASE:
            attempt = changes.find(connection, ATTEMPT, entity_id)
            job = changes.find(connection, JOB, attempt["job_id"])
            policy = look.policy.lease
            phases.start_again(connection, attempt, job, now=look.now, policy=policy)
            continue
        row = changes.find(connection, _KINDS[DeadlineKind(kind)], entity_id)
        due_at = _due_at(DeadlineKind(kind), row, look)
        partition = str(row["partition"])
        changes.set_deadline(
            connection, DeadlineKind(kind), entity_id, partition=partition, due_at=due_at
        )


_KINDS: Final = {
    DeadlineKind.RUN: RUN,
    DeadlineKind.HELD: RUN,
    DeadlineKind.QUEUE: JOB,
    DeadlineKind.RETRY: JOB,
}


def _due_at(kind: DeadlineKind, row: Row, look: Look) -> int:
    if kind is DeadlineKind.RUN:
        return int((row["ready_at"] or row["created_at"]) + row["timeout_ms"])
    if kind is DeadlineKind.QUEUE:
        return int((row["eligible_at"] or look.now) + specs.timeouts(row).queue)
    return look.now


def _find_strays(connection: sa.Connection, look: Look) -> list[Finding]:
    """Find deadlines that have long been due, and of nothing."""
    of_something = (
        sa.exists().where(table.c[key] == _deadlines.c.entity_id)
        for table, key in (
            (_runs, "run_id"),
            (_jobs, "job_id"),
            (_attempts, "attempt_id"),
            (tables.maintenance_windows, "window_id"),
        )
    )
    query = (
        sa.select(_deadlines.c.entity_id, _deadlines.c.kind)
        .where(
            look.inside(_deadlines.c.entity_id),
            look.of_partition(_deadlines.c.partition),
            _deadlines.c.due_at < look.impatient,
            ~sa.or_(*of_something),
        )
        .order_by(_deadlines.c.entity_id, _deadlines.c.kind)
    )
    return [
        Finding(
            kind=FindingKind.DEADLINE_STRAY,
            entity=entity_id,
            within=entity_id,
            found=f"a deadline of its {kind}",
            expected="none: there is no such thing",
        )
        for entity_id, kind in connection.execute(query)
    ]


def _lock_nothing(_connection: sa.Connection, _entity_id: str) -> None:
    """Lock nothing: what is not there cannot come to be, for ids are never drawn twice."""


def _forget(connection: sa.Connection, found: Sequence[Finding], _look: Look) -> None:
    mine = _deadlines.c.entity_id == found[0].within
    connection.execute(sa.delete(_deadlines).where(mine))


MISSING = Comparison(name="deadlines", find=_find, lock=_lock, fix=_fix)
STRAY = Comparison(name="stray deadlines", find=_find_strays, lock=_lock_nothing, fix=_forget)
