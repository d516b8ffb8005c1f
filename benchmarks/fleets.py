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
from forgeyard.model.holdings import Holdings, bloom_of
from forgeyard.model.job import Priority
from forgeyard.model.location import Location, ReliabilityClass
from forgeyard.model.units import GIB, MIB, Bytes, MilliCpu, Resources
from forgeyard.model.wishes import Spread, Wishes
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot

NOW = 1_700_000_000_000
PYTHONS = ("3.11.9", "3.12.7", "3.13.1")
ZONES = "abc"
SOURCES, RUNS = 200, 2_000
COSTS = ((ReliabilityClass.STANDARD, 400_000), (ReliabilityClass.PREEMPTIBLE, 120_000))
SHARD = Wishes(spread=Spread(group="test"))
SETS = tuple(
    bloom_of(f"sha256:{place * number:064}" for place in range(2_000)) for number in range(1, 9)
)
PRIORITIES = (Priority.LOW, Priority.NORMAL, Priority.HIGH)


def a_partition(*, jobs: int, runners: int, classes: int, seed: int = 1) -> Snapshot:
    """Make a partly used fleet of 72 profiles, and a queue that has waited up to ten hours."""
    rng = Random(seed)
    profiles = _profiles()
    kinds = [_kind(rng) for _ in range(classes)]
    sources = [(f"sha256:{number:064}", rng.randint(1, 400) * MIB) for number in range(SOURCES)]
    return Snapshot(
        partition="default",
        taken_at=NOW,
        jobs=tuple(_job(rng, number, rng.choice(kinds), sources) for number in range(jobs)),
        runners=tuple(
            _runner(rng, number, rng.choice(profiles), sources) for number in range(runners)
        ),
        waiting=jobs,
        shards={f"run_{number}/test": {"rnr_0000000": 1} for number in range(RUNS)},
        storage=Location(site="site-0", region="region-0"),
    )


def _profiles() -> list[Capabilities]:
    return [
        Capabilities(
            platform=Platform.LINUX,
            os_version=release,
            architecture=architecture,
            toolchains=(Toolchain(name="python", version=python),),
            labels={"zone": zone},
            reliability=reliability,
            cost_micros_per_hour=cost,
        )
        for reliability, cost in COSTS
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


def _job(
    rng: Random,
    number: int,
    kind: tuple[Requirements, Resources],
    sources: list[tuple[str, int]],
) -> SchedulingJob:
    """Make a job of one of many runs: all unpack a source, some are shards, few are retries."""
    requirements, resources = kind
    run = rng.randrange(RUNS)
    return SchedulingJob(
        job_id=f"job_{number:07}",
        run_id=f"run_{run}",
        name=f"job-{number}",
        requirements=requirements,
        resources=resources,
        priority=rng.choice(PRIORITIES),
        eligible_at=NOW - rng.randint(0, 36_000_000),
        inputs=(sources[run % SOURCES],),
        closures=(f"npm-{run % 50}",) if rng.random() < 0.5 else (),
        home=f"rnr_{rng.randrange(1_000):07}" if rng.random() < 0.5 else None,
        losses=(f"rnr_{rng.randrange(1_000):07}",) if rng.random() < 0.02 else (),
        wishes=SHARD if rng.random() < 0.2 else Wishes(),
    )


def _runner(
    rng: Random, number: int, capabilities: Capabilities, sources: list[tuple[str, int]]
) -> SchedulingRunner:
    """Make a runner that shares its host with one other, and holds what it used lately."""
    held = dict(rng.sample(sources, rng.randint(0, 12)))
    held |= {f"sha256:{number:032}{place:032}": MIB for place in range(8)}
    holdings = Holdings(
        objects=held,
        closures=tuple(f"npm-{rng.randrange(50)}" for _ in range(4)),
        others=rng.choice(SETS) if rng.random() < 0.2 else None,
    )
    return SchedulingRunner(
        runner_id=f"rnr_{number:07}",
        name=f"runner-{number}",
        session_id=f"ses_{number}",
        capabilities=capabilities,
        location=Location(
            host=f"host-{number // 2}",
            site=f"site-{number % 40}",
            region=f"region-{number % 4}",
        ),
        holdings=holdings,
        penalty=1_000 if rng.random() < 0.02 else 0,
        penalty_at=NOW - rng.randint(0, 3_600_000),
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
