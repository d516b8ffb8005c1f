"""Phase two of placement: which of the eligible runners is best?

Every term is an integer from 0 to 1000. A score chooses among eligible runners and excuses
nothing; what it rests on beside room (what a runner holds, where it is, what it lost) is advice and
may be stale. The planner reckons the same in columns (`terms`); tests hold the two together.
"""

import hashlib
from dataclasses import dataclass
from types import MappingProxyType

from forgeyard.model.location import ReliabilityClass
from forgeyard.model.policy import SchedulingPolicy, ScoreWeights
from forgeyard.model.runner import ResourcePressure
from forgeyard.model.units import Resources
from forgeyard.model.wishes import SpotWish
from forgeyard.scheduler.bounds import place_in
from forgeyard.scheduler.kin import SPREAD_OVER, group_of
from forgeyard.scheduler.scene import BEST, SAME_SITE, Scene, features, near, size_of, wants
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner

HASHES = 2**64
SAME_HOST = 750
LARGEST_INPUT = 2**40
"""Beyond this an input counts no more, so that sums stay small."""
RISING = ("packing",)
"""The terms that rise when a runner is given more work; all others can only fall."""
SPOT = {
    SpotWish.ALLOWED: dict.fromkeys(ReliabilityClass, 500),
    SpotWish.PREFERRED: {
        ReliabilityClass.STABLE: 0,
        ReliabilityClass.STANDARD: 500,
        ReliabilityClass.PREEMPTIBLE: BEST,
    },
    SpotWish.AVOIDED: {
        ReliabilityClass.STABLE: BEST,
        ReliabilityClass.STANDARD: 500,
        ReliabilityClass.PREEMPTIBLE: 0,
    },
    SpotWish.FORBIDDEN: {
        ReliabilityClass.STABLE: BEST,
        ReliabilityClass.STANDARD: 500,
        ReliabilityClass.PREEMPTIBLE: 0,
    },
}
"""How each class of machine suits each wish (SPT-001, SPT-006)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementScore:
    """How well a job would sit on a runner, term by term; 1000 is best (SCO-002).

    A term of weight 0 is not looked at and stands at its neutral value, as `NEUTRAL` has it.
    """

    headroom: int
    """What stays free of the scarcest resource, so that what is left stays of use (SCO-011)."""
    load: int
    """How few jobs run there side by side; halved while the host says its CPUs are short."""
    packing: int = 0
    """How full the runner is already."""
    locality: int = 0
    """How much of the inputs it has, and how near it is to the rest (SCO-005, SCO-026)."""
    cache: int = 0
    """How many of the dependency caches it has that the job used last."""
    reliability: int = BEST
    """How little it lost and broke lately (SCO-014)."""
    fairness: int = 0
    """Whether its pool belongs to a scope of the job."""
    cost: int = 0
    """How much cheaper it is than the dearest (SCO-019)."""
    spot: int = 500
    """How its machine suits what the job thinks of machines that may be taken away."""
    affinity: int = 0
    """How near it is to where the job last succeeded (SCO-016)."""
    spread: int = BEST
    """How few shards of the group share its host, site and region (SCO-018)."""
    scarcity: int = BEST
    """How little it has that is rare and that the job does not need (SCO-013)."""
    weighed: int
    """The terms times their weights: what runners are ranked by."""
    total: int
    """Their mean (SCO-003)."""


NEUTRAL = MappingProxyType(
    {
        "packing": 0,
        "locality": 0,
        "cache": 0,
        "reliability": BEST,
        "fairness": 0,
        "cost": 0,
        "spot": 500,
        "affinity": 0,
        "spread": BEST,
        "scarcity": BEST,
    }
)
"""What each term is for a pair of which nothing is known that matters to it."""
TERMS = ("headroom", "load", *NEUTRAL)


def score(
    job: SchedulingJob, runner: SchedulingRunner, free: Resources, scene: Scene
) -> PlacementScore:
    """Judge the runner as it would be with the job on it."""
    weights = scene.weights(job)
    terms = {**_room(job.resources, runner, free), **NEUTRAL}
    for name, judge in _JUDGES.items():
        if getattr(weights, name):
            terms[name] = judge(job, runner, scene)
    if weights.packing:
        terms["packing"] = BEST - terms["headroom"]
    weighed = sum(getattr(weights, name) * points for name, points in terms.items())
    return PlacementScore(**terms, weighed=weighed, total=weighed // total_weight(weights))


def total_weight(weights: ScoreWeights) -> int:
    """Add the weights up; none at all are as good as one."""
    return sum(getattr(weights, name) for name in TERMS) or 1


def rising_terms(policy: SchedulingPolicy) -> tuple[str, ...]:
    """List the terms in force that a placement may raise.

    The planner judges every runner anew that was given work, so a cycle stays exact with them; a
    planner that took old scores for upper bounds would not.
    """
    return tuple(name for name in RISING if getattr(policy.weights, name))


def tie_break(job_id: str, runner_id: str) -> int:
    """Order equally good runners: the smallest wins, always the same one for a job (SCO-033)."""
    return (hash64(runner_id) - hash64(job_id)) % HASHES


def hash64(name: str) -> int:
    """Scatter a name evenly over 64 bits, alike on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def _room(wanted: Resources, runner: SchedulingRunner, free: Resources) -> dict[str, int]:
    whole = runner.allocatable
    headroom = min(
        _share(free.cpu - wanted.cpu, whole.cpu),
        _share(free.memory - wanted.memory, whole.memory),
        _share(free.disk - wanted.disk, whole.disk),
    )
    load = _share(free.slots - wanted.slots, whole.slots)
    if runner.pressure is ResourcePressure.CPU:
        load //= 2
    return {"headroom": headroom, "load": load}


