"""Public bug reports of other schedulers, re-created against real databases."""

import json
from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.model.capability import Platform, Requirements
from forgeyard.model.job import FailureClass, Priority, RetryPolicy, Timeouts
from forgeyard.model.policy import BackfillPolicy, SchedulingPolicy
from forgeyard.model.protocol import CompletionVerdict, Outcome
from forgeyard.model.units import Millis
from forgeyard.model.wishes import Wishes
from forgeyard.scheduler.grant import Verdict
from forgeyard.store import runners, runs, snapshot, tables
from forgeyard.store.engine import read
from tests.builders import PARTITION, a_job_spec, some_resources
from tests.integration.store.test_commit import a_plan
from tests.integration.store.test_commit_races import at_once
from tests.leasing import HOUR, Desk

pytestmark = pytest.mark.integration
SECRETIVE = Wishes(keys=("staging",))


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def room_for(jobs: int) -> dict[str, object]:
    return {"total": some_resources(cpu=500 * jobs, memory=2**40, disk=2**40, slots=jobs)}


def several(count: int, **changed: object) -> list[object]:
    return [a_job_spec(f"job-{number:02}", **changed) for number in range(count)]


def cancel(desk: Desk, run_id: str) -> None:
    desk.change(
        runs.cancel_run, run_id, reason="no", actor="a", channel="test", policy=desk.policy.lease
    )


def state(desk: Desk, run_id: str) -> str:
    (job,) = desk.rows(tables.jobs, run_id=run_id)
    return str(job["state"])


# Several schedulers, one truth


@pytest.mark.requirement("ACC-010", "INV-010", "INV-027", "INV-038", "RCN-028")
@pytest.mark.case("SP-002")
def test_of_two_schedulers_that_saw_one_free_slot_one_gets_it_and_one_asks_elsewhere(
    desk: Desk,
) -> None:
    contended = desk.register("runner-1", **room_for(1)).runner_id
    spare = desk.register("runner-2", **room_for(1)).runner_id
    cycles = []
    for _ in range(3):
        run_id = desk.submit()
        (job,) = desk.rows(tables.jobs, run_id=run_id)
        cycles.append(desk.plan(a_plan((job["job_id"], [contended, spare]))))
    outcomes = at_once([lambda cycle_id=it: desk.commit(cycle_id) for it in cycles])
    verdicts = sorted(verdict for outcome in outcomes for _, verdict in outcome.verdicts)
    assert verdicts == [Verdict.GRANTED, Verdict.GRANTED, Verdict.NO_CAPACITY]
    assert {lease.runner_id for lease in desk.leases()} == {contended, spare}
    assert [desk.reserved(it)["slots"] for it in (contended, spare)] == [1, 1]
    assert desk.cycle().granted == 0, "the third waits, and nothing is given away twice"


@pytest.mark.requirement("LSE-009", "INV-005", "LSE-007", "RCN-027")
@pytest.mark.case("SP-035")
def test_ten_plans_from_one_view_are_each_checked_again_and_what_is_refused_waits_on(
    desk: Desk,
) -> None:
    runner_id = desk.register(**room_for(4)).runner_id
    run_id = desk.submit(*several(10))
    jobs = sorted(row["job_id"] for row in desk.rows(tables.jobs, run_id=run_id))
    plans = [desk.plan(a_plan((job_id, [runner_id]))) for job_id in jobs]
    verdicts = [verdict for cycle in plans for _, verdict in desk.commit(cycle).verdicts]
    assert verdicts == [Verdict.GRANTED] * 4 + [Verdict.NO_CAPACITY] * 6
    assert desk.reserved(runner_id)["slots"] == 4
    waiting = [row for row in desk.rows(tables.jobs, run_id=run_id) if row["state"] == "eligible"]
    assert len(waiting) == 6
    for lease in desk.leases(state="offered"):
        desk.accept(lease)
        desk.complete(lease)
    assert desk.cycle().granted == 4


