"""What must hold in SQL whatever was killed: at any moment, and once everything has come to rest.

Each rule is one query that finds the rows that break it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from forgeyard.model.transitions import (
    FINAL_ATTEMPT_STATES,
    FINAL_JOB_STATES,
    FINAL_RUN_STATES,
    LIVE_LEASE_STATES,
)
from forgeyard.store import tables
from forgeyard.store.amounts import DIMENSIONS

runs, jobs, attempts, leases = tables.runs, tables.jobs, tables.attempts, tables.leases
reservations, runners, history = tables.reservations, tables.runners, tables.history
Rule = Callable[[], sa.Select]


def _in(column: sa.ColumnElement, states: frozenset) -> sa.ColumnElement[bool]:
    return column.in_([state.value for state in states])


def _several_live_leases() -> sa.Select:
    live = sa.select(leases.c.job_id).where(_in(leases.c.state, LIVE_LEASE_STATES))
    return live.group_by(leases.c.job_id).having(sa.func.count() > 1)


def _several_successes() -> sa.Select:
    won = sa.select(attempts.c.job_id).where(attempts.c.state == "succeeded")
    return won.group_by(attempts.c.job_id).having(sa.func.count() > 1)


def _success_told_twice() -> sa.Select:
    told = sa.select(history.c.entity_id).where(
        history.c.kind == "job", history.c.after == "succeeded"
    )
    return told.group_by(history.c.entity_id).having(sa.func.count() > 1)


def _lease_without_reservation() -> sa.Select:
    held = sa.exists().where(reservations.c.lease_id == leases.c.lease_id)
    return sa.select(leases.c.lease_id).where(_in(leases.c.state, LIVE_LEASE_STATES), ~held)


def _reservation_without_lease() -> sa.Select:
    alive = sa.exists().where(
        leases.c.lease_id == reservations.c.lease_id, _in(leases.c.state, LIVE_LEASE_STATES)
    )
    return sa.select(reservations.c.lease_id).where(~alive)


def _wrong_sums() -> sa.Select:
    wrong = (
        sa.select(sa.func.coalesce(sa.func.sum(reservations.c[name]), 0))
        .where(reservations.c.runner_id == runners.c.runner_id)
        .scalar_subquery()
        != runners.c[f"reserved_{name}"]
        for name in DIMENSIONS
    )
    return sa.select(runners.c.runner_id).where(sa.or_(*wrong))


def _overfull_runners() -> sa.Select:
    too_much = (
        runners.c[f"reserved_{name}"] > runners.c[f"total_{name}"] - runners.c[f"headroom_{name}"]
        for name in DIMENSIONS
    )
    return sa.select(runners.c.runner_id).where(sa.or_(*too_much))


def _epochs_that_do_not_grow() -> sa.Select:
    earlier, first, second = leases.alias("earlier"), attempts.alias("first"), attempts
    return (
        sa.select(leases.c.lease_id)
        .join(second, second.c.attempt_id == leases.c.attempt_id)
        .join(earlier, earlier.c.job_id == leases.c.job_id)
        .join(first, first.c.attempt_id == earlier.c.attempt_id)
        .where(first.c.number < second.c.number, earlier.c.epoch >= leases.c.epoch)
    )


def _epoch_unknown_to_its_job() -> sa.Select:
    return (
        sa.select(leases.c.lease_id)
        .join(jobs, jobs.c.job_id == leases.c.job_id)
        .where(leases.c.epoch > jobs.c.epoch)
    )


def _ended_but_leased() -> sa.Select:
    return (
        sa.select(jobs.c.job_id)
        .join(leases, leases.c.job_id == jobs.c.job_id)
        .where(_in(jobs.c.state, FINAL_JOB_STATES), _in(leases.c.state, LIVE_LEASE_STATES))
    )


def _open_runs() -> sa.Select:
    return sa.select(runs.c.run_id).where(~_in(runs.c.state, FINAL_RUN_STATES))


def _open_jobs_of_ended_runs() -> sa.Select:
    return (
        sa.select(jobs.c.job_id)
        .join(runs, runs.c.run_id == jobs.c.run_id)
        .where(_in(runs.c.state, FINAL_RUN_STATES), ~_in(jobs.c.state, FINAL_JOB_STATES))
    )


def _unsettled() -> sa.Select:
    return sa.select(attempts.c.attempt_id).where(
        attempts.c.settled_at.is_(None) | ~_in(attempts.c.state, FINAL_ATTEMPT_STATES)
    )


ALWAYS: Final[Mapping[str, Rule]] = {
    "a job has several live leases": _several_live_leases,
    "a job has several accepted successes": _several_successes,
    "a job became succeeded twice": _success_told_twice,
    "a live lease holds no reservation": _lease_without_reservation,
    "a reservation belongs to no live lease": _reservation_without_lease,
    "a runner's reserved amounts are not the sum of its reservations": _wrong_sums,
    "a runner holds more than it has": _overfull_runners,
    "the epochs of a job do not grow": _epochs_that_do_not_grow,
    "a lease has an epoch that its job never gave": _epoch_unknown_to_its_job,
    "a job has ended and is leased": _ended_but_leased,
    "a run has ended and its job has not": _open_jobs_of_ended_runs,
}
AT_REST: Final[Mapping[str, Rule]] = {
    "a run has not ended": _open_runs,
    "an attempt is not settled": _unsettled,
}


def violations(engine: sa.Engine, *, of: Mapping[str, Rule] = ALWAYS) -> Sequence[str]:
    """List what is broken now, each with the ids that break it, all seen at one instant."""
    found: list[str] = []
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            for said, rule in of.items():
                ids = list(connection.execute(rule()).scalars())
                if ids:
                    found.append(f"{said}: {', '.join(ids)}")
    return found
