"""Seeded partitions of any size for the planner: mixed runners, jobs of many classes."""

from random import Random

from forgeyard.model.capability import (
    Architecture,
    Capabilities,
    Platform,
    Requirements,
    Toolchain,
    ToolchainRequirement,
)
from forgeyard.model.job import Priority
from forgeyard.model.units import GIB, Bytes, MilliCpu, Resources
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot

NOW = 1_700_000_000_000
PYTHONS = ("3.11.9", "3.12.7", "3.13.1")
ZONES = "abc"
PRIORITIES = (Priority.LOW, Priority.NORMAL, Priority.HIGH)


def a_partition(*, jobs: int, runners: int, classes: int, seed: int = 1) -> Snapshot:
    """Make a partly used fleet of 36 profiles, and a queue that has waited up to ten hours."""
    rng = Random(seed)
    profiles = _profiles()
    kinds = [_kind(rng) for _ in range(classes)]
    return Snapshot(
        partition="default",
        taken_at=NOW,
        jobs=tuple(_job(rng, number, rng.choice(kinds)) for number in range(jobs)),
        runners=tuple(_runner(rng, number, rng.choice(profiles)) for number in range(runners)),
        waiting=jobs,
    )


def _profiles() -> list[Capabilities]:
    return [
        Capabilities(
            platform=Platform.LINUX,
            os_version=release,
            architecture=architecture,
            toolchains=(Toolchain(name="python", version=python),),
            labels={"zone": zone},
        )
        for release in ("22.04", "24.04")
        for architecture in Architecture
        for python in PYTHONS
        for zone in ZONES
    ]


def _kind(rng: Random) -> tuple[Requirements, Resources]:
    tool = ToolchainRequirement(name="python", version=rng.choice((">=3.11", ">=3.12", "==3.13.*")))
    requirements = Requirements(
        platform=Platform.LINUX,
        architecture=rng.choice((*Architecture, None)),
        toolchains=(tool,) if rng.random() < 0.5 else (),
        labels={"zone": rng.choice(ZONES)} if rng.random() < 0.3 else {},
    )
    return requirements, _amounts(cpu=rng.randint(1, 8) * 500, size=rng.randint(1, 8), slots=1)


def _job(rng: Random, number: int, kind: tuple[Requirements, Resources]) -> SchedulingJob:
    requirements, resources = kind
    return SchedulingJob(
        job_id=f"job_{number:07}",
        run_id="run_1",
        name=f"job-{number}",
        requirements=requirements,
        resources=resources,
        priority=rng.choice(PRIORITIES),
        eligible_at=NOW - rng.randint(0, 36_000_000),
    )


def _runner(rng: Random, number: int, capabilities: Capabilities) -> SchedulingRunner:
    return SchedulingRunner(
        runner_id=f"rnr_{number:07}",
        name=f"runner-{number}",
        session_id=f"ses_{number}",
        capabilities=capabilities,
        total=_amounts(
            cpu=rng.choice((4, 8, 16, 32)) * 1000,
            size=rng.choice((16, 32, 64)),
            slots=rng.choice((4, 8, 16)),
        ),
        reserved=_amounts(
            cpu=rng.randint(0, 4) * 1000, size=rng.randint(0, 16), slots=rng.randint(0, 4)
        ),
    )


def _amounts(*, cpu: int, size: int, slots: int) -> Resources:
    return Resources(
        cpu=MilliCpu(cpu), memory=Bytes(size * GIB), disk=Bytes(size * 4 * GIB), slots=slots
    )
