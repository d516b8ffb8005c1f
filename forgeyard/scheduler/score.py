"""Phase two of placement: which of the eligible runners is best?

Every term is an integer from 0 to 1000 and can only fall when a runner is given more work; the
planner relies on that. A score chooses among eligible runners and excuses nothing.
"""

import hashlib
from dataclasses import dataclass

from forgeyard.model.policy import ScoreWeights
from forgeyard.model.runner import ResourcePressure
from forgeyard.model.units import Resources
from forgeyard.scheduler.snapshot import SchedulingRunner

BEST = 1000
HASHES = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementScore:
    """How well a job would sit on a runner, term by term; 1000 is best (SCO-002)."""

    headroom: int
    """What stays free of the scarcest resource."""
    load: int
    """How few jobs run there side by side; halved while the host says its CPUs are short."""
    total: int
    """The terms, weighed by policy (SCO-003)."""


def score(
    wanted: Resources, runner: SchedulingRunner, free: Resources, weights: ScoreWeights
) -> PlacementScore:
    """Judge the runner as it would be with the job on it."""
    whole = runner.allocatable
    headroom = min(
        _share(free.cpu - wanted.cpu, whole.cpu),
        _share(free.memory - wanted.memory, whole.memory),
        _share(free.disk - wanted.disk, whole.disk),
    )
    load = _share(free.slots - wanted.slots, whole.slots)
    if runner.pressure is ResourcePressure.CPU:
        load //= 2
    weight = weights.headroom + weights.load
    weighed = weights.headroom * headroom + weights.load * load
    return PlacementScore(headroom=headroom, load=load, total=weighed // weight if weight else 0)


def tie_break(job_id: str, runner_id: str) -> int:
    """Order equally good runners: the smallest wins, always the same one for a job (SCO-033)."""
    return (hash64(runner_id) - hash64(job_id)) % HASHES


def hash64(name: str) -> int:
    """Scatter a name evenly over 64 bits, alike on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def _share(left: int, whole: int) -> int:
    """Tell how much of a resource is left in thousandths; one that is not there limits nobody."""
    if whole <= 0 or left >= whole:
        return BEST
    return left * BEST // whole if left > 0 else 0
