"""When a waiting job may start, judged by what jobs like it waited lately: a guess, and called one.

Nothing is decided by it (POL-003, POL-004).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from forgeyard.model.units import Millis

RECENT: Final = 20
"""How many jobs an estimate looks back on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What jobs of the same queue that want the same waited lately."""

    wait_ms: Millis
    """The one in the middle."""
    starts_in_ms: int
    """Below zero if the job has waited longer than that already."""
    jobs: int
    """How many it rests on."""


def estimate(waits: Sequence[int], *, waited: int) -> Estimate | None:
    """Expect what is usual; nothing, where there is nothing to go by."""
    if not waits:
        return None
    usual = median_low(waits)
    return Estimate(wait_ms=Millis(usual), starts_in_ms=usual - waited, jobs=len(waits))
