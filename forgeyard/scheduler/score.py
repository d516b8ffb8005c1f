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
_SPACE = 2**64


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
    left, whole = free.minus(wanted), runner.allocatable
    headroom = min(
        _share(left.cpu, whole.cpu),
        _share(left.memory, whole.memory),
        _share(left.disk, whole.disk),
    )
    load = _share(left.slots, whole.slots)
    if runner.pressure is ResourcePressure.CPU:
        load //= 2
    weight = weights.headroom + weights.load
    total = (weights.headroom * headroom + weights.load * load) // weight if weight else 0
    return PlacementScore(headroom=headroom, load=load, total=total)


def tie_break(job_id: str, runner_id: str) -> int:
    """Order equally good runners: the smallest wins, always the same one for a job (SCO-033)."""
    return (hash64(runner_id) - hash64(job_id)) % _SPACE


def hash64(name: str) -> int:
    """Scatter a name evenly over 64 bits, alike on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


def _share(left: int, whole: int) -> int:
    """Tell how much of a resource is left in thousandths; one that is not there limits nobody."""
    return BEST if whole <= 0 else max(0, min(BEST, left * BEST // whole))
