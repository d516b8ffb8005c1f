"""Writes down what speaks against a runner, in the transaction in which it happened."""

import sqlalchemy as sa

from forgeyard.model.job import FailureClass
from forgeyard.model.policy import LeasePolicy
from forgeyard.scheduler.reliability import FAULT, FAULTS, raised
from forgeyard.store import tables


def blame(
    connection: sa.Connection,
    runner_id: str,
    failure: FailureClass | None,
    *,
    now: int,
    policy: LeasePolicy,
) -> None:
    """Count the end of an attempt against its runner, if it was the runner's own doing (SP-042)."""
    if failure in FAULTS:
        penalise(connection, runner_id, points=FAULT, now=now, policy=policy)


def penalise(
    connection: sa.Connection, runner_id: str, *, points: int, now: int, policy: LeasePolicy
) -> None:
    """Raise a runner's penalty, of which only what has not faded yet counts on."""
    runners = tables.runners
    is_it = runners.c.runner_id == runner_id
    query = sa.select(runners.c.penalty, runners.c.penalty_at).where(is_it).with_for_update()
    row = connection.execute(query).one()
    penalty = raised(
        row.penalty, by=points, since=row.penalty_at, now=now, half_life=policy.penalty_half_life
    )
    values = {"penalty": penalty, "penalty_at": now, "changed_at": now}
    connection.execute(sa.update(runners).where(is_it).values(values))
