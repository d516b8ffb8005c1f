"""Public bug reports of other autoscalers, re-created against the pure rules of fleets."""

from dataclasses import replace
from typing import Any

import pytest

from forgeyard.fleet.plan import decide
from forgeyard.fleet.view import ClampKind, Closed, FleetDecision, FleetView
from forgeyard.model.capacity import ScaleDownReason, ScaleReason
from forgeyard.model.fleet import (
    CapacityReservation,
    FleetState,
    Lifetime,
    LifetimeKind,
    Market,
    Placement,
    ScaleUp,
)
from tests.fleets import (
    CHEAP,
    DEAR,
    EAGER,
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
from tests.scheduling import MINUTE, NOW

K = ClampKind


def decided(view: FleetView, jobs: int = 0, *, now: int = NOW) -> FleetDecision:
    """Decide with so many small jobs that found no room, of which four fit on a machine."""
    share = {"small": jobs} if jobs else {}
    return decide(view, share, demand=a_demand(wanting(jobs)), now=now)


def drained(decision: FleetDecision) -> list[str]:
    return [it.instance_id for it in decision.drain]


@pytest.mark.case("FLT-068")
@pytest.mark.requirement("FLM-010")
def test_one_pass_makes_no_more_than_the_maximum_leaves() -> None:
    view = a_fleet(scaling=a_scaling(max=10), instances=some(9, a_busy))
    assert len(decided(view, 100).launch) == 1


@pytest.mark.case("FLT-069")
def test_machines_that_never_join_count_against_the_maximum_all_the_same() -> None:
    """Demand flaps, nothing ever comes up; whatever the phase, five is five."""
    states = (S.REQUESTED, S.PROVISIONING, S.BOOTSTRAPPING, S.ENROLLING)
    machines: list[Any] = []
    for tick in range(50):
        view = a_fleet(scaling=a_scaling(max=5), instances=tuple(machines))
        for launch in decided(view, 100 if tick % 2 else 30).launch:
            state = states[len(machines) % len(states)]
            machines.append(
                coming(f"{tick}-{len(machines)}", state=state, offering=launch.offering)
            )
        assert len(machines) <= 5
    assert len(machines) == 5


@pytest.mark.case("FLT-008", "FLT-024")
def test_what_exists_is_counted_by_rows_and_not_by_what_was_ever_made() -> None:
    """Five are there: none more. The five are seen to be gone: there is room for five."""
    full = a_fleet(scaling=a_scaling(max=5), instances=some(5, a_busy))
    assert decided(full, 20).launch == ()
    assert len(decided(replace(full, instances=()), 20).launch) == 5


@pytest.mark.case("FLT-055")
def test_sick_machines_stop_counting_when_they_are_seen_to_be_gone() -> None:
    failed = some(5, an_instance, state=S.FAILED, idle_since=None)
    blocked = a_fleet(scaling=a_scaling(max=5), instances=failed)
    assert decided(blocked, 20).launch == ()
    gone = tuple(replace(it, may_exist=False) for it in failed)
    assert len(decided(replace(blocked, instances=gone), 20).launch) == 5


def test_machines_under_observation_have_an_allowance_of_their_own() -> None:
    kept = some(5, an_instance, state=S.QUARANTINED, idle_since=None)
    scaling = a_scaling(max=5, quarantined=2)
    assert len(decided(a_fleet(scaling=scaling, instances=kept[:2]), 20).launch) == 5
    assert len(decided(a_fleet(scaling=scaling, instances=kept), 20).launch) == 2


@pytest.mark.case("FLT-086")
def test_a_machine_that_is_coming_is_not_asked_for_again() -> None:
    machines: list[Any] = []
    for tick in range(18):
        view = a_fleet(instances=tuple(machines))
        machines += [coming(str(tick)) for _ in decided(view, 1, now=NOW + tick * 10_000).launch]
    assert len(machines) == 1


@pytest.mark.case("FLT-046")
@pytest.mark.requirement("FLM-012")
@pytest.mark.requirement("PRI-051")
def test_the_last_idle_machine_goes_and_no_other_comes_for_it() -> None:
    view = a_fleet(instances=(an_instance("last"),))
    assert drained(decided(view)) == ["cin_last"]
    for state in (S.DRAINING, S.TERMINATING, S.TERMINATED):
        gone = an_instance("last", state=state, draining_for=ScaleDownReason.IDLE)
        after = decided(replace(view, instances=(gone,)))
        assert (after.launch, after.keep, after.drain, after.wanted) == ((), (), (), 0)


@pytest.mark.case("FLT-042")
def test_a_machine_that_is_slow_to_go_is_let_go_of_once() -> None:
    slow = an_instance("slow", state=S.TERMINATING, draining_for=ScaleDownReason.IDLE)
    view = a_fleet(scaling=a_scaling(min=2), instances=(slow, *some(2, an_instance)))
    for tick in range(5):
        again = decided(view, now=NOW + tick * 10_000)
        assert (again.launch, again.drain, again.wanted) == ((), (), 2)


@pytest.mark.case("FLT-044")
@pytest.mark.requirement("DRN-001", "DRN-004")
def test_who_works_stays_although_nothing_is_wanted() -> None:
    view = a_fleet(instances=(a_busy("works", idle_since=NOW - HOUR), an_instance("idle")))
    assert drained(decided(view)) == ["cin_idle"]


@pytest.mark.case("FLT-039")
@pytest.mark.requirement("PLN-003")
def test_a_fleet_names_who_goes_and_never_only_how_many() -> None:
    view = a_fleet(instances=(*some(3, a_busy), an_instance("idle")))
    (one,) = decided(view).drain
    assert (one.instance_id, one.reason) == ("cin_idle", ScaleDownReason.IDLE)


@pytest.mark.case("FLT-051")
@pytest.mark.requirement("DRN-007", "PLN-015")
def test_a_lease_begins_the_grace_anew() -> None:
    """Idle at 0, a lease at 20, the timer of 30 fires: nobody goes before it was idle again."""
    busy = a_fleet(instances=(a_busy("a"),))
    assert drained(decided(busy)) == []
    idle_again = a_fleet(instances=(an_instance("a", idle_since=NOW),))
    assert drained(decided(idle_again, now=NOW + EAGER.idle_grace - 1)) == []
    assert drained(decided(idle_again, now=NOW + EAGER.idle_grace)) == ["cin_a"]


@pytest.mark.case("FLT-047")
@pytest.mark.requirement("RSV-009", "DRN-005")
def test_what_was_reserved_ends_and_the_fleet_returns_to_its_minimum() -> None:
    held = CapacityReservation(
        reservation_id="r", quantity=4, starts_at=NOW - HOUR, ends_at=NOW + MINUTE
    )
    view = a_fleet(reservations=(held,), scaling=a_scaling(min=1), instances=some(4, an_instance))
    assert drained(decided(view)) == []
    assert len(drained(decided(view, now=NOW + MINUTE))) == 3


@pytest.mark.case("FLT-077")
def test_a_machine_that_never_comes_up_holds_nobody_back_from_going() -> None:
    view = a_fleet(instances=(coming("stuck"), *some(5, an_instance)))
    assert len(drained(decided(view))) == 5
    with_one = replace(view, spec=replace(view.spec, scaling=a_scaling(min=1)))
    assert len(drained(decided(with_one))) == 4, "one that works is worth more than one to come"


@pytest.mark.case("FLT-078")
@pytest.mark.requirement("FLM-009", "FRC-019")
def test_a_broken_machine_at_the_minimum_is_replaced_and_goes() -> None:
    broken = an_instance("broken", is_healthy=False)
    view = a_fleet(scaling=a_scaling(min=3), instances=(broken, *some(2, an_instance)))
    decision = decided(view)
    assert [it.reason for it in decision.launch] == [ScaleReason.REPLACEMENT]
    assert [it.reason for it in decision.drain] == [ScaleDownReason.UNUSABLE]


@pytest.mark.case("FLT-028", "FLT-058")
def test_a_machine_that_is_gone_is_replaced_within_one_decision() -> None:
    lost = an_instance("lost", may_exist=False)
    decision = decided(a_fleet(scaling=a_scaling(min=1), instances=(lost,)))
    assert len(decision.launch) == 1


@pytest.mark.case("FLT-038")
@pytest.mark.requirement("DRN-008", "DRN-009", "DRN-010")
@pytest.mark.parametrize(
    ("fleet", "machine"),
    [
        ({}, {}),
        ({"scaling": a_scaling(max=1)}, {}),
        ({"lifetime": Lifetime(kind=LifetimeKind.MAX_AGE, age=MINUTE)}, {}),
        ({"lifetime": Lifetime(kind=LifetimeKind.ONE_JOB)}, {"jobs_ended": 1}),
        ({}, {"image": "img-1"}),
        ({}, {"is_healthy": False}),
        ({"state": FleetState.DRAINING}, {}),
    ],
)
def test_a_pinned_machine_stays_on_every_path_until_its_pin_ends(
    fleet: dict[str, Any], machine: dict[str, Any]
) -> None:
    kept = an_instance("kept", pinned_until=NOW + 1, **machine)
    view = a_fleet(**fleet, instances=(kept,))
    assert drained(decided(view)) == []
    assert drained(decided(view, now=NOW + 1)) == ["cin_kept"]


def test_of_idle_machines_those_of_another_image_go_first() -> None:
    view = a_fleet(
        scaling=a_scaling(min=1),
        instances=(an_instance("new", cost=900_000), an_instance("old", image="img-1")),
    )
    assert drained(decided(view)) == ["cin_old"]


@pytest.mark.case("FLT-074")
@pytest.mark.requirement("SPT-004")
@pytest.mark.requirement("PHA-020")
def test_stable_machines_are_made_where_preemptible_ones_are_out_of_stock() -> None:
    shut = (Closed(offering="spot", until=NOW + MINUTE, reason="spot quota"),)
    view = a_fleet(offerings=(SPOT, CHEAP), closed=shut)
    assert [it.offering for it in decided(view, 4).launch] == ["cheap"]
    assert [it.offering for it in decided(view, 4, now=NOW + MINUTE).launch] == ["spot"]
    strict = replace(view, spec=replace(view.spec, placement=Placement(stable_fallback=False)))
    refused = decided(strict, 4)
    assert refused.launch == ()
    assert K.SPOT_SHARE in {it.kind for it in refused.clamps}


@pytest.mark.case("FLT-079")
def test_a_class_for_which_machines_came_up_in_vain_gets_no_more_of_them() -> None:
    view = a_fleet(futile=frozenset({"small"}), instances=(an_instance("too-small"),))
    decision = decided(view, 1)
    assert decision.launch == ()
    assert [it.kind for it in decision.clamps] == [K.FUTILE]


@pytest.mark.case("FLT-050")
def test_a_machine_that_the_scheduler_refuses_is_not_reckoned_on() -> None:
    """Three are idle, and yet the job found no room: another is made, and meanwhile none goes."""
    decision = decided(a_fleet(instances=some(3, an_instance)), 1)
    assert len(decision.launch) == 1
    assert decision.drain == ()


@pytest.mark.case("FLT-049")
def test_under_a_steady_load_nobody_is_moved_to_save_money() -> None:
    """Whatever a machine costs and an empty, cheaper place would: six hours, and no move."""
    there = (
        *some(3, a_busy, offering="dear", cost=DEAR.cost, zone="eu-b"),
        an_instance("idle", offering="dear", cost=DEAR.cost, zone="eu-b"),
    )
    view = a_fleet(offerings=(SPOT, CHEAP, DEAR), scaling=a_scaling(min=4), instances=there)
    for tick in range(6 * 60):
        again = decided(view, now=NOW + tick * MINUTE)
        assert (again.launch, again.drain, again.wanted) == ((), (), 4)


@pytest.mark.case("FLT-099")
@pytest.mark.requirement("SPT-009", "DRN-003")
def test_thirty_interrupted_machines_drain_at_once_and_are_replaced_as_fast_as_allowed() -> None:
    taken = some(30, a_busy, interrupted=True, offering="spot", market=Market.PREEMPTIBLE)
    scaling = a_scaling(min=30, up=ScaleUp(per_minute=5, burst=8), down=replace(EAGER, at_once=3))
    view = a_fleet(offerings=(SPOT, CHEAP), scaling=scaling, instances=taken)
    decision = decided(view)
    assert len(decision.drain) == 30
    assert {it.reason for it in decision.drain} == {ScaleDownReason.INTERRUPTED}
    assert len(decision.launch) == 8
    later = replace(view, launches=(NOW,) * 8)
    assert [len(decided(later, now=NOW + s * 1_000).launch) for s in (0, 12, 24, 60)] == [
        0,
        1,
        2,
        5,
    ]
