"""Random worlds for the scheduling rules, and a matcher written apart from the product's.

Values come from small sets, so that matches, near misses and full runners are all frequent.
"""

from collections import Counter
from dataclasses import replace

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
from tests.scheduling import MINUTE, NOW

ENOUGH = 100
fixed = settings(max_examples=200, deadline=None, derandomize=True)
"""The same 200 examples every time; raise `max_examples` for a longer hunt."""

versions = st.sampled_from(["1.2", "1.10", "2.0", "2.5.1", "3.0"])
ranges = st.sampled_from([">=1.10", "<2.5", "==2.*", ">=1.2,<3", "!=2.0"])
digests = st.sampled_from(["sha256:a", "sha256:b"])
names = st.sampled_from(["python", "xcode"])
amounts = st.builds(
    Resources,
    cpu=st.integers(0, 4_000).map(MilliCpu),
    memory=st.integers(0, 8).map(Bytes),
    disk=st.integers(0, 8).map(Bytes),
    slots=st.integers(1, 2),
)
capacities = st.builds(
    Resources,
    cpu=st.integers(1_000, 8_000).map(MilliCpu),
    memory=st.integers(3, 20).map(Bytes),
    disk=st.integers(3, 20).map(Bytes),
    slots=st.integers(1, 6),
)
crumbs = st.builds(
    Resources,
    cpu=st.integers(0, 900).map(MilliCpu),
    memory=st.integers(0, 3).map(Bytes),
    disk=st.integers(0, 3).map(Bytes),
    slots=st.integers(0, 1),
)


def rarely(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Leave a field open three times in four."""
    return st.one_of(st.none(), st.none(), st.none(), strategy)


def mostly(value: object, *others: object) -> st.SearchStrategy[object]:
    """Take one value six times as often as each other."""
    return st.sampled_from([value] * 6 + list(others))


requirements = st.builds(
    Requirements,
    platform=rarely(st.sampled_from(Platform)),
    os_version=rarely(ranges),
    architecture=rarely(st.sampled_from(Architecture)),
    toolchains=st.one_of(
        st.just(()),
        st.just(()),
        st.tuples(
            st.builds(
                ToolchainRequirement, name=names, version=rarely(ranges), digest=rarely(digests)
            )
        ),
    ),
    labels=st.one_of(
        st.just({}), st.just({}), st.dictionaries(st.just("zone"), st.sampled_from("ab"))
    ),
    trust=rarely(st.sampled_from(TrustClass)),
)
capabilities = st.builds(
    Capabilities,
    platform=mostly(Platform.LINUX, Platform.MACOS, None),
    os_version=st.one_of(st.none(), versions, versions),
    architecture=mostly(Architecture.X86_64, Architecture.AARCH64, None),
    toolchains=st.lists(
        st.builds(
            Toolchain,
            name=names,
            version=st.one_of(st.none(), versions, versions),
            digest=rarely(digests),
        ),
        max_size=3,
    ).map(tuple),
    labels=st.dictionaries(st.just("zone"), st.sampled_from("ab")),
)
jobs = st.builds(
    SchedulingJob,
    job_id=st.integers(0, 10**6).map("job_{}".format),
    run_id=st.just("run_1"),
    name=st.just("job"),
    requirements=requirements,
    resources=amounts,
    priority=st.sampled_from(Priority),
    eligible_at=st.integers(0, 600).map(lambda minutes: NOW - minutes * MINUTE),
    refused_by=st.one_of(
        st.just({}), st.just({}), st.dictionaries(st.just("rnr_0"), st.just("draining"))
    ),
)
runners = st.builds(
    SchedulingRunner,
    runner_id=st.just(""),
    name=st.just(""),
    session_id=mostly("ses_1", None),
    state=mostly(RunnerState.ONLINE, *RunnerState),
    suspect=mostly(False, True),
    trust=mostly(TrustClass.TRUSTED_INTERNAL, *TrustClass),
    capabilities=capabilities,
    total=capacities,
    headroom=crumbs,
    reserved=crumbs,
    pressure=st.sampled_from(ResourcePressure),
)
policies = st.builds(
    SchedulingPolicy,
    batch=st.integers(1, 12),
    candidates=st.integers(0, 3),
    weights=st.builds(ScoreWeights, headroom=st.integers(0, 3), load=st.integers(0, 3)),
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Draw a partition of up to 6 runners and 12 jobs that share a few kinds of want."""
    fleet = draw(st.lists(runners, max_size=6))
    kinds = draw(st.lists(jobs, min_size=1, max_size=4))
    queue = draw(st.lists(st.tuples(st.sampled_from(kinds), jobs), max_size=12))
    named = tuple(
        replace(own, job_id=f"job_{place}", requirements=kind.requirements, resources=kind.resources)
        for place, (kind, own) in enumerate(queue)
    )
    return Snapshot(
        partition="default",
        taken_at=NOW,
        jobs=named,
        runners=tuple(
            replace(runner, runner_id=f"rnr_{place}", name=f"runner-{place}")
            for place, runner in enumerate(fleet)
        ),
        waiting=len(named),
    )


def naive_match(job: SchedulingJob, runner: SchedulingRunner, free: Resources) -> bool:
    """Judge a pairing from the description of the rules alone."""
    if runner.state != "online" or runner.session_id is None or runner.suspect:
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


def naive_version(version: str | None, wanted: str) -> bool:
    """Compare dotted numbers part by part."""
    if version is None:
        return False
    have = naive_numbers(version)
    for clause in wanted.split(","):
        operator, bound = clause[:2].rstrip("0123456789"), clause.lstrip("<>=!")
        prefix = naive_numbers(bound.removesuffix(".*"))
        if operator == ">=" and not have >= naive_padded(prefix):
            return False
        if operator == "<" and not have < naive_padded(prefix):
            return False
        if operator == "!=" and have == naive_padded(prefix):
            return False
        if operator == "==" and have[: bound.count(".")] != prefix:
            return False
    return True


def naive_numbers(text: str) -> tuple[int, ...]:
    """Read a dotted number; padded, unless it is the prefix of a wildcard."""
    numbers = tuple(int(part) for part in text.split("."))
    return numbers if len(numbers) == 1 else naive_padded(numbers)


def naive_padded(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Fill up with zeros, for 2 equals 2.0.0."""
    return numbers + (0,) * (4 - len(numbers))


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


def demand_hits(hits: Counter[str], *names: str, at_least: int = ENOUGH) -> None:
    """Report how often each precondition held, and refuse a property that hardly ever applied."""
    print("\n" + ", ".join(f"{name}: {hits[name]}" for name in names))
    rare = {name: hits[name] for name in names if hits[name] < at_least}
    assert not rare, f"held too rarely to prove anything: {rare}"
