"""Jobs, runners and snapshots as values, each with defaults that never matter to the test."""

from collections.abc import Iterable
from dataclasses import replace

from forgeyard.model.capability import Architecture, Capabilities, Platform, Requirements, Toolchain
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import GIB, Bytes, MilliCpu, Resources
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot

POLICY = SchedulingPolicy()
MINUTE = 60_000
NOW = 1_700_000_000_000
LINUX = Capabilities(
    platform=Platform.LINUX,
    os_version="12",
    architecture=Architecture.X86_64,
    toolchains=(Toolchain(name="python", version="3.11.2"),),
    labels={"zone": "a"},
)


def amounts(cpu: int = 1_000, memory_gib: int = 1, disk_gib: int = 1, slots: int = 1) -> Resources:
    """Make an amount of resources from thousandths of a core and whole GiB."""
    return Resources(
        cpu=MilliCpu(cpu),
        memory=Bytes(memory_gib * GIB),
        disk=Bytes(disk_gib * GIB),
        slots=slots,
    )


def a_job(name: str = "build", **changed: object) -> SchedulingJob:
    """Describe an eligible job: 1 core, 1 GiB, any runner; every field may be given."""
    job = SchedulingJob(
        job_id=f"job_{name}", run_id="run_1", name=name, resources=amounts(), eligible_at=NOW
    )
    return replace(job, **changed)


def a_job_that_requires(name: str = "build", **wanted: object) -> SchedulingJob:
    """Describe an eligible job by the fields of its requirements."""
    return a_job(name, requirements=Requirements(**wanted))


def a_runner(name: str = "linux-1", **changed: object) -> SchedulingRunner:
    """Describe an idle Linux runner: 4 cores, 12 GiB, 100 GiB of disk, 4 slots."""
    runner = SchedulingRunner(
        runner_id=f"rnr_{name}",
        name=name,
        session_id=f"ses_{name}",
        capabilities=LINUX,
        capability_digest="sha256:linux",
        total=amounts(cpu=4_000, memory_gib=12, disk_gib=100, slots=4),
    )
    return replace(runner, **changed)


def a_snapshot(
    jobs: Iterable[SchedulingJob], runners: Iterable[SchedulingRunner], **changed: object
) -> Snapshot:
    """Describe an instant; `waiting` counts the jobs unless given."""
    jobs, runners = tuple(jobs), tuple(runners)
    snapshot = Snapshot(
        partition="default", taken_at=NOW, jobs=jobs, runners=runners, waiting=len(jobs)
    )
    return replace(snapshot, **changed)
