"""What a fleet does next: needed, wanted, made, taken back and let go."""

from dataclasses import replace

import pytest

from forgeyard.fleet.growing import permits
from forgeyard.fleet.plan import decide
from forgeyard.fleet.view import FleetDecision, FleetView
from forgeyard.model.capacity import ScaleDownReason
from forgeyard.model.fleet import (
    CapacityReservation,
    FleetState,
    Guardrail,
    Lifetime,
    LifetimeKind,
    Market,
    Override,
    Placement,
    ScaleUp,
    Spread,
)
from forgeyard.model.wishes import SpotWish
from tests.fleets import (
    CHEAP,
    DEAR,
    HOUR,
    SPOT,
    S,
    a_busy,
    a_demand,
    a_fleet,
    a_scaling,
    an_instance,
    coming,
    some,
    wanting,
)
from tests.scheduling import MINUTE, NOW, a_job

R = ScaleDownReason


def decided(view: FleetView, jobs: int = 0, *, now: int = NOW) -> FleetDecision:
    share = {"small": jobs} if jobs else {}
    return decide(view, share, demand=a_demand(wanting(jobs)), now=now)


def released(decision: FleetDecision) -> dict[str, ScaleDownReason]:
    return {it.instance_id: it.reason for it in decision.drain}


@pytest.mark.requirement("PLN-001", "PLN-010", "FLM-011")
@pytest.mark.requirement("PRI-046", "PRI-048", "PRI-050", "TST-010")
def test_a_fleet_makes_what_its_jobs_need_and_what_is_kept_warm() -> None:
    decision = decided(a_fleet(scaling=a_scaling(warm=2), instances=some(3, a_busy)), 10)
    assert (decision.needed, decision.wanted, decision.usable) == (6, 8, 3)
    assert len(decision.launch) == 5


@pytest.mark.requirement("PHA-021")
def test_an_idle_machine_is_a_warm_one() -> None:
    view = a_fleet(scaling=a_scaling(warm=2), instances=some(2, an_instance))
    assert (decided(view).launch, decided(view).drain) == ((), ())


def test_a_runner_that_is_about_to_get_a_job_is_not_idle() -> None:
    demand = a_demand(placing=("rnr_soon",))
    view = a_fleet(instances=(an_instance("soon"), an_instance("never")))
    decision = decide(view, {}, demand=demand, now=NOW)
    assert released(decision) == {"cin_never": R.IDLE}
    assert decision.needed == 1


def test_draining_machines_are_taken_back_before_new_ones_are_made() -> None:
    going = some(2, an_instance, state=S.DRAINING, draining_for=R.IDLE)
    decision = decided(a_fleet(instances=going), 12)
    assert decision.keep == tuple(it.instance_id for it in going)
    assert len(decision.launch) == 1
    assert decided(a_fleet(instances=going), 4).keep == (going[0].instance_id,)
    assert decided(a_fleet(instances=going)).keep == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"draining_for": R.INTERRUPTED},
        {"draining_for": R.OPERATOR},
        {"draining_for": R.IMAGE},
        {"state": S.TERMINATING},
        {"interrupted": True},
        {"is_healthy": False},
        {"image": "img-bad"},
    ],
    ids=str,
)
def test_a_machine_that_goes_for_another_reason_is_not_taken_back(
    changed: dict[str, object],
) -> None:
    going = an_instance("a", **{"state": S.DRAINING, "draining_for": R.IDLE, **changed})
    view = a_fleet(instances=(going,), blocked_images=frozenset({"img-bad"}))
    assert decided(view, 4).keep == ()
    assert len(decided(view, 4).launch) == 1, "what drains is no capacity"


@pytest.mark.requirement("RSV-004", "RSV-007", "RSV-008", "RSV-010")
@pytest.mark.requirement("TST-024", "PRI-065", "PHA-021")
def test_reservations_are_made_ready_before_they_start_and_add_up() -> None:
    def reserved(name: str, starts_in: int, quantity: int) -> CapacityReservation:
        return CapacityReservation(
            reservation_id=name,
            quantity=quantity,
            starts_at=NOW + starts_in,
            ends_at=NOW + HOUR,
            lead=10 * MINUTE,
        )

    one, other = reserved("a", 10 * MINUTE, 2), reserved("b", 20 * MINUTE, 3)
    view = a_fleet(reservations=(one, other))
    assert [decided(view, now=NOW + m * MINUTE).wanted for m in (-1, 0, 10, 60)] == [0, 2, 5, 0]


@pytest.mark.requirement("FOP-014", "FOP-015", "FOP-016", "FOP-017")
def test_an_override_holds_until_it_expires_and_loses_to_nobody_before() -> None:
    override = Override(min=4, max=6, expires_at=NOW + HOUR)
    view = a_fleet(override=override, scaling=a_scaling(min=1, max=3))
    assert decided(view).wanted == 4
    assert decided(view, 400).wanted == 6
    assert decided(view, now=NOW + HOUR).wanted == 1
    assert decided(view, 400, now=NOW + HOUR).wanted == 3


