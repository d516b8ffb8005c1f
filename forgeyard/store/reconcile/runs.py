"""Runs against their jobs: what they count, what waits for nothing, and what nothing would end.

Everything goes on through the transitions that the store has for it; only counters are set.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from forgeyard.model.job import FailureClass
from forgeyard.model.transitions import FINAL_JOB_STATES, FINAL_RUN_STATES, JobState, RunState
from forgeyard.scheduler.findings import Finding, FindingKind
from forgeyard.store import changes, jobs, tables
from forgeyard.store.changes import JOB, RUN, DeadlineKind, Row
from forgeyard.store.engine import database_now
from forgeyard.store.reconcile.look import Comparison, Look, diff
from forgeyard.store.stopping import lock_jobs

REASON = "found by a reconciliation"
_runs, _jobs, _needs = tables.runs, tables.jobs, tables.job_needs
_OPEN_RUNS = [state.value for state in RunState if state not in FINAL_RUN_STATES]
_OPEN_JOBS = [state.value for state in JobState if state not in FINAL_JOB_STATES]
_NOT_HELD = _runs.c.concurrency_group.is_(None) | _runs.c.ready_at.is_not(None)


def _find(connection: sa.Connection, look: Look) -> list[Finding]:
    return [
        *_ended_early(connection, look),
        *_of_runs(connection, look),
        *_of_pending(connection, look),
    ]


def _ended_early(connection: sa.Connection, look: Look) -> list[Finding]:
    query = (
        sa.select(_runs.c.run_id, _runs.c.state, sa.func.count())
        .join(_jobs, _jobs.c.run_id == _runs.c.run_id)
        .where(
            look.inside(_runs.c.run_id),
            look.of_partition(_jobs.c.partition),
            _jobs.c.state.in_(_OPEN_JOBS),
            _runs.c.state.not_in(_OPEN_RUNS),
        )
        .group_by(_runs.c.run_id, _runs.c.state)
        .order_by(_runs.c.run_id)
    )
    return [
        Finding(
            kind=FindingKind.RUN_ENDED_EARLY,
            entity=run_id,
            within=run_id,
            found=f"{state} with {total} open jobs",
            expected="none: they are cancelled",
        )
        for run_id, state, total in connection.execute(query)
    ]


def _of_runs(connection: sa.Connection, look: Look) -> list[Finding]:
    """Compare what open runs count with their jobs, and look for those with nothing left."""
    # A state of a release to come is open as well, for nobody here can tell that it is final.
    is_open = _jobs.c.state.not_in([state.value for state in FINAL_JOB_STATES])
    failed = sa.and_(_jobs.c.state.in_(jobs.BAD_ENDS), _jobs.c.continue_on_error == 0)
    counted = (
        sa.select(
            _runs.c.run_id,
            _runs.c.state,
            _runs.c.open_jobs,
            _runs.c.failed_jobs,
            sa.func.coalesce(sa.func.sum(sa.case((is_open, 1), else_=0)), 0).label("going_on"),
            sa.func.coalesce(sa.func.sum(sa.case((failed, 1), else_=0)), 0).label("gone_wrong"),
        )
        .outerjoin(_jobs, _jobs.c.run_id == _runs.c.run_id)
        .where(
            look.inside(_runs.c.run_id),
            look.of_partition(_runs.c.partition),
            _runs.c.state.in_(_OPEN_RUNS),
        )
        .group_by(_runs.c.run_id)
        .subquery()
    )
    query = (
        sa.select(counted)
        .where(
            sa.or_(
                counted.c.open_jobs != counted.c.going_on,
                counted.c.failed_jobs != counted.c.gone_wrong,
                counted.c.going_on == 0,
            )
        )
        .order_by(counted.c.run_id)
    )
    rows = connection.execute(query).mappings()
    return [finding for row in rows for finding in _of_run(dict(row))]


def _of_run(row: Row) -> list[Finding]:
    run_id, kinds = row["run_id"], FindingKind
    here, there = (row["open_jobs"], row["failed_jobs"]), (row["going_on"], row["gone_wrong"])
    found: list[Finding] = []
    if here != tuple(int(total) for total in there):
        said, wanted = diff(*("{} open, {} failed".format(*both) for both in (here, there)))
        found.append(
            Finding(kind=kinds.RUN_COUNT, entity=run_id, within=run_id, found=said, expected=wanted)
        )
    if not row["going_on"]:
        found.append(
            Finding(
                kind=kinds.RUN_NOT_ENDED,
                entity=run_id,
                within=run_id,
                found=f"{row['state']} with no open job",
                expected="ended",
            )
        )
    return found


def _of_pending(connection: sa.Connection, look: Look) -> list[Finding]:
    """Compare what pending jobs wait for with their needs, and look for those that may go on."""
    need = _jobs.alias("need")
    open_needs = (
        sa.select(sa.func.count())
        .select_from(_needs)
        .join(need, need.c.job_id == _needs.c.need_id)
        .where(_needs.c.job_id == _jobs.c.job_id, need.c.state.in_(_OPEN_JOBS))
        .scalar_subquery()
    )
    pending = (
        sa.select(
            _jobs.c.job_id,
            _jobs.c.run_id,
            _jobs.c.waiting_needs,
            open_needs.label("open_needs"),
            sa.case((_NOT_HELD & _has_place(), 1), else_=0).label("may_go"),
        )
        .join(_runs, _runs.c.run_id == _jobs.c.run_id)
        .where(
            look.inside(_jobs.c.run_id),
            look.of_partition(_jobs.c.partition),
            _jobs.c.state == JobState.PENDING.value,
            _runs.c.state.in_(_OPEN_RUNS),
        )
        .subquery()
    )
    query = (
        sa.select(pending)
        .where(
            sa.or_(
                pending.c.waiting_needs != pending.c.open_needs,
                sa.and_(pending.c.open_needs == 0, pending.c.may_go == 1),
            )
        )
        .order_by(pending.c.run_id, pending.c.job_id)
    )
    return [_of_job(dict(row)) for row in connection.execute(query).mappings()]


def _has_place() -> sa.ColumnElement[bool]:
    """Tell whether a job's matrix lets another of its cells run."""
    cell = _jobs.alias("cell")
    taken = (
        sa.select(sa.func.count())
        .where(
            cell.c.run_id == _jobs.c.run_id,
            cell.c.matrix == _jobs.c.matrix,
            cell.c.state.not_in(jobs.HOLD_NO_PLACE),
        )
        .scalar_subquery()
    )
    return _jobs.c.max_parallel.is_(None) | (taken < _jobs.c.max_parallel)