@pytest.mark.case("SP-032")
def test_a_runner_that_turned_out_full_is_not_planned_for_again_until_it_has_room(
    desk: Desk,
) -> None:
    runner_id = desk.register(**room_for(1)).runner_id
    desk.submit()
    stale = desk.plan()
    urgent = desk.submit()
    (job,) = desk.rows(tables.jobs, run_id=urgent)
    assert desk.commit(desk.plan(a_plan((job["job_id"], [runner_id])))).granted == 1
    assert [verdict for _, verdict in desk.commit(stale).verdicts] == [Verdict.NO_CAPACITY]
    again = desk.plan()
    assert desk.rows(tables.placements, cycle_id=again) == []
    (lease,) = desk.leases()
    desk.accept(lease)
    desk.complete(lease)
    assert desk.cycle().granted == 1


@pytest.mark.requirement("ELG-041")
@pytest.mark.case("SP-070")
def test_a_quota_counts_what_runs_whatever_order_commits_come_in(desk: Desk) -> None:
    desk.register(**room_for(10))
    desk.overwrite(tables.scopes, "tnt_default", max_jobs=2)
    runs_of = [desk.submit(*several(2)) for _ in range(4)]
    runner_id = desk.rows(tables.runners)[0]["runner_id"]
    cycles = [
        desk.plan(
            a_plan(*((row["job_id"], [runner_id]) for row in desk.rows(tables.jobs, run_id=run_id)))
        )
        for run_id in runs_of
    ]
    outcomes = at_once([lambda cycle_id=it: desk.commit(cycle_id) for it in reversed(cycles)])
    assert sum(outcome.granted for outcome in outcomes) == 2
    assert len(desk.leases()) == 2


# What is reserved


@pytest.mark.requirement("INV-009", "INV-028")
@pytest.mark.case("SP-007")
def test_an_identical_job_takes_the_room_of_one_that_finished(desk: Desk) -> None:
    runner_id = desk.register(**room_for(1)).runner_id
    for _ in range(3):
        desk.submit()
        assert desk.cycle().granted == 1
        (lease,) = desk.leases(state="offered")
        assert desk.reserved(runner_id)["slots"] == 1
        desk.accept(lease)
        assert desk.complete(lease) is CompletionVerdict.ACCEPTED
        assert desk.reserved(runner_id)["slots"] == 0
        with read(desk.engine) as connection:
            (seen,) = snapshot.load(connection, PARTITION, desk.policy).runners
        assert seen.free == seen.allocatable


@pytest.mark.case("SP-005")
def test_a_runner_that_comes_back_under_its_name_holds_nothing_of_before(desk: Desk) -> None:
    before = desk.register(**room_for(1))
    doomed = desk.submit()
    assert desk.cycle().granted == 1
    cancel(desk, doomed)
    desk.change(runners.close, before.session_id, policy=desk.policy.lease)
    waiting = desk.submit()
    assert desk.cycle().granted == 0
    after = desk.register(**room_for(1))
    assert after.session_id != before.session_id
    assert desk.reserved(after.runner_id)["slots"] == 0
    assert desk.cycle().granted == 1
    assert state(desk, waiting) == "leased"


@pytest.mark.requirement("INV-041", "INV-018")
@pytest.mark.case("SP-061")
def test_what_a_lost_report_left_behind_is_given_back_once(desk: Desk) -> None:
    lease = desk.active()
    desk.later(HOUR)
    desk.sweep()
    assert desk.reserved(lease.runner_id)["slots"] == 0
    assert desk.complete(lease) is CompletionVerdict.STALE_REJECTED
    desk.sweep()
    desk.settle(lease)
    assert desk.reserved(lease.runner_id)["slots"] == 0
    assert desk.rows(tables.reservations) == []
    desk.register()
    assert desk.cycle().granted == 1


@pytest.mark.requirement("INV-043", "INV-020")
@pytest.mark.case("SP-092")
def test_without_room_no_attempt_is_made_and_the_job_stays_eligible(desk: Desk) -> None:
    desk.register(**room_for(1))
    desk.submit()
    assert desk.cycle().granted == 1
    waiting = desk.submit()
    for _ in range(3):
        assert desk.cycle().granted == 0
    assert state(desk, waiting) == "eligible"
    assert len(desk.rows(tables.attempts)) == 1


