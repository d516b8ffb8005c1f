"""Things that tests need, each with defaults that never matter to the test that omits them."""

import json
import random
from dataclasses import dataclass, replace

import sqlalchemy as sa

from forgeyard.model.capability import (
    Architecture,
    Capabilities,
    Platform,
    Toolchain,
    TrustClass,
)
from forgeyard.model.fleet import CapacityClass, FleetSpec
from forgeyard.model.ids import SessionId
from forgeyard.model.job import JobSpec, Step
from forgeyard.model.location import SOMEWHERE, Location
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.protocol import Holder, Register, Registered
from forgeyard.model.run import RunSpec
from forgeyard.model.transitions import (
    JOB_TRANSITIONS,
    JobState,
)
from forgeyard.model.units import GIB, MIB, Bytes, MilliCpu, Millis, Resources
from forgeyard.scheduler.place import Decision, Plan
from forgeyard.store import changes, commit, jobs, runners, runs, stopping, tables
from forgeyard.store.changes import JOB, DeadlineKind, Row
from tests import lock_order

PARTITION = "default"
POLICY = SchedulingPolicy()
LEASE_POLICY = LeasePolicy()
RNG = random.Random(20_261_129)
"""Shared, so that ids never repeat within a session."""


def some_resources(
    *, cpu: int = 500, memory: int = 256 * MIB, disk: int = 256 * MIB, slots: int = 1
) -> Resources:
    """Make an amount of resources: a small job's."""
    return Resources(cpu=MilliCpu(cpu), memory=Bytes(memory), disk=Bytes(disk), slots=slots)


def a_job_spec(name: str = "build", *, run: str = "true", **changed: object) -> JobSpec:
    """Describe a job of one step; every field of JobSpec may be given."""
    spec = JobSpec(name=name, steps=(Step(name="run", run=run),))
    return replace(spec, **changed)


def a_fleet_spec(name: str = "builders", **changed: object) -> FleetSpec:
    """Describe a fleet of small machines; every field of FleetSpec may be given."""
    resources = some_resources(cpu=4_000, memory=8 * GIB, disk=20 * GIB, slots=4)
    return replace(FleetSpec(name=name, capacity=CapacityClass(resources=resources)), **changed)


def a_run_spec(*jobs: JobSpec, name: str = "demo", timeout: int = 86_400_000) -> RunSpec:
    """Describe a run; one job called `build` unless jobs are given."""
    return RunSpec(name=name, jobs=jobs or (a_job_spec(),), timeout=Millis(timeout))


def a_submission(spec: RunSpec | None = None, **changed: object) -> runs.Submission:
    """Describe what an API would hand to the store; every field may be given."""
    spec = spec or a_run_spec()
    submission = runs.Submission(
        spec=spec,
        document=json.dumps({"name": spec.name}),
        source_digest=None,
        submitted_by="tester",
        partition=PARTITION,
        idempotency_key=None,
        body_digest="sha256:body",
    )
    return replace(submission, **changed)


def submit_run(
    connection: sa.Connection, *jobs: JobSpec, name: str = "demo", **changed: object
) -> str:
    """Submit a run of these jobs (one called `build` if none); return its id."""
    submission = a_submission(a_run_spec(*jobs, name=name), **changed)
    return runs.submit(connection, submission, policy=LEASE_POLICY, rng=RNG).run_id


def jobs_of(connection: sa.Connection, run_id: str) -> dict[str, Row]:
    """Read the jobs of a run, by name."""
    query = sa.select(tables.jobs).where(tables.jobs.c.run_id == run_id)
    return {row["name"]: dict(row) for row in connection.execute(query).mappings()}


def job_states(connection: sa.Connection, run_id: str) -> dict[str, str]:
    """Read the states of a run's jobs, by name."""
    return {name: row["state"] for name, row in jobs_of(connection, run_id).items()}


