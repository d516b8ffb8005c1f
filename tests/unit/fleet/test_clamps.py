"""Every bound on a fleet: a world in which it is named, and taking it out changes the decision."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest

from forgeyard.fleet import bounds, choosing, growing, plan, shrinking
from forgeyard.fleet.cost import Budget
from forgeyard.fleet.view import ClampKind, Closed, FleetDecision, FleetView
from forgeyard.model.capacity import ScaleDownReason, ScaleReason
from forgeyard.model.fleet import (
    CapacityReservation,
    FleetState,
    Guardrail,
    Override,
    Placement,
    ScaleDown,
    ScaleUp,
)
from forgeyard.scheduler.demand import Demand
from tests.fleets import (
    CHEAP,
    EAGER,
    HOUR,
    SPOT,
    a_busy,
    a_demand,
    a_fleet,
    a_scaling,
    an_instance,
    some,
    wanting,
)
from tests.scheduling import MINUTE, NOW

K = ClampKind
DEMAND = a_demand(wanting(40))
"""Ten machines full."""
WANTS_TEN: Mapping[str, int] = {"small": 40}
IDLE = some(6, an_instance)
BUSY = some(6, a_busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A fleet in which one bound matters, and the function that is this bound."""

    kind: ClampKind
    place: Any
    name: str
    view: FleetView
    share: Mapping[str, int] = field(default_factory=dict)
    demand: Demand = DEMAND
    stand_in: Callable[..., Any] = lambda *_a, **_k: None


def a_reservation(name: str, quantity: int, **changed: Any) -> CapacityReservation:
    given = {"starts_at": NOW + MINUTE, "ends_at": NOW + HOUR, "lead": 10 * MINUTE, **changed}
    return CapacityReservation(reservation_id=name, quantity=quantity, **given)


def shrinking_with(**changed: Any) -> ScaleDown:
    return replace(EAGER, **changed)


def an_override(**changed: Any) -> Override:
    return Override(expires_at=NOW + HOUR, **changed)


STEPS_UP = [
    World(kind=K.WARM, place=bounds, name="_warm", view=a_fleet(scaling=a_scaling(warm=2))),
    World(kind=K.MINIMUM, place=bounds, name="_minimum", view=a_fleet(scaling=a_scaling(min=3))),
    World(
        kind=K.FORECAST,
        place=bounds,
        name="_forecast",
        view=a_fleet(forecast=4),
    ),
    World(
        kind=K.RESERVED,
        place=bounds,
        name="_reserved",
        view=a_fleet(reservations=(a_reservation("a", 2), a_reservation("b", 3))),
    ),
    World(
        kind=K.SCALE_TO_ZERO,
        place=bounds,
        name="_scale_to_zero",
        view=a_fleet(scaling=a_scaling(scale_to_zero=False)),
    ),
    World(
        kind=K.OVERRIDE,
        place=bounds,
        name="_in_force",
        view=a_fleet(override=an_override(min=5)),
    ),
    World(
        kind=K.OVERRIDE,
        place=bounds,
        name="_in_force",
        view=a_fleet(override=an_override(max=5)),
        share=WANTS_TEN,
    ),
    World(
        kind=K.MAXIMUM,
        place=bounds,
        name="_maximum",
        view=a_fleet(scaling=a_scaling(max=7)),
        share=WANTS_TEN,
        # Else the bound on what may exist holds all the same.
        stand_in=lambda trail, *_a: None,
    ),
    World(
        kind=K.MAXIMUM,
        place=growing,
        name="_room",
        view=a_fleet(
            scaling=a_scaling(max=12),
            instances=some(5, an_instance, draining_for=ScaleDownReason.MAX_AGE, state="draining"),
        ),
        share=WANTS_TEN,
    ),
    World(
        kind=K.PROTECTED,
        place=bounds,
        name="_protected",
        view=a_fleet(protected=True, instances=(a_busy("a"),), scaling=a_scaling(warm=1)),
    ),
    World(
        kind=K.DRAINING,
        place=bounds,
        name="_draining",
        view=a_fleet(state=FleetState.DRAINING, scaling=a_scaling(min=3)),
    ),
    World(
        kind=K.FROZEN,
        place=growing,
        name="_frozen",
        view=a_fleet(state=FleetState.FROZEN),
        share=WANTS_TEN,
    ),
    World(
        kind=K.PROVIDER_FROZEN,
        place=growing,
        name="_provider_frozen",
        view=a_fleet(provider_frozen=True),
        share=WANTS_TEN,
    ),
    World(
        kind=K.IMAGE_BLOCKED,
        place=growing,
        name="_image_blocked",
        view=a_fleet(blocked_images=frozenset({"img-2"})),
        share=WANTS_TEN,
    ),
    World(
        kind=K.RATE,
        place=growing,
        name="_rate",
        view=a_fleet(scaling=a_scaling(up=ScaleUp(per_minute=2, burst=4))),
        share=WANTS_TEN,
    ),
    World(
        kind=K.HOURLY_COST,
        place=Budget,
        name="against",
        view=a_fleet(guardrail=Guardrail(hourly=350_000)),
        share=WANTS_TEN,
    ),
    World(
        kind=K.DAILY_COST,
        place=Budget,
        name="against",
        view=a_fleet(guardrail=Guardrail(daily=10_000_000), spent_today=9_000_000),
        share=WANTS_TEN,
    ),
    World(
        kind=K.SPOT_SHARE,
        place=choosing.Chooser,
        name="_in_share",
        view=a_fleet(offerings=(CHEAP, SPOT), placement=Placement(spot_percent=50)),
        share=WANTS_TEN,
        stand_in=lambda *_a: True,
    ),
    World(
        kind=K.NO_OFFERING,
        place=choosing,
        name="closed",
        view=a_fleet(closed=(Closed(offering="cheap", until=NOW + 1, reason="no capacity"),)),
        share=WANTS_TEN,
        stand_in=lambda *_a: {},
    ),
    World(
        kind=K.FUTILE,
        place=plan,
        name="_not_futile",
        view=a_fleet(futile=frozenset({"other"})),
        share={"small": 4, "other": 4},
        demand=a_demand(wanting(4), wanting(4, "other")),
        stand_in=lambda _trail, _view, share: share,
    ),
]
STEPS_DOWN = [
    World(
        kind=K.FROZEN,
        place=shrinking,
        name="_frozen",
        view=a_fleet(state=FleetState.FROZEN, instances=IDLE),
    ),
    World(
        kind=K.PROVIDER_FROZEN,
        place=shrinking,
        name="_frozen",
        view=a_fleet(provider_frozen=True, instances=IDLE),
    ),
    World(
        kind=K.SCALE_UP_ONLY,
        place=shrinking,
        name="_scale_up_only",
        view=a_fleet(state=FleetState.SCALE_UP_ONLY, instances=IDLE),
    ),
    World(
        kind=K.WINDOW,
        place=shrinking,
        name="_window",
        view=a_fleet(
            scaling=a_scaling(down=shrinking_with(window=10 * MINUTE)),
            instances=IDLE,
            wanted=((NOW - 11 * MINUTE, 6), (NOW - MINUTE, 4)),
        ),
    ),
    World(
        kind=K.IDLE_GRACE,
        place=shrinking,
        name="_has_rested",
        view=a_fleet(instances=(*IDLE, an_instance("young", idle_since=NOW - 1))),
        stand_in=lambda *_a: True,
    ),
    World(
        kind=K.PINNED,
        place=shrinking,
        name="is_pinned",
        view=a_fleet(instances=(*IDLE, an_instance("kept", pinned_until=NOW + 1))),
        stand_in=lambda *_a: False,
    ),
    World(
        kind=K.AT_ONCE,
        place=shrinking,
        name="_at_once",
        view=a_fleet(scaling=a_scaling(down=shrinking_with(at_once=2)), instances=IDLE),
    ),
    World(
        kind=K.ROLLOUT,
        place=bounds,
        name="surge",
        view=a_fleet(
            scaling=a_scaling(min=6), instances=some(6, an_instance, image="img-1"), wanted=()
        ),
        stand_in=lambda *_a: 0,
    ),
]


