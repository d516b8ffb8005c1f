"""The order of the queue: total, independent of input order, and free of starvation."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Millis
from forgeyard.scheduler.order import BASE, effective_priority, in_order, sort_key, starvation_bound
from forgeyard.scheduler.place import plan
from tests.scheduling import MINUTE, NOW, POLICY, a_job, a_runner, a_snapshot, amounts
from tests.worlds import demand_hits, fixed, seeds, some_job

ORDINARY = [priority for priority in Priority if priority is not Priority.EMERGENCY]
ONE_AT_A_TIME = a_runner(total=amounts(cpu=1_000, memory_gib=1, disk_gib=1, slots=1))


@given(seed=seeds)
@fixed
def test_the_order_does_not_depend_on_the_order_of_the_input(seed: int) -> None:
    rng = Random(seed)
    queue = [some_job(rng, place) for place in range(8)]
    shuffled = rng.sample(queue, len(queue))
    assert in_order(shuffled, POLICY, NOW) == in_order(queue, POLICY, NOW)


@pytest.mark.requirement("FAR-024")
@given(seed=seeds, later=st.integers(0, 10**10))
@fixed
def test_waiting_never_lowers_a_priority_and_stays_within_bounds(seed: int, later: int) -> None:
    job = some_job(Random(seed), 0)
    before = effective_priority(job, POLICY, NOW)
    after = effective_priority(job, POLICY, NOW + later)
    assert before.total <= after.total <= max(after.base, POLICY.aging_limit)


@pytest.mark.requirement("FAR-025")
def test_after_its_bound_no_later_job_overtakes_except_an_emergency() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(seed=seeds)
    def check(seed: int) -> None:
        rng = Random(seed)
        less = rng.choice((0, 0, -50, -400, 30))
        job = a_job("z", priority=rng.choice(ORDINARY), adjustment=less)
        later = a_job(
            "a", priority=rng.choice(ORDINARY), eligible_at=NOW + rng.randint(1, 500 * MINUTE)
        )
        bound = NOW + starvation_bound(job.priority, POLICY, adjustment=less)
        now = max(bound, later.eligible_at) + rng.randint(0, 500 * MINUTE)
        assert sort_key(job, POLICY, now) < sort_key(later, POLICY, now)
        hits["later"] += 1
        hits["later and more urgent"] += BASE[later.priority] > BASE[job.priority]

    check()
    demand_hits(hits, "later")
    demand_hits(hits, "later and more urgent")


def cycles_until_placed(
    policy: SchedulingPolicy, *, arrivals: int, backlog: int, limit: int, rival: Priority
) -> int | None:
    """Serve one job a minute while `arrivals` rivals a minute keep coming; wait for the low one."""
    low = a_job("low", priority=Priority.LOW)
    waiting = [low] + [a_job(f"old{n}", priority=rival) for n in range(backlog)]
    for cycle in range(limit):
        now = NOW + cycle * MINUTE
        waiting += [
            a_job(f"new{cycle}_{n}", priority=rival, eligible_at=now) for n in range(arrivals)
        ]
        made = plan(a_snapshot(waiting, [ONE_AT_A_TIME], taken_at=now), policy)
        (decision,) = made.decisions
        if decision.job_id == low.job_id:
            return cycle
        waiting = [job for job in waiting if job.job_id != decision.job_id]
    return None


@pytest.mark.requirement("FAR-005", "FAR-008", "FAR-022")
@pytest.mark.parametrize("rival", [Priority.NORMAL, Priority.HIGH, Priority.RELEASE_CRITICAL])
@pytest.mark.parametrize("arrivals", [1, 2])
def test_aging_ends_starvation_even_when_work_comes_faster_than_it_is_done(
    rival: Priority, arrivals: int
) -> None:
    policy = replace(POLICY, aging_step=Millis(MINUTE // 10))
    bound = starvation_bound(Priority.LOW, policy) // MINUTE
    backlog = 5
    cycle = cycles_until_placed(policy, arrivals=arrivals, backlog=backlog, limit=60, rival=rival)
    assert cycle is not None
    assert 0 < cycle <= bound + 1 + backlog


def test_without_aging_the_same_job_starves() -> None:
    policy = replace(POLICY, aging_limit=0)
    assert (
        cycles_until_placed(policy, arrivals=1, backlog=0, limit=60, rival=Priority.NORMAL) is None
    )
