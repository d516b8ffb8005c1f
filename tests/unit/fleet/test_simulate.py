"""A fleet played forward: the plan's own decisions, with machines that come up and take jobs."""

from typing import Any

import pytest

from forgeyard.fleet.simulate import Tick, more_jobs, news, play
from forgeyard.fleet.view import ClampKind, Closed, FleetView
from forgeyard.model.fleet import (
    DAY_MS,
    CapacityReservation,
    Guardrail,
    Lifetime,
    LifetimeKind,
    Override,
    ScaleUp,
)
from forgeyard.scheduler.demand import Demand, unmet
from tests.fleets import (
    CHEAP,
    DEAR,
    MINUTE,
    NOW,
    a_busy,
    a_demand,
    a_fleet,
    a_scaling,
    an_instance,
    coming,
    some,
    wanting,
)
from tests.scheduling import POLICY, a_job, a_runner, a_snapshot

EVERY = 10_000
BOOT = 2 * MINUTE


def played(view: FleetView, demand: Demand, *others: FleetView, ticks: int = 61) -> list[Tick]:
    fleets = (view, *others)
    boots = {it.fleet_id: BOOT for it in fleets}
    found = play(view.fleet_id, fleets, demand, boots=boots, now=NOW, every=EVERY, ticks=ticks)
    assert [it.after for it in found] == [place * EVERY for place in range(ticks)]
    return list(found)


def made(ticks: list[Tick]) -> list[tuple[int, int]]:
    return [(it.after, len(it.decision.launch)) for it in ticks if it.decision.launch]


def let_go(ticks: list[Tick]) -> list[tuple[int, int]]:
    return [(it.after, len(it.decision.drain)) for it in ticks if it.decision.drain]


def kinds(tick: Tick) -> set[ClampKind]:
    return {it.kind for it in tick.decision.clamps}


def test_machines_come_up_after_their_time_and_take_the_jobs_they_were_made_for() -> None:
    ticks = played(a_fleet(), a_demand(wanting(10)))
    assert made(ticks) == [(0, 3)]
    came = [(it.after, it.came, it.waiting) for it in ticks if it.came]
    assert came == [(BOOT, 3, 0)]
    assert ticks[1].waiting == 10
    assert not let_go(ticks), "jobs keep their machines"


def test_what_does_not_fit_waits_for_as_long_as_it_is_played() -> None:
    ticks = played(a_fleet(scaling=a_scaling(max=2)), a_demand(wanting(10)))
    assert made(ticks) == [(0, 2)]
    assert ticks[-1].waiting == 2
    assert ClampKind.MAXIMUM in kinds(ticks[-1])


@pytest.mark.requirement("CST-004")
def test_machines_cost_what_their_provider_asks_at_present() -> None:
    """The ceiling of an hour holds over all ticks, by the price that launches are judged by."""
    one_by_one = a_scaling(up=ScaleUp(per_minute=6, burst=1))
    dear = {CHEAP.name: 4 * CHEAP.cost}
    view = a_fleet(
        offerings=(CHEAP,),
        scaling=one_by_one,
        prices=dear,
        guardrail=Guardrail(hourly=8 * CHEAP.cost),
    )
    assert made(played(view, a_demand(wanting(40)))) == [(0, 1), (EVERY, 1)]


def test_the_rate_spreads_launches_over_time() -> None:
    slow = a_scaling(up=ScaleUp(per_minute=2, burst=2))
    assert made(played(a_fleet(scaling=slow), a_demand(wanting(20)))) == [
        (0, 2),
        (30_000, 1),
        (60_000, 1),
        (90_000, 1),
    ]


def test_idle_machines_go_after_their_grace_and_are_gone_a_tick_later() -> None:
    idle = some(3, an_instance, idle_since=NOW, requested_at=NOW)
    ticks = played(a_fleet(instances=idle), a_demand())
    assert let_go(ticks) == [(MINUTE, 3)]
    assert [(it.after, it.gone) for it in ticks if it.gone] == [(MINUTE + EVERY, 3)]


def test_what_comes_already_comes_at_its_time_and_is_not_made_again() -> None:
    there = some(2, coming, requested_at=NOW - MINUTE)
    ticks = played(a_fleet(instances=there), a_demand(wanting(8)))
    assert made(ticks) == []
    assert [(it.after, it.came) for it in ticks if it.came] == [(BOOT - MINUTE, 2)]


