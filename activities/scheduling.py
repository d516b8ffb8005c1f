"""The activities of a scheduling cycle: load, decide by the pure rule, store; then commit.

Nothing is decided here: `place.plan` decides who goes where, the commit decides who gets it.
"""

import logging
import random
from collections.abc import Mapping

import sqlalchemy as sa
from temporalio import activity

from activities import contracts
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.transitions import JobState
from forgeyard.scheduler import place
from forgeyard.store import (
    commit,
    generations,
    parked_classes,
    parking,
    policies,
    snapshot,
    tables,
)
from forgeyard.store.engine import read, write
from forgeyard.store.runner_cache import RunnerCache

logger = logging.getLogger(__name__)


class SchedulingActivities:
    """The cycle's activities over one engine; `built_in` holds while no policy was set."""

    def __init__(
        self, engine: sa.Engine, built_in: SchedulingPolicy, *, rng: random.Random
    ) -> None:
        self._engine = engine
        self._built_in = built_in
        self._rng = rng
        self._runners = RunnerCache()

    @activity.defn(name="cycle.pending", no_thread_cancel_exception=True)
    def is_pending(self, request: contracts.Partition) -> bool:
        """Look for one eligible job of the partition whose class is not parked."""
        jobs = tables.jobs
        with read(self._engine) as connection:
            generation = generations.current(connection)
            standing = parked_classes.standing(connection, request.partition, generation)
            waiting = sa.select(jobs.c.job_id).where(
                jobs.c.partition == request.partition,
                jobs.c.state == JobState.ELIGIBLE.value,
                standing.among(connection),
            )
            return connection.execute(waiting.limit(1)).first() is not None

    @activity.defn(name="cycle.plan", no_thread_cancel_exception=True)
    def plan_cycle(self, request: contracts.Partition) -> contracts.CyclePlan:
        """Plan on a snapshot and store the decisions under a fresh cycle id.

        A retry draws another id; a plan that nobody commits does nothing.
        """
        with read(self._engine) as connection:
            in_force = policies.current(connection, self._built_in)
            seen = snapshot.load(
                connection,
                request.partition,
                in_force.policy,
                read_runners=self._runners.read,
            )
        self._park(seen.damaged)
        plan = place.plan(seen, in_force.policy)
        with write(self._engine) as connection:
            saved = commit.save_plan(
                connection,
                request.partition,
                plan,
                seen.digest(),
                in_force.digest,
                rng=self._rng,
            )
        return contracts.CyclePlan(
            cycle_id=saved.cycle_id,
            eligible=saved.eligible,
            runners=saved.runners,
            planned=saved.planned,
            full=saved.planned >= in_force.policy.batch,
            parked=seen.parked,
            more=saved.parked and len(seen.jobs) < seen.waiting - seen.parked,
            wake_in_ms=max(1, plan.wake_at - seen.taken_at) if plan.wake_at else 0,
        )

    def _park(self, damaged: Mapping[str, str]) -> None:
        """End the jobs that cannot be read, each in its own transaction."""
        for job_id, why in damaged.items():
            logger.error("job %s cannot be read and is parked: %s", job_id, why)
            with write(self._engine) as connection:
                parking.park(connection, job_id, why=why)

    @activity.defn(name="cycle.commit", no_thread_cancel_exception=True)
    def commit_cycle(self, request: contracts.Cycle) -> contracts.CycleCommit:
        """Commit a stored plan; a second time only its stored verdicts come back."""
        with write(self._engine) as connection:
            outcome = commit.commit_cycle(connection, request.cycle_id, built_in=self._built_in)
        return contracts.CycleCommit(granted=outcome.granted, refused=outcome.refused)