@pytest.mark.requirement("FCT-004", "FCT-006", "CST-013")
@pytest.mark.requirement("INV-067", "PRI-068")
def test_a_forecast_may_raise_within_bounds_and_never_lowers() -> None:
    busy = some(5, a_busy)
    assert decided(a_fleet(forecast=2, instances=busy)).wanted == 5
    assert decided(a_fleet(forecast=9, scaling=a_scaling(max=7))).wanted == 7
    poor = a_fleet(forecast=9, guardrail=Guardrail(hourly=200_000))
    assert len(decided(poor).launch) == 2
    assert decided(a_fleet(forecast=None)).wanted == 0


@pytest.mark.requirement("CST-008", "CST-010", "CST-011")
def test_what_exists_counts_against_the_ceiling_whatever_its_state() -> None:
    view = a_fleet(
        guardrail=Guardrail(hourly=500_000),
        instances=(a_busy("a"), an_instance("b", state=S.TERMINATING), coming("c")),
    )
    assert len(decided(view, 100).launch) == 2


def test_a_day_has_to_last_until_midnight() -> None:
    """Two hours are left; what is there costs 0.2 until then, each more as much."""
    midnight = NOW - NOW % (24 * HOUR) + 24 * HOUR
    view = a_fleet(
        guardrail=Guardrail(daily=1_000_000), spent_today=100_000, instances=(a_busy("a"),)
    )
    assert len(decided(view, 100, now=midnight - 2 * HOUR).launch) == 3
    assert len(decided(view, 100, now=midnight - HOUR).launch) == 8


@pytest.mark.requirement("PLN-013")
def test_a_fleet_grows_in_a_burst_and_then_by_the_minute() -> None:
    view = a_fleet(scaling=a_scaling(up=ScaleUp(per_minute=6, burst=10)))
    assert permits(view, NOW) == 10
    after = replace(view, launches=(NOW,) * 10)
    assert [permits(after, NOW + s * 1_000) for s in (0, 9, 10, 60, 600)] == [0, 0, 1, 6, 10]


@pytest.mark.requirement("PLN-008", "FOP-025")
@pytest.mark.requirement("PRI-069")
@pytest.mark.requirement("PLN-007")
def test_machines_are_kept_even_over_zones() -> None:
    placement = Placement(spread=Spread.ZONE)
    view = a_fleet(offerings=(CHEAP, DEAR), placement=placement, instances=some(2, a_busy))
    made = [it.offering for it in decided(view, 16).launch]
    assert made == ["dear", "dear", "cheap", "dear"]
    free = a_fleet(offerings=(CHEAP, DEAR), instances=some(2, a_busy))
    assert {it.offering for it in decided(free, 16).launch} == {"cheap"}


@pytest.mark.requirement("SPT-006")
def test_jobs_have_the_terms_that_they_wish_for() -> None:
    view = a_fleet(offerings=(SPOT, CHEAP))

    def made(wish: SpotWish) -> str:
        demand = a_demand(wanting(1, job=a_job("small", spot=wish)))
        return decide(view, {"small": 1}, demand=demand, now=NOW).launch[0].offering

    assert [made(wish) for wish in SpotWish] == ["spot", "spot", "cheap", "cheap"]


def test_no_more_than_a_share_of_a_fleet_is_preemptible() -> None:
    view = a_fleet(offerings=(SPOT, CHEAP), placement=Placement(spot_percent=50))
    made = [it.offering for it in decided(view, 16).launch]
    assert (made.count("spot"), made.count("cheap")) == (2, 2)
    spots = some(3, a_busy, offering="spot", market=Market.PREEMPTIBLE)
    assert [it.offering for it in decided(replace(view, instances=spots), 8).launch] == [
        "cheap"
    ] * 2


@pytest.mark.requirement("FOP-008", "FOP-009", "FOP-010", "FOP-011")
def test_machines_go_when_they_have_served_their_time() -> None:
    young, old = an_instance("young", requested_at=NOW - MINUTE), an_instance("old")
    aged = Lifetime(kind=LifetimeKind.MAX_AGE, age=HOUR)
    scaling = a_scaling(min=2)
    view = a_fleet(lifetime=aged, scaling=scaling, instances=(young, old))
    assert released(decided(view)) == {"cin_old": R.MAX_AGE}
    assert len(decided(view).launch) == 1, "and another one comes for it"
    one_job = a_fleet(
        lifetime=Lifetime(kind=LifetimeKind.ONE_JOB),
        scaling=scaling,
        instances=(a_busy("first"), an_instance("fresh")),
    )
    assert released(decided(one_job)) == {"cin_first": R.JOBS_DONE}, "it gets no second one"
    jobs = Lifetime(kind=LifetimeKind.MAX_JOBS, jobs=3)
    three = a_fleet(
        lifetime=jobs,
        scaling=scaling,
        instances=(an_instance("two", jobs_ended=2), a_busy("three", jobs_ended=2)),
    )
    assert released(decided(three)) == {"cin_three": R.JOBS_DONE}


