"""A blob is what its digest says, or it is not there."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.errors import InvalidRequest, NotFound, TooLarge, WrongDigest
from forgeyard.store import blobs, tables
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.engine import read, write

pytestmark = pytest.mark.integration

LIMIT = 2**20


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def store(tmp_path: Path) -> FileBlobStore:
    return FileBlobStore(tmp_path / "blobs")


def files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]


def put(store: FileBlobStore, *parts: bytes) -> str:
    digest = digest_of(b"".join(parts))
    assert store.put(parts, digest=digest, limit=LIMIT) == sum(map(len, parts))
    return digest


def age(tmp_path: Path, seconds: int) -> None:
    for path in files(tmp_path):
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))


@pytest.mark.parametrize("data", [b"", b"hello", bytes(range(256)) * 3_000])
def test_what_is_put_is_read_again(store: FileBlobStore, data: bytes) -> None:
    digest = put(store, data[:7], data[7:])
    assert store.exists(digest)
    assert store.size(digest) == len(data)
    with store.open(digest) as file:
        assert file.read() == data


def test_putting_twice_keeps_one(store: FileBlobStore, tmp_path: Path) -> None:
    assert put(store, b"hello") == put(store, b"hel", b"lo")
    assert len(files(tmp_path)) == 1


def test_a_wrong_digest_leaves_nothing_behind(store: FileBlobStore, tmp_path: Path) -> None:
    with pytest.raises(WrongDigest):
        store.put([b"hello"], digest=digest_of(b"other"), limit=LIMIT)
    assert files(tmp_path) == []


def test_too_much_is_refused_before_it_is_all_read(store: FileBlobStore, tmp_path: Path) -> None:
    taken: list[int] = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield bytes(1_000)

    with pytest.raises(TooLarge):
        store.put(endless(), digest=digest_of(b""), limit=10_000)
    assert len(taken) == 11
    assert files(tmp_path) == []


def test_a_stream_that_breaks_leaves_nothing_behind(store: FileBlobStore, tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        store.put(broken(), digest=digest_of(b"half"), limit=LIMIT)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "digest",
    ["", "sha256:", "sha256:../../etc/passwd", "md5:00", "sha256:" + "A" * 64, "../" * 10],
)
def test_what_is_no_digest_never_becomes_a_path(store: FileBlobStore, digest: str) -> None:
    for use in (store.open, store.exists, store.size, store.delete):
        with pytest.raises(InvalidRequest):
            use(digest)
    with pytest.raises(InvalidRequest):
        store.put([b""], digest=digest, limit=LIMIT)


def test_a_missing_blob_is_not_found(store: FileBlobStore) -> None:
    digest = digest_of(b"nothing")
    assert not store.exists(digest)
    for use in (store.open, store.size):
        with pytest.raises(NotFound):
            use(digest)
    store.delete(digest)


@pytest.mark.parametrize("spoil", ["flip", "cut", "grow"])
def test_a_damaged_blob_is_never_served_whole(
    store: FileBlobStore, tmp_path: Path, spoil: str
) -> None:
    data = os.urandom(600_000)
    digest = put(store, data)
    (path,) = files(tmp_path)
    path.write_bytes({"flip": b"\0" + data[1:], "cut": data[:-1], "grow": data + b"x"}[spoil])
    served: list[bytes] = []
    with store.open(digest) as file, pytest.raises(WrongDigest):
        served.extend(iter(lambda: file.read(64 * 2**10), b""))
    assert sum(map(len, served)) < len(data)


def test_a_spared_blob_survives_deletion_while_it_is_fresh(
    store: FileBlobStore, tmp_path: Path
) -> None:
    digest = put(store, b"hello")
    store.delete(digest, spare_s=60)
    assert store.exists(digest)
    assert list(store.idle(60)) == []
    age(tmp_path, 100)
    assert list(store.idle(60)) == [digest]
    store.delete(digest, spare_s=60)
    assert not store.exists(digest)


def test_tidying_removes_only_abandoned_uploads(store: FileBlobStore, tmp_path: Path) -> None:
    put(store, b"hello")
    abandoned = tmp_path / "blobs/incoming/abandoned"
    abandoned.write_bytes(b"half")
    assert store.tidy() == 0
    age(tmp_path, 100_000)
    assert store.tidy() == 1
    assert len(files(tmp_path)) == 1


def test_a_recorded_blob_is_known(engine: sa.Engine) -> None:
    digest = digest_of(b"hello")
    with write(engine) as connection:
        assert blobs.touch(connection, digest) is None
        blobs.record(connection, digest, 5)
        blobs.record(connection, digest, 5)
        assert blobs.touch(connection, digest) == 5


def test_touching_a_blob_renews_its_grace(engine: sa.Engine) -> None:
    digest = digest_of(b"hello")
    with write(engine) as connection:
        blobs.record(connection, digest, 5)
        connection.execute(sa.update(tables.blobs).values(used_at=1))
        blobs.touch(connection, digest)
    with read(engine) as connection:
        assert connection.execute(sa.select(tables.blobs.c.used_at)).scalar_one() > 1