def _share(left: int, whole: int) -> int:
    """Tell how much of a resource is left in thousandths; one that is not there limits nobody."""
    if whole <= 0 or left >= whole:
        return BEST
    return left * BEST // whole if left > 0 else 0


def locality(job: SchedulingJob, runner: SchedulingRunner, scene: Scene) -> int:
    """Weigh by bytes what it has, and what it would fetch by how near that is."""
    total = sum(min(size, LARGEST_INPUT) for _, size in job.inputs)
    held = sum(min(size, LARGEST_INPUT) for name, size in job.inputs if runner.holdings.holds(name))
    far = (total - held) * scene.nearness(runner.location)
    return (held * BEST + far) // max(total, scene.policy.locality_bytes)


def _cache(job: SchedulingJob, runner: SchedulingRunner, _: Scene) -> int:
    has = sum(key in runner.holdings.closures for key in job.closures)
    return BEST * has // max(len(job.closures), 1)


def _reliability(_: SchedulingJob, runner: SchedulingRunner, scene: Scene) -> int:
    return scene.reliability(runner)


def _fairness(job: SchedulingJob, runner: SchedulingRunner, _: Scene) -> int:
    return BEST if runner.pool.owner_id in job.scopes else 0


def _cost(_: SchedulingJob, runner: SchedulingRunner, scene: Scene) -> int:
    return scene.cost(runner)


def _spot(job: SchedulingJob, runner: SchedulingRunner, _: Scene) -> int:
    return SPOT[job.spot][runner.capabilities.reliability]


def _affinity(job: SchedulingJob, runner: SchedulingRunner, scene: Scene) -> int:
    home = scene.runners.get(job.home or "")
    if home is None:
        return 0
    if home.runner_id == runner.runner_id:
        return BEST
    if home.location.host is not None and home.location.host == runner.location.host:
        return SAME_HOST
    return SAME_SITE if near(runner.location, home.location) == SAME_SITE else 0


def _spread(job: SchedulingJob, runner: SchedulingRunner, scene: Scene) -> int:
    """Take the mean of host, site and region: each is worth less with every shard in it."""
    group = group_of(job)
    if group is None:
        return BEST
    counts = scene.kin.counts(group)
    shares = (
        BEST // (1 + counts[domain].get(place_in(domain, runner) or "", 0))
        for domain in SPREAD_OVER
    )
    return sum(shares) // len(SPREAD_OVER)


def _scarcity(job: SchedulingJob, runner: SchedulingRunner, scene: Scene) -> int:
    """Find the rarest thing that would be wasted: a capability, or memory (SCO-012)."""
    wanted = wants(job.requirements)
    spare = (
        scene.rarity.get(feature, 0)
        for feature in features(runner.capabilities, runner.trust)
        if feature[:2] not in wanted
    )
    memory = scene.tiers.get(size_of(runner.allocatable.memory), 0)
    too_much = memory - scene.rarity_of_memory(job.resources.memory)
    return BEST - max(0, too_much, *spare)


_JUDGES = {
    "locality": locality,
    "cache": _cache,
    "reliability": _reliability,
    "fairness": _fairness,
    "cost": _cost,
    "spot": _spot,
    "affinity": _affinity,
    "spread": _spread,
    "scarcity": _scarcity,
}
