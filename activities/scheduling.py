"""The activities of a scheduling cycle: load, decide by the pure rule, store; then commit.

Nothing is decided here: `place.plan` decides who goes where, the commit decides who gets it.
"""

import logging
import random
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from temporalio import activity

from activities import contracts
from forgeyard import clock, telemetry, tracing
from forgeyard.model.location import SOMEWHERE, Location
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.transitions import JobState
from forgeyard.scheduler import place
from forgeyard.scheduler.grant import Verdict
from forgeyard.scheduler.preempt import Nomination
from forgeyard.scheduler.scene import Scene
from forgeyard.scheduler.score import locality
from forgeyard.scheduler.snapshot import RunnerLines, Snapshot
from forgeyard.store import (
    commit,
    generations,
    lineage,
    parked_classes,
    parking,
    policies,
    preemption,
    snapshot,
    tables,
)
from forgeyard.store.engine import read, write
from forgeyard.store.runner_cache import RunnerCache

logger = logging.getLogger(__name__)


class SchedulingActivities:
    """The cycle's activities over one engine; `built_in` holds while no policy was set."""

    def __init__(
        self,
        engine: sa.Engine,
        built_in: SchedulingPolicy,
        *,
        rng: random.Random,
        storage: Location = SOMEWHERE,
    ) -> None:
        self._engine = engine
        self._built_in = built_in
        self._rng = rng
        self._storage = storage
        self._runners = RunnerCache()
        self._lines = RunnerLines()

    @activity.defn(name="cycle.pending", no_thread_cancel_exception=True)
    def is_pending(self, request: contracts.Partition) -> bool:
        """Look for one eligible job of the partition whose class is not parked."""
        if self._hold(request.mark) is not None:
            return False
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

        A retry draws another id; a plan that nobody commits does nothing. While the store is
        held nothing is planned at all.
        """
        hold = self._hold(request.mark)
        if hold is not None:
            held = lineage.refusal(hold).message
            return contracts.CyclePlan(cycle_id=0, eligible=0, runners=0, planned=0, held=held)
        began, cycle = clock.monotonic(), _cycle()
        with tracing.root_span("scheduler.cycle", of=cycle, partition=request.partition) as span:
            with read(self._engine) as connection:
                in_force = policies.current(connection, self._built_in)
                seen = snapshot.load(
                    connection,
                    request.partition,
                    in_force.policy,
                    storage=self._storage,
                    read_runners=self._runners.read,
                )
            self._park(seen.damaged)
            with tracing.span("scheduler.place", of=cycle, jobs=len(seen.jobs)):
                plan = place.plan(seen, in_force.policy)
            with write(self._engine) as connection:
                saved = commit.save_plan(
                    connection,
                    request.partition,
                    plan,
                    seen.digest(self._lines),
                    in_force.digest,
                    rng=self._rng,
                )
            span.note(cycle_id=saved.cycle_id, eligible=saved.eligible, planned=saved.planned)
        telemetry.CYCLE_LATENCY.labels("plan").observe(clock.monotonic() - began)
        _count_plan(seen, plan)
        _observe_locality(seen, plan, in_force.policy)
        self._clear(plan.nominations, request.partition, in_force.policy)
        return contracts.CyclePlan(
            cycle_id=saved.cycle_id,
            eligible=saved.eligible,
            runners=saved.runners,
            planned=saved.planned,
            full=saved.planned >= in_force.policy.batch,
            parked=seen.parked,
            more=saved.parked and len(seen.jobs) < seen.waiting - seen.parked,
            wake_in_ms=max(1, plan.wake_at - seen.taken_at) if plan.wake_at else 0,
            mark=self._mark(),
        )

    def _hold(self, mark: str) -> lineage.Hold | None:
        """Hear what the loop knows of the store; tell why nothing may be decided, if so."""
        return lineage.ask(self._engine, mark, witness="the scheduler's loop").hold

    def _mark(self) -> str:
        """Read the mark that the loop shows next time: that of this plan, or a newer one."""
        with read(self._engine) as connection:
            return lineage.current(connection).mark

    def _clear(
        self, nominations: Sequence[Nomination], partition: str, policy: SchedulingPolicy
    ) -> None:
        """Clear runners for urgent jobs, each in its own transaction."""
        for nomination in nominations:
            with write(self._engine) as connection:
                done = preemption.clear(connection, nomination, partition, policy=policy)
            if done:
                telemetry.PREEMPTIONS.inc(len(nomination.victims))
                logger.warning(
                    "%d jobs on %s are stopped for %s",
                    len(nomination.victims),
                    nomination.runner_id,
                    nomination.job_id,
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
        began, cycle_id = clock.monotonic(), request.cycle_id
        self._hold(request.mark)
        with tracing.span("scheduler.lease", of=_cycle(), cycle_id=cycle_id) as span:
            with write(self._engine) as connection:
                outcome = commit.commit_cycle(connection, cycle_id, built_in=self._built_in)
            span.note(granted=outcome.granted, refused=outcome.refused)
        telemetry.CYCLE_LATENCY.labels("commit").observe(clock.monotonic() - began)
        _count_commit(outcome)
        _trace_waits(outcome, cycle_id)
        return contracts.CycleCommit(granted=outcome.granted, refused=outcome.refused)


def _cycle() -> str:
    """Name the trace of a cycle: its activities know the workflow that they belong to."""
    return (activity.info().workflow_run_id or "") if activity.in_activity() else ""


def _count_plan(seen: Snapshot, plan: place.Plan) -> None:
    telemetry.JOBS_CONSIDERED.inc(len(seen.jobs))
    rejected = (tally for why in plan.diagnoses for tally in why.rejections)
    telemetry.count_all(telemetry.REJECTIONS, ((tally.code, tally.runners) for tally in rejected))


def _observe_locality(seen: Snapshot, plan: place.Plan, policy: SchedulingPolicy) -> None:
    """Tell how near jobs go to their inputs, which are read only where they weigh."""
    fetching = {job.job_id: job for job in seen.jobs if job.inputs}
    if not fetching:
        return
    scene = Scene(seen, policy)
    for decision in plan.decisions:
        job = fetching.get(decision.job_id)
        if job is not None and decision.candidates:
            runner = scene.runners[decision.candidates[0][0]]
            telemetry.PLACEMENT_LOCALITY.observe(locality(job, runner, scene))


def _trace_waits(outcome: commit.CommitOutcome, cycle_id: int) -> None:
    """Show in the trace of its run how long each placed job has waited for that."""
    for placed in outcome.placed if tracing.is_on() else ():
        tracing.past(
            "scheduler.wait",
            of=placed.run_id,
            lasted_ms=placed.waited_ms,
            job_id=placed.job_id,
            attempt_id=placed.attempt_id,
            runner_id=placed.runner_id,
            cycle_id=cycle_id,
            score=placed.score,
        )


def _count_commit(outcome: commit.CommitOutcome) -> None:
    """Count what this very commit granted and refused; a repeated one did neither."""
    if outcome.repeated:
        return
    telemetry.PLACEMENTS.inc(outcome.granted)
    refused = (verdict for _, verdict in outcome.verdicts if verdict is not Verdict.GRANTED)
    telemetry.count_all(telemetry.CONFLICTS, ((verdict, 1) for verdict in refused))
    for placed in outcome.placed:
        telemetry.QUEUE_WAIT.labels(placed.priority).observe(placed.waited_ms / 1000)
        telemetry.PLACEMENT_SCORE.observe(placed.score)
