"""What a score looks at beside one job and one runner: the fleet around them, and the policy.

Gathered once for a cycle; everything in it is plain numbers and names.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from operator import attrgetter

from forgeyard.model.capability import Capabilities, Requirements, TrustClass
from forgeyard.model.location import Location
from forgeyard.model.policy import SchedulingPolicy, ScoreWeights
from forgeyard.model.wishes import SchedulingClass
from forgeyard.scheduler.eligibility import takes_work
from forgeyard.scheduler.kin import Kin
from forgeyard.scheduler.reliability import FAULT, decayed
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot

BEST = 1000
SAME_SITE, SAME_REGION = 500, 250
"""What a place near to something counts, where being there counts 1000."""
_capabilities, _owner = attrgetter("capabilities"), attrgetter("pool.owner_id")
Feature = tuple[str, str, str]
"""What a runner has that others may lack: its sort, its name, and which one."""


class Scene:
    """One snapshot under one policy, as far as scores look at it."""

    def __init__(self, snapshot: Snapshot, policy: SchedulingPolicy) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.kin = Kin(snapshot)
        self._weights: dict[SchedulingClass, ScoreWeights] = {}

    def weights(self, job: SchedulingJob) -> ScoreWeights:
        """Weigh as a job's class has it (SCO-021, SCO-022)."""
        hurry = job.scheduling_class
        if hurry not in self._weights:
            self._weights[hurry] = weights_of(hurry, self.policy.weights)
        return self._weights[hurry]

    @cached_property
    def runners(self) -> Mapping[str, SchedulingRunner]:
        """Find runners by id."""
        return {runner.runner_id: runner for runner in self.snapshot.runners}

    @cached_property
    def dearest(self) -> int:
        """Tell what the dearest runner costs."""
        offered = {id(it): it for it in map(_capabilities, self.snapshot.runners)}
        costs = (it.cost_micros_per_hour for it in offered.values())
        return max((cost for cost in costs if cost is not None), default=0)

    @cached_property
    def owners(self) -> frozenset[str]:
        """List the scopes that have pools of their own."""
        return frozenset(map(_owner, self.snapshot.runners)) - {None}

    @cached_property
    def rarity(self) -> Mapping[Feature, int]:
        """Tell of every feature how many thousandths of the runners that work lack it."""
        sorts: dict[tuple[int, str], list[SchedulingRunner]] = {}
        for runner in self._working:
            sorts.setdefault((id(runner.capabilities), runner.trust), []).append(runner)
        counts: Counter[Feature] = Counter()
        for alike in sorts.values():
            runners = len(alike)
            for feature in features(alike[0].capabilities, alike[0].trust):
                counts[feature] += runners
        return {feature: self._rare(count) for feature, count in counts.items()}

    @cached_property
    def memories(self) -> list[int]:
        """List what memory the runners that work offer, least first."""
        return sorted(it.total.memory - it.headroom.memory for it in self._working)

    @cached_property
    def tiers(self) -> Mapping[int, int]:
        """Tell of every size of memory how many thousandths of the runners are smaller."""
        smaller: dict[int, int] = {}
        for place, memory in enumerate(self.memories):
            smaller.setdefault(size_of(memory), place)
        every = len(self.memories)
        return {size: self._rare(every - place) for size, place in smaller.items()}

    def rarity_of_memory(self, wanted: int) -> int:
        """Tell how many thousandths of the runners that work could never offer so much memory."""
        return self._rare(len(self.memories) - bisect_left(self.memories, wanted))

    def reliability(self, runner: SchedulingRunner) -> int:
        """Judge what a runner lost and broke lately; it never falls to nothing (SCO-015)."""
        left = decayed(
            runner.penalty,
            since=runner.penalty_at,
            now=self.snapshot.taken_at,
            half_life=self.policy.lease.penalty_half_life,
        )
        points = BEST * FAULT // (FAULT + left)
        return points // 2 if runner.degraded else points

    def cost(self, runner: SchedulingRunner) -> int:
        """Judge how much cheaper a runner is than the dearest; an unknown cost is no advantage."""
        cost = runner.capabilities.cost_micros_per_hour
        if cost is None or not self.dearest:
            return 0
        return BEST * (self.dearest - cost) // self.dearest

    def nearness(self, where: Location) -> int:
        """Tell how near a place is to where inputs are fetched from (SCO-024, SCO-025)."""
        return near(where, self.snapshot.storage)

    @cached_property
    def _working(self) -> tuple[SchedulingRunner, ...]:
        return tuple(runner for runner in self.snapshot.runners if takes_work(runner))

    def _rare(self, count: int) -> int:
        every = max(len(self._working), 1)
        return BEST * (every - count) // every


def weights_of(hurry: SchedulingClass, weights: ScoreWeights) -> ScoreWeights:
    """Weigh as a class of job has it."""
    if hurry is SchedulingClass.INTERACTIVE:
        factor = weights.interactive_factor
        return replace(weights, load=weights.load * factor, locality=weights.locality * factor)
    if hurry is SchedulingClass.BATCH:
        return replace(weights, cost=weights.cost * weights.batch_factor)
    return weights


def near(where: Location, there: Location) -> int:
    """Compare two places; an unknown one is near to nothing."""
    if where.site is not None and where.site == there.site:
        return SAME_SITE
    if where.region is not None and where.region == there.region:
        return SAME_REGION
    return 0


def size_of(memory: int) -> int:
    """Sort memory into sizes that double, so that 15.5 and 16 GiB are of one size."""
    return (max(memory, 0) * 3 // 2).bit_length()


def features(has: Capabilities, trust: TrustClass) -> frozenset[Feature]:
    """List what jobs may look for in a runner and others may lack (SCO-013)."""
    equipment = has.equipment
    found = [("trust", trust.value, "")]
    found += [("platform", has.platform, "")] if has.platform else []
    found += [("architecture", has.architecture, "")] if has.architecture else []
    found += [("tool", tool.name, tool.version or "") for tool in has.toolchains]
    found += [("runtime", runtime.name, "") for runtime in equipment.runtimes or ()]
    found += [("device", device.kind, "") for device in equipment.devices or ()]
    found += [("gpu", "", gpu.model or "") for gpu in equipment.gpus or ()]
    found += [("isolation", kind, "") for kind in equipment.isolation or ()]
    return frozenset(found)


def wants(wanted: Requirements) -> frozenset[tuple[str, str]]:
    """List what a job looks for, by sort and name."""
    equipment = wanted.equipment
    return frozenset(
        (
            *([("trust", wanted.trust.value)] if wanted.trust else ()),
            *([("platform", wanted.platform.value)] if wanted.platform else ()),
            *([("architecture", wanted.architecture.value)] if wanted.architecture else ()),
            *(("tool", tool.name) for tool in wanted.toolchains),
            *(("runtime", runtime.name) for runtime in equipment.runtimes),
            *(("device", device.kind) for device in equipment.devices),
            *([("gpu", "")] if equipment.gpus else ()),
            *([("isolation", equipment.isolation.value)] if equipment.isolation else ()),
        )
    )
