"""Archives that this host has fetched or made before, kept so that nobody has to fetch them again.

Bounded in bytes; what was not used for longest goes first. Nothing here is ever relied on: what is
taken is hashed again, and whatever is wrong with it means that it is fetched after all.
"""

import contextlib
import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import structlog

from forgeyard.model.holdings import (
    MAX_CLOSURES,
    MAX_OBJECTS,
    Holdings,
    bloom_of,
)

PIECE = 2**20
_DIGEST = re.compile(r"sha256-[0-9a-f]{64}")
_log = structlog.get_logger(__name__)


class Shelf:
    """A directory of archives by digest; its methods block, and any thread may call them."""

    def __init__(self, folder: Path, *, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Least recently used first."""
        self._closures: OrderedDict[str, str] = OrderedDict()
        """The archive of each key of a dependency cache; least recently used first."""

    def open(self) -> None:
        """Find again what an earlier agent kept, and forget what goes beyond the limit.

        A directory that cannot be read holds nothing.
        """
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            found = sorted(_archives(self._folder), key=lambda one: one[0])
            with self._lock:
                self._sizes = OrderedDict((digest, size) for _, digest, size in found)
                self._shrink(self._limit)

    @property
    def limit(self) -> int:
        """Tell how many bytes may lie here."""
        return self._limit

    @property
    def size(self) -> int:
        """Tell how many bytes lie here."""
        with self._lock:
            return sum(self._sizes.values())

    def take(self, digest: str, target: Path) -> int | None:
        """Put a verified archive at `target` and return its size; `None` if it must be fetched."""
        with self._lock:
            if digest not in self._sizes:
                return None
            self._sizes.move_to_end(digest)
        path = self._path(digest)
        try:
            # A link, so that it stays whole for this attempt even if it is thrown out meanwhile.
            os.link(path, target)
            if _digest_of(target) == digest:
                os.utime(path)
                return target.stat().st_size
            target.unlink()
            problem = "it has changed"
        except OSError as error:
            with contextlib.suppress(OSError):
                target.unlink(missing_ok=True)
            problem = str(error)
        _log.warning("kept archive is of no use", digest=digest, problem=problem)
        self._drop(digest)
        return None

    def keep(self, digest: str, source: Path) -> None:
        """Keep a verified archive if there is room for it; that it cannot be is no failure."""
        path = self._path(digest)
        try:
            size = source.stat().st_size
            if size > self._limit:
                return
            with contextlib.suppress(FileExistsError):
                os.link(source, path)
        except OSError as error:
            _log.warning("archive is not kept", digest=digest, problem=str(error))
            return
        with self._lock:
            self._sizes[digest] = size
            self._sizes.move_to_end(digest)
            self._shrink(self._limit)

    def used(self, closure: str, digest: str) -> None:
        """Remember that a dependency cache was used here, and which archive it is."""
        with self._lock:
            self._closures[closure] = digest
            self._closures.move_to_end(closure)
            while len(self._closures) > MAX_CLOSURES:
                self._closures.popitem(last=False)

    def clear(self) -> None:
        """Give all of its room back, for the disk is short."""
        with self._lock:
            self._shrink(0)

    def summary(self) -> Holdings:
        """Describe what is here within the bounds of a report.

        Everything is in the order of its name, lest mere use looks like a change.
        """
        with self._lock:
            newest = list(reversed(self._sizes.items()))
            closures = [key for key, digest in self._closures.items() if digest in self._sizes]
        return Holdings(
            objects=dict(sorted(newest[:MAX_OBJECTS])),
            closures=tuple(sorted(closures)),
            others=bloom_of(digest for digest, _ in newest[MAX_OBJECTS:]),
        )

    def _shrink(self, limit: int) -> None:
        """Throw out what was not used for longest; the lock is held."""
        total = sum(self._sizes.values())
        while total > limit:
            digest, size = self._sizes.popitem(last=False)
            total -= size
            self._remove(digest)

    def _drop(self, digest: str) -> None:
        with self._lock:
            self._sizes.pop(digest, None)
            self._remove(digest)

    def _remove(self, digest: str) -> None:
        with contextlib.suppress(OSError):
            self._path(digest).unlink()

    def _path(self, digest: str) -> Path:
        return self._folder / digest.replace(":", "-")


def _archives(folder: Path) -> Iterator[tuple[int, str, int]]:
    """List when each archive was used last, its digest and its size; remove what is none."""
    for entry in os.scandir(folder):
        if entry.is_file(follow_symlinks=False) and _DIGEST.fullmatch(entry.name):
            stat = entry.stat(follow_symlinks=False)
            yield stat.st_mtime_ns, entry.name.replace("-", ":", 1), stat.st_size
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


def _digest_of(path: Path) -> str:
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            hashed.update(piece)
    return f"sha256:{hashed.hexdigest()}"
