"""Small arithmetic on what was measured, and the goals it is held against."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forgeyard import clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A figure and the bound that it has to keep."""

    goal: str
    value: float
    threshold: float
    at_most: bool

    @property
    def holds(self) -> bool:
        """Tell whether the figure keeps the bound."""
        return self.value <= self.threshold if self.at_most else self.value >= self.threshold

    def shown(self) -> dict[str, object]:
        """Describe it for the JSON output."""
        return {
            "goal": self.goal,
            "value": round(self.value, 3),
            "threshold": self.threshold,
            "holds": self.holds,
        }


def at_most(goal: str, value: float, threshold: float) -> Goal:
    """Demand that a figure is no higher."""
    return Goal(goal=f"{goal} ≤ {threshold:g}", value=value, threshold=threshold, at_most=True)


def at_least(goal: str, value: float, threshold: float) -> Goal:
    """Demand that a figure is no lower."""
    return Goal(goal=f"{goal} ≥ {threshold:g}", value=value, threshold=threshold, at_most=False)


def percentile(values: Sequence[float], share: float) -> float:
    """Take the smallest value that this share of all values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def stopwatch() -> Callable[[], float]:
    """Start counting; the result tells the seconds since."""
    started = clock.monotonic()
    return lambda: clock.monotonic() - started


def wall_ms() -> int:
    """Read the wall clock as the database of the same machine does."""
    return round(clock.now().timestamp() * 1000)
