"""What is measured of the system around the scheduler, and what it leads to."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.errors import Overloaded
from forgeyard.model.job import Priority
from forgeyard.model.policy import PressurePolicy
from forgeyard.scheduler.readings import Readings
from forgeyard.store import readings, snapshot, tables
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.engine import read
from tests.builders import PARTITION, a_job_spec
from tests.leasing import Desk


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def readings_of(desk: Desk) -> Readings:
    with read(desk.engine) as connection:
        return snapshot.load(connection, PARTITION, desk.policy).readings


@pytest.mark.requirement("BKP-003", "BKP-004")
def test_waiting_jobs_unsent_events_and_used_slots_are_measured(desk: Desk) -> None:
    desk.register()
    desk.submit(a_job_spec("runs"), a_job_spec("waits"))
    desk.commit(desk.plan())
    desk.submit(a_job_spec("later"))
    (event, *_) = desk.rows(tables.outbox)
    desk.overwrite(tables.outbox, event["event_id"], created_at=event["created_at"] - 60_000)
    found = readings_of(desk)
    assert found.waiting == 1
    assert 60_000 <= found.outbox_lag_ms < 120_000
    assert found.saturation == 500


@pytest.mark.requirement("BKP-002", "BKP-007")
@pytest.mark.requirement("RCN-021", "PHA-009", "PRI-018")
def test_jobs_that_fetch_wait_while_the_blob_store_is_away_and_go_on_afterwards(
    desk: Desk,
) -> None:
    desk.register()
    desk.submit(a_job_spec("fetches"))
    (job,) = desk.rows(tables.jobs)
    desk.overwrite(tables.jobs, job["job_id"], has_inputs=1)
    desk.change(readings.report, readings.BLOBS, "the blob store cannot be written: full")
    assert desk.cycle().granted == 0
    (job,) = desk.rows(tables.jobs)
    assert "the blob store cannot be written: full" in job["diagnosis"]
    before = desk.wakes()
    desk.change(readings.report, readings.BLOBS, None)
    assert desk.wakes() == before + 1
    assert desk.cycle().granted == 1


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    store = FileBlobStore(tmp_path)
    assert store.problem() is None
    (tmp_path / "incoming").rmdir()
    assert "cannot be written: No such file" in (store.problem() or "")


@pytest.mark.requirement("BKP-006")
def test_runs_of_low_priority_are_turned_away_while_the_queue_is_deep(desk: Desk) -> None:
    desk.submit(a_job_spec("a"), a_job_spec("b"))
    desk.cycle()
    limits = PressurePolicy(queue_depth=1)
    low = (PARTITION, [Priority.LOW, Priority.NORMAL], limits)
    with pytest.raises(Overloaded, match="2 jobs wait already") as refused:
        desk.change(readings.refuse_when_deep, *low)
    assert refused.value.field == "priority"
    desk.change(readings.refuse_when_deep, PARTITION, [Priority.HIGH], limits)
    desk.change(readings.refuse_when_deep, *low[:2], PressurePolicy())
