"""What the rule should know of waiting jobs beside what they ask for: one query for each matter.

What the policy does not weigh is not read.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.transitions import AttemptState
from forgeyard.model.wishes import Wishes
from forgeyard.scheduler.kin import name_of
from forgeyard.scheduler.reliability import FAULTS
from forgeyard.store import bulk, dispatch, habits, tables
from forgeyard.store.changes import Row
from forgeyard.store.habits import Habit

THERE = (
    AttemptState.LEASED,
    AttemptState.PREPARING,
    AttemptState.RUNNING,
    AttemptState.UPLOADING_OUTPUTS,
    AttemptState.SUCCEEDED,
)
"""An attempt in one of these states has a place that other jobs are bound to."""
_jobs, _attempts, _runs = tables.jobs, tables.attempts, tables.runs
Inputs = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """By job: what it unpacks, what its name did last, and which runners failed it."""

    inputs: Mapping[str, Inputs] = field(default_factory=dict[str, Inputs])
    habits: Mapping[str, Habit] = field(default_factory=dict[str, Habit])
    losses: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def of_jobs(connection: sa.Connection, rows: Sequence[Row], policy: SchedulingPolicy) -> Facts:
    """Learn about loaded jobs."""
    if not rows:
        return Facts()
    weights = policy.weights
    runs = _runs_of(connection, {row["run_id"] for row in rows})
    sourced = [
        {**row, "source_digest": runs[row["run_id"]]["source_digest"]}
        for row in rows
        if row["has_inputs"]
    ]
    return Facts(
        inputs=_inputs(connection, sourced) if sourced and weights.locality else {},
        habits=_habits(connection, rows, runs) if weights.cache or weights.affinity else {},
        losses=_losses(connection, [row["job_id"] for row in rows if row["attempts_made"]]),
    )


def _runs_of(connection: sa.Connection, run_ids: Collection[str]) -> dict[str, Row]:
    query = sa.select(_runs.c.run_id, _runs.c.name, _runs.c.source_digest).where(
        bulk.among(connection, _runs.c.run_id, run_ids)
    )
    return {row["run_id"]: dict(row) for row in connection.execute(query).mappings()}


def _inputs(connection: sa.Connection, rows: Sequence[Row]) -> Mapping[str, Inputs]:
    found = dispatch.inputs_of(connection, rows)
    return {
        job_id: tuple((one.digest, one.size) for one in inputs) for job_id, inputs in found.items()
    }


def _habits(
    connection: sa.Connection, rows: Sequence[Row], runs: Mapping[str, Row]
) -> Mapping[str, Habit]:
    names = {
        row["job_id"]: (row["project_id"], runs[row["run_id"]]["name"], row["name"]) for row in rows
    }
    known = habits.of_jobs(connection, set(names.values()))
    return {job_id: known[name] for job_id, name in names.items()}


def _losses(connection: sa.Connection, job_ids: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Read which runners failed the earlier attempts through their own fault."""
    if not job_ids:
        return {}
    query = (
        sa.select(_attempts.c.job_id, _attempts.c.runner_id)
        .where(
            bulk.among(connection, _attempts.c.job_id, job_ids),
            _attempts.c.failure_class.in_([failure.value for failure in FAULTS]),
        )
        .order_by(_attempts.c.job_id, _attempts.c.number)
    )
    found: dict[str, list[str]] = {}
    for job_id, runner_id in connection.execute(query):
        found.setdefault(job_id, []).append(runner_id)
    return {job_id: tuple(runners) for job_id, runners in found.items()}


def named(
    connection: sa.Connection, rows: Sequence[Row], wishes: Mapping[str, Wishes]
) -> Mapping[str, str]:
    """Tell on which runner every job is, or was, that a waiting one must be apart from or beside.

    One that took over an earlier run's success is where that was.
    """
    wanted = {
        (row["run_id"], name)
        for row in rows
        for wish in (wishes[row["job_id"]],)
        for name in (*(it for one in wish.distinct for it in one.jobs), wish.beside)
        if name is not None
    }
    if not wanted:
        return {}
    holder = _jobs.alias("holder")
    query = (
        sa.select(_jobs.c.run_id, _jobs.c.name, _attempts.c.runner_id)
        .join(holder, holder.c.job_id == sa.func.coalesce(_jobs.c.reused_from, _jobs.c.job_id))
        .join(_attempts, _is_latest(holder))
        .where(
            bulk.among(connection, _jobs.c.run_id, {run_id for run_id, _ in wanted}),
            bulk.among(connection, _jobs.c.name, {name for _, name in wanted}),
        )
    )
    return {name_of(run, name): runner for run, name, runner in connection.execute(query)}


def shards(
    connection: sa.Connection, rows: Sequence[Row], wishes: Mapping[str, Wishes]
) -> Mapping[str, Mapping[str, int]]:
    """Count the shards of every waiting one's group on each runner; one row for each (SP-085)."""
    run_ids = {row["run_id"] for row in rows if wishes[row["job_id"]].spread is not None}
    if not run_ids:
        return {}
    query = (
        sa.select(_jobs.c.run_id, _jobs.c.matrix, _attempts.c.runner_id, sa.func.count())
        .join(_attempts, _is_latest(_jobs))
        .where(bulk.among(connection, _jobs.c.run_id, run_ids), _jobs.c.matrix.is_not(None))
        .group_by(_jobs.c.run_id, _jobs.c.matrix, _attempts.c.runner_id)
    )
    found: dict[str, dict[str, int]] = {}
    for run_id, matrix, runner_id, count in connection.execute(query):
        found.setdefault(name_of(run_id, matrix), {})[runner_id] = count
    return found


def _is_latest(jobs: sa.FromClause) -> sa.ColumnElement[bool]:
    """Join the latest attempt of a job, if it is still to be reckoned with."""
    return sa.and_(
        _attempts.c.job_id == jobs.c.job_id,
        _attempts.c.number == jobs.c.attempts_made,
        _attempts.c.state.in_([state.value for state in THERE]),
    )
