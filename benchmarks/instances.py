"""Small seeded partitions whose best placement a solver can find: mixed jobs, mixed runners.

A job takes a sixth of a runner on average. Runners have one of two architectures and one of three
toolchains; half of the jobs are bound to an architecture, four in ten to a toolchain.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
from forgeyard.scheduler.eligibility import is_eligible
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot

NOW = 1_700_000_000_000
MINUTE = 60_000
PRIORITIES = (Priority.LOW, *[Priority.NORMAL] * 3, Priority.HIGH, Priority.RELEASE_CRITICAL)
PYTHONS = ("3.11.9", "3.12.7", "3.13.1")
RANGES = (">=3.11", ">=3.12", "==3.13.*")
CORES = (4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A partition, and how long each of its jobs would run."""

    snapshot: Snapshot
    takes: Mapping[str, int]
    """Milliseconds by job id; no planner is told."""


def an_instance(seed: int, *, runners: tuple[int, int], load: int) -> Instance:
    """Make idle runners, and jobs that want so many percent of their CPUs; each fits somewhere."""
    rng = Random(seed)
    fleet = tuple(_runner(rng, number) for number in range(rng.randint(*runners)))
    queue = _queue(rng, fleet, load)
    snapshot = Snapshot(
        partition="default", taken_at=NOW, jobs=queue, runners=fleet, waiting=len(queue)
    )
    return Instance(snapshot=snapshot, takes={job.job_id: _duration(rng) for job in queue})


def _queue(
    rng: Random, fleet: tuple[SchedulingRunner, ...], load: int
) -> tuple[SchedulingJob, ...]:
    queue: list[SchedulingJob] = []
    wanted = sum(runner.total.cpu for runner in fleet) * load // 100
    while sum(job.resources.cpu for job in queue) < wanted:
        queue.append(_placeable(rng, len(queue), fleet))
    return tuple(queue)


def runners_that_fit(job: SchedulingJob, snapshot: Snapshot) -> list[int]:
    """Number the runners that could take a job while they are idle."""
    places = enumerate(snapshot.runners)
    return [place for place, it in places if is_eligible(job, it, free=it.free)]


def _placeable(rng: Random, number: int, fleet: tuple[SchedulingRunner, ...]) -> SchedulingJob:
    while True:
        job = _job(rng, number)
        if any(is_eligible(job, runner, free=runner.free) for runner in fleet):
            return job


def _job(rng: Random, number: int) -> SchedulingJob:
    """Make one of three shapes: small, heavy on memory, or heavy on CPU and disk."""
    shape = rng.random()
    if shape < 0.6:
        wanted = _amounts(cpu=rng.randint(1, 4) * 500, memory=rng.randint(1, 4), disk=2)
    elif shape < 0.8:
        wanted = _amounts(cpu=rng.randint(2, 4) * 500, memory=rng.randint(4, 12), disk=4)
    else:
        wanted = _amounts(cpu=rng.randint(4, 8) * 500, memory=rng.randint(4, 8), disk=20)
    tool = ToolchainRequirement(name="python", version=rng.choice(RANGES))
    return SchedulingJob(
        job_id=f"job_{number:03}",
        run_id="run_1",
        name=f"job-{number}",
        requirements=Requirements(
            platform=Platform.LINUX,
            architecture=rng.choice((Architecture.X86_64, Architecture.AARCH64, None, None)),
            toolchains=(tool,) if rng.random() < 0.4 else (),
        ),
        resources=wanted,
        priority=rng.choice(PRIORITIES),
        eligible_at=NOW - rng.randint(0, 120) * MINUTE,
    )


def _runner(rng: Random, number: int) -> SchedulingRunner:
    cores = rng.choice(CORES)
    return SchedulingRunner(
        runner_id=f"rnr_{number:03}",
        name=f"runner-{number}",
        session_id=f"ses_{number}",
        capabilities=Capabilities(
            platform=Platform.LINUX,
            os_version="24.04",
            architecture=rng.choice((*[Architecture.X86_64] * 2, Architecture.AARCH64)),
            toolchains=(Toolchain(name="python", version=rng.choice(PYTHONS)),),
        ),
        total=_amounts(
            cpu=cores * 1000, memory=cores * rng.choice((2, 4)), disk=cores * 8, slots=cores
        ),
    )


def _duration(rng: Random) -> int:
    return rng.choice((1, 2, 3, 5, 8)) * MINUTE


def _amounts(*, cpu: int, memory: int, disk: int, slots: int = 1) -> Resources:
    return Resources(
        cpu=MilliCpu(cpu), memory=Bytes(memory * GIB), disk=Bytes(disk * GIB), slots=slots
    )
