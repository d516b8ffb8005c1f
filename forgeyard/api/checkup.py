"""Looking after the scheduler: what is wrong with it, and what its next cycle would do."""

from dataclasses import dataclass

from fastapi import APIRouter

from forgeyard.api.callers import SchedulerManager, needs
from forgeyard.api.dependencies import ApiDependencies, Deps
from forgeyard.api.runs import CHANNEL, UNSAID, Reason
from forgeyard.model.permission import Permission
from forgeyard.scheduler import doctor
from forgeyard.scheduler.place import Plan, plan
from forgeyard.scheduler.snapshot import Snapshot
from forgeyard.store import changes, snapshot, symptoms
from forgeyard.store.engine import database_now, read

router = APIRouter(prefix="/v1/scheduler", tags=["scheduler"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What the doctor found; `verdict` is that of the worst check."""

    verdict: doctor.CheckVerdict
    checks: tuple[doctor.Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A waiting job, and the runner that it would get."""

    job_id: str
    job: str
    run_id: str
    runner: str
    score: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What the next cycle would do with the jobs that wait; one that runs stays where it is."""

    waiting: int
    placements: tuple[PlannedJob, ...]


@router.get("/doctor", dependencies=[needs(Permission.SCHEDULER_READ)])
def scheduler_doctor(deps: Deps) -> Checkup:
    """Examine scheduling: pools, classes, quotas, stuck jobs, leases, books, outbox, renewals."""
    with read(deps.engine) as connection:
        policy = deps.policy(connection)
        seen = symptoms.read_symptoms(connection, deps.config.partition, policy)
    checks = doctor.examine(seen, policy)
    return Checkup(verdict=doctor.worst(checks), checks=checks)


@router.get("/plan", dependencies=[needs(Permission.SCHEDULER_READ)])
def scheduler_plan(deps: Deps) -> Preview:
    """Tell what the next cycle would do, and do nothing."""
    return _preview(deps)


@router.post("/rebalance")
def rebalance(deps: Deps, who: SchedulerManager, message: Reason = UNSAID) -> Preview:
    """Have the jobs that wait looked at again at once, and tell what would become of them now.

    Nothing that runs is moved, and no lease is revoked for a better runner.
    """
    found = _preview(deps)
    partition, reason = deps.config.partition, message.reason or "rebalanced by request"
    with deps.change_for(who) as connection:
        changes.audit(
            connection,
            actor=message.actor,
            channel=CHANNEL,
            action="scheduler.rebalance",
            target=partition,
            detail=reason,
            now=database_now(connection),
        )
        changes.wake_if_waiting(connection, partition, reason=reason)
    return found


def _preview(deps: ApiDependencies) -> Preview:
    with read(deps.engine) as connection:
        policy = deps.policy(connection)
        seen = snapshot.load(connection, deps.config.partition, policy)
    return Preview(waiting=seen.waiting, placements=_placements(seen, plan(seen, policy)))


def _placements(seen: Snapshot, planned: Plan) -> tuple[PlannedJob, ...]:
    jobs = {job.job_id: job for job in seen.jobs}
    names = {runner.runner_id: runner.name for runner in seen.runners}
    return tuple(
        PlannedJob(
            job_id=decision.job_id,
            job=jobs[decision.job_id].name,
            run_id=jobs[decision.job_id].run_id,
            runner=names[decision.candidates[0][0]],
            score=decision.candidates[0][1],
        )
        for decision in planned.decisions
    )
