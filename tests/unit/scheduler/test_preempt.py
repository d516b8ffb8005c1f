from dataclasses import replace

import pytest

from forgeyard.model.job import Priority
from forgeyard.model.policy import PreemptionPolicy, SchedulingPolicy
from forgeyard.model.wishes import Preemptibility
from forgeyard.scheduler.holds import HeldRoom, HoldKind
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.preempt import Nomination, nominate
from forgeyard.scheduler.snapshot import RunningJob, SchedulingJob, Snapshot
from tests.scheduling import MINUTE, NOW, a_job, a_runner, a_snapshot, amounts

ON = PreemptionPolicy(enabled=1)
URGENT = a_job("urgent", priority=Priority.EMERGENCY, resources=amounts(cpu=2_000, slots=2))
NOTHING = amounts(cpu=0, memory_gib=9, disk_gib=9, slots=0)


def running(name: str, runner: str = "a", **changed: object) -> RunningJob:
    one = RunningJob(
        lease_id=f"lse_{name}",
        job_id=f"job_{name}",
        runner_id=f"rnr_{runner}",
        resources=amounts(),
        preemption=Preemptibility.RESTARTABLE,
        since=NOW - MINUTE,
    )
    return replace(one, **changed)


def chosen(*members: RunningJob, policy: PreemptionPolicy = ON) -> Nomination | None:
    free = {one.runner_id: NOTHING for one in members}
    return nominate(URGENT, free=free, running=members, policy=policy, now=NOW)


@pytest.mark.requirement("PRE-003", "PRE-007")
def test_the_runner_where_stopping_wastes_least_is_cleared() -> None:
    old = [running("o1", since=NOW - 60 * MINUTE), running("o2", since=NOW - 60 * MINUTE)]
    young = [running("y1", "b"), running("y2", "b")]
    found = chosen(*old, *young)
    assert found is not None
    assert (found.runner_id, found.victims) == ("rnr_b", ("lse_y1", "lse_y2"))


def test_outputs_on_their_way_and_thrown_away_tries_make_a_victim_dear() -> None:
    pair = [running("a1"), running("a2", is_uploading=True)]
    other = [running("b1", "b"), running("b2", "b", attempts_made=3)]
    third = [running("c1", "c"), running("c2", "c")]
    found = chosen(*pair, *other, *third)
    assert found is not None
    assert found.runner_id == "rnr_c"


def test_nobody_is_stopped_whose_room_is_not_needed() -> None:
    large = running("large", resources=amounts(cpu=2_000, slots=2), since=NOW - 30 * MINUTE)
    found = chosen(running("s1"), large)
    assert found is not None
    assert found.victims == ("lse_large",)


@pytest.mark.requirement("PRE-004", "PRE-008")
@pytest.mark.parametrize(
    "changed",
    [
        {"preemption": Preemptibility.NEVER},
        {"priority": Priority.RELEASE_CRITICAL},
        {"is_stopping": True},
        {"preempted_at": NOW - MINUTE},
    ],
)
def test_whoever_may_not_be_stopped_is_left_alone(changed: dict[str, object]) -> None:
    assert chosen(running("a1"), running("a2")) is not None
    assert chosen(running("a1"), running("a2", **changed)) is None


@pytest.mark.case("SP-050")
def test_a_job_that_was_stopped_rests_before_it_may_be_stopped_again() -> None:
    rested = {"preempted_at": NOW - ON.rest}
    assert chosen(running("a1", **rested), running("a2", **rested)) is not None
    assert chosen(running("a1", preempted_at=NOW - ON.rest + 1), running("a2")) is None


def test_not_more_are_stopped_than_policy_says() -> None:
    assert chosen(running("a1"), running("a2"), policy=replace(ON, most_victims=1)) is None


def world(*jobs: SchedulingJob, held: tuple[HeldRoom, ...] = ()) -> Snapshot:
    full = a_runner("a", total=amounts(cpu=2_000, memory_gib=20, disk_gib=20, slots=2))
    full = replace(full, reserved=amounts(cpu=2_000, slots=2))
    return a_snapshot(jobs, [full], running=(running("a1"), running("a2")), held_room=held)


@pytest.mark.requirement("PRE-002", "INV-035")
def test_nothing_is_stopped_unless_policy_switches_it_on() -> None:
    assert plan(world(URGENT), SchedulingPolicy()).nominations == ()


def test_a_cycle_clears_a_runner_for_an_urgent_job_and_for_no_other() -> None:
    policy = SchedulingPolicy(preemption=ON)
    (made,) = plan(world(URGENT), policy).nominations
    assert (made.job_id, made.runner_id) == ("job_urgent", "rnr_a")
    hurried = replace(URGENT, priority=Priority.HIGH)
    assert plan(world(hurried), policy).nominations == ()


@pytest.mark.case("SP-011")
def test_a_job_for_which_a_runner_is_being_cleared_stops_nobody_else() -> None:
    held = HeldRoom(
        job_id="job_urgent",
        kind=HoldKind.NOMINATION,
        partition="default",
        runner_id="rnr_a",
        room=URGENT.resources,
        since=NOW,
        deadline=NOW + MINUTE,
    )
    policy = SchedulingPolicy(preemption=ON)
    assert plan(world(URGENT, held=(held,)), policy).nominations == ()