# Leases


@pytest.mark.requirement("ACC-027", "INV-017", "GAT-006")
@pytest.mark.case("SP-062")
def test_an_offer_that_never_reached_its_runner_is_made_again_as_a_new_attempt(desk: Desk) -> None:
    lease = desk.offered()
    desk.register("runner-2")
    desk.overwrite(tables.runners, lease.runner_id, state="offline", session_id=None)
    desk.later(desk.policy.lease.offer_ttl + 1)
    desk.sweep()
    assert desk.row(tables.jobs, lease.job_id)["state"] == "eligible"
    assert desk.cycle().granted == 1
    first, second = sorted(desk.rows(tables.attempts), key=lambda row: row["number"])
    assert (first["number"], second["number"]) == (1, 2)
    (again,) = desk.leases(state="offered")
    assert again.runner_id != lease.runner_id
    assert again.epoch == lease.epoch + 1


@pytest.mark.case("SP-063")
def test_a_job_that_kills_every_runner_ends_with_its_budget_and_a_history(desk: Desk) -> None:
    retry = RetryPolicy(max_attempts=3)
    run_id = desk.submit(a_job_spec(retry=retry))
    for number in range(retry.max_attempts):
        desk.register(f"runner-{number}")
        assert desk.cycle().granted == 1
        (lease,) = desk.leases(state="offered")
        desk.accept(lease)
        desk.later(HOUR)
        desk.sweep()
        desk.settle(lease)
    assert state(desk, run_id) == "failed"
    (job,) = desk.rows(tables.jobs, run_id=run_id)
    assert job["failure_class"] == FailureClass.RUNNER_LOST
    assert [row["state"] for row in desk.rows(tables.attempts)] == ["lost"] * 3
    told = desk.rows(tables.history, entity_id=job["job_id"])
    assert [row["after"] for row in told].count("lost") == 3
    desk.register("runner-9")
    assert desk.cycle().granted == 0


@pytest.mark.case("SP-078")
def test_offers_that_come_to_nothing_make_a_large_job_no_younger_and_its_room_is_kept(
    engine: sa.Engine,
) -> None:
    desk = Desk(engine, SchedulingPolicy(backfill=BackfillPolicy(after=Millis(0))))
    large = some_resources(cpu=2_000, slots=4)
    desk.register(total=some_resources(cpu=2_000, memory=2**40, disk=2**40, slots=4))
    run_id = desk.submit(a_job_spec("large", resources=large))
    (job,) = desk.rows(tables.jobs, run_id=run_id)
    for _ in range(3):
        assert desk.cycle().granted == 1
        desk.later(desk.policy.lease.offer_ttl + 1)
        desk.sweep()
        (again,) = desk.rows(tables.jobs, run_id=run_id)
        assert (again["state"], again["eligible_at"]) == ("eligible", job["eligible_at"])
        desk.later(desk.policy.lease.refusal_memory + 1)
        desk.heartbeat(desk.rows(tables.sessions)[0]["session_id"])
    small = a_job_spec("small", priority=Priority.HIGH)
    desk.submit(small)
    assert desk.cycle().granted == 1, "the more urgent one is first, once"
    desk.submit(small)
    assert desk.cycle().granted == 0
    (held,) = desk.rows(tables.held_room)
    assert held["job_id"] == job["job_id"]


# Wakes


@pytest.mark.case("SP-039")
def test_heartbeats_that_say_nothing_new_wake_nobody(desk: Desk) -> None:
    lease = desk.active()
    desk.complete(lease)
    desk.submit(a_job_spec(resources=some_resources(cpu=64_000)))
    wakes = desk.wakes()
    for _ in range(100):
        desk.heartbeat(lease.session_id)
    assert desk.wakes() == wakes


