"""Random worlds for the scheduling rules, and a matcher written apart from the product's.

Values come from small sets, so that matches, near misses and full runners are all frequent.
Hypothesis draws a seed and a seeded generator the rest: drawing every field of every runner one by
one would take most of the time that there is for testing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st

from forgeyard.model.capability import (
    Architecture,
    Capabilities,
    Platform,
    Requirements,
    Toolchain,
    ToolchainRequirement,
    TrustClass,
)
from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy, ScoreWeights
from forgeyard.model.runner import ResourcePressure, RunnerState
from forgeyard.model.units import Bytes, MilliCpu, Resources
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot
from tests.equipment import naive_codes, naive_version, some_equipment, some_wishes
from tests.scheduling import MINUTE, NOW

T = TypeVar("T")
ENOUGH = 100
fixed = settings(max_examples=300, deadline=None, derandomize=True)
"""The same examples every time; raise `max_examples` for a longer hunt."""

VERSIONS = ("1.2", "1.10", "2.0", "2.5.1", "3.0")
RANGES = (">=1.10", "<2.5", "==2.*", ">=1.2,<3", "!=2.0")
AGENTS = ("0.1", "0.2", "")
DIGESTS = ("sha256:a", "sha256:b")
TOOLS = ("python", "xcode")


def rarely(rng: Random, values: Sequence[T]) -> T | None:
    """Leave a field open nine times in ten."""
    return rng.choice(values) if rng.random() < 0.1 else None


def mostly(rng: Random, value: T, others: Sequence[T]) -> T:
    """Take one value four times in five, else any of the others."""
    return value if rng.random() < 0.8 else rng.choice(others)


def some_amounts(rng: Random) -> Resources:
    """Make what a job asks for; now and then too much for any runner."""
    return _amounts(rng, (0, 2_500), (0, 6), (1, 2))


def some_capacity(rng: Random) -> Resources:
    """Make what a runner has."""
    return _amounts(rng, (2_000, 9_000), (6, 24), (1, 6))


def some_crumbs(rng: Random) -> Resources:
    """Make a small amount, for headroom and reservations."""
    return _amounts(rng, (0, 900), (0, 3), (0, 1))


def _amounts(
    rng: Random, cpu: tuple[int, int], size: tuple[int, int], slots: tuple[int, int]
) -> Resources:
    return Resources(
        cpu=MilliCpu(rng.randint(*cpu)),
        memory=Bytes(rng.randint(*size)),
        disk=Bytes(rng.randint(*size)),
        slots=rng.randint(*slots),
    )


def some_requirements(rng: Random) -> Requirements:
    """Make what a job must find on its runner."""
    tool = ToolchainRequirement(
        name=rng.choice(TOOLS), version=mostly(rng, None, RANGES), digest=rarely(rng, DIGESTS)
    )
    return Requirements(
        platform=mostly(rng, Platform.LINUX, [*Platform, None]),
        os_version=rarely(rng, RANGES),
        architecture=rarely(rng, list(Architecture)),
        toolchains=(tool,) if rng.random() < 0.3 else (),
        labels={"zone": rng.choice("ab")} if rng.random() < 0.1 else {},
        trust=rarely(rng, list(TrustClass)),
        agent_version=rarely(rng, (">=0.2", "<0.2")),
        equipment=some_wishes(rng, share=0.02),
    )


def some_capabilities(rng: Random) -> Capabilities:
    """Make what a runner says it can do."""
    return Capabilities(
        platform=mostly(rng, Platform.LINUX, [*Platform, None]),
        os_version=rng.choice((*VERSIONS, None)),
        architecture=mostly(rng, Architecture.X86_64, [*Architecture, None]),
        toolchains=tuple(
            Toolchain(
                name=rng.choice(TOOLS),
                version=rng.choice((*VERSIONS, None)),
                digest=rng.choice((*DIGESTS, None)),
            )
            for _ in range(rng.randint(0, 3))
        ),
        labels={"zone": rng.choice("ab")} if rng.random() < 0.6 else {},
        agent_version=rng.choice(AGENTS),
        equipment=some_equipment(rng),
    )


def some_job(rng: Random, place: int) -> SchedulingJob:
    """Make an eligible job."""
    return SchedulingJob(
        job_id=f"job_{place}",
        run_id="run_1",
        name=f"job-{place}",
        requirements=some_requirements(rng),
        resources=some_amounts(rng),
        priority=rng.choice(list(Priority)),
        eligible_at=NOW - rng.randint(0, 600) * MINUTE,
        refused_by={"rnr_0": "draining"} if rng.random() < 0.2 else {},
    )


def some_runner(rng: Random, place: int) -> SchedulingRunner:
    """Make a registered runner."""
    return SchedulingRunner(
        runner_id=f"rnr_{place}",
        name=f"runner-{place}",
        session_id=None if rng.random() < 0.05 else f"ses_{place}",
        state=mostly(rng, RunnerState.ONLINE, list(RunnerState)),
        suspect=rng.random() < 0.05,
        trust=mostly(rng, TrustClass.TRUSTED_INTERNAL, list(TrustClass)),
        capabilities=some_capabilities(rng),
        total=some_capacity(rng),
        headroom=some_crumbs(rng),
        reserved=some_crumbs(rng),
        pressure=rng.choice(list(ResourcePressure)),
        degraded=rng.random() < 0.15,
        takes_up_to=rng.choice((-1, 0, 100, 200, 400)),
    )


def a_world(seed: int) -> Snapshot:
    """Make a partition of at most 16 jobs, which share a few kinds of want, and 8 runners."""
    rng = Random(seed)
    kinds = [some_job(rng, place) for place in range(4)]
    queue: list[SchedulingJob] = []
    for place in range(rng.randint(0, 16)):
        kind = rng.choice(kinds)
        job = some_job(rng, place)
        queue.append(replace(job, requirements=kind.requirements, resources=kind.resources))
    return Snapshot(
        partition="default",
        taken_at=NOW,
        jobs=tuple(queue),
        runners=tuple(some_runner(rng, place) for place in range(rng.randint(0, 8))),
        waiting=len(queue),
    )


def a_policy(seed: int) -> SchedulingPolicy:
    """Make a policy whose batch is often smaller than the queue."""
    rng = Random(seed)
    return SchedulingPolicy(
        batch=rng.randint(1, 12),
        candidates=rng.randint(0, 3),
        weights=ScoreWeights(headroom=rng.randint(0, 3), load=rng.randint(0, 3)),
    )


seeds = st.integers(0, 2**32)
worlds = st.builds(a_world, seeds)
policies = st.builds(a_policy, seeds)


def naive_match(job: SchedulingJob, runner: SchedulingRunner, free: Resources) -> bool:
    """Judge a pairing from the description of the rules alone."""
    if runner.state != "online" or runner.session_id is None or runner.suspect:
        return False
    rank = ("low", "normal", "high", "release_critical", "emergency").index(job.priority)
    if runner.degraded and rank * 100 > runner.takes_up_to:
        return False
    return runner.runner_id not in job.refused_by and (
        naive_fit(job.resources, free) and naive_capable(job, runner)
    )


def naive_capable(job: SchedulingJob, runner: SchedulingRunner) -> bool:
    """Judge what waiting does not change: capabilities, trust and size."""
    want, have = job.requirements, runner.capabilities
    checks = [naive_fit(job.resources, naive_minus(runner.total, runner.headroom))]
    if want.platform is not None:
        checks.append(have.platform == want.platform)
    if want.architecture is not None:
        checks.append(have.architecture == want.architecture)
    if want.os_version is not None:
        checks.append(naive_version(have.os_version, want.os_version))
    if want.trust is None:
        checks.append(runner.trust in ("untrusted_general", "trusted_internal"))
    else:
        checks.append(runner.trust == want.trust)
    for label in want.labels:
        checks.append(label in have.labels and have.labels[label] == want.labels[label])
    if want.agent_version is not None:
        checks.append(naive_version(have.agent_version or None, want.agent_version))
    checks.append(not naive_codes(want.equipment, have.equipment))
    for tool in want.toolchains:
        checks.append(any(naive_tool(tool, offer) for offer in have.toolchains))
    return all(checks)


def naive_tool(want: ToolchainRequirement, have: Toolchain) -> bool:
    """Judge one installed tool."""
    if want.name != have.name:
        return False
    if want.digest is not None and (have.digest is None or want.digest != have.digest):
        return False
    return want.version is None or naive_version(have.version, want.version)


def naive_fit(want: Resources, have: Resources) -> bool:
    """Compare the four amounts."""
    return (
        want.cpu <= have.cpu
        and want.memory <= have.memory
        and want.disk <= have.disk
        and want.slots <= have.slots
    )


def naive_minus(left: Resources, right: Resources) -> Resources:
    """Subtract the four amounts."""
    return Resources(
        cpu=MilliCpu(left.cpu - right.cpu),
        memory=Bytes(left.memory - right.memory),
        disk=Bytes(left.disk - right.disk),
        slots=left.slots - right.slots,
    )


def demand_hits(hits: Counter[str], *names: str) -> None:
    """Report how often each precondition held, and refuse a property that hardly ever applied."""
    print("\n" + ", ".join(f"{name}: {hits[name]}" for name in names))
    rare = {name: hits[name] for name in names if hits[name] < ENOUGH}
    assert not rare, f"held too rarely to prove anything: {rare}"
