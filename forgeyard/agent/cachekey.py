"""Names a dependency cache by everything that its content depends on.

The key is computed before the first step, so that no step has a say in it.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from forgeyard import selection
from forgeyard.errors import InvalidRequest, TooLarge
from forgeyard.model.ids import Digest
from forgeyard.model.job import CacheSpec

FORMAT = 1
"""Raised whenever caches of before must not be found again."""
MAX_FILES = 1_000
MAX_BYTES = 256 * 2**20
_PIECE = 2**18


def cache_key(
    cache: CacheSpec, files: Mapping[str, str], *, platform: str, architecture: str
) -> Digest:
    """Hash what makes a cache fit: its name and path, the machine, and the key files' digests."""
    facts = {
        "format": FORMAT,
        "name": cache.name,
        "path": cache.path,
        "platform": platform,
        "architecture": architecture,
        "files": sorted(files.items()),
    }
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return Digest(f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}")


def key_files(workspace: Path, cache: CacheSpec) -> Mapping[str, str]:
    """Digest every file that the key patterns of a cache name.

    Raises:
        InvalidRequest: a pattern names no file, for a key of nothing would fit everything.
        TooLarge: they are too many, or too large.
    """
    names = sorted({name for pattern in cache.key for name in _named(workspace, cache, pattern)})
    if len(names) > MAX_FILES:
        raise TooLarge(
            f"cache {cache.name!r}: its key names {len(names)} files",
            field="caches.key",
            value=len(names),
            allowed=f"at most {MAX_FILES} files",
        )
    left = MAX_BYTES
    found: dict[str, str] = {}
    for name in names:
        found[name], size = _digest(workspace, cache, name, limit=left)
        left -= size
    return found


def _named(workspace: Path, cache: CacheSpec, pattern: str) -> list[str]:
    names = selection.matching(workspace, pattern)
    if not names:
        raise InvalidRequest(
            f"cache {cache.name!r}: the key {pattern!r} matches no file",
            field="caches.key",
            value=pattern,
            allowed="paths or globs of files that are there before the first step",
        )
    return names


def _digest(workspace: Path, cache: CacheSpec, name: str, *, limit: int) -> tuple[str, int]:
    """Hash a file; a link counts as what it leads to, for no link of an input leads out."""
    hashed, size = hashlib.sha256(), 0
    with os.fdopen(_open(workspace / name, cache, name), "rb") as file:
        while piece := file.read(_PIECE):
            size += len(piece)
            if size > limit:
                raise TooLarge(
                    f"cache {cache.name!r}: its key files are too large",
                    field="caches.key",
                    value=name,
                    allowed=f"at most {MAX_BYTES} bytes in all",
                )
            hashed.update(piece)
    return hashed.hexdigest(), size


def _open(path: Path, cache: CacheSpec, name: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(cache, name, error.strerror or "") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unreadable(cache, name, "not a file")
    return descriptor


def _unreadable(cache: CacheSpec, name: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"cache {cache.name!r}: the key file {name!r} cannot be read: {why}",
        field="caches.key",
        value=name,
    )
