"""What the scheduler sees and why it decides as it does; nothing here changes anything."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Path

from forgeyard.api.callers import RunReader, needs
from forgeyard.api.dependencies import ApiDependencies, Deps
from forgeyard.fleet.matching import why_not
from forgeyard.fleet.telling import told_of_job
from forgeyard.model.caller import Caller
from forgeyard.model.permission import Permission
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.transitions import JobState, LeaseState
from forgeyard.model.units import Bytes, MilliCpu, Resources
from forgeyard.scheduler import telling
from forgeyard.scheduler.demand import class_with
from forgeyard.scheduler.explain import Background, Explanation, explain
from forgeyard.scheduler.scene import BEST
from forgeyard.scheduler.snapshot import SchedulingJob, Snapshot
from forgeyard.scheduler.suggest import Suggestion, suggest
from forgeyard.store import (
    capacity,
    estimates,
    figures,
    fleet_reading,
    overview,
    parked_classes,
    snapshot,
    views,
)
from forgeyard.store.changes import JOB, find
from forgeyard.store.engine import read
from forgeyard.store.naming import demand_job

router = APIRouter(prefix="/v1", tags=["scheduler"])
LOOKING = needs(Permission.SCHEDULER_READ)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScheduling(Explanation):
    """How a job stands, and how the rules would place it if it waited now.

    `sentence` speaks of the state it is really in; the rest is the replayed cycle.
    """

    run_name: str
    state: JobState
    attempts: tuple[views.AttemptView, ...]
    """Where it went so far, with the score that sent it there."""
    fleets: Mapping[str, str]
    """While no runner can take it: why each fleet makes no machine for it; empty if it could."""
    text: str
    """All of it as people read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusShown(overview.SchedulerStatus):
    """How the scheduler stands, and where the Temporal Web UI shows its workflows."""

    leases: Mapping[LeaseState, int]
    allocatable: Resources
    """Of the runners that take work."""
    free: Resources
    ui_url: str
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityShown(overview.CapacityView):
    """The sums over all runners that take work, and those of every pool and platform."""

    pools: tuple[capacity.CapacityGroup, ...]


@router.get("/jobs/{job_id}/scheduling")
def explain_job(
    job_id: Annotated[str, Path(max_length=64)], deps: Deps, who: RunReader
) -> JobScheduling:
    """Explain where a job would go now: every runner, with its score or every reason against it."""
    with read(deps.engine) as connection:
        demand_job(connection, job_id, tenant_id=who.tenant_id)
        in_force = deps.policies.in_force(connection)
        storage = deps.config.store.location()
        job, seen = snapshot.load_with(connection, job_id, in_force.policy, storage=storage)
        run = views.run(connection, job.run_id)
        background = _background(connection, job_id, version=in_force.version)
    found = explain(job, seen, in_force.policy, background=background)
    shown = next(one for one in run.jobs if one.job_id == job_id)
    found = replace(found, sentence=_sentence(shown, found))
    parts = {name: getattr(found, name) for name in Explanation.__slots__}
    waits = shown.state == JobState.ELIGIBLE and found.code is not None
    why = _fleets(deps, job, seen, in_force.policy, who) if waits else {}
    text = telling.text(found)
    return JobScheduling(
        **parts,
        run_name=run.name,
        state=JobState(shown.state),
        attempts=shown.attempts,
        fleets=why,
        text=f"{text}\n\n{told_of_job(why)}" if why else text,
    )


def _fleets(
    deps: ApiDependencies,
    job: SchedulingJob,
    seen: Snapshot,
    policy: SchedulingPolicy,
    who: Caller,
) -> dict[str, str]:
    """Say of every fleet why it makes no machine for a job; empty if it could (DEM-016).

    Who belongs to a tenant is told nothing of the fleets of others.
    """
    wanted = class_with(job, now=seen.taken_at)
    with read(deps.engine) as connection:
        views = fleet_reading.views(connection, seen.runners, policy, now=seen.taken_at)
    return {
        one.spec.name: why_not(one, wanted)
        for one in views
        if who.tenant_id is None or one.spec.scope.tenant_id in (None, who.tenant_id)
    }


