"""Seeded needs of fleets over weeks: working days, growth, bursts, nightly builds, no pattern."""

import math
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Final

from forgeyard.model.fleet import DAY_MS

BUCKET_MS: Final = 5 * 60 * 1000
HOUR_MS: Final = DAY_MS // 24
Load = list[int]
"""What was needed, bucket by bucket, from a Monday at midnight on."""


def _hours(days: int) -> Iterator[tuple[int, float]]:
    """Name day and hour of each bucket."""
    for place in range(days * DAY_MS // BUCKET_MS):
        day, rest = divmod(place * BUCKET_MS, DAY_MS)
        yield day, rest / HOUR_MS


def _usual(day: int, hour: float) -> float:
    """Need most before and after lunch of a working day, little by night and at weekends."""
    if day % 7 >= 5:
        return 2.0
    humps = math.exp(-(((hour - 10.5) / 1.8) ** 2)) + math.exp(-(((hour - 15) / 2.2) ** 2))
    return 2 + 22 * humps


def _counted(rng: Random, mean: float) -> int:
    """Draw about so many, as events that are independent of each other come."""
    return max(0, round(rng.gauss(mean, math.sqrt(max(mean, 0)))))


def _weekdays(rng: Random, days: int) -> Load:
    return [_counted(rng, _usual(day, hour)) for day, hour in _hours(days)]


def _trend(rng: Random, days: int) -> Load:
    """Grow by two in a hundred each day."""
    return [_counted(rng, _usual(day, hour) * 1.02**day) for day, hour in _hours(days)]


def _bursts(rng: Random, days: int) -> Load:
    """Have the usual, and about twice a day somebody who wants twenty to sixty for a while."""
    load = _weekdays(rng, days)
    for _ in range(2 * days):
        start, size = rng.randrange(len(load)), rng.randint(20, 60)
        for place in range(start, min(start + rng.randint(3, 12), len(load))):
            load[place] += size
    return load


def _nightly(rng: Random, days: int) -> Load:
    """Need nothing but for an hour in the night, whose start varies by minutes."""
    load = [0] * (days * DAY_MS // BUCKET_MS)
    for day in range(days):
        start = day * DAY_MS // BUCKET_MS + 24 + rng.randint(0, 2)
        load[start : start + 12] = [_counted(rng, 30) for _ in range(12)]
    return load


def _walk(rng: Random, days: int) -> Load:
    """Go up or down by one: there is nothing to foresee."""
    here, load = 100, Load()
    for _ in range(days * DAY_MS // BUCKET_MS):
        here = max(0, here + rng.choice((-1, 0, 1)))
        load.append(here)
    return load


LOADS: Final[Mapping[str, Callable[[Random, int], Load]]] = {
    "weekdays": _weekdays,
    "trend": _trend,
    "bursts": _bursts,
    "nightly": _nightly,
    "walk": _walk,
}
