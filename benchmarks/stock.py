"""A durable PostgreSQL for benchmarks, stocked with a fleet, limited scopes and waiting jobs.

Four jobs in five are plain; the others take an exclusivity key, a device, or are for deployment.
Every scope has a limit, so that each grant is judged by the quotas of six of them.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import sqlalchemy as sa

from benchmarks.fleets import a_partition
from forgeyard.config import StoreConfig
from forgeyard.model.equipment import Device, DeviceRequirement, Equipment, EquipmentRequirement
from forgeyard.model.job import JobSpec, Step
from forgeyard.model.policy import LeasePolicy, PressurePolicy, SchedulingPolicy
from forgeyard.model.run import RunSpec
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import SessionState
from forgeyard.model.units import Millis, Resources
from forgeyard.model.wishes import Purpose, Wishes
from forgeyard.scheduler import place
from forgeyard.scheduler.snapshot import RunnerLines, SchedulingJob, SchedulingRunner
from forgeyard.store import bulk, codec, migrate, runs, shares, snapshot, tables
from forgeyard.store.amounts import DIMENSIONS
from forgeyard.store.commit import CommitOutcome, PlanSaved, commit_cycle, save_plan
from forgeyard.store.engine import database_now, open_engine, read, write
from forgeyard.store.runner_cache import RunnerCache
from forgeyard.store.shares import Intent, Shares
from tests.conftest import start_postgresql, stop_postgresql

PARTITION = "default"
HOUR = Millis(3_600_000)
POLICY = SchedulingPolicy(
    batch=1_000,
    # What else the machine does must not make the batches smaller.
    pressure=PressurePolicy(outbox_lag=HOUR, store_latency=HOUR, saturation=1_001),
)
QUEUES = tuple(f"tenant-{number}/org/prj/main" for number in range(8))
LIMITED = Shares(max_jobs=100_000, max_cpu_milli=10**9, burst_percent=10)
JOBS_PER_RUN = 50
PHONE = DeviceRequirement(kind="phone")
INTENT = Intent(actor="benchmark", channel="benchmark", reason="a benchmark")


@contextmanager
def a_server() -> Iterator[sa.URL]:
    """Start a server that keeps what it acknowledged, in a folder that goes away."""
    folder = Path(tempfile.mkdtemp(prefix="forgeyard-benchmark-"))
    try:
        server = start_postgresql(str(folder / "data"))
        try:
            yield sa.make_url(server.get_uri())
        finally:
            stop_postgresql(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_database(server: sa.URL, name: str) -> sa.URL:
    """Make an empty database on a server."""
    engine = sa.create_engine(
        server.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.set(database=name)


@dataclass(kw_only=True)
class Yard:
    """One of our databases, and the calls of a cycle on it, as the activities make them."""

    engine: sa.Engine
    rng: Random = field(default_factory=lambda: Random(5))
    runners: RunnerCache = field(default_factory=RunnerCache)
    lines: RunnerLines = field(default_factory=RunnerLines)

    @classmethod
    def on(cls, url: sa.URL) -> "Yard":
        """Migrate a database and declare its scopes."""
        engine = open_engine(url.render_as_string(hide_password=False), StoreConfig())
        migrate.upgrade(engine)
        yard = cls(engine=engine)
        for path in QUEUES:
            with write(engine) as connection:
                shares.create_with_parents(connection, path, LIMITED, intent=INTENT, rng=yard.rng)
        with write(engine) as connection:
            values = {"max_jobs": LIMITED.max_jobs, "max_cpu_milli": LIMITED.max_cpu_milli}
            connection.execute(sa.update(tables.scopes).values(values))
        return yard

    def stock(self, *, runners: int, jobs: int, classes: int = 50) -> None:
        """Add a fleet and submit jobs, in pieces that no timeout hits."""
        world = a_partition(jobs=jobs, runners=runners, classes=classes)
        for first in range(0, runners, 1_000):
            piece = world.runners[first : first + 1_000]
            with write(self.engine) as connection:
                now = database_now(connection)
                rows = [_runner_row(each, now) for each in piece]
                bulk.insert(connection, tables.runners, rows)
                bulk.insert(connection, tables.sessions, [_session_row(each) for each in piece])
        for first in range(0, jobs, JOBS_PER_RUN):
            self._submit(first // JOBS_PER_RUN, world.jobs[first : first + JOBS_PER_RUN])
        self.vacuum()

    def vacuum(self) -> None:
        """Clean up and count, as the database itself does a minute after it has grown."""
        with self.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(sa.text("VACUUM ANALYZE"))

    def _submit(self, number: int, wanted: Sequence[SchedulingJob]) -> None:
        spec = RunSpec(name=f"run-{number}", jobs=tuple(_spec(job) for job in wanted))
        submission = runs.Submission(
            spec=spec,
            document="{}",
            source_digest=None,
            submitted_by="benchmark",
            partition=PARTITION,
            idempotency_key=None,
            body_digest="sha256:body",
            queue=QUEUES[number % len(QUEUES)],
        )
        with write(self.engine) as connection:
            runs.submit(connection, submission, policy=LeasePolicy(), rng=self.rng)

    def look(self, policy: SchedulingPolicy = POLICY) -> snapshot.Snapshot:
        """Read the queue, and of the runners what has changed."""
        with read(self.engine) as connection:
            return snapshot.load(connection, PARTITION, policy, read_runners=self.runners.read)

    def save(self, plan: place.Plan, digest: str, policy: SchedulingPolicy = POLICY) -> PlanSaved:
        """Store a plan."""
        with write(self.engine) as connection:
            return save_plan(connection, PARTITION, plan, digest, policy.digest(), rng=self.rng)

    def commit(self, cycle_id: int, policy: SchedulingPolicy = POLICY) -> CommitOutcome:
        """Grant what a plan says."""
        with write(self.engine) as connection:
            return commit_cycle(connection, cycle_id, built_in=policy)


def _spec(job: SchedulingJob) -> JobSpec:
    """Write a job of a partition as its author would, some with wishes of their own."""
    number = int(job.job_id.removeprefix("job_"))
    wishes, requires = Wishes(), job.requirements
    if number % 10 == 3:
        wishes = Wishes(keys=(f"environment-{number}",))
    elif number % 10 == 6:
        requires = replace(requires, equipment=EquipmentRequirement(devices=(PHONE,)))
    elif number % 50 == 9:
        wishes = Wishes(purpose=Purpose.DEPLOY)
    return JobSpec(
        name=job.name,
        steps=(Step(name="build", run="make build"), Step(name="test", run="make test")),
        requires=requires,
        resources=job.resources,
        priority=job.priority,
        wishes=wishes,
    )


def _runner_row(runner: SchedulingRunner, now: int) -> dict[str, object]:
    """Describe an idle runner; one in two has phones."""
    phones = Equipment(devices=(Device(kind="phone", count=8),))
    with_phones = replace(runner.capabilities, equipment=phones)
    even = int(runner.runner_id.removeprefix("rnr_")) % 2 == 0
    return {
        "runner_id": runner.runner_id,
        "name": runner.name,
        "state": RunnerState.ONLINE.value,
        "session_id": runner.session_id,
        "version": 1,
        "pool_id": runner.pool_id,
        "trust": runner.trust.value,
        "capabilities": codec.encode(with_phones if even else runner.capabilities),
        "capability_digest": runner.capability_digest,
        **_amounts("total", runner.total),
        **_amounts("headroom", runner.headroom),
        **_amounts("reserved", Resources()),
        "pressure": runner.pressure.value,
        **dict.fromkeys(("registered_at", "last_seen_at", "reported_at", "changed_at"), now),
    }


def _session_row(runner: SchedulingRunner) -> dict[str, object]:
    return {
        "session_id": runner.session_id,
        "runner_id": runner.runner_id,
        "state": SessionState.OPEN.value,
        "version": 1,
        "opened_at": 1,
        "last_seen_at": 1,
    }


def _amounts(prefix: str, amount: Resources) -> dict[str, object]:
    values = (amount.cpu, amount.memory, amount.disk, amount.slots)
    return {f"{prefix}_{name}": value for name, value in zip(DIMENSIONS, values, strict=True)}