def _background(connection: sa.Connection, job_id: str, *, version: int) -> Background:
    row = find(connection, JOB, job_id)
    waits = row["state"] == JobState.ELIGIBLE
    return Background(
        parked=parked_classes.parking_of(connection, row) if waits else None,
        policy_version=version,
        recent_waits=estimates.recent_waits(connection, row) if waits else (),
    )


@router.get("/jobs/{job_id}/suggestion")
def suggest_requests(
    job_id: Annotated[str, Path(max_length=64)], deps: Deps, who: RunReader
) -> Suggestion:
    """Suggest what the job might ask for, by what its recent attempts used; change nothing."""
    with read(deps.engine) as connection:
        demand_job(connection, job_id, tenant_id=who.tenant_id)
        policy = deps.policy(connection).suggestions
        row = find(connection, JOB, job_id)
        measured = estimates.recent_usage(connection, row, most=policy.attempts)
    asked = Resources(cpu=MilliCpu(row["cpu_milli"]), memory=Bytes(row["memory_bytes"]))
    return suggest(asked, measured, policy)


def _sentence(job: views.JobView, found: Explanation) -> str:
    """Say why the job is where it is; only a job that waits for a runner has a next cycle."""
    state = JobState(job.state)
    if state is JobState.ELIGIBLE and job.cancel_reason is None:
        return found.sentence
    if job.waiting:
        return f"The job {job.waiting}."
    words = state.value.replace("_", " ")
    if not job.attempts:
        return f"The job is {words}: {job.message}." if job.message else f"The job is {words}."
    last = job.attempts[-1]
    return (
        f"Attempt {last.number} was placed on {last.runner} with a score of {last.score}"
        f" out of {BEST}; the job's state is: {words}."
    )


@router.get("/scheduler/status", dependencies=[LOOKING])
def scheduler_status(deps: Deps) -> StatusShown:
    """Tell how much waits and runs, what the last cycle did, and whether anything is stuck."""
    with read(deps.engine) as connection:
        found = overview.scheduler_status(connection, deps.config.partition)
        allocatable, reserved = figures.amounts(connection)
        leases = figures.live_leases(connection)
    return StatusShown(
        leases=leases,
        allocatable=allocatable,
        free=allocatable.minus(reserved),
        **{name: getattr(found, name) for name in overview.SchedulerStatus.__slots__},
        ui_url=deps.config.temporal.ui_url,
        namespace=deps.config.temporal.namespace,
    )


@router.get("/scheduler/queues", dependencies=[LOOKING])
def scheduler_queues(deps: Deps) -> tuple[overview.QueueView, ...]:
    """List the queues with what waits in them and for how long."""
    with read(deps.engine) as connection:
        return overview.queues(connection)


@router.get("/scheduler/queues/by/{grouping}", dependencies=[LOOKING])
def scheduler_groups(grouping: capacity.Grouping, deps: Deps) -> tuple[capacity.JobGroup, ...]:
    """Count the jobs that could start and those on runners, by one thing."""
    with read(deps.engine) as connection:
        return capacity.job_groups(connection, grouping)


@router.get("/scheduler/capacity", dependencies=[LOOKING])
def scheduler_capacity(deps: Deps) -> CapacityShown:
    """Sum up what the runners offer, hold and have left, all together and by pool."""
    with read(deps.engine) as connection:
        percent = deps.policy(connection).overcommit.cpu_percent
        found = overview.capacity(connection, cpu_percent=percent)
        pools = capacity.capacity_groups(connection, cpu_percent=percent)
    sums = {name: getattr(found, name) for name in overview.CapacityView.__slots__}
    return CapacityShown(**sums, pools=pools)


@router.get("/scheduler/runners", dependencies=[LOOKING])
def scheduler_runners(deps: Deps) -> tuple[overview.RunnerView, ...]:
    """List every registered runner as the scheduler sees it."""
    with read(deps.engine) as connection:
        percent = deps.policy(connection).overcommit.cpu_percent
        return overview.runners(connection, cpu_percent=percent)
