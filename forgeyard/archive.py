"""Archives of files: sources and outputs as deterministic tar.gz, unpacked without trust.

What leaves: regular files (content and executable bit) and links that stay inside; nothing else.
What comes in may have been made by anybody: absolute names, `..`, links that lead out, hard links,
devices, sparse files, bombs and damaged bytes are refused. No link is ever followed, neither when
reading nor when writing: directories are entered part by part below an open root. POSIX only.
"""

import errno
import gzip
import hashlib
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from forgeyard import selection
from forgeyard.beneath import Root, move, split
from forgeyard.errors import InvalidRequest, NotFound, TooLarge, UnsafePath

MAX_FILES = 100_000
MAX_PATH_BYTES = 4_096
MAX_NAME_BYTES = 255

_CHUNK = 256 * 2**10
_LONGEST_READ = 2**20
"""The tar reader takes a whole extended header into memory: longer ones are refused."""
_OVERHEAD_PER_ENTRY = 16 * 2**10
_COMPRESSION = 4
Select = Callable[[Path], Iterable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """An archive that was written; `skipped` names links that lead out and special files."""

    digest: str
    size: int
    files: int
    skipped: tuple[str, ...] = ()


def safe_relative(path: str, field: str = "path") -> str:
    """Return the path without `.` and double slashes, if it stays below where it starts.

    Raises:
        UnsafePath: it is empty, absolute, climbs, holds NUL or is too long.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    problem = _problem(path, parts)
    if problem:
        raise UnsafePath(
            f"{field}: the path {problem}",
            field=field,
            value=ascii(path),
            allowed="a relative path without .. of at most 4096 bytes, 255 in each part",
        )
    return "/".join(parts)


def _problem(path: str, parts: list[str]) -> str | None:
    try:
        encoded = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        return "is not text"
    checks = (
        ("\0" in path, "holds a NUL character"),
        (path.startswith("/"), "is absolute"),
        (".." in parts, "climbs with .."),
        (not parts, "names nothing"),
        (sum(encoded) + len(parts) > MAX_PATH_BYTES, "is too long"),
        (max(encoded, default=0) > MAX_NAME_BYTES, "has a part that is too long"),
    )
    return next((text for failed, text in checks if failed), None)


def link_stays_inside(path: str, target: str) -> bool:
    """Tell whether a link at `path` cannot lead out of the root, whatever other links are there.

    `..` counts only in front, where it climbs real directories; behind another link it could
    climb from anywhere.
    """
    if not target or target.startswith("/") or "\0" in target or len(target) > MAX_PATH_BYTES:
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    return ".." not in parts[climbs:] and climbs <= path.count("/")


def pack(
    root: Path, target: BinaryIO, *, limit: int, select: Select = selection.source_files
) -> Packed:
    """Write the selected files of a directory; the same files always give the same bytes.

    Raises:
        NotFound: `root` is not a directory.
        TooLarge: the files, or the archive, exceed `limit` bytes, or there are too many.
        InvalidRequest: a file cannot be read, or changed while it was.
    """
    if not root.is_dir():
        raise NotFound(f"{root} is not a directory", field="source", value=root)
    sink = _Sink(target, limit)
    with (
        gzip.GzipFile(
            filename="",
            mode="wb",
            compresslevel=_COMPRESSION,
            fileobj=cast("BinaryIO", sink),
            mtime=0,
        ) as compressed,
        tarfile.open(fileobj=compressed, mode="w:", format=tarfile.PAX_FORMAT) as tar,
        Root.at(root) as tree,
    ):
        packing = _Packing(tree, tar, limit)
        for name in sorted(set(select(root))):
            packing.add(name)
    return Packed(
        digest=f"sha256:{sink.digest.hexdigest()}",
        size=sink.size,
        files=packing.files,
        skipped=tuple(packing.skipped),
    )


def pack_output(workspace: Path, pattern: str, target: BinaryIO, limit: int) -> Packed:
    """Write what a path or glob names, at its place in the workspace; `files` 0 means nothing."""
    safe = safe_relative(pattern, "outputs.path")
    return pack(workspace, target, limit=limit, select=lambda root: selection.matching(root, safe))


def unpack_output(source: BinaryIO, root: Path, pattern: str, *, staging: Path, limit: int) -> int:
    """Put only what a path or glob names out of an archive below `root`; return how many files.

    It is unpacked whole in the new directory `staging` first, on the same file system: an archive
    that is refused leaves nothing below `root`. Raises what `unpack` raises.
    """
    safe = safe_relative(pattern, "path")
    staging.mkdir()
    unpack(source, staging, limit=limit)
    return move(staging, root, selection.matching(staging, safe))


def unpack(source: BinaryIO, root: Path, *, limit: int) -> int:
    """Write an archive's files below `root`, over what is there; return how many.

    After an error part of them may be there: throw the directory away.

    Raises:
        UnsafePath: an entry would leave `root`, pass through a link, or is no plain file.
        TooLarge: the files exceed `limit` bytes, there are too many, or the archive is a bomb.
        InvalidRequest: it is not a complete tar.gz.
    """
    stream = _Stream(source, limit)
    unpacking = _Unpacking(stream, limit)
    with Root.at(root) as unpacking.tree, _opened(stream) as tar:
        for member in _members(tar):
            unpacking.take(tar, member)
        stream.finish()
        unpacking.link()
    return unpacking.files


class _Sink:
    """Counts and hashes what is written."""

    def __init__(self, target: BinaryIO, limit: int) -> None:
        self._target = target
        self._limit = limit
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.size += len(data)
        if self.size > self._limit:
            raise _too_large(self._limit)
        self.digest.update(data)
        self._target.write(data)
        return len(data)

    def flush(self) -> None:
        self._target.flush()


class _Packing:
    """The state of one archive being written."""

    def __init__(self, tree: Root, tar: tarfile.TarFile, limit: int) -> None:
        self._tree = tree
        self._tar = tar
        self._limit = limit
        self._bytes = 0
        self.files = 0
        self.skipped: list[str] = []

    def add(self, path: str) -> None:
        """Add one path, unless it is gone, special, or a link that leads out."""
        parents, name = split(safe_relative(path))
        try:
            parent = self._tree.enter(parents)
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if stat.S_ISREG(mode):
                self._add_file(parent, name, path)
            elif stat.S_ISLNK(mode):
                self._add_link(os.readlink(name, dir_fd=parent), path)
            elif not stat.S_ISDIR(mode):
                self.skipped.append(path)
        except FileNotFoundError:
            return
        except UnsafePath:
            self.skipped.append(path)
        except PermissionError as error:
            raise InvalidRequest(f"{path} cannot be read", field="path", value=path) from error

    def _add_file(self, parent: int, name: str, path: str) -> None:
        # NONBLOCK: a pipe put in the file's place must not make us wait.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(_open(name, flags, parent), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                self.skipped.append(path)
                return
            entry = tarfile.TarInfo(path)
            entry.size = status.st_size
            entry.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
            self._count(entry.size)
            self._tar.addfile(entry, cast("BinaryIO", _Whole(file, entry)))

    def _add_link(self, target: str, path: str) -> None:
        if not link_stays_inside(path, target):
            self.skipped.append(path)
            return
        entry = tarfile.TarInfo(path)
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
        self._count(0)
        self._tar.addfile(entry)

    def _count(self, size: int) -> None:
        self.files += 1
        self._bytes += size
        _check_count(self.files)
        if self._bytes > self._limit:
            raise _too_large(self._limit)


def _open(name: str, flags: int, parent: int) -> int:
    try:
        return os.open(name, flags, dir_fd=parent)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UnsafePath("a link took the file's place", field="path", value=name) from error


class _Whole:
    """Reads a file of known size and notices when there is less."""

    def __init__(self, file: BinaryIO, entry: tarfile.TarInfo) -> None:
        self._file = file
        self._entry = entry

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            name = self._entry.name
            raise InvalidRequest(f"{name} shrank while it was read", field="path", value=name)
        return data


class _Stream:
    """Decompresses forward only, within a budget that grows with every entry accepted."""

    def __init__(self, source: BinaryIO, limit: int) -> None:
        self._gzip = gzip.GzipFile(fileobj=source, mode="rb")
        self._at = 0
        self._budget = limit + _LONGEST_READ
        self._last = b""

    def allow_entry(self) -> None:
        """Allow for the header, the padding and the long names of one more entry."""
        self._budget += _OVERHEAD_PER_ENTRY

    def tell(self) -> int:
        return self._at

    def seek(self, position: int) -> int:
        if position < self._at:
            raise _damaged("it points backwards")
        while self._at < position and self.read(min(position - self._at, _CHUNK)):
            pass
        return self._at

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LONGEST_READ:
            raise TooLarge("the archive has a header that is too long", field="archive")
        try:
            data = self._gzip.read(size)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise _damaged(str(error)) from error
        self._at += len(data)
        if self._at > self._budget:
            raise TooLarge("the archive holds more than it may", field="archive")
        self._last = data
        return data

    def finish(self) -> None:
        """Read to the end, where only the zeros that end a tar may be.

        The tar reader takes a header it cannot read for the end; this does not.
        """
        while not self._last.strip(b"\0"):
            if not self.read(_CHUNK):
                return
        raise _damaged("something follows its end")


@contextmanager
def _opened(stream: _Stream) -> Generator[tarfile.TarFile]:
    with _tar_errors():
        tar = tarfile.TarFile(fileobj=cast("BinaryIO", stream), mode="r")
    with tar:
        yield tar


@contextmanager
def _tar_errors() -> Generator[None]:
    """Say in our words what the tar reader stumbles over; it recurses on chained headers."""
    try:
        yield
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise _damaged(str(error)) from error


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while True:
        with _tar_errors():
            member = tar.next()
        if member is None:
            return
        yield member


class _Unpacking:
    """The state of one archive being taken in."""

    tree: Root

    def __init__(self, stream: _Stream, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._bytes = 0
        self._entries = 0
        self._links: list[tuple[str, str]] = []
        self.files = 0

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Write one entry, or keep a link for the end."""
        self._stream.allow_entry()
        self._entries += 1
        _check_count(self._entries)
        if member.isdir() and member.name.strip("./") == "" and ".." not in member.name:
            return  # the root itself, as other tools write it
        path = safe_relative(member.name, "archive")
        if member.isdir():
            self.tree.make(tuple(path.split("/")))
        elif member.issym():
            self._keep_link(path, member.linkname)
        elif member.isreg() and not member.issparse():
            self._write(tar, member, path)
        else:
            raise _unsafe(path, "is neither a file, a directory nor a link")

    def link(self) -> None:
        """Make the links last, so that nothing was written through one."""
        for path, target in self._links:
            parent, name = self._place(path)
            os.symlink(target, name, dir_fd=parent)

    def _keep_link(self, path: str, target: str) -> None:
        if not link_stays_inside(path, target):
            raise _unsafe(path, "is a link that may lead out")
        self._links.append((path, target))
        self.files += 1

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        self._bytes += member.size
        if member.size < 0 or self._bytes > self._limit:
            raise _too_large(self._limit)
        parent, name = self._place(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
        with os.fdopen(os.open(name, flags, mode, dir_fd=parent), "wb") as file:
            _copy(tar, member, file)
        self.files += 1

    def _place(self, path: str) -> tuple[int, str]:
        """Make room for a new entry and open the directory it goes to."""
        parents, name = split(path)
        parent = self.tree.make(parents)
        try:
            if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise _unsafe(path, "is a directory already")
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            pass
        return parent, name


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, file: BinaryIO) -> None:
    content = tar.extractfile(member)
    while content is not None:
        with _tar_errors():
            data = content.read(_CHUNK)
        if not data:
            return
        file.write(data)


def _check_count(files: int) -> None:
    if files > MAX_FILES:
        raise TooLarge(
            f"more than {MAX_FILES:,} files", field="archive", allowed=f"{MAX_FILES:,} files"
        )


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"the files exceed {limit:,} bytes", field="archive", allowed=f"{limit:,} bytes"
    )


def _unsafe(path: str, problem: str) -> UnsafePath:
    return UnsafePath(f"archive: {path!a} {problem}", field="archive", value=ascii(path))


def _damaged(why: str) -> InvalidRequest:
    return InvalidRequest(f"the archive cannot be read: {why}", field="archive")
