"""What machines cost by estimate, in whole millionths: it protects, and is no bill (CST-009)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from forgeyard.fleet.view import ClampKind, FleetView, InstanceView
from forgeyard.model.fleet import DAY_MS

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """From when to when a machine cost how much for an hour."""

    cost: int
    started_at: int
    ended_at: int | None = None
    """`None` while it exists."""


def for_so_long(cost: int, span: int) -> int:
    """Price a span at so much an hour, rounded up: a ceiling is kept, not nearly kept."""
    return -(-cost * max(0, span) // HOUR_MS)


def day_start(now: int) -> int:
    """Tell when the day began, in UTC."""
    return now - now % DAY_MS


def till_midnight(now: int) -> int:
    """Tell how much of the day is left, in UTC."""
    return day_start(now) + DAY_MS - now


def spent_today(lives: Iterable[Life], now: int) -> int:
    """Add up what machines have cost since the day began, those that are gone included."""
    began = day_start(now)
    return sum(
        for_so_long(one.cost, min(now, one.ended_at or now) - max(began, one.started_at))
        for one in lives
    )


def hourly(instances: Iterable[InstanceView]) -> int:
    """Add up what everything that may exist costs for an hour."""
    return sum(it.cost for it in instances if it.may_exist)


class Budget:
    """What a fleet may still begin to spend.

    The day's ceiling is kept even if nothing is taken away before midnight: what was spent, what
    runs until then, and every new machine until then.
    """

    def __init__(self, view: FleetView, now: int) -> None:
        rule, running = view.spec.guardrail, hourly(view.instances)
        self._left = till_midnight(now)
        self._hourly = None if rule.hourly is None else rule.hourly - running
        ahead = view.spent_today + for_so_long(running, self._left)
        self._daily = None if rule.daily is None else rule.daily - ahead

    def against(self, cost: int) -> ClampKind | None:
        """Name the ceiling that one more machine would break, or nothing."""
        if self._hourly is not None and cost > self._hourly:
            return ClampKind.HOURLY_COST
        if self._daily is not None and for_so_long(cost, self._left) > self._daily:
            return ClampKind.DAILY_COST
        return None

    def take(self, cost: int) -> None:
        """Count one more machine."""
        if self._hourly is not None:
            self._hourly -= cost
        if self._daily is not None:
            self._daily -= for_so_long(cost, self._left)

    def most(self, cost: int) -> int | None:
        """Count how many more machines of a price it bears; `None` is without limit."""
        priced = [(self._hourly, cost), (self._daily, for_so_long(cost, self._left))]
        bounds = [
            (max(0, left) // price if price else (0 if left < 0 else None))
            for left, price in priced
            if left is not None
        ]
        return min((bound for bound in bounds if bound is not None), default=None)
