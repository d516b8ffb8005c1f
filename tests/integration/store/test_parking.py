"""Classes that no runner can serve: parked in one row, and looked at again when that may change."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.model.capability import TrustClass
from forgeyard.model.job import Priority, Timeouts
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.protocol import Report
from forgeyard.model.transitions import JobState
from forgeyard.model.units import GIB, Millis, Resources
from forgeyard.scheduler import doctor, place
from forgeyard.scheduler.snapshot import Snapshot
from forgeyard.store import (
    bulk,
    figures,
    generations,
    parked_classes,
    policies,
    runners,
    snapshot,
    symptoms,
    tables,
    views,
)
from forgeyard.store.engine import read, write
from tests.builders import PARTITION, a_job_spec, some_capabilities, some_resources
from tests.leasing import POLICY, Desk

pytestmark = pytest.mark.integration
HUGE = some_resources(memory=64 * GIB)
MINUTE = 60_000


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def seen(desk: Desk) -> Snapshot:
    with read(desk.engine) as connection:
        return snapshot.load(connection, PARTITION, desk.policy)


def waiting(desk: Desk, run_id: str, name: str) -> str | None:
    with read(desk.engine) as connection:
        shown = views.run(connection, run_id)
    return next(job.waiting for job in shown.jobs if job.name == name)


def multiply(desk: Desk, run_id: str, copies: int) -> None:
    """Make many more eligible jobs like the one of a run."""
    (row,) = desk.rows(tables.jobs, run_id=run_id)
    rows = [{**row, "job_id": f"job_copy_{n}", "name": f"copy-{n}"} for n in range(copies)]
    for first in range(0, copies, 2_000):
        with write(desk.engine) as connection:
            bulk.insert(connection, tables.jobs, rows[first : first + 2_000])


@contextmanager
def writes(desk: Desk, table: str) -> Iterator[list[int]]:
    """Count the rows of a table that are updated or inserted within the block."""
    counted: list[int] = []

    def note(_connection: object, cursor: object, statement: str, *_more: object) -> None:
        if statement.startswith((f"UPDATE {table} ", f"INSERT INTO {table} ")):
            counted.append(int(getattr(cursor, "rowcount", 0)))

    sa.event.listen(desk.engine, "after_cursor_execute", note)
    yield counted
    sa.event.remove(desk.engine, "after_cursor_execute", note)


@pytest.mark.case("SP-017")
@pytest.mark.requirement("DIA-017", "DIA-018", "FAR-032", "ACC-021")
def test_twenty_thousand_impossible_jobs_cost_one_row(desk: Desk) -> None:
    desk.register()
    desk.register("runner-2")
    desk.register("runner-3")
    multiply(desk, desk.submit(a_job_spec("huge", resources=HUGE)), 20_000 - 1)
    desk.submit(*(a_job_spec(f"small-{n}") for n in range(10)))
    with writes(desk, "jobs") as written, writes(desk, "parked_classes") as parked:
        assert desk.cycle().granted == 10
        assert sum(parked) == 1
        grants = sum(written)
        for _ in range(99):
            now = seen(desk)
            assert (now.jobs, now.waiting, now.parked) == ((), 20_000, 20_000)
            desk.plan(place.plan(now, desk.policy))
    assert sum(written) == grants
    assert sum(parked) == 1
    (row,) = desk.rows(tables.parked_classes)
    assert "64 GiB" in json.loads(row["diagnosis"])["sentence"]
    states = {row["state"] for row in desk.rows(tables.jobs, diagnosis=None)}
    assert JobState.ELIGIBLE in states


@pytest.mark.requirement("DIA-005", "DIA-006", "DIA-007", "DIA-008", "ACC-021")
def test_a_parked_job_stays_eligible_and_says_why(desk: Desk) -> None:
    desk.register()
    run_id = desk.submit(a_job_spec("huge", resources=HUGE))
    desk.cycle()
    assert waiting(desk, run_id, "huge") == (
        "The only registered runner can never run this job:"
        " it needs 64 GiB of memory, but runner-1 has 8 GiB."
    )
    (row,) = desk.rows(tables.jobs, run_id=run_id)
    assert (row["state"], row["diagnosis"]) == (JobState.ELIGIBLE, None)


def grow(desk: Desk) -> None:
    desk.register(total=some_resources(cpu=4_000, memory=80 * GIB, disk=50 * GIB, slots=4))


def shed_headroom(desk: Desk) -> None:
    total = some_resources(cpu=4_000, memory=80 * GIB, disk=50 * GIB, slots=4)
    desk.register(total=total, headroom=some_resources(memory=80 * GIB))
    desk.cycle()
    assert seen(desk).parked == 1
    desk.register(total=total)


def another(desk: Desk) -> None:
    desk.register("runner-2")


def learn(desk: Desk) -> None:
    desk.register(capabilities=some_capabilities(os_version="13"))


def gain_trust(desk: Desk) -> None:
    desk.register(capabilities=some_capabilities(trust=TrustClass.UNTRUSTED_GENERAL))


def report_anew(desk: Desk) -> None:
    (row,) = desk.rows(tables.sessions, state="open")
    report = Report(
        capabilities=some_capabilities(),
        total=some_resources(cpu=4_000, memory=80 * GIB, disk=50 * GIB, slots=4),
        headroom=Resources(),
    )
    desk.heartbeat(row["session_id"], report=report)


def set_policy(desk: Desk) -> None:
    desk.change(
        policies.set_policy,
        SchedulingPolicy(candidates=1),
        expected_version=0,
        actor="ann",
        channel="test",
        reason="less",
        built_in=desk.policy,
    )


@pytest.mark.requirement("FAR-033")
@pytest.mark.parametrize(
    "change", [grow, shed_headroom, another, learn, gain_trust, report_anew, set_policy]
)
def test_whatever_may_turn_a_never_into_a_yes_has_it_looked_at_again(
    desk: Desk, change: Callable[[Desk], None]
) -> None:
    desk.register()
    desk.submit(a_job_spec("huge", resources=HUGE))
    desk.cycle()
    assert (seen(desk).jobs, seen(desk).parked) == ((), 1)
    change(desk)
    assert ([job.name for job in seen(desk).jobs], seen(desk).parked) == (["huge"], 0)


@pytest.mark.case("SP-014")
def test_a_job_whose_only_runner_was_draining_is_placed_once_it_is_not(desk: Desk) -> None:
    desk.register()
    desk.change(runners.drain, "runner-1", reason="so", actor="ann", channel="test")
    desk.submit(a_job_spec("patient"))
    assert desk.cycle().granted == 0
    assert seen(desk).parked == 0
    before = desk.wakes()
    desk.change(runners.undrain, "runner-1", reason="so", actor="ann", channel="test")
    assert desk.wakes() == before + 1
    assert desk.cycle().granted == 1


@pytest.mark.case("SP-039")
@pytest.mark.requirement("FAR-036")
def test_heartbeats_that_say_nothing_new_wake_nobody(desk: Desk) -> None:
    lease = desk.active(a_job_spec("done"))
    desk.complete(lease)
    desk.submit(a_job_spec("huge", resources=HUGE))
    desk.cycle()
    before, generation = desk.wakes(), seen(desk).generation
    for _ in range(200):
        desk.heartbeat(lease.session_id)
    assert (desk.wakes(), seen(desk).generation) == (before, generation)


def test_a_runner_that_has_grown_takes_the_job(desk: Desk) -> None:
    desk.register()
    desk.submit(a_job_spec("huge", resources=HUGE))
    assert desk.cycle().granted == 0
    grow(desk)
    assert desk.cycle().granted == 1


@pytest.mark.case("SP-038")
def test_a_runner_that_flaps_has_no_parked_job_looked_at(desk: Desk) -> None:
    desk.register()
    multiply(desk, desk.submit(a_job_spec("huge", resources=HUGE)), 999)
    desk.cycle()
    with writes(desk, "jobs") as written, writes(desk, "parked_classes") as parked:
        for _ in range(100):
            desk.register()
            now = seen(desk)
            assert (now.jobs, now.parked) == ((), 1_000)
            desk.plan(place.plan(now, desk.policy))
    assert (written, parked) == ([], [])


def test_a_fleet_that_changed_while_a_plan_was_made_is_not_judged_by_it(desk: Desk) -> None:
    desk.register()
    desk.submit(a_job_spec("huge", resources=HUGE))
    made = place.plan(seen(desk), desk.policy)
    desk.change(generations.bump)
    desk.plan(made)
    assert desk.rows(tables.parked_classes) == []
    assert len(seen(desk).jobs) == 1


def test_what_depends_on_one_job_alone_parks_no_class(desk: Desk) -> None:
    """A runner that has just refused a job, or is away, may take it later."""
    lease = desk.offered(a_job_spec("shy"))
    desk.reject(lease)
    made = place.plan(seen(desk), desk.policy)
    assert [one.code for one in made.diagnoses] == ["RECENTLY_REFUSED"]
    assert not made.hopeless
    until = desk.rows(tables.refusals)[0]["until_at"]
    assert made.wake_at == until


def test_a_class_keeps_the_instant_since_when_it_is_parked(desk: Desk) -> None:
    desk.register()
    desk.submit(a_job_spec("huge", resources=HUGE))
    desk.cycle()
    with write(desk.engine) as connection:
        connection.execute(sa.update(tables.parked_classes).values(since_at=7))
    another(desk)
    desk.cycle()
    (row,) = desk.rows(tables.parked_classes)
    assert (row["since_at"], row["generation"]) == (7, 2)
    assert "None of the 2" in json.loads(row["diagnosis"])["sentence"]


def test_a_class_of_which_no_job_waits_is_forgotten(desk: Desk) -> None:
    desk.register()
    desk.submit(a_job_spec("huge", resources=HUGE))
    desk.cycle()
    assert desk.change(parked_classes.forget) == 0
    (row,) = desk.rows(tables.jobs)
    desk.overwrite(tables.jobs, row["job_id"], state=JobState.CANCELLED.value)
    assert desk.change(parked_classes.forget) == 1


def patient(minutes: int) -> Timeouts:
    return Timeouts(queue=Millis(minutes * MINUTE))


def wait(desk: Desk, minutes: float) -> None:
    """Let time pass for what waits and for the class it belongs to."""
    passed = int(minutes * MINUTE)
    desk.later(passed)
    jobs, parked = tables.jobs, tables.parked_classes
    with write(desk.engine) as connection:
        connection.execute(sa.update(jobs).values(eligible_at=jobs.c.eligible_at - passed))
        connection.execute(
            sa.update(parked).values(
                since_at=parked.c.since_at - passed, until_at=parked.c.until_at - passed
            )
        )


def allowing(desk: Desk, minutes: int) -> Desk:
    desk.policy = replace(desk.policy, cold_start_allowance=Millis(minutes * MINUTE))
    return desk


@pytest.mark.case("SP-067")
@pytest.mark.requirement("FAR-016", "ACC-020")
def test_a_job_that_no_runner_can_take_ends_with_the_reason(desk: Desk) -> None:
    run_id = desk.submit(a_job_spec("lost", timeouts=patient(1)))
    desk.cycle()
    wait(desk, 61 / 60)
    desk.sweep()
    (job,) = desk.rows(tables.jobs, run_id=run_id)
    assert (job["state"], job["failure_class"]) == (JobState.TIMED_OUT, "timeout")
    assert job["message"] == (
        "QueueTimeout: no runner took it within its queue timeout of 1m."
        " No runner is registered; start one with `forgeyard agent`"
    )


@pytest.mark.case("SP-067", "SP-079")
@pytest.mark.requirement("DEM-006")
def test_time_without_any_runner_does_not_count_up_to_the_allowance(desk: Desk) -> None:
    desk = allowing(desk, 3)
    run_id = desk.submit(a_job_spec("early", timeouts=patient(2)))
    desk.cycle()
    wait(desk, 2.5)
    desk.sweep()
    (job,) = desk.rows(tables.jobs, run_id=run_id)
    assert job["state"] == JobState.ELIGIBLE
    wait(desk, 2.6)
    desk.sweep()
    (job,) = desk.rows(tables.jobs, run_id=run_id)
    assert job["state"] == JobState.TIMED_OUT
    assert "of 2m, of which 3m were not counted" in job["message"]


@pytest.mark.case("SP-079")
def test_a_job_whose_runner_was_cold_for_longer_than_its_timeout_is_placed(desk: Desk) -> None:
    desk = allowing(desk, 3)
    desk.submit(a_job_spec("early", timeouts=patient(2)))
    desk.cycle()
    wait(desk, 175 / 60)
    desk.sweep()
    desk.register()
    assert desk.cycle().granted == 1


def test_what_did_not_count_is_remembered_when_a_runner_has_come(desk: Desk) -> None:
    desk = allowing(desk, 3)
    run_id = desk.submit(a_job_spec("early", timeouts=patient(2)))
    desk.cycle()
    wait(desk, 1)
    desk.register(total=some_resources(slots=1))
    desk.submit(a_job_spec("urgent", priority=Priority.HIGH))
    assert desk.cycle().granted == 1
    assert desk.rows(tables.parked_classes)[0]["until_at"] is not None
    wait(desk, 1.5)
    desk.sweep()
    (job,) = desk.rows(tables.jobs, run_id=run_id)
    assert job["state"] == JobState.ELIGIBLE
    wait(desk, 1)
    desk.sweep()
    assert desk.row(tables.jobs, job["job_id"])["state"] == JobState.TIMED_OUT


def test_whoever_looks_from_outside_still_sees_parked_jobs(desk: Desk) -> None:
    """The doctor names them, and figures count them, although no cycle loads them."""
    desk.register()
    multiply(desk, desk.submit(a_job_spec("huge", resources=HUGE)), 4)
    desk.cycle()
    assert seen(desk).jobs == ()
    with read(desk.engine) as connection:
        found = figures.read_figures(connection, PARTITION)
        checks = doctor.examine(symptoms.read_symptoms(connection, PARTITION, POLICY), POLICY)
    assert found.unschedulable["INSUFFICIENT_MEMORY"] == 5
    assert sum(found.unschedulable.values()) == 5
    assert any("Waiting in vain: 5 jobs like" in check.sentence for check in checks)
