"""Room kept for the oldest large job: chosen with the plan, respected by the commit."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.model.job import Timeouts
from forgeyard.model.policy import BackfillPolicy, SchedulingPolicy
from forgeyard.model.units import GIB, Bytes, MilliCpu, Millis, Resources
from forgeyard.scheduler import place
from forgeyard.store import runs, snapshot, tables
from forgeyard.store.engine import read
from tests.builders import PARTITION, a_job_spec
from tests.leasing import Desk, Lease

MINUTE = 60_000
POLICY = SchedulingPolicy(backfill=BackfillPolicy(after=Millis(0)))
TOTAL = Resources(cpu=MilliCpu(4_000), memory=Bytes(8 * GIB), disk=Bytes(8 * GIB), slots=4)
NOTHING = Resources()
BIG = a_job_spec("big", resources=replace(TOTAL, memory=Bytes(GIB)))
BRIEF = Timeouts(preparation=Millis(1_000), execution=Millis(1_000), upload=Millis(1_000))


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine, POLICY)


def begin(desk: Desk) -> Lease:
    """Let one small job run, and a big one wait until a runner is kept for it."""
    registered = desk.register(total=TOTAL, headroom=NOTHING)
    desk.submit(a_job_spec("first"))
    assert desk.cycle().granted == 1
    (lease,) = desk.leases(runner_id=registered.runner_id)
    desk.accept(lease)
    desk.submit(BIG)
    assert desk.cycle().granted == 0
    return lease


@pytest.mark.requirement("FAR-026")
def test_a_runner_is_kept_for_a_large_job_until_what_runs_there_must_be_over(desk: Desk) -> None:
    lease = begin(desk)
    (row,) = desk.rows(tables.held_room)
    (reservation,) = desk.rows(tables.reservations)
    assert (row["runner_id"], row["kind"]) == (lease.runner_id, "backfill")
    assert row["deadline_at"] == reservation["ends_by"]
    timeouts = Timeouts()
    longest = timeouts.preparation + timeouts.execution + timeouts.upload
    assert reservation["ends_by"] > desk.row(tables.leases, lease.lease_id)["offered_at"] + longest


@pytest.mark.case("SP-054")
def test_small_jobs_get_the_gap_only_if_they_are_over_before_the_room_is_due(desk: Desk) -> None:
    lease = begin(desk)
    desk.submit(a_job_spec("long"))
    assert desk.cycle().granted == 0
    desk.submit(a_job_spec("brief", timeouts=BRIEF))
    assert desk.cycle().granted == 1
    assert desk.reserved(lease.runner_id)["slots"] == 2


def test_the_large_job_gets_its_room_as_soon_as_it_is_free_and_the_hold_is_gone(
    desk: Desk,
) -> None:
    lease = begin(desk)
    desk.submit(a_job_spec("long"))
    desk.complete(lease)
    desk.cycle()
    (taken,) = desk.leases(state="offered")
    assert desk.row(tables.jobs, taken.job_id)["name"] == "big"
    assert taken.job_id not in {row["job_id"] for row in desk.rows(tables.held_room)}


def test_a_plan_made_before_the_room_was_held_does_not_get_it(desk: Desk) -> None:
    registered = desk.register(total=TOTAL, headroom=NOTHING)
    desk.submit(a_job_spec("first"))
    desk.cycle()
    desk.submit(a_job_spec("rival"))
    stale = desk.plan()
    desk.submit(BIG)
    with read(desk.engine) as connection:
        seen = snapshot.load(connection, PARTITION, POLICY)
    big = [job for job in seen.jobs if job.name == "big"]
    desk.plan(place.plan(replace(seen, jobs=tuple(big)), POLICY))
    outcome = desk.commit(stale)
    assert [verdict for _, verdict in outcome.verdicts] == ["no_capacity"]
    assert desk.reserved(registered.runner_id)["slots"] == 1


def test_a_hold_counts_for_nothing_once_its_job_is_cancelled(desk: Desk) -> None:
    begin(desk)
    (row,) = desk.rows(tables.held_room)
    run_id = desk.row(tables.jobs, row["job_id"])["run_id"]
    desk.change(runs.cancel_run, run_id, reason="x", actor="t", channel="test", policy=POLICY.lease)
    desk.submit(a_job_spec("long"))
    assert desk.cycle().granted == 1
    assert desk.rows(tables.held_room) == []


@pytest.mark.case("SP-005")
def test_room_on_a_runner_that_left_is_held_elsewhere(desk: Desk) -> None:
    lease = begin(desk)
    other = desk.register("runner-2", total=TOTAL, headroom=NOTHING)
    desk.overwrite(tables.runners, other.runner_id, reserved_slots=1)
    desk.overwrite(tables.runners, lease.runner_id, state="offline", session_id=None)
    desk.submit(a_job_spec("next"))
    desk.cycle()
    big = {row["runner_id"] for row in desk.rows(tables.held_room)}
    assert lease.runner_id not in big


def test_an_explanation_leaves_held_room_alone_as_the_plan_does(desk: Desk) -> None:
    begin(desk)
    run_id = desk.submit(a_job_spec("long"))
    (job,) = desk.rows(tables.jobs, run_id=run_id)
    with read(desk.engine) as connection:
        found, seen = snapshot.load_with(connection, job["job_id"], POLICY)
    verdict = place.plan(seen, POLICY)
    assert verdict.decisions == ()
    assert [room.kind for room in seen.held_room] == ["backfill"]
    assert found.name == "long"
