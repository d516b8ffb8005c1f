"""What is not asked of a provider for a while, because it failed: shared by all workers.

A breaker is a row for a provider, for one of its fleets, or for one offering of a fleet. It opens
for longer each time, up to a limit that depends on what went wrong, and closes with a success.
"""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import (
    Denied,
    ForgeyardError,
    InvalidSpec,
    NeverCameUp,
    OutOfCapacity,
    ProviderQuotaExceeded,
    Throttled,
)
from forgeyard.redaction import redacted
from forgeyard.store import changes, fleet_tables

MINUTE_MS: Final = 60_000
_breakers = fleet_tables.provider_breakers


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """How a kind of failure is taken."""

    of_offering: bool
    """Whether another offering of the fleet may do, else the whole provider is in doubt."""
    first: int
    """Milliseconds that the first failure costs."""
    most: int
    tolerated: int = 0
    """Failures in a row that cost nothing."""


_OFFERING = Habit(of_offering=True, first=3 * MINUTE_MS, most=30 * MINUTE_MS)
_LASTING = Habit(of_offering=True, first=10 * MINUTE_MS, most=60 * MINUTE_MS)
_BOOT = Habit(of_offering=True, first=MINUTE_MS, most=30 * MINUTE_MS, tolerated=2)
_PROVIDER = Habit(of_offering=False, first=MINUTE_MS // 2, most=5 * MINUTE_MS, tolerated=4)
_HABITS: Final = (
    (OutOfCapacity, _OFFERING),
    (ProviderQuotaExceeded, _LASTING),
    (NeverCameUp, _BOOT),
    (Denied, _LASTING),
    (InvalidSpec, _LASTING),
    (Throttled, _PROVIDER),
)


def habit_of(error: ForgeyardError) -> Habit:
    """Tell how a failure is taken; what nobody knows puts the provider in doubt."""
    return next((habit for kind, habit in _HABITS if isinstance(error, kind)), _PROVIDER)


def failed(
    connection: sa.Connection,
    provider: str,
    fleet_id: str,
    offering: str,
    error: ForgeyardError,
    *,
    now: int,
) -> int:
    """Count a failure; return until when nothing like it is asked for."""
    habit = habit_of(error)
    where = (provider, fleet_id, offering) if habit.of_offering else (provider, "", "")
    keys = dict(zip(("provider", "fleet_id", "offering"), where, strict=True))
    changes.upsert(
        connection,
        _breakers,
        {**keys, "failures": 1, "at": now},
        changes={"failures": _breakers.c.failures + 1},
    )
    own = sa.and_(*(_breakers.c[name] == value for name, value in keys.items()))
    failures = connection.execute(sa.select(_breakers.c.failures).where(own)).scalar_one()
    counted = failures - habit.tolerated
    until = 0 if counted <= 0 else now + min(habit.first * 2 ** min(counted - 1, 20), habit.most)
    connection.execute(
        sa.update(_breakers)
        .where(own)
        .values(open_until=until, code=error.code, text=redacted(error.message)[:500], at=now)
    )
    return until


def made(connection: sa.Connection, provider: str, fleet_id: str, offering: str) -> None:
    """Close every breaker that a machine speaks against which was made; it has yet to come up."""
    _close(connection, provider, fleet_id, offering, _breakers.c.code != NeverCameUp.code)


def came_up(connection: sa.Connection, provider: str, fleet_id: str, offering: str) -> None:
    """Close every breaker that a machine speaks against whose runner is admitted."""
    _close(connection, provider, fleet_id, offering, sa.true())


def _close(
    connection: sa.Connection,
    provider: str,
    fleet_id: str,
    offering: str,
    which: sa.ColumnElement[bool],
) -> None:
    connection.execute(
        sa.update(_breakers)
        .where(
            _breakers.c.provider == provider,
            _breakers.c.fleet_id.in_(("", fleet_id)),
            _breakers.c.offering.in_(("", offering)),
            (_breakers.c.failures > 0) | (_breakers.c.open_until > 0),
            which,
        )
        .values(failures=0, open_until=0)
    )
