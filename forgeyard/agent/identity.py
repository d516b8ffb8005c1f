"""What a tool is, beyond what it says: a digest of its program, or of a whole directory of them.

A digest is remembered for as long as the file system says that the file is the same one, which is
what makes looking again before every job affordable.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from forgeyard.model.units import GIB

MOST_BYTES = 2 * GIB
"""What is larger than that has no digest: reading it would take too long."""
MOST_FILES = 2_000
REMEMBERED = 4_096
PIECE = 2**20
Mark = tuple[int, int, int, int, int]
_known: dict[Mark, str] = {}


def program_digest(path: Path) -> str | None:
    """Name the content of a program; `None` if it cannot be read. Blocks."""
    with suppress(OSError):
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES:
            return _digest_of(path, found)
    return None


def folder_digest(folder: Path) -> str | None:
    """Name everything that lies in a directory of programs; `None` if that cannot be told. Blocks.

    Links count as what they lead to, and directories in it are left out.
    """
    with suppress(OSError):
        files = sorted(_files(folder))
        if len(files) <= MOST_FILES and sum(size for _, size in files) <= MOST_BYTES:
            lines = "".join(f"{name} {program_digest(folder / name)}\n" for name, _ in files)
            return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
    return None


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file():
                yield entry.name, entry.stat().st_size


def _digest_of(path: Path, found: os.stat_result) -> str:
    """Hash a file unless that very file was hashed before; nobody can set a change time at will."""
    mark = (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )
    known = _known.get(mark)
    if known is None:
        with path.open("rb") as file:
            known = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        if len(_known) >= REMEMBERED:
            _known.clear()
        _known[mark] = known
    return known
