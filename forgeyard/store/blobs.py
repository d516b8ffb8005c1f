"""Bytes by their digest: sources and outputs, in a store behind a small protocol.

The store keeps bytes and knows nothing of runs; the `blobs` table knows what may be deleted.
Bytes are put first and recorded after: a blob counts as kept only once its row is written, and
retention leaves bytes alone that were put a moment ago.
"""

import hashlib
import io
import os
import re
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import sqlalchemy as sa

from forgeyard import clock
from forgeyard.errors import InvalidRequest, NotFound, TooLarge, WrongDigest
from forgeyard.store import changes, tables
from forgeyard.store.engine import database_now, now_ms

if TYPE_CHECKING:
    from typing_extensions import Buffer

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PROBE = b"is anybody there?"
_CHUNK = 256 * 2**10
_ABANDONED_S = 24 * 3_600


class BlobStore(Protocol):
    """Keeps bytes under their digest; every method refuses a malformed digest."""

    def put(self, stream: Iterable[bytes], *, digest: str, limit: int) -> int:
        """Store the bytes if they hash to `digest` and return their size; else nothing is left.

        Raises:
            WrongDigest: they hash to something else.
            TooLarge: there are more than `limit`.
        """
        ...

    def open(self, digest: str) -> BinaryIO:
        """Open a blob for reading; its last bytes come only if all of it hashes to `digest`.

        Raises:
            NotFound: there is no such blob.
            WrongDigest: on reading the end, when what is stored was damaged.
        """
        ...

    def exists(self, digest: str) -> bool:
        """Tell whether there is such a blob."""
        ...

    def size(self, digest: str) -> int:
        """Tell how many bytes a blob has; raise NotFound if there is none."""
        ...

    def delete(self, digest: str, *, spare_s: int = 0) -> None:
        """Forget a blob, if it is there and was not put within the last `spare_s` seconds."""
        ...

    def idle(self, seconds: int) -> Iterable[str]:
        """List the blobs that were not put within the last `seconds`."""
        ...

    def tidy(self) -> int:
        """Remove what crashed uploads left behind; return how many."""
        ...

    def problem(self) -> str | None:
        """Try to keep a few bytes and read them back; say what went wrong, if anything did."""
        ...


def check_digest(digest: str, field: str = "digest") -> str:
    """Return the digest if it is one: it becomes part of a path.

    Raises:
        InvalidRequest: it is not `sha256:` and 64 lower-case hexadecimal digits.
    """
    if _DIGEST.fullmatch(digest) is None:
        raise InvalidRequest(
            f"{field}: not a digest",
            field=field,
            value=ascii(digest),
            allowed="sha256: and 64 lower-case hexadecimal digits",
        )
    return digest


class FileBlobStore:
    """Blobs as files below one directory, fanned out over 256 subdirectories."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming = root / "incoming"
        self._incoming.mkdir(parents=True, exist_ok=True)

    def put(self, stream: Iterable[bytes], *, digest: str, limit: int) -> int:
        """Write to a temporary file, verify, make it durable, then rename."""
        target = self._path(digest)
        with self._temporary() as (file, name):
            size = _copy_verified(stream, file, digest, limit)
            file.flush()
            os.fsync(file.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            name.rename(target)
        _sync_directory(target.parent)
        return size

    def problem(self) -> str | None:
        """Write, read and remove one small file."""
        try:
            with self._temporary() as (file, name):
                file.write(PROBE)
                file.flush()
                os.fsync(file.fileno())
                if name.read_bytes() != PROBE:
                    return "the blob store does not give back what it was given"
        except OSError as error:
            return f"the blob store cannot be written: {error.strerror or error}"
        return None

    def open(self, digest: str) -> BinaryIO:
        """Open a blob; reading past its end, or its last bytes, verifies it."""
        try:
            return io.BufferedReader(_Verified(self._path(digest), digest), _CHUNK)
        except FileNotFoundError:
            raise _missing(digest) from None

    def exists(self, digest: str) -> bool:
        """Tell whether the file is there."""
        return self._path(digest).is_file()

    def size(self, digest: str) -> int:
        """Tell the file's size."""
        try:
            return self._path(digest).stat().st_size
        except FileNotFoundError:
            raise _missing(digest) from None

    def delete(self, digest: str, *, spare_s: int = 0) -> None:
        """Remove the file, if it is there and old enough."""
        path = self._path(digest)
        with suppress(FileNotFoundError):
            if spare_s == 0 or _is_older(path, spare_s):
                path.unlink()

    def idle(self, seconds: int) -> Iterable[str]:
        """Walk the directory for old files."""
        for path in (self._root / "sha256").glob("*/*"):
            with suppress(FileNotFoundError):
                if _is_older(path, seconds):
                    yield f"sha256:{path.name}"

    def tidy(self) -> int:
        """Remove temporary files that nobody has written to for a day."""
        removed = 0
        for path in self._incoming.iterdir():
            with suppress(FileNotFoundError):
                if _is_older(path, _ABANDONED_S):
                    path.unlink()
                    removed += 1
        return removed

    def _path(self, digest: str) -> Path:
        name = check_digest(digest).removeprefix("sha256:")
        return self._root / "sha256" / name[:2] / name

    @contextmanager
    def _temporary(self) -> Generator[tuple[BinaryIO, Path]]:
        descriptor, name = tempfile.mkstemp(dir=self._incoming)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file, Path(name)
        finally:
            Path(name).unlink(missing_ok=True)


