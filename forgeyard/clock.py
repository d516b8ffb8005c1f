"""The one place that reads a clock."""

import time
from datetime import UTC, datetime


def now() -> datetime:
    """Return the current time, aware and in UTC."""
    return datetime.now(UTC)


def monotonic() -> float:
    """Return seconds on a clock that never goes back; only differences mean anything."""
    return time.monotonic()


def boottime() -> float:
    """Return seconds on a clock that never goes back and, on Linux, runs on while suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