def _of_job(row: Row) -> Finding:
    counts = row["waiting_needs"] != row["open_needs"]
    return Finding(
        kind=FindingKind.NEEDS_COUNT if counts else FindingKind.JOB_NOT_PROMOTED,
        entity=row["job_id"],
        within=row["run_id"],
        found=f"waits for {row['waiting_needs']} needs" if counts else "pending",
        expected=f"waits for {row['open_needs']}" if counts else "eligible, or ended unmet",
    )


def _lock(connection: sa.Connection, run_id: str) -> None:
    changes.find(connection, RUN, run_id, lock=True)
    lock_jobs(connection, run_id)


def _fix(connection: sa.Connection, found: Sequence[Finding], _look: Look) -> None:
    """Set a run's counters, let go on what waits for nothing, and end what has nothing left."""
    run_id, now = found[0].within, database_now(connection)
    if any(one.kind is FindingKind.RUN_ENDED_EARLY for one in found):
        _end_jobs(connection, run_id, now=now)
        return
    _count(connection, run_id)
    run = changes.find(connection, RUN, run_id)
    if not jobs.is_held(run):
        run = jobs.start(connection, run, reason=REASON, now=now)
    elif run["open_jobs"] == 0:
        run = jobs.finish_jobs(connection, run, (), now=now)
    changes.wake_if_waiting(connection, run["partition"], reason=REASON)


def _count(connection: sa.Connection, run_id: str) -> None:
    """Count anew what the locked jobs of a run wait for, and what the run counts of them."""
    rows = list(lock_jobs(connection, run_id).values())
    is_open = {row["job_id"]: JobState(row["state"]) not in FINAL_JOB_STATES for row in rows}
    query = sa.select(_needs.c.job_id, _needs.c.need_id).where(_needs.c.job_id.in_(is_open))
    waits = dict.fromkeys(is_open, 0)
    for job_id, need_id in connection.execute(query):
        waits[job_id] += is_open.get(need_id, False)
    for row in rows:
        if row["state"] == JobState.PENDING and row["waiting_needs"] != waits[row["job_id"]]:
            mine = _jobs.c.job_id == row["job_id"]
            wanted = {"waiting_needs": waits[row["job_id"]]}
            connection.execute(sa.update(_jobs).where(mine).values(wanted))
    bad = (row for row in rows if JobState(row["state"]) in jobs.BAD_ENDS)
    failed = sum(1 for row in bad if not row["continue_on_error"])
    counts = {"open_jobs": sum(is_open.values()), "failed_jobs": failed}
    connection.execute(sa.update(_runs).where(_runs.c.run_id == run_id).values(counts))


def _end_jobs(connection: sa.Connection, run_id: str, *, now: int) -> None:
    """Cancel what is left of a run that has ended; whoever works on it loses its lease next."""
    left = [
        job
        for job in lock_jobs(connection, run_id).values()
        if JobState(job["state"]) not in FINAL_JOB_STATES
    ]
    ended: dict[str, Any] = {
        "finished_at": now,
        "message": "its run had ended",
        "failure_class": FailureClass.CANCELLED.value,
        "diagnosis": None,
    }
    changes.move_all(connection, JOB, left, JobState.CANCELLED, reason=REASON, now=now, **ended)
    for job in left:
        kinds = (DeadlineKind.QUEUE, DeadlineKind.RETRY)
        changes.clear_deadlines(connection, job["job_id"], *kinds)
    run = _runs.c.run_id == run_id
    connection.execute(sa.update(_runs).where(run).values(open_jobs=0))


RUNS = Comparison(name="runs", find=_find, lock=_lock, fix=_fix)
