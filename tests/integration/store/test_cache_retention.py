"""Caches stay as long as they are used and there is room, the least recently used go first."""

import hashlib
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.config import RetentionConfig
from forgeyard.model.job import CacheSpec
from forgeyard.store import blobs, caches, changes, retention, tables
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.changes import LEASE, Row
from forgeyard.store.retention import Forgotten
from tests.builders import a_job_spec
from tests.leasing import HOUR, Desk

pytestmark = pytest.mark.integration

JOB = a_job_spec(caches=(CacheSpec(name="pip", path=".cache", key=("a.lock",)),))
ROOM = 2**30


def digest_of(data: bytes) -> str:
    """Name bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Shelf:
    """A store with caches, a lease that may use them, and time that can pass."""

    def __init__(self, engine: sa.Engine, root: Path) -> None:
        self.desk = Desk(engine)
        self.blobs = FileBlobStore(root)
        lease = self.desk.active(JOB)
        self.lease: Row = self.desk.change(changes.find, LEASE, lease.lease_id)

    def save(self, name: str, size: int = 10) -> str:
        """Save a cache of so many bytes under a key made of its name."""
        data = name.encode().ljust(size)
        digest = digest_of(data)
        self.blobs.put([data], digest=digest, limit=size)
        self.desk.change(blobs.record, digest, size)
        key = digest_of(name.encode())
        self.desk.change(caches.record, self.lease, "pip", key, digest, size)
        return digest

    def finds(self, name: str) -> bool:
        """Look a cache up, which counts as using it."""
        found = self.desk.change(caches.find, self.lease, "pip", digest_of(name.encode()))
        return found is not None

    def later(self, hours: int) -> None:
        """Let time pass for caches and blobs."""
        with self.desk.engine.begin() as connection:
            for table in (tables.caches, tables.blobs):
                values = {"used_at": table.c.used_at - hours * HOUR}
                connection.execute(sa.update(table).values(values))

    def forget(self, *, hours: int = 10, room: int = ROOM) -> Forgotten:
        """Apply retention."""
        config = RetentionConfig(caches_h=hours, cache_bytes=room)
        return retention.forget(self.desk.engine, self.blobs, config)


@pytest.fixture
def shelf(engine: sa.Engine, tmp_path: Path) -> Shelf:
    return Shelf(engine, tmp_path / "blobs")


def test_a_cache_goes_when_nobody_used_it_for_long_and_its_blob_with_it(shelf: Shelf) -> None:
    digest = shelf.save("a")
    shelf.later(9)
    assert shelf.forget() == Forgotten(logs=0, artifacts=0, blobs=0)
    assert shelf.finds("a")
    shelf.later(9)
    assert shelf.forget().caches == 0
    shelf.later(2)
    forgotten = shelf.forget()
    assert (forgotten.caches, forgotten.blobs) == (1, 1)
    assert not shelf.finds("a")
    assert shelf.desk.rows(tables.blobs, digest=digest) == []


def test_beyond_the_room_for_all_the_least_recently_used_go(shelf: Shelf) -> None:
    for name in ("a", "b", "c"):
        shelf.save(name)
        shelf.later(1)
    assert shelf.finds("a")
    assert shelf.forget(room=30).caches == 0
    assert shelf.forget(room=29).caches == 1
    assert [shelf.finds(name) for name in "abc"] == [True, False, True]
    assert shelf.forget(room=9).caches == 2


def test_a_cache_that_was_found_while_retention_looked_stays(shelf: Shelf) -> None:
    shelf.save("a")
    shelf.later(11)
    found: list[bool] = []

    def find_it(*call: object) -> None:
        if "over" in str(call[2]).lower() and not found:
            found.append(True)
            found.append(shelf.finds("a"))

    sa.event.listen(shelf.desk.engine, "after_cursor_execute", find_it)
    try:
        assert shelf.forget().caches == 0
    finally:
        sa.event.remove(shelf.desk.engine, "after_cursor_execute", find_it)
    assert found == [True, True]
    assert shelf.finds("a")


def test_two_caches_may_share_a_blob_and_the_last_one_keeps_it(shelf: Shelf) -> None:
    digest = shelf.save("a")
    shelf.later(11)
    key = digest_of(b"other")
    shelf.desk.change(caches.record, shelf.lease, "pip", key, digest, 10)
    with shelf.desk.engine.begin() as connection:
        values = {"used_at": tables.blobs.c.used_at - 2 * HOUR}
        connection.execute(sa.update(tables.blobs).values(values))
    forgotten = shelf.forget()
    assert (forgotten.caches, forgotten.blobs) == (1, 0)
    assert shelf.finds("other")
