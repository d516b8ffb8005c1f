"""The runners as one process knows them: what has changed since is read, the rest remembered.

Changes are found by `changed_at`, which whoever changes a runner sets. A transaction may commit
later than one that began after it, so a window is read again every time; and one statement also
sums up all rows, so that whatever was missed all the same is noticed and everything read anew.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from forgeyard.model.capability import Capabilities
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.scheduler.snapshot import SchedulingRunner
from forgeyard.store import snapshot, tables
from forgeyard.store.amounts import DIMENSIONS
from forgeyard.store.changes import Row

OVERLAP_MS: Final = 5_000
MOST_REPORTS: Final = 50_000
"""So many different reports are kept decoded."""
_runners = tables.runners
_STAMP: Final = (
    *("changed_at", "version", "total_cpu_milli", "total_memory_bytes"),
    *(f"reserved_{name}" for name in DIMENSIONS),
)
"""The columns whose sums tell whether anything was missed."""
logger = logging.getLogger(__name__)
Sums = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A row as it was read last; one that cannot be read has no runner."""

    stamp: Sums
    fingerprint: int
    """The hash of the whole row: what was read twice is not decoded twice."""
    runner: SchedulingRunner | None


class RunnerCache:
    """Give the runners as the caller's transaction sees them, at the price of those that changed.

    Safe to share among threads, whatever each of their transactions sees.
    """

    def __init__(self, *, overlap_ms: int = OVERLAP_MS) -> None:
        self._overlap_ms = overlap_ms
        self._lock = threading.Lock()
        self._policy = SchedulingPolicy()
        self._known: dict[str, _Known] = {}
        self._reports: dict[str, Capabilities] = {}
        self._sums: Sums = (0,) * (1 + len(_STAMP))
        self._newest = 0
        self._all: tuple[SchedulingRunner, ...] = ()
        self.reloads = 0
        """How often something had been missed."""

    def read(
        self, connection: sa.Connection, policy: SchedulingPolicy
    ) -> tuple[SchedulingRunner, ...]:
        """Read what has changed; give all runners by id, as they are seen under a policy."""
        with self._lock:
            if not self._known or policy != self._policy:
                self._policy = policy
                self._reload(connection)
            elif self._refresh(connection) != self._sums:
                self.reloads += 1
                logger.warning("the runners in memory are not those of the store; read anew")
                self._reload(connection)
            return self._all

    def _refresh(self, connection: sa.Connection) -> Sums:
        """Take in the rows that changed lately; give the sums over all rows at that instant."""
        rows = connection.execute(_CHANGED, {"since": self._newest - self._overlap_ms}).all()
        self._take([tuple(row[: len(_runners.c)]) for row in rows if row[0] is not None])
        totals: Sequence[int] = rows[0][len(_runners.c) :]
        return tuple(int(total) for total in totals)

    def _reload(self, connection: sa.Connection) -> None:
        self._known, self._newest, self._all = {}, 0, ()
        self._sums = (0,) * len(self._sums)
        self._take([tuple(row) for row in connection.execute(sa.select(_runners)).all()])

    def _take(self, rows: Sequence[tuple[object, ...]]) -> None:
        names = [column.name for column in _runners.c]
        changed = False
        for values in rows:
            before = self._known.get(str(values[0]))
            fingerprint = hash(values)
            if before is None or before.fingerprint != fingerprint:
                self._put(dict(zip(names, values, strict=True)), fingerprint, before)
                changed = True
        if changed:
            known = (self._known[name].runner for name in sorted(self._known))
            self._all = tuple(runner for runner in known if runner is not None)

    def _put(self, row: Row, fingerprint: int, before: _Known | None) -> None:
        stamp: Sums = tuple(row[name] for name in _STAMP)
        if len(self._reports) > MOST_REPORTS:
            self._reports.clear()
        runner = snapshot.runner_of(row, self._reports, self._policy)
        known = _Known(stamp=stamp, fingerprint=fingerprint, runner=runner)
        self._known[row["runner_id"]] = known
        old = (1, *before.stamp) if before is not None else (0,) * len(self._sums)
        self._sums = tuple(
            total + new - gone
            for total, new, gone in zip(self._sums, (1, *stamp), old, strict=True)
        )
        self._newest = max(self._newest, stamp[0])


def _changed() -> sa.Select[*tuple[Any, ...]]:
    """Read the rows that changed, and the sums over all: one statement sees one instant."""
    totals = [sa.func.coalesce(sa.func.sum(_runners.c[name]), 0).label(name) for name in _STAMP]
    sums = sa.select(sa.func.count().label("runners"), *totals).select_from(_runners).subquery()
    lately = sums.outerjoin(_runners, _runners.c.changed_at >= sa.bindparam("since"))
    return sa.select(*_runners.c, *sums.c).select_from(lately)


_CHANGED: Final = _changed()
