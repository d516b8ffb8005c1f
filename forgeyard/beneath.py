"""A directory whose descendants are reached without ever following a link.

For archives, whose entries may be anything: a name is entered part by part through open
directories, so neither a link that is there nor one put there meanwhile leads out. POSIX only.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from forgeyard.errors import UnsafePath


class Root:
    """A directory whose descendants are reached part by part, so that no link is followed."""

    def __init__(self, descriptor: int) -> None:
        self._root = descriptor
        self._parts: tuple[str, ...] = ()
        self._here = os.dup(descriptor)

    @classmethod
    @contextmanager
    def at(cls, path: Path) -> Generator["Root"]:
        """Open `path`; links in the path itself are the caller's business."""
        root = cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        try:
            yield root
        finally:
            os.close(root._here)
            os.close(root._root)

    def enter(self, parts: tuple[str, ...]) -> int:
        """Open a directory that exists; valid until the next call."""
        return self._walk(parts, _enter)

    def make(self, parts: tuple[str, ...]) -> int:
        """Open a directory, making what is missing; valid until the next call."""
        return self._walk(parts, _make)

    def _walk(self, parts: tuple[str, ...], step: Callable[[int, str], int]) -> int:
        if parts == self._parts:
            return self._here
        here = os.dup(self._root)
        try:
            for part in parts:
                deeper = step(here, part)
                os.close(here)
                here = deeper
        except BaseException:
            os.close(here)
            raise
        os.close(self._here)
        self._parts, self._here = parts, here
        return here


def split(path: str) -> tuple[tuple[str, ...], str]:
    """Part a name from the directories it is in."""
    *parents, name = path.split("/")
    return tuple(parents), name


def move(source: Path, target: Path, names: Iterable[str]) -> int:
    """Move files to the same place below another directory, over what is there; return how many.

    Raises:
        UnsafePath: a directory on the way is a link, or no directory.
        OSError: a directory is in the place of a file.
    """
    moved = 0
    with Root.at(source) as leaving, Root.at(target) as arriving:
        for path in names:
            parents, name = split(path)
            os.rename(
                name,
                name,
                src_dir_fd=leaving.enter(parents),
                dst_dir_fd=arriving.make(parents),
            )
            moved += 1
    return moved


def _enter(parent: int, name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise UnsafePath(
            f"{name!r} is not a directory of its own", field="path", value=name
        ) from None


def _make(parent: int, name: str) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    return _enter(parent, name)


def remove_tree(folder: Path) -> bool:
    """Remove everything below a directory, also what was made read-only; tell whether it is gone.

    Only once nobody writes there any more.
    """
    # Root needs nobody's leave, and must follow no path that a process of the job may swap.
    shutil.rmtree(folder, onerror=_leave if os.geteuid() == 0 else _insist)
    return not folder.exists()


def _leave(_function: Callable[..., object], _path: str, _failure: object) -> None:
    """Go on with the rest; whoever asked looks whether anything stays."""


def _insist(function: Callable[..., object], path: str, _failure: object) -> None:
    """Make a directory writable that a job locked, and try once more."""
    with suppress(OSError):
        for folder in (os.path.dirname(path), path):
            if not os.path.islink(folder) and os.path.isdir(folder):
                os.chmod(folder, stat.S_IRWXU)
        if function in (os.unlink, os.rmdir):
            function(path)
        else:
            shutil.rmtree(path, ignore_errors=True)