@pytest.mark.requirement("FAR-033")
@pytest.mark.case("SP-014")
def test_a_runner_that_drains_no_more_wakes_who_waited_for_it(desk: Desk) -> None:
    registered = desk.register()
    names = {"actor": "ann", "channel": "test"}
    desk.change(runners.drain, "runner-1", reason="new disk", **names)
    desk.heartbeat(registered.session_id)
    desk.submit()
    assert desk.cycle().granted == 0
    wakes = desk.wakes()
    desk.change(runners.undrain, "runner-1", reason="done", **names)
    desk.heartbeat(registered.session_id)
    assert desk.wakes() > wakes
    assert desk.cycle().granted == 1


@pytest.mark.case("SP-040")
def test_a_job_that_waited_for_room_goes_on_although_its_project_has_a_quota(desk: Desk) -> None:
    desk.register(**room_for(1))
    desk.overwrite(tables.scopes, "prj_default", max_jobs=5)
    desk.submit()
    assert desk.cycle().granted == 1
    (first,) = desk.leases()
    desk.accept(first)
    waiting = desk.submit()
    assert desk.cycle().granted == 0
    wakes = desk.wakes()
    desk.complete(first)
    assert desk.wakes() == wakes + 1
    assert desk.cycle().granted == 1
    assert state(desk, waiting) == "leased"


# Keys


@pytest.mark.case("SP-072")
def test_two_schedulers_give_one_key_to_one_job(desk: Desk) -> None:
    runner_id = desk.register().runner_id
    cycles = []
    for _ in range(2):
        run_id = desk.submit(a_job_spec(wishes=SECRETIVE))
        (job,) = desk.rows(tables.jobs, run_id=run_id)
        cycles.append(desk.plan(a_plan((job["job_id"], [runner_id]))))
    outcomes = at_once([lambda cycle_id=it: desk.commit(cycle_id) for it in cycles])
    verdicts = sorted(verdict for outcome in outcomes for _, verdict in outcome.verdicts)
    assert verdicts == [Verdict.GRANTED, Verdict.KEY_CONTENDED]
    assert len(desk.leases()) == 1


@pytest.mark.case("SP-015")
def test_who_waits_for_a_key_is_woken_when_its_holder_is_cancelled_before_it_starts(
    desk: Desk,
) -> None:
    desk.register()
    holder = desk.submit(a_job_spec(wishes=SECRETIVE))
    assert desk.cycle().granted == 1
    waiting = desk.submit(a_job_spec(wishes=SECRETIVE))
    assert desk.cycle().granted == 0
    wakes = desk.wakes()
    cancel(desk, holder)
    assert desk.wakes() > wakes
    assert desk.cycle().granted == 1
    assert state(desk, waiting) == "leased"


@pytest.mark.case("SP-073")
def test_a_job_that_is_tried_again_later_keeps_no_key_meanwhile(desk: Desk) -> None:
    retry = RetryPolicy(on=(FailureClass.USER_COMMAND,), delay=Millis(HOUR))
    lease = desk.active(a_job_spec(wishes=SECRETIVE, retry=retry))
    desk.complete(lease, Outcome.FAILED, failure_class=FailureClass.USER_COMMAND)
    desk.settle(lease)
    assert desk.row(tables.jobs, lease.job_id)["state"] == "retry_waiting"
    ready = desk.submit(a_job_spec(wishes=SECRETIVE))
    assert desk.cycle().granted == 1
    assert state(desk, ready) == "leased"


@pytest.mark.case("SP-090")
def test_a_job_that_waits_for_another_does_not_keep_the_key_that_the_other_needs(
    desk: Desk,
) -> None:
    retry = RetryPolicy(on=(FailureClass.USER_COMMAND,))
    first = a_job_spec("first", wishes=SECRETIVE, retry=retry)
    second = a_job_spec("second", wishes=SECRETIVE, needs=("first",))
    lease = desk.active(first, second)
    desk.complete(lease, Outcome.FAILED, failure_class=FailureClass.USER_COMMAND)
    desk.settle(lease)
    assert desk.cycle().granted == 1
    (again,) = desk.leases(state="offered")
    assert again.job_id == lease.job_id
    desk.accept(again)
    desk.complete(again)
    assert desk.cycle().granted == 1


# What runs is left alone, and what cannot run says so