def decided(world: World) -> FleetDecision:
    return plan.decide(world.view, world.share, demand=world.demand, now=NOW)


def names(worlds: list[World]) -> list[str]:
    return [f"{it.kind}-{place}" for place, it in enumerate(worlds)]


@pytest.mark.parametrize("world", STEPS_UP + STEPS_DOWN, ids=names(STEPS_UP + STEPS_DOWN))
@pytest.mark.requirement("TST-010", "ACC-064")
def test_a_bound_is_named_and_without_it_the_decision_is_another(world: World) -> None:
    bounded = decided(world)
    with patch.object(world.place, world.name, world.stand_in):
        free = decided(world)
    assert any(it.kind is world.kind and it.before != it.after for it in bounded.clamps)
    does = (bounded.launch, bounded.drain, bounded.wanted)
    assert does != (free.launch, free.drain, free.wanted)


def test_nobody_who_works_is_let_go_however_far_above_the_maximum() -> None:
    view = a_fleet(instances=(*BUSY, an_instance("idle")), scaling=a_scaling(max=2))
    decision = plan.decide(view, {}, demand=a_demand(), now=NOW)
    assert [it.instance_id for it in decision.drain] == ["cin_idle"]
    assert K.BUSY in {it.kind for it in decision.clamps}


def test_every_bound_has_a_world() -> None:
    tried = {it.kind for it in STEPS_UP + STEPS_DOWN} | {K.BUSY}
    assert tried == set(ClampKind)


def test_a_bound_that_changes_nothing_is_not_named() -> None:
    view = a_fleet(
        scaling=a_scaling(min=1, warm=0),
        instances=(a_busy("a"),),
        guardrail=Guardrail(hourly=10**9),
    )
    assert plan.decide(view, {}, demand=a_demand(), now=NOW).clamps == ()


def reasons(**changed: Any) -> list[ScaleReason]:
    view = a_fleet(**changed)
    return [it.reason for it in plan.decide(view, {}, demand=a_demand(), now=NOW).launch]


@pytest.mark.requirement("PLN-002")
def test_every_machine_has_the_reason_for_which_it_is_made() -> None:
    R = ScaleReason
    assert reasons(scaling=a_scaling(warm=1)) == [R.WARM_DEFICIT]
    assert reasons(forecast=1) == [R.FORECAST]
    assert reasons(override=an_override(min=1)) == [R.MANUAL]
    assert reasons(reservations=(a_reservation("a", 1),)) == [R.RESERVATION]
    assert reasons(scaling=a_scaling(min=1)) == [R.MINIMUM]
    broken = an_instance("sick", is_healthy=False)
    assert reasons(scaling=a_scaling(min=1), instances=(broken,)) == [R.REPLACEMENT]
    jobs = plan.decide(a_fleet(), {"small": 5}, demand=DEMAND, now=NOW).launch
    assert {(it.reason, it.made_for) for it in jobs} == {(R.QUEUED_DEMAND, "small")}
    assert len(jobs) == 2


def test_what_is_there_satisfies_the_firmest_bounds_first() -> None:
    """Two of a minimum of two are there, so what is missing is the ready one beside them."""
    scaling = a_scaling(min=2, warm=3)
    assert reasons(scaling=scaling, instances=some(2, an_instance)) == [ScaleReason.WARM_DEFICIT]
