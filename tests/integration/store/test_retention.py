"""Retention deletes what is old and unused, and nothing that anybody may still ask for."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.config import RetentionConfig
from forgeyard.model.job import OutputSpec
from forgeyard.model.transitions import JobState
from forgeyard.store import artifacts, blobs, changes, logs, retention, runs, tables
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.changes import LEASE
from forgeyard.store.engine import read
from forgeyard.store.retention import Forgotten
from tests.builders import RNG, a_job_spec, end_job
from tests.leasing import HOUR, Desk, Lease

pytestmark = pytest.mark.integration

CONFIG = RetentionConfig(logs_h=10, artifacts_h=20)
NOTHING = Forgotten(logs=0, artifacts=0, blobs=0)
BUILD = a_job_spec("build", outputs=(OutputSpec(name="wheel", path="dist/*"),))


class Shelf:
    """A store with a blob directory, whose content can be made old."""

    def __init__(self, engine: sa.Engine, root: Path) -> None:
        self.desk = Desk(engine)
        self.root = root
        self.blobs = FileBlobStore(root)

    def put(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs.put([data], digest=digest, limit=100)
        self.desk.change(blobs.record, digest, len(data))
        return digest

    def built(self, **changed: object) -> tuple[Lease, str]:
        """Run one job to its end, with a log and an output of its own."""
        lease = self.desk.active(BUILD, **changed)
        self.desk.change(logs.append, lease.attempt_id, 0, "", b"hello", limit=100)
        wheel = self.put(lease.attempt_id.encode())
        row = self.desk.change(changes.find, LEASE, lease.lease_id)
        self.desk.change(artifacts.record, row, "wheel", "dist/*", wheel, 5)
        self.desk.complete(lease)
        return lease, wheel

    def later(self, hours: int) -> None:
        """Let time pass for runs and blobs."""
        past = (
            (tables.runs, "created_at"),
            (tables.runs, "finished_at"),
            (tables.blobs, "used_at"),
            (tables.outbox, "delivered_at"),
            (tables.attempts, "settled_at"),
            (tables.cycles, "created_at"),
            (tables.idempotency, "created_at"),
            (tables.refusals, "until_at"),
        )
        with self.desk.engine.begin() as connection:
            for table, name in past:
                values = {name: table.c[name] - hours * HOUR}
                connection.execute(sa.update(table).values(values))
        for path in self.root.rglob("*"):
            then = path.stat().st_mtime - hours * 3_600
            os.utime(path, (then, then))

    def forget(self) -> Forgotten:
        """Forget, and look only at what people ask for."""
        return replace(self.sweep(), traces=0)

    def sweep(self) -> Forgotten:
        return retention.forget(self.desk.engine, self.blobs, CONFIG)

    def log(self, lease: Lease) -> list[bytes]:
        with read(self.desk.engine) as connection:
            page = logs.read_run(connection, lease.run_id)
        return [chunk.data for chunk in page.chunks]

    def names(self, run_id: str) -> list[str]:
        with read(self.desk.engine) as connection:
            return [artifact.name for artifact in artifacts.of_run(connection, run_id)]


@pytest.fixture
def shelf(engine: sa.Engine, tmp_path: Path) -> Shelf:
    return Shelf(engine, tmp_path / "blobs")


def test_logs_and_artifacts_go_each_in_its_time(shelf: Shelf) -> None:
    lease, wheel = shelf.built()
    assert shelf.forget() == NOTHING
    shelf.later(11)
    assert shelf.forget() == Forgotten(logs=1, artifacts=0, blobs=0)
    assert shelf.log(lease) == []
    assert shelf.names(lease.run_id) == ["wheel"]
    assert shelf.blobs.exists(wheel)
    shelf.later(10)
    assert shelf.forget() == Forgotten(logs=0, artifacts=1, blobs=1)
    assert shelf.names(lease.run_id) == []
    assert not shelf.blobs.exists(wheel)
    assert shelf.forget() == NOTHING


def test_an_unfinished_run_keeps_everything(shelf: Shelf) -> None:
    source = shelf.put(b"source")
    run_id = shelf.desk.submit(a_job_spec(), source_digest=source)
    shelf.later(1_000)
    assert shelf.forget() == NOTHING
    shelf.desk.change(end_job, run_id, "build", now=10**15)
    assert shelf.forget() == NOTHING
    assert shelf.blobs.exists(source)


def test_a_source_goes_with_the_last_run_that_used_it(shelf: Shelf) -> None:
    source = shelf.put(b"source")
    first = shelf.desk.submit(a_job_spec(), source_digest=source)
    shelf.desk.change(end_job, first, "build")  # long ago
    second = shelf.desk.submit(a_job_spec(), source_digest=source)
    shelf.later(2)
    assert shelf.forget().blobs == 0
    shelf.desk.change(end_job, second, "build")
    assert shelf.forget().blobs == 1
    assert not shelf.blobs.exists(source)


def test_what_a_newer_run_took_over_is_kept(shelf: Shelf) -> None:
    lease = shelf.desk.active(BUILD, a_job_spec("test", needs=("build",)))
    wheel = shelf.put(b"wheel")
    row = shelf.desk.change(changes.find, LEASE, lease.lease_id)
    shelf.desk.change(artifacts.record, row, "wheel", "dist/*", wheel, 5)
    shelf.desk.complete(lease)
    shelf.desk.change(end_job, lease.run_id, "test", JobState.FAILED)  # long ago
    again = shelf.desk.change(
        runs.rerun_failed, lease.run_id, actor="a", policy=shelf.desk.policy.lease, rng=RNG
    ).run_id
    shelf.later(21)
    assert shelf.forget() == NOTHING
    assert shelf.names(again) == ["wheel"]
    shelf.desk.change(end_job, again, "test")
    assert shelf.forget() == Forgotten(logs=0, artifacts=1, blobs=1)


def test_a_blob_that_came_in_just_now_is_spared(shelf: Shelf) -> None:
    digest = shelf.put(b"about to be submitted")
    assert shelf.forget() == NOTHING
    shelf.later(2)
    shelf.desk.change(blobs.touch, digest)
    assert shelf.forget() == NOTHING
    shelf.later(2)
    assert shelf.forget().blobs == 1


def test_a_blob_shared_by_two_runs_stays_for_the_younger(shelf: Shelf) -> None:
    shelf.built()
    shelf.later(15)
    with read(shelf.desk.engine) as connection:
        wheel = connection.execute(sa.select(tables.blobs.c.digest)).scalar_one()
    lease = shelf.desk.active(BUILD, runner="runner-2")
    row = shelf.desk.change(changes.find, LEASE, lease.lease_id)
    shelf.desk.change(artifacts.record, row, "wheel", "dist/*", wheel, 5)
    shelf.desk.complete(lease)
    shelf.later(10)
    assert shelf.forget().artifacts == 1
    assert shelf.names(lease.run_id) == ["wheel"]
    assert shelf.blobs.exists(wheel)


def test_bytes_without_a_row_go_once_they_are_old(shelf: Shelf) -> None:
    stray = f"sha256:{hashlib.sha256(b'stray').hexdigest()}"
    shelf.blobs.put([b"stray"], digest=stray, limit=100)
    kept = shelf.put(b"recorded")
    assert shelf.forget() == NOTHING
    shelf.later(2)
    shelf.desk.change(blobs.touch, kept)
    assert shelf.forget() == Forgotten(logs=0, artifacts=0, blobs=1)
    assert not shelf.blobs.exists(stray)
    assert shelf.blobs.exists(kept)


def test_bytes_that_come_again_while_their_row_is_deleted_survive(shelf: Shelf) -> None:
    digest = shelf.put(b"again")
    shelf.later(2)
    shelf.blobs.put([b"again"], digest=digest, limit=100)  # recorded only after retention looked
    assert shelf.forget().blobs == 1
    shelf.desk.change(blobs.record, digest, 5)
    assert shelf.blobs.exists(digest)


def streams(shelf: Shelf) -> set[str]:
    with read(shelf.desk.engine) as connection:
        return set(connection.execute(sa.select(tables.outbox.c.stream)).scalars())


def test_delivered_events_go_once_their_attempt_is_settled(shelf: Shelf) -> None:
    settled, unsettled, undelivered = (shelf.built(runner=f"r{n}")[0] for n in range(3))
    shelf.desk.settle(settled)
    shelf.desk.settle(undelivered)
    table = tables.outbox
    with shelf.desk.engine.begin() as connection:
        connection.execute(
            sa.update(table)
            .where(table.c.stream != undelivered.attempt_id)
            .values(delivered_at=table.c.created_at)
        )
    shelf.sweep()
    assert len(streams(shelf)) == 3
    shelf.later(11)
    shelf.sweep()
    assert streams(shelf) == {unsettled.attempt_id, undelivered.attempt_id}


@pytest.mark.requirement("POL-005")
def test_cycles_keys_and_refusals_go_in_their_time(shelf: Shelf) -> None:
    counted = (tables.cycles, tables.placements, tables.idempotency, tables.refusals)

    def counts() -> list[int]:
        with read(shelf.desk.engine) as connection:
            total = sa.func.count()
            return [
                connection.execute(sa.select(total).select_from(table)).scalar_one()
                for table in counted
            ]

    lease = shelf.desk.offered(a_job_spec())
    shelf.desk.reject(lease)
    shelf.desk.submit(idempotency_key="again")
    assert shelf.sweep().traces == 0
    assert counts() == [1, 1, 1, 1]
    shelf.later(1)
    assert shelf.sweep().traces == 1
    assert counts() == [1, 1, 1, 0]
    shelf.later(10)
    assert shelf.sweep().traces == 2
    assert counts() == [0, 0, 0, 0]