@pytest.mark.requirement("INV-035")
def test_nothing_is_stopped_for_somebody_more_urgent_unless_it_was_asked_for(desk: Desk) -> None:
    desk.register(**room_for(1))
    desk.submit(a_job_spec(priority=Priority.LOW))
    assert desk.cycle().granted == 1
    (lease,) = desk.leases()
    desk.accept(lease)
    urgent = desk.submit(a_job_spec(priority=Priority.EMERGENCY), elevation="it burns")
    assert desk.cycle().granted == 0
    assert desk.states(lease) == ("active", "preparing", "preparing")
    assert desk.row(tables.leases, lease.lease_id)["cancel_requested"] == 0
    assert state(desk, urgent) == "eligible"


@pytest.mark.requirement("ACC-020", "ACC-021", "DIA-005", "GAT-009")
def test_a_job_that_no_runner_can_do_stays_eligible_with_a_reason_until_its_time_is_up(
    desk: Desk,
) -> None:
    desk.register()
    mac = Requirements(platform=Platform.MACOS)
    run_id = desk.submit(a_job_spec(requires=mac, timeouts=Timeouts(queue=Millis(HOUR))))
    for _ in range(2):
        assert desk.cycle().granted == 0
        (job,) = desk.rows(tables.jobs, run_id=run_id)
        assert job["state"] == "eligible"
        (parked,) = desk.rows(tables.parked_classes)
        assert parked["requirement_class"] == job["requirement_class"]
        assert json.loads(parked["diagnosis"])["code"] == "NO_MATCHING_PLATFORM"
    desk.later(HOUR + 1)
    desk.sweep()
    (job,) = desk.rows(tables.jobs, run_id=run_id)
    assert job["state"] == "timed_out"
    last = desk.rows(tables.history, entity_id=job["job_id"])[-1]
    assert "no runner" in f"{last['reason']} {job['message']}"


@pytest.mark.requirement("RES-011", "ACC-009", "INV-026", "GAT-002")
def test_a_commit_that_breaks_in_the_middle_leaves_neither_lease_nor_reservation(
    desk: Desk,
) -> None:
    runner_id = desk.register().runner_id
    run_id = desk.submit()
    cycle_id = desk.plan()
    (placement,) = desk.rows(tables.placements, cycle_id=cycle_id)
    in_the_way = {"event_id": "evt_in_the_way", "stream": placement["attempt_id"], "sequence": 1}
    others = {"kind": "lease.granted", "payload": "{}", "created_at": 0}
    desk.change(
        lambda connection: connection.execute(sa.insert(tables.outbox), [in_the_way | others])
    )
    with pytest.raises(sa.exc.IntegrityError):
        desk.commit(cycle_id)
    assert (desk.rows(tables.leases), desk.rows(tables.attempts)) == ([], [])
    assert desk.row(tables.runners, runner_id)["reserved_slots"] == 0
    assert state(desk, run_id) == "eligible"
    assert desk.cycle().granted == 1


@pytest.mark.requirement("FAR-038")
def test_a_better_runner_takes_nothing_away_from_the_one_that_works(desk: Desk) -> None:
    lease = desk.active()
    desk.submit()
    assert desk.cycle().granted == 1
    before = desk.rows(tables.leases)
    desk.register("runner-2", total=some_resources(cpu=64_000, memory=2**40, disk=2**40, slots=64))
    assert desk.cycle().granted == 0
    assert desk.rows(tables.leases) == before
    assert desk.states(lease) == ("active", "preparing", "preparing")


# Locks


@pytest.mark.case("SP-087")
def test_planning_holds_no_lock_that_a_commit_waits_for(engine: sa.Engine) -> None:
    policy = Desk(engine).policy
    desk = Desk(engine, replace(policy, batch=5))
    desk.register(**room_for(20))
    desk.submit(*several(20))
    with read(engine) as connection:
        snapshot.load(connection, PARTITION, desk.policy)
        if engine.dialect.name == "postgresql":
            held = connection.execute(
                sa.text("SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation > 0")
            )
            assert set(held.scalars()) == {"AccessShareLock"}
        assert 0 < desk.cycle().granted <= 5, "a batch, and no more, while the reader goes on"
