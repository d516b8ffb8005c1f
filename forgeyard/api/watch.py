"""Comparing what agents know with the store, without asking the store for every heartbeat.

A process is a witness too: it remembers the newest mark that it read, so that a store which is
replaced under its feet is noticed at its next look.
"""

import asyncio
import threading
from collections.abc import Callable, Collection
from typing import Final

import sqlalchemy as sa

from forgeyard import clock
from forgeyard.store import lineage
from forgeyard.store.lineage import Lineage

FRESH_S: Final = 1.0
REMEMBERED: Final = 1_000
PROCESS: Final = "an API process"


class StoreWatch:
    """What one process knows of its store's lineage; safe to share among threads."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        fresh_s: float = FRESH_S,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._engine = engine
        self._fresh_s = fresh_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._here = Lineage()
        self._read_at = float("-inf")
        self._good: set[str] = {""}
        """Marks that were found in the store as it is now."""

    async def heed(self, said: str, *, witness: str, lease_ids: Collection[str] = ()) -> Lineage:
        """Compare a mark, and leases that the store is about to disown, with the store."""
        if not lease_ids and said in self._good and self._is_fresh():
            return self._here
        return await asyncio.to_thread(self._ask, said, witness, lease_ids)

    def _is_fresh(self) -> bool:
        return self._monotonic() - self._read_at < self._fresh_s

    def _ask(self, said: str, witness: str, lease_ids: Collection[str]) -> Lineage:
        with self._lock:
            if not self._is_fresh():
                self._look()
            if said in self._good and not lease_ids:
                return self._here
            here = lineage.ask(self._engine, said, witness=witness, lease_ids=lease_ids)
            if here.hold is not None:
                self._here = here
            elif len(self._good) < REMEMBERED:
                self._good.add(said)
            return here

    def _look(self) -> None:
        """Read the newest mark; what was found in another store, or era, proves nothing here."""
        read_at, before = self._monotonic(), self._here
        known = before.newest.text if before.newest is not None else ""
        self._here = lineage.ask(self._engine, known, witness=PROCESS)
        self._read_at = read_at
        changed = (self._here.store_id, self._here.era) != (before.store_id, before.era)
        if changed or self._here.hold is not None or len(self._good) >= REMEMBERED:
            self._good = {""}
