"""Clearing a runner for an urgent job: victims are asked, the room is kept, nobody is charged."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.model.job import FailureClass, Priority, RetryPolicy
from forgeyard.model.policy import PreemptionPolicy, SchedulingPolicy
from forgeyard.model.protocol import Outcome, RenewalVerdict
from forgeyard.model.units import Bytes, MilliCpu, Resources
from forgeyard.model.wishes import Preemptibility, Wishes
from forgeyard.scheduler import place
from forgeyard.store import preemption, snapshot, tables
from forgeyard.store.engine import read
from tests.builders import PARTITION, a_job_spec
from tests.leasing import Desk, Lease

POLICY = SchedulingPolicy(preemption=PreemptionPolicy(enabled=1))
TOTAL = Resources(cpu=MilliCpu(1_000), memory=Bytes(8 * 2**30), disk=Bytes(8 * 2**30), slots=2)
VICTIM = a_job_spec(
    "nightly",
    wishes=Wishes(preemption=Preemptibility.RESTARTABLE),
    retry=RetryPolicy(max_attempts=1, on=()),
)
URGENT = a_job_spec(
    "hotfix",
    priority=Priority.EMERGENCY,
    resources=replace(VICTIM.resources, cpu=MilliCpu(1_000)),
)


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine, POLICY)


def clear(desk: Desk) -> list[bool]:
    """Do what the planning activity does with a plan's nominations."""
    with read(desk.engine) as connection:
        seen = snapshot.load(connection, PARTITION, POLICY)
    made = place.plan(seen, POLICY)
    desk.plan(made)
    return [
        desk.change(preemption.clear, nomination, PARTITION, policy=POLICY)
        for nomination in made.nominations
    ]


def two_victims(desk: Desk) -> list[Lease]:
    """Fill a runner with two restartable jobs: one runs, one is only offered."""
    registered = desk.register(total=TOTAL, headroom=Resources())
    desk.submit(VICTIM)
    desk.submit(VICTIM)
    assert desk.cycle().granted == 2
    running, offered = desk.leases(runner_id=registered.runner_id)
    desk.accept(running)
    return [running, offered]


@pytest.mark.requirement("PRE-001", "PRE-003", "PRE-005")
def test_a_running_victim_is_asked_to_stop_and_an_offered_one_ends_at_once(desk: Desk) -> None:
    running, offered = two_victims(desk)
    desk.submit(URGENT, elevation="production is down")
    assert clear(desk) == [True]
    assert desk.renew(running) is RenewalVerdict.CANCEL
    assert desk.states(offered) == ("revoked", "cancelled", "eligible")
    (held,) = desk.rows(tables.held_room)
    assert (held["kind"], held["runner_id"]) == ("nomination", running.runner_id)
    assert len(desk.audited("job.preempt")) == 1


@pytest.mark.case("SP-051")
def test_what_a_victim_leaves_is_kept_for_the_urgent_job(desk: Desk) -> None:
    running, _ = two_victims(desk)
    desk.submit(URGENT, elevation="production is down")
    clear(desk)
    desk.submit(a_job_spec("rival", priority=Priority.EMERGENCY), elevation="so is this")
    assert desk.cycle().granted == 0
    desk.complete(running, Outcome.CANCELLED)
    desk.settle(running)
    assert desk.cycle().granted == 1
    (granted,) = desk.leases(state="offered")
    assert desk.row(tables.jobs, granted.job_id)["name"] == "hotfix"


@pytest.mark.requirement("PRE-005")
@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.FAILED, Outcome.TIMED_OUT])
def test_a_victim_waits_again_uncharged_whatever_its_agent_calls_the_end(
    desk: Desk, outcome: Outcome
) -> None:
    running, _ = two_victims(desk)
    desk.submit(URGENT, elevation="production is down")
    clear(desk)
    desk.complete(running, outcome)
    assert "try again at once" in desk.settle(running).decision
    job = desk.row(tables.jobs, running.job_id)
    assert (job["state"], job["attempts_charged"]) == ("eligible", 0)
    attempt = desk.row(tables.attempts, running.attempt_id)
    assert attempt["failure_class"] == FailureClass.PREEMPTED


def test_a_victim_that_succeeds_before_it_stops_has_succeeded(desk: Desk) -> None:
    running, _ = two_victims(desk)
    desk.submit(URGENT, elevation="production is down")
    clear(desk)
    desk.complete(running)
    assert desk.states(running) == ("released", "succeeded", "succeeded")


@pytest.mark.case("SP-050")
def test_victims_are_left_alone_afterwards(desk: Desk) -> None:
    running, _ = two_victims(desk)
    desk.submit(URGENT, elevation="production is down")
    clear(desk)
    desk.complete(running, Outcome.CANCELLED)
    desk.settle(running)
    desk.cycle()
    (urgent,) = desk.leases(state="offered")
    desk.accept(urgent)
    desk.complete(urgent)
    assert desk.cycle().granted == 2
    desk.submit(URGENT, elevation="production is down")
    assert clear(desk) == []


def test_nothing_is_stopped_when_a_victim_has_ended_meanwhile(desk: Desk) -> None:
    running, offered = two_victims(desk)
    desk.submit(URGENT, elevation="production is down")
    with read(desk.engine) as connection:
        seen = snapshot.load(connection, PARTITION, POLICY)
    (nomination,) = place.plan(seen, POLICY).nominations
    desk.complete(running)
    assert not desk.change(preemption.clear, nomination, PARTITION, policy=POLICY)
    assert desk.states(offered)[0] == "offered"
    assert desk.rows(tables.held_room) == []


@pytest.mark.case("SP-012")
def test_a_nomination_lapses_and_another_runner_is_cleared(desk: Desk) -> None:
    running, offered = two_victims(desk)
    desk.submit(URGENT, elevation="production is down")
    clear(desk)
    desk.overwrite(tables.jobs, offered.job_id, preempted_at=None)
    (held,) = desk.rows(tables.held_room)
    desk.overwrite(tables.held_room, held["job_id"], deadline_at=1)
    desk.overwrite(tables.runners, running.runner_id, suspect=1)
    other = desk.register("runner-2", total=TOTAL, headroom=Resources())
    desk.submit(VICTIM, VICTIM.__class__(name="b", steps=VICTIM.steps, wishes=VICTIM.wishes))
    desk.overwrite(tables.jobs, held["job_id"], cancel_reason="held back for the test")
    assert desk.cycle().granted == 2
    desk.overwrite(tables.jobs, held["job_id"], cancel_reason=None)
    assert clear(desk) == [True]
    (row,) = desk.rows(tables.held_room)
    assert row["runner_id"] == other.runner_id


@pytest.mark.requirement("PRE-002", "INV-035")
def test_nobody_is_even_looked_at_while_policy_forbids_it(engine: sa.Engine) -> None:
    desk = Desk(engine)
    two_victims(desk)
    desk.submit(URGENT, elevation="production is down")
    with read(engine) as connection:
        assert snapshot.load(connection, PARTITION, desk.policy).running == ()
    assert desk.cycle().granted == 0
    assert desk.audited("job.preempt") == []