def test_a_machine_that_gets_a_job_in_this_very_instant_is_not_idle() -> None:
    idle = some(1, an_instance, idle_since=NOW - 2 * MINUTE)
    busy = a_demand(placing=[idle[0].runner_id])
    assert let_go(played(a_fleet(instances=idle), a_demand())) == [(0, 1)]
    assert let_go(played(a_fleet(instances=idle), busy)) == []


def test_all_fleets_decide_so_that_no_job_is_bought_for_twice() -> None:
    dear = a_fleet("dear", offerings=(DEAR,))
    full = a_fleet("cheap", scaling=a_scaling(max=1))
    assert made(played(dear, a_demand(wanting(12)), full)) == [(0, 2)]
    assert made(played(full, a_demand(wanting(12)), dear)) == [(0, 1)]


def test_bounds_that_end_by_themselves_end_while_it_is_played() -> None:
    least = Override(min=2, expires_at=NOW + 3 * MINUTE)
    ticks = played(a_fleet(override=least), a_demand(), ticks=40)
    assert made(ticks) == [(0, 2)]
    assert let_go(ticks) == [(3 * MINUTE, 2)]
    soon = CapacityReservation(
        reservation_id="r",
        quantity=2,
        starts_at=NOW + 3 * MINUTE,
        ends_at=NOW + 60 * MINUTE,
        lead=MINUTE,
    )
    assert made(played(a_fleet(reservations=(soon,)), a_demand())) == [(2 * MINUTE, 2)]
    shut = Closed(offering="cheap", until=NOW + MINUTE, reason="out_of_capacity: none left")
    ticks = played(a_fleet(closed=(shut,)), a_demand(wanting(4)))
    assert made(ticks) == [(MINUTE, 1)]
    assert ClampKind.NO_OFFERING in kinds(ticks[0])


def test_a_day_costs_what_runs_while_it_is_played_and_midnight_begins_the_next() -> None:
    hour, hourly = 60 * MINUTE, CHEAP.cost
    start = NOW - NOW % DAY_MS + DAY_MS - 2 * hour

    def launched(daily: int, **changed: Any) -> list[tuple[int, int]]:
        view = a_fleet(guardrail=Guardrail(daily=daily), **changed)
        demand, boots = a_demand(wanting(4)), {view.fleet_id: BOOT}
        quarter = hour // 4
        found = play(view.fleet_id, [view], demand, boots=boots, now=start, every=quarter, ticks=9)
        return made(list(found))

    # One that runs costs two hours until midnight; the third is enough for the last hour only.
    one = some(1, a_busy, cost=hourly)
    assert launched(3 * hourly, instances=one) == [(hour, 1)]
    assert launched(30 * hourly, spent_today=30 * hourly) == [(2 * hour, 1)]


def test_a_class_that_is_futile_gets_no_job_from_what_comes_up() -> None:
    least = Override(min=1, expires_at=NOW + 4 * MINUTE)
    ticks = played(a_fleet(override=least, futile=frozenset({"small"})), a_demand(wanting(3)))
    assert [it.came for it in ticks if it.came] == [1]
    assert let_go(ticks) == [(4 * MINUTE, 1)]
    # Nobody serves them, so they wait with nobody.
    assert {it.waiting for it in ticks} == {0}


def test_machines_for_one_job_are_made_for_each_and_go_with_theirs_only() -> None:
    life = Lifetime(kind=LifetimeKind.ONE_JOB)
    view = a_fleet(lifetime=life, instances=some(2, a_busy, jobs_ended=0))
    ticks = played(view, a_demand(), ticks=3)
    assert let_go(ticks) == [(0, 2)]
    assert not any(it.gone for it in ticks), "their jobs do not end"


def test_more_jobs_are_placed_by_the_scheduler_before_they_are_demand() -> None:
    snapshot = a_snapshot([], [a_runner()])
    like = a_job("one", requirement_class="c")
    more = more_jobs(snapshot, like, 10)
    assert len({it.job_id for it in more.jobs}) == 10
    (found,) = unmet(more, POLICY).classes
    assert found.count == 6


@pytest.mark.parametrize("count", [0, 1, 3])
def test_only_ticks_with_news_are_told_and_always_the_ends(count: int) -> None:
    ticks = played(a_fleet(), a_demand(wanting(count)))
    told = news(ticks)
    assert (told[0], told[-1]) == (ticks[0], ticks[-1])
    happened: list[Any] = [it for it in ticks if it.came or it.decision.launch]
    assert [it for it in told if it.came or it.decision.launch] == happened
    assert len(told) <= len(happened) * 2 + 2
