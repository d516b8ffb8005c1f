"""Adds up the test reports that the steps of an attempt left in its workspace.

Bounded in files, bytes and what is kept; follows no link. What cannot be read is counted as such.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from forgeyard import selection
from forgeyard.agent.junit import Mask, Tally, tally
from forgeyard.beneath import Root, split
from forgeyard.errors import InvalidRequest, Rejected, TooLarge
from forgeyard.model.protocol import TestCounts
from forgeyard.model.units import Millis

MAX_FILES: Final = 200
MAX_FILE_BYTES: Final = 16 * 2**20
MAX_BYTES: Final = 64 * 2**20
MAX_NOTES: Final = 20
_PIECE: Final = 2**20
"""Large, for the parser begins a long token anew with every piece."""


def count_tests(
    workspace: Path, patterns: Sequence[str], *, mask: Mask
) -> tuple[TestCounts | None, tuple[str, ...]]:
    """Count the tests in the files that the patterns name, and note what was wrong; blocking.

    None if there is no such file.
    """
    names, notes = _named(workspace, patterns)
    if not names:
        return None, tuple(notes)
    total, unreadable, left = Tally(), 0, MAX_BYTES
    with Root.at(workspace) as tree:
        for number, name in enumerate(names):
            try:
                if number >= MAX_FILES:
                    raise TooLarge(f"only the first {MAX_FILES} files are read")
                with _open(tree, name, limit=min(left, MAX_FILE_BYTES)) as file:
                    size = os.fstat(file.fileno()).st_size
                    left -= size
                    total.add(tally(_pieces(file, size), mask=mask))
            except (Rejected, OSError) as error:
                unreadable += 1
                said = error.message if isinstance(error, Rejected) else error.strerror
                notes.append(f"{name}: {said}")
    return _counts(total, files=len(names), unreadable=unreadable), _bounded(notes)


def _named(workspace: Path, patterns: Sequence[str]) -> tuple[list[str], list[str]]:
    found: set[str] = set()
    notes: list[str] = []
    for pattern in patterns:
        try:
            names = selection.matching(workspace, pattern)
        except InvalidRequest as error:
            notes.append(error.message)
            continue
        if not names:
            notes.append(f"{pattern} matches no file")
        found.update(names)
    return sorted(found), notes


def _open(tree: Root, path: str, *, limit: int) -> BinaryIO:
    """Open a regular file, through no link; a pipe in its place must not make us wait."""
    parents, name = split(path)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.fdopen(os.open(name, flags, dir_fd=tree.enter(parents)), "rb")
    facts = os.fstat(file.fileno())
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > limit:
        file.close()
        raise TooLarge("it is no file, or too large")
    return file


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Read as much as was seen at first, should the file still grow."""
    while size > 0 and (piece := file.read(min(size, _PIECE))):
        size -= len(piece)
        yield piece


def _counts(total: Tally, *, files: int, unreadable: int) -> TestCounts:
    return TestCounts(
        tests=total.tests,
        failures=total.failures,
        errors=total.errors,
        skipped=total.skipped,
        time=Millis(round(total.seconds * 1000)),
        files=files,
        unreadable=unreadable,
        failing=tuple(total.failing),
    )


def _bounded(notes: list[str]) -> tuple[str, ...]:
    more = len(notes) - MAX_NOTES
    return (*notes[:MAX_NOTES], *([f"and {more} more"] if more > 0 else []))