def test_old_machines_go_some_at_a_time_and_those_that_had_their_job_all_at_once() -> None:
    scaling = a_scaling(min=12, down=replace(a_scaling().down, at_once=3))
    there = some(12, an_instance, jobs_ended=1)
    aged = a_fleet(
        scaling=scaling, instances=there, lifetime=Lifetime(kind=LifetimeKind.MAX_AGE, age=MINUTE)
    )
    assert len(decided(aged).drain) == len(decided(aged).launch) == 3
    once = replace(aged.spec, lifetime=Lifetime(kind=LifetimeKind.ONE_JOB))
    assert len(decided(replace(aged, spec=once)).drain) == 12
    assert len(decided(replace(aged, spec=once, provider_frozen=True)).drain) == 12
    assert decided(replace(aged, provider_frozen=True)).drain == ()


@pytest.mark.requirement("FOP-004")
def test_machines_of_a_blocked_image_drain_at_once_and_none_is_made() -> None:
    busy = some(12, a_busy)
    view = a_fleet(instances=busy, blocked_images=frozenset({"img-2"}), scaling=a_scaling(min=3))
    decision = decided(view, 40)
    assert set(released(decision).values()) == {R.IMAGE}
    assert len(decision.drain) == 12
    assert decision.launch == ()


@pytest.mark.requirement("FOP-001", "FOP-002")
@pytest.mark.requirement("INV-073")
def test_a_frozen_fleet_neither_grows_nor_shrinks_but_lets_go_of_what_is_taken_away() -> None:
    there = (an_instance("idle"), an_instance("sick", is_healthy=False))
    taken = an_instance("taken", interrupted=True)
    for frozen in ({"state": FleetState.FROZEN}, {"provider_frozen": True}):
        decision = decided(a_fleet(**frozen, instances=(*there, taken)), 40)
        assert released(decision) == {"cin_taken": R.INTERRUPTED}
        assert decision.launch == ()


def test_a_draining_fleet_lets_go_of_all_without_haste() -> None:
    down = replace(a_scaling().down, at_once=3)
    there = (
        a_busy("busy"),
        an_instance("idle"),
        coming("coming"),
        an_instance("sick", is_healthy=False),
    )
    view = a_fleet(state=FleetState.DELETING, scaling=a_scaling(min=4, down=down), instances=there)
    decision = decided(view, 40)
    assert list(released(decision)) == ["cin_sick", "cin_idle", "cin_coming"]
    assert (decision.launch, decision.wanted) == ((), 0)


@pytest.mark.requirement("DRN-006")
def test_a_sick_machine_that_still_works_is_left_to_end() -> None:
    assert decided(a_fleet(instances=(a_busy("a", is_healthy=False),))).drain == ()


@pytest.mark.requirement("PLN-014")
@pytest.mark.requirement("TST-043")
def test_a_fleet_shrinks_to_the_most_that_was_wanted_lately() -> None:
    down = replace(a_scaling().down, window=5 * MINUTE)
    view = a_fleet(scaling=a_scaling(down=down), instances=some(6, an_instance))
    seen = replace(view, wanted=((NOW - 4 * MINUTE, 4), (NOW - MINUTE, 1)))
    assert len(decided(seen).drain) == 2
    assert len(decided(seen, now=NOW + MINUTE).drain) == 5
    assert decided(seen).wanted == 0, "what was held back is not what is wanted"


def test_the_dearest_goes_first_and_then_the_oldest() -> None:
    there = (
        an_instance("old", requested_at=NOW - 3 * HOUR),
        an_instance("young"),
        an_instance("dear", cost=500_000),
    )
    view = a_fleet(scaling=a_scaling(min=1), instances=there)
    assert list(released(decided(view))) == ["cin_dear", "cin_old"]


def test_more_than_the_maximum_go_without_grace() -> None:
    fresh = some(3, an_instance, idle_since=NOW)
    view = a_fleet(scaling=a_scaling(max=1), instances=fresh)
    assert list(released(decided(view)).values()) == [R.ABOVE_MAXIMUM] * 2


def test_the_order_of_what_was_read_decides_nothing() -> None:
    there = (*some(3, an_instance), *some(2, a_busy), coming("c"))
    view = a_fleet(scaling=a_scaling(max=4), instances=there, offerings=(CHEAP, SPOT))
    assert decided(view, 9) == decided(replace(view, instances=there[::-1]), 9)
