"""Things that tests need, each with defaults that never matter to the test that omits them."""

import hashlib
import json
import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from forgeyard.model.capability import (
    Architecture,
    Capabilities,
    Platform,
    Toolchain,
    TrustClass,
)
from forgeyard.model.ids import RunnerId, SessionId, new_id
from forgeyard.model.job import JobSpec, Step
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.protocol import Holder, Register, Registered
from forgeyard.model.run import RunSpec
from forgeyard.model.runner import ResourcePressure, RunnerState
from forgeyard.model.transitions import (
    JOB_TRANSITIONS,
    AttemptState,
    JobState,
    LeaseState,
    SessionState,
)
from forgeyard.model.units import GIB, MIB, Bytes, MilliCpu, Millis, Resources
from forgeyard.store import changes, codec, jobs, runs, tables
from forgeyard.store.changes import ATTEMPT, JOB, LEASE, DeadlineKind, Row
from forgeyard.store.engine import database_now

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
    return runs.submit(connection, submission, rng=RNG).run_id


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
    return jobs.finish_job(connection, run, job, state, reason="by a test", now=now)


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
) -> Register:
    """Describe an agent's first message: 4 cores, 8 GiB, 50 GiB of disk, 4 jobs side by side."""
    return Register(
        runner_name=name,
        capabilities=capabilities or some_capabilities(),
        total=total or some_resources(cpu=4_000, memory=8 * GIB, disk=50 * GIB, slots=4),
        headroom=headroom or Resources(),
    )


def register_runner(
    connection: sa.Connection, name: str = "runner-1", **changed: object
) -> Registered:
    """Register a runner the way an agent does; see `a_registration` for what may be given."""
    message = a_registration(name, **changed)
    return _insert_runner(connection, message)


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
    """Offer an eligible job to a runner without a scheduling cycle."""
    now = database_now(connection)
    _run, job = changes.lock_run_and_job(connection, job_id)
    number = job["attempts_made"] + 1
    job = changes.move(
        connection,
        JOB,
        job,
        JobState.LEASED,
        reason="granted by a test",
        now=now,
        epoch=job["epoch"] + 1,
        attempts_made=number,
        leased_at=now,
    )
    attempt = {
        "attempt_id": _id("att", now),
        "job_id": job_id,
        "run_id": job["run_id"],
        "partition": job["partition"],
        "number": number,
        "state": AttemptState.LEASED.value,
        "runner_id": runner.runner_id,
        "session_id": runner.session_id,
        "capability_digest": "sha256:capabilities",
        "trust": TrustClass.TRUSTED_INTERNAL.value,
        "policy_digest": POLICY.digest(),
        "score": 0,
        "created_at": now,
    }
    lease = {
        "lease_id": _id("lea", now),
        "attempt_id": attempt["attempt_id"],
        "job_id": job_id,
        "runner_id": runner.runner_id,
        "session_id": runner.session_id,
        "epoch": job["epoch"],
        "state": LeaseState.OFFERED.value,
        "grace_ms": LEASE_POLICY.connectivity_grace,
        "offered_at": now,
        "expires_at": now + LEASE_POLICY.offer_ttl,
    }
    changes.born(connection, ATTEMPT, [attempt], reason="granted by a test", now=now)
    changes.born(connection, LEASE, [lease], reason="granted by a test", now=now)
    changes.clear_deadlines(connection, job_id, DeadlineKind.QUEUE)
    _reserve(connection, job, str(lease["lease_id"]), runner.runner_id)
    return Granted(
        lease_id=str(lease["lease_id"]),
        attempt_id=str(attempt["attempt_id"]),
        epoch=job["epoch"],
        session_id=runner.session_id,
    )


def _reserve(connection: sa.Connection, job: Row, lease_id: str, runner_id: str) -> None:
    table = tables.runners
    amounts = {name: job[name] for name in ("cpu_milli", "memory_bytes", "disk_bytes", "slots")}
    row = {"lease_id": lease_id, "runner_id": runner_id, **amounts}
    connection.execute(sa.insert(tables.reservations), [row])
    sums = {f"reserved_{name}": table.c[f"reserved_{name}"] + n for name, n in amounts.items()}
    connection.execute(sa.update(table).where(table.c.runner_id == runner_id).values(sums))


def _id(prefix: str, now: int) -> str:
    return new_id(prefix, now=datetime.fromtimestamp(now / 1000, UTC), rng=RNG)


def _insert_runner(connection: sa.Connection, message: Register) -> Registered:
    now = database_now(connection)
    runner_id = RunnerId(_id("rnr", now))
    session_id = SessionId(_id("ses", now))
    capabilities = codec.encode(message.capabilities)
    row: dict[str, Any] = {
        "runner_id": runner_id,
        "name": message.runner_name,
        "state": RunnerState.ONLINE.value,
        "session_id": session_id,
        "pool_id": "pol_default",
        "trust": message.capabilities.trust.value,
        "capabilities": capabilities,
        "capability_digest": f"sha256:{hashlib.sha256(capabilities.encode()).hexdigest()}",
        "pressure": ResourcePressure.NORMAL.value,
        "registered_at": now,
        "last_seen_at": now,
    }
    for prefix, amount in (("total", message.total), ("headroom", message.headroom)):
        row[f"{prefix}_cpu_milli"] = amount.cpu
        row[f"{prefix}_memory_bytes"] = amount.memory
        row[f"{prefix}_disk_bytes"] = amount.disk
        row[f"{prefix}_slots"] = amount.slots
    connection.execute(sa.insert(tables.runners), [row])
    session = {
        "session_id": session_id,
        "runner_id": runner_id,
        "state": SessionState.OPEN.value,
        "opened_at": now,
        "last_seen_at": now,
    }
    connection.execute(sa.insert(tables.sessions), [session])
    return Registered(
        runner_id=runner_id,
        session_id=session_id,
        renew_every=LEASE_POLICY.renew_every,
        heartbeat_every=Millis(10_000),
        longest_back_off=LEASE_POLICY.longest_back_off,
    )
