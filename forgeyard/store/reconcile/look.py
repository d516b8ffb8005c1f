"""What every comparison is given, and what it consists of.

A comparison looks without locks. To repair, it locks what the finding lies within and looks again
at that alone, in a transaction of its own: whatever has changed meanwhile is no finding any more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.scheduler.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Where to look, and by which numbers."""

    policy: SchedulingPolicy
    now: int
    """By the database's clock, when the reconciliation began."""
    partition: str | None = None
    """Only the jobs of this one; runners and leases are shared, and always looked at."""
    within: str | None = None
    """Only what lies within this row."""

    def at(self, within: str) -> "Look":
        """Look at one row alone."""
        return replace(self, within=within)

    def inside(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Restrict a query to the row that is looked at, if it is one."""
        return inside(self.within, column)

    def of_partition(self, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """Restrict a query to the partition that is looked at, if it is one."""
        return sa.true() if self.partition is None else column == self.partition

    @property
    def impatient(self) -> int:
        """Tell before when something must have happened that passes by itself."""
        return self.now - self.policy.reconcile.patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One comparison: how contradictions are found, what is locked, and how they are repaired."""

    name: str
    find: Callable[[sa.Connection, Look], list[Finding]]
    lock: Callable[[sa.Connection, str], object]
    """Lock what findings lie within."""
    fix: Callable[[sa.Connection, Sequence[Finding], Look], None]
    """Repair all that was found within one row, which is locked."""


def inside(within: str | None, column: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Restrict a query to one row, if one is named."""
    return sa.true() if within is None else column == within


def diff(found: object, expected: object) -> tuple[str, str]:
    """Write both sides of a contradiction as texts."""
    return str(found), str(expected)