def deadlines_of(connection: sa.Connection, entity_id: str) -> dict[DeadlineKind, int]:
    """Read the deadlines of a run, a job or an attempt."""
    table = tables.deadlines
    query = sa.select(table.c.kind, table.c.due_at).where(table.c.entity_id == entity_id)
    return {DeadlineKind(kind): due_at for kind, due_at in connection.execute(query)}


_ON_THE_WAY = (
    JobState.LEASED,
    JobState.PREPARING,
    JobState.RUNNING,
    JobState.UPLOADING_OUTPUTS,
)


def end_job(
    connection: sa.Connection,
    run_id: str,
    name: str,
    state: JobState = JobState.SUCCEEDED,
    *,
    now: int = 1,
) -> Row:
    """End an eligible job without a runner; return its run."""
    job_id = jobs_of(connection, run_id)[name]["job_id"]
    run, job = changes.lock_run_and_job(connection, job_id)
    for step in _ON_THE_WAY:
        if state in JOB_TRANSITIONS[JobState(job["state"])]:
            break
        job = changes.move(connection, JOB, job, step, reason="by a test", now=now)
    ending = jobs.Ending(job=job, state=state, reason="by a test")
    return stopping.fail(connection, run, ending, now=now, policy=LEASE_POLICY)


def some_capabilities(**changed: object) -> Capabilities:
    """Describe what an ordinary Linux runner offers; every field may be given."""
    offered = Capabilities(
        platform=Platform.LINUX,
        os_version="12",
        architecture=Architecture.X86_64,
        toolchains=(Toolchain(name="python", version="3.11.2"),),
        trust=TrustClass.TRUSTED_INTERNAL,
        agent_version="0.1.0",
    )
    return replace(offered, **changed)


def a_registration(
    name: str = "runner-1",
    *,
    total: Resources | None = None,
    headroom: Resources | None = None,
    capabilities: Capabilities | None = None,
    location: Location = SOMEWHERE,
    pool: str = "",
) -> Register:
    """Describe an agent's first message: 4 cores, 8 GiB, 50 GiB of disk, 4 jobs side by side."""
    return Register(
        runner_name=name,
        capabilities=capabilities or some_capabilities(),
        total=total or some_resources(cpu=4_000, memory=8 * GIB, disk=50 * GIB, slots=4),
        headroom=headroom or Resources(),
        location=location,
        pool=pool,
    )


def register_runner(
    connection: sa.Connection, name: str = "runner-1", **changed: object
) -> Registered:
    """Register a runner the way an agent does; see `a_registration` for what may be given."""
    message = a_registration(name, **changed)
    return runners.register(connection, message, policy=LEASE_POLICY, rng=RNG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A lease as its agent knows it."""

    lease_id: str
    attempt_id: str
    epoch: int
    session_id: str

    @property
    def holder(self) -> Holder:
        """Name the holder, as every call about the lease does."""
        return Holder(session_id=SessionId(self.session_id), epoch=self.epoch)


def grant(connection: sa.Connection, job_id: str, runner: Registered) -> Granted:
    """Offer an eligible job to this runner, in a scheduling cycle that decided nothing else."""
    lock_order.forget(connection)
    decision = Decision(job_id=job_id, candidates=((runner.runner_id, 0),))
    plan = Plan(decisions=(decision,), diagnoses=(), eligible=1, runners=1)
    saved = commit.save_plan(connection, PARTITION, plan, "sha256:s", POLICY.digest(), rng=RNG)
    outcome = commit.commit_cycle(connection, saved.cycle_id, built_in=POLICY)
    assert outcome.granted == 1, outcome.verdicts
    query = sa.select(tables.leases).where(tables.leases.c.job_id == job_id)
    newest = query.order_by(tables.leases.c.epoch.desc()).limit(1)
    lease = connection.execute(newest).mappings().one()
    return Granted(
        lease_id=lease["lease_id"],
        attempt_id=lease["attempt_id"],
        epoch=lease["epoch"],
        session_id=lease["session_id"],
    )