def _is_older(path: Path, seconds: int) -> bool:
    return path.stat().st_mtime < clock.now().timestamp() - seconds


def _copy_verified(stream: Iterable[bytes], file: BinaryIO, digest: str, limit: int) -> int:
    hashed, size = hashlib.sha256(), 0
    for chunk in stream:
        size += len(chunk)
        if size > limit:
            raise TooLarge(
                f"the blob exceeds {limit:,} bytes", field="body", allowed=f"{limit:,} bytes"
            )
        hashed.update(chunk)
        file.write(chunk)
    _check_hash(hashed.hexdigest(), digest)
    return size


def _check_hash(found: str, digest: str) -> None:
    if f"sha256:{found}" != digest:
        raise WrongDigest(f"the bytes hash to sha256:{found}", field="digest", value=digest)


def _missing(digest: str) -> NotFound:
    return NotFound(f"no blob {digest}", field="digest", value=digest)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Verified(io.RawIOBase):
    """Reads a file once, forward, and withholds its last bytes unless all of it is as promised."""

    def __init__(self, path: Path, digest: str) -> None:
        super().__init__()
        self._file = path.open("rb", buffering=0)
        self._digest = digest
        self._left = os.fstat(self._file.fileno()).st_size
        self._hashed = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Buffer") -> int:
        view = memoryview(buffer)
        data = self._file.read(min(len(view), _CHUNK))
        self._hashed.update(data)
        self._left -= len(data)
        if self._left <= 0 or not data:
            _check_hash(self._hashed.hexdigest(), self._digest)
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def record(connection: sa.Connection, digest: str, size: int) -> None:
    """Write down a blob that is in the store; it is safe from retention for an hour."""
    now = database_now(connection)
    row = {"digest": digest, "size_bytes": size, "created_at": now, "used_at": now}
    changes.upsert(connection, tables.blobs, row, changes={"used_at": now, "size_bytes": size})


def touch(connection: sa.Connection, digest: str) -> int | None:
    """Keep a blob safe from retention for another hour; return its size, or None if unknown.

    Whoever is about to refer to a blob calls this first, in the same transaction: it locks the
    row against a deletion.
    """
    blobs = tables.blobs
    row = connection.execute(
        sa.update(blobs)
        .where(blobs.c.digest == check_digest(digest))
        .values(used_at=now_ms())
        .returning(blobs.c.size_bytes)
    ).one_or_none()
    return None if row is None else int(row.size_bytes)


def own(connection: sa.Connection, digest: str, tenant_id: str) -> None:
    """Write down that a tenant has these bytes; forgotten with the blob."""
    row = {"digest": digest, "tenant_id": tenant_id}
    changes.upsert(connection, tables.blob_owners, row, changes={})


def is_owned(connection: sa.Connection, digest: str, tenant_id: str | None) -> bool:
    """Tell whether a tenant has shown that it has these bytes; who has no tenant needs not."""
    owners = tables.blob_owners
    query = sa.select(owners.c.digest).where(
        owners.c.digest == digest, owners.c.tenant_id == tenant_id
    )
    return tenant_id is None or connection.execute(query).first() is not None
