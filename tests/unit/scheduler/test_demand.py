"""Unmet demand: what the rules of a cycle leave over, and as much of it as machines would help."""

from dataclasses import replace

import pytest

from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.runner import RunnerState
from forgeyard.model.wishes import SpotWish, Wishes
from forgeyard.scheduler.demand import Demand, DemandClass, class_of, unmet
from forgeyard.scheduler.readings import Readings
from forgeyard.scheduler.scopes import Quota, SchedulingScope, Usage
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from forgeyard.scheduler.standing import SchedulingPool, Sharing
from tests.scheduling import MINUTE, NOW, POLICY, a_job, a_runner, a_snapshot, amounts


def jobs(count: int, **changed: object) -> list[SchedulingJob]:
    return [a_job(f"j{place:05}", requirement_class="c", **changed) for place in range(count)]


def demand_of(
    waiting: list[SchedulingJob], *runners: SchedulingRunner, **changed: object
) -> Demand:
    return unmet(a_snapshot(waiting, runners, **changed), POLICY)


def only(demand: Demand) -> DemandClass:
    (one,) = demand.classes
    return one


def limited(**quota: object) -> dict[str, SchedulingScope]:
    scope = SchedulingScope(
        scope_id="tnt_default", name="acme", kind="tenant", quota=Quota(**quota), used=Usage(jobs=1)
    )
    return {"tnt_default": scope}


@pytest.mark.requirement("DEM-007", "DEM-013", "DEM-014")
@pytest.mark.requirement("ACC-038")
def test_demand_is_what_found_no_room() -> None:
    waiting = jobs(10, eligible_at=NOW - MINUTE)
    found = only(demand_of(waiting, a_runner()))
    assert (found.count, found.oldest_wait, found.priority) == (6, MINUTE, Priority.NORMAL)
    assert found.requirement_class == class_of(waiting[0])


def test_no_batch_limits_demand() -> None:
    """Nor the pressure that makes batches smaller."""
    pressed = Readings(outbox_lag_ms=15_000)
    snapshot = a_snapshot(jobs(3_000), [a_runner("a"), a_runner("b")], readings=pressed)
    assert only(unmet(snapshot, SchedulingPolicy(batch=1))).count == 3_000 - 8


def test_what_is_lent_once_all_had_their_turn_is_room_however_small_the_batch() -> None:
    lent = SchedulingPool(
        pool_id="pol_x",
        sharing=Sharing.RESERVED,
        owner_id="prj_x",
        owner="project x",
        spillover=True,
    )
    runners = (a_runner("a", total=amounts(1_000, 12, 100, 1)), a_runner("b", pool=lent))
    assert unmet(a_snapshot(jobs(5), runners), SchedulingPolicy(batch=1)).classes == ()


@pytest.mark.requirement("DEM-010")
@pytest.mark.requirement("ACC-038")
def test_jobs_are_one_class_if_the_same_machines_would_do() -> None:
    one = a_job(requirement_class="c")
    assert class_of(one) == class_of(replace(one, job_id="job_2", refused_by={"rnr_1": "full"}))
    others = (
        replace(one, requirement_class="d"),
        replace(one, project_id="prj_2"),
        replace(one, spot=SpotWish.FORBIDDEN),
    )
    assert len({class_of(it) for it in (one, *others)}) == 4


@pytest.mark.requirement("DEM-017", "DEM-018")
def test_only_as_many_count_as_their_quota_lets_run() -> None:
    """One runs already, two are placed, so of a quota of five two more may run."""
    found = only(
        demand_of(jobs(10), a_runner(total=amounts(2_000, 12, 100, 4)), scopes=limited(jobs=5))
    )
    assert (found.count, found.excluded) == (2, 6)


@pytest.mark.requirement("TST-025")
def test_a_quota_that_is_used_up_leaves_no_demand() -> None:
    found = only(demand_of(jobs(3), scopes=limited(jobs=1)))
    assert (found.count, found.excluded) == (0, 3)


def test_jobs_of_a_paused_queue_are_no_demand() -> None:
    paused = {"que_default": SchedulingScope(scope_id="que_default", name="main", paused=True)}
    assert only(demand_of(jobs(3), scopes=paused)).count == 0


def test_of_jobs_that_share_a_key_one_is_demand() -> None:
    found = only(demand_of(jobs(3, wishes=Wishes(keys=("deploy",)))))
    assert (found.count, found.excluded) == (1, 2)
    held = only(demand_of(jobs(3, wishes=Wishes(keys=("deploy",))), keys={"deploy": "other"}))
    assert held.count == 0


def test_a_job_that_must_be_beside_another_wants_no_machine_of_its_own() -> None:
    assert only(demand_of(jobs(1, wishes=Wishes(beside="build")))).count == 0


def test_jobs_that_no_runner_can_ever_take_are_demand_all_the_same() -> None:
    """A fleet may have machines for them although none is registered."""
    assert only(demand_of(jobs(2, resources=amounts(cpu=64_000)), a_runner())).count == 2


def test_runners_that_get_a_job_are_told() -> None:
    demand = demand_of(jobs(1), a_runner("a"), a_runner("b", state=RunnerState.OFFLINE))
    assert demand.placing == {"rnr_a"}
    assert demand.classes == ()


def test_the_most_urgent_class_comes_first_and_then_the_one_that_waits_longest() -> None:
    waiting = [
        a_job("a", requirement_class="a", eligible_at=NOW - 1),
        a_job("b", requirement_class="b", eligible_at=NOW - 2),
        a_job("c", requirement_class="c", eligible_at=NOW, priority=Priority.HIGH),
    ]
    assert [it.example.name for it in demand_of(waiting).classes] == ["c", "b", "a"]


@pytest.mark.requirement("DEM-008", "DEM-009")
@pytest.mark.case("FLT-081")
@pytest.mark.requirement("INV-048")
def test_demand_is_a_level_and_its_id_a_digest_of_what_it_says() -> None:
    """Whatever events came, and in whatever order, the same queue is the same demand."""
    waiting = jobs(5)
    assert demand_of(waiting).demand_id == demand_of(waiting[::-1]).demand_id
    assert demand_of(waiting).demand_id != demand_of(waiting[1:]).demand_id
