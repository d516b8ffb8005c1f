"""Seals the audit trail, and keeps its head outside the database, where cutting it off shows."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from forgeyard import clock
from forgeyard.store import chain
from forgeyard.store.chain import ORIGIN, Head
from forgeyard.store.engine import read, write

KEPT_EVERY_S: Final = 3_600.0
_log = logging.getLogger(__name__)


class HeadKeeper:
    """Seals what was written, and appends the head to a file and to the log once an hour."""

    def __init__(self, engine: sa.Engine, path: Path, *, every_s: float = KEPT_EVERY_S) -> None:
        self._engine = engine
        self._path = path
        self._every_s = every_s
        self._kept = ORIGIN
        self._kept_at = float("-inf")
        self._sealed_all = False

    def work(self) -> None:
        """Seal, and keep the head if it is time to."""
        with write(self._engine) as connection:
            if self._sealed_all:
                chain.seal_recent(connection)
            else:
                # Whoever ran before us may have left lines behind, however old.
                self._sealed_all = chain.seal_all(connection) == 0
        if clock.monotonic() - self._kept_at >= self._every_s:
            self.keep()

    def keep(self) -> None:
        """Append the head to the file, and tell the log, if it is another than before."""
        with read(self._engine) as connection:
            found = chain.head(connection)
        self._kept_at = clock.monotonic()
        if found != self._kept:
            self._append(found)
            _log.info("the audit trail's head is %s at %d", found.hash, found.seq)
            self._kept = found

    def _append(self, found: Head) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._path.open("a", encoding="ascii") as file:
            file.write(f"{json.dumps(asdict(found))}\n")
