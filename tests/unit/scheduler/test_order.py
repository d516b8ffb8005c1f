from dataclasses import replace

import pytest

from forgeyard.model.job import Priority
from forgeyard.scheduler.order import (
    BASE,
    effective_priority,
    in_order,
    sort_key,
    starvation_bound,
)
from tests.scheduling import MINUTE, NOW, POLICY, a_job


def test_waiting_raises_a_priority_by_one_point_a_step() -> None:
    job = a_job(priority=Priority.NORMAL)
    parts = effective_priority(job, POLICY, NOW + 10 * MINUTE + 59_999)
    assert (parts.base, parts.aging, parts.total) == (100, 10, 110)
    assert parts.waited == 10 * MINUTE + 59_999


@pytest.mark.requirement("FAR-024")
@pytest.mark.parametrize("priority", [p for p in Priority if p is not Priority.EMERGENCY])
def test_waiting_lifts_every_priority_to_the_same_limit_and_no_further(priority: Priority) -> None:
    job = a_job(priority=priority)
    ages = starvation_bound(priority, POLICY)
    assert effective_priority(job, POLICY, NOW + ages).total == POLICY.aging_limit
    assert effective_priority(job, POLICY, NOW + ages - 1).total == POLICY.aging_limit - 1
    assert effective_priority(job, POLICY, NOW + 100 * ages).total == POLICY.aging_limit


def test_no_wait_overtakes_an_emergency() -> None:
    old = a_job("old", priority=Priority.RELEASE_CRITICAL)
    fire = a_job("fire", priority=Priority.EMERGENCY, eligible_at=NOW + 10**9)
    assert in_order([old, fire], POLICY, NOW + 10**9) == [fire, old]
    assert effective_priority(fire, POLICY, NOW + 10**10).aging == 0
    assert starvation_bound(Priority.EMERGENCY, POLICY) == 0


def test_a_clock_that_went_back_ages_nobody() -> None:
    assert effective_priority(a_job(), POLICY, NOW - 5 * MINUTE).total == 100


@pytest.mark.requirement("FAR-023")
def test_equal_priorities_are_served_oldest_first_and_then_by_id() -> None:
    b, a = a_job("b"), a_job("a")
    oldest = a_job("z", eligible_at=NOW - 1)
    assert [job.name for job in in_order([b, oldest, a], POLICY, NOW)] == ["z", "a", "b"]


@pytest.mark.requirement("FAR-006", "PRI-017")
@pytest.mark.requirement("TST-002")
def test_a_fresh_job_of_higher_priority_goes_first() -> None:
    jobs = [a_job(priority, priority=priority) for priority in Priority]
    served = [job.priority for job in in_order(jobs, POLICY, NOW)]
    assert served == list(reversed(Priority))
    assert sorted(BASE.values()) == [0, 100, 200, 300, 400]


@pytest.mark.requirement("TST-002")
def test_a_low_job_overtakes_fresh_normal_ones_once_it_waited_for_their_head_start() -> None:
    low = a_job("low", priority=Priority.LOW)
    fresh = a_job("fresh", eligible_at=NOW + 100 * MINUTE)
    assert in_order([low, fresh], POLICY, NOW + 100 * MINUTE) == [low, fresh]
    earlier = replace(fresh, eligible_at=NOW + 99 * MINUTE)
    assert in_order([low, earlier], POLICY, NOW + 99 * MINUTE) == [earlier, low]


def test_the_key_is_made_of_integers() -> None:
    assert sort_key(a_job(), POLICY, NOW) == (-100, NOW, "job_build")
