"""Pasts of fleets for tests and benchmarks of the forecast: a load as a function of time."""

from collections.abc import Callable, Iterator

from forgeyard.fleet.forecast import Past, Window
from forgeyard.model.fleet import DAY_MS

HOUR = DAY_MS // 24
MINUTE = HOUR // 60
BUCKET = 5 * MINUTE
MONDAY = 4 * DAY_MS
"""1970 began on a Thursday."""
NOON = MONDAY + 42 * DAY_MS + 12 * HOUR
"""Of a Monday, with six weeks before it."""
Load = Callable[[int], int]
"""What is needed at an instant."""


def at_work(at: int) -> int:
    """Need twenty machines on working days from nine to five, and two else."""
    weekday, hour = (at - MONDAY) // DAY_MS % 7, at % DAY_MS // HOUR
    return 20 if weekday < 5 and 9 <= hour < 17 else 2


def a_past(load: Load, *windows: Window, days: float = 35, until: int = NOON) -> Past:
    """Look at a load every five minutes."""
    return Past(
        points=tuple(noted(load, since=until - int(days * DAY_MS), until=until)), windows=windows
    )


def noted(load: Load, *, since: int, until: int) -> Iterator[tuple[int, int]]:
    """Tell what is noted of a load between two instants."""
    return ((at, load(at)) for at in range(since - since % BUCKET, until, BUCKET))
