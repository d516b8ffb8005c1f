"""Machines of another image: which they are, how others come in their place, and who stays."""

from dataclasses import replace
from typing import Any

import pytest

from forgeyard.fleet.drift import has_drifted
from forgeyard.fleet.plan import decide
from forgeyard.fleet.view import ClampKind, FleetDecision, FleetView, InstanceView, Stage
from forgeyard.model.capacity import ScaleDownReason
from forgeyard.model.fleet import FleetSpec, FleetState, Lifetime, LifetimeKind, Rollout, ScaleDown
from forgeyard.model.image import RolloutState
from tests.fleets import (
    HOUR,
    S,
    a_busy,
    a_class,
    a_demand,
    a_fleet,
    a_scaling,
    an_instance,
    coming,
    some,
    wanting,
)
from tests.scheduling import MINUTE, NOW

OLD, NEW = "img-1", "img-2"
R = ScaleDownReason


def stage(state: RolloutState, *, image: str = NEW, is_paused: bool = False) -> Stage:
    return Stage(rollout_id="rol_1", image=image, state=state, is_paused=is_paused)


def rolling(state: RolloutState, *, is_paused: bool = False, **changed: Any) -> FleetView:
    """Describe a fleet of the old image on which the new one is rolled out."""
    own = a_class(image=OLD)
    return a_fleet(capacity=own, rollout=stage(state, is_paused=is_paused), **changed)


def with_rules(view: FleetView, **rules: Any) -> FleetView:
    spec: FleetSpec = replace(view.spec, rollout=Rollout(**rules))
    return replace(view, spec=spec)


def decided(view: FleetView, jobs: int = 0) -> FleetDecision:
    share = {"small": jobs} if jobs else {}
    return decide(view, share, demand=a_demand(wanting(jobs)), now=NOW)


def for_image(decision: FleetDecision) -> list[str]:
    return [it.instance_id for it in decision.drain if it.reason is R.IMAGE]


@pytest.mark.case("FLT-063")
@pytest.mark.requirement("IMG-010")
def test_that_a_second_image_is_allowed_makes_no_drift_of_the_first() -> None:
    before = a_fleet(capacity=a_class(image=OLD))
    both = rolling(RolloutState.CANARY)
    for image in (OLD, NEW):
        assert not has_drifted(an_instance("a", image=image), both)
    assert has_drifted(an_instance("a", image=NEW), before)
    view = rolling(RolloutState.CANARY, scaling=a_scaling(min=3), instances=some(4, a_busy))
    assert for_image(decided(view)) == []


@pytest.mark.requirement("IMG-009", "IMG-019")
def test_a_canary_comes_beside_what_is_wanted_and_nothing_is_replaced() -> None:
    old = some(3, an_instance, image=OLD)
    decision = decided(rolling(RolloutState.CANARY, scaling=a_scaling(min=3), instances=old))
    assert [it.image for it in decision.launch] == [NEW]
    assert decision.drain == ()
    there = (*old, coming("canary", image=NEW))
    again = decided(rolling(RolloutState.CANARY, scaling=a_scaling(min=3), instances=there))
    assert (again.launch, again.drain) == ((), ())


def test_what_jobs_want_while_a_canary_is_watched_has_the_old_image() -> None:
    view = rolling(RolloutState.CANARY)
    images = [it.image for it in decided(view, 12).launch]
    assert sorted(images) == ["", "", "", NEW]


def test_a_full_fleet_makes_room_for_its_canary() -> None:
    old = some(3, a_busy, image=OLD)
    view = rolling(RolloutState.CANARY, scaling=a_scaling(max=3, min=3), instances=old)
    assert len(for_image(decided(view))) == 1
    ending = an_instance("ending", image=NEW, state=S.TERMINATING)
    soon = rolling(RolloutState.CANARY, scaling=a_scaling(max=4, min=3), instances=(*old, ending))
    assert for_image(decided(soon)) == [], "what ends already makes room"


@pytest.mark.case("FLT-064")
@pytest.mark.requirement("IMG-008", "IMG-009")
@pytest.mark.requirement("TST-021")
def test_machines_are_replaced_a_few_at_a_time_idle_ones_first_busy_ones_too() -> None:
    old: tuple[InstanceView, ...] = (
        *some(2, a_busy, image=OLD),
        *some(2, an_instance, image=OLD),
    )
    view = rolling(RolloutState.REPLACING, scaling=a_scaling(min=4), instances=old)
    first = decided(view)
    assert [it.image for it in first.launch] == [NEW]
    assert for_image(first) == ["cin_an_instance-00000"]
    assert ClampKind.ROLLOUT in {it.kind for it in first.clamps}
    new = some(3, an_instance, image=NEW)
    later = rolling(RolloutState.REPLACING, scaling=a_scaling(min=4), instances=(*new, *old[:2]))
    assert for_image(decided(later)) == ["cin_a_busy-00000", "cin_a_busy-00001"]


def test_nothing_may_be_missing_where_the_document_says_so() -> None:
    old = some(4, an_instance, image=OLD)
    bounds = a_scaling(min=4)
    view = with_rules(a_fleet(scaling=bounds, instances=old), max_surge=2, max_unavailable=0)
    decision = decided(view)
    assert (len(decision.launch), for_image(decision)) == (2, [])
    there = (*old, *some(2, an_instance, image=NEW))
    ready = with_rules(a_fleet(scaling=bounds, instances=there), max_surge=2, max_unavailable=0)
    assert len(for_image(decided(ready))) == 2


@pytest.mark.case("FLT-065")
def test_idle_machines_that_are_kept_ready_are_replaced_too() -> None:
    warm = some(3, an_instance, image=OLD)
    decision = decided(a_fleet(scaling=a_scaling(warm=3), instances=warm))
    assert len(for_image(decision)) == 1
    assert len(decision.launch) == 1


@pytest.mark.case("FLT-038")
def test_a_pinned_machine_survives_every_way_of_letting_go_until_its_pin_ends() -> None:
    pins = {"pinned_until": NOW + 1, "requested_at": NOW - 2 * HOUR}
    kept = some(2, an_instance, image=OLD, **pins)
    worlds = (
        a_fleet(instances=kept),
        a_fleet(instances=kept, scaling=a_scaling(max=1)),
        a_fleet(instances=kept, lifetime=Lifetime(kind=LifetimeKind.MAX_AGE, age=HOUR)),
        rolling(RolloutState.REPLACING, instances=kept),
        a_fleet(instances=kept, state=FleetState.DRAINING),
        a_fleet(instances=some(2, an_instance, is_healthy=False, **pins)),
    )
    for view in worlds:
        assert decided(view).drain == ()
    gone = some(2, an_instance, image=OLD, pinned_until=NOW)
    assert len(decided(rolling(RolloutState.REPLACING, instances=gone)).drain) == 2


def test_a_paused_rollout_replaces_nothing_and_makes_nothing_of_it() -> None:
    there = (*some(3, an_instance, image=OLD), an_instance("canary", image=NEW))
    for state in (RolloutState.CANARY, RolloutState.REPLACING):
        view = rolling(state, is_paused=True, scaling=a_scaling(min=4), instances=there)
        decision = decided(view, 8)
        assert for_image(decision) == []
        assert {it.image for it in decision.launch} == {""}


def test_a_fleet_that_only_grows_or_is_frozen_replaces_nothing() -> None:
    old = some(3, an_instance, image=OLD)
    for changed in ({"state": FleetState.SCALE_UP_ONLY}, {"state": FleetState.FROZEN}):
        view = a_fleet(scaling=a_scaling(min=3), instances=old, **changed)
        assert for_image(decided(view)) == []


def test_where_nothing_is_wanted_nothing_comes_in_place_of_an_idle_machine() -> None:
    young = an_instance("a", image=OLD, idle_since=NOW)
    assert decided(a_fleet(instances=(young,))).launch == ()


def test_a_machine_that_drains_with_an_old_image_is_not_taken_back() -> None:
    draining = an_instance("a", image=OLD, state=S.DRAINING, draining_for=R.IDLE)
    decision = decided(a_fleet(instances=(draining,)), 1)
    assert (decision.keep, len(decision.launch)) == ((), 1)


@pytest.mark.requirement("IMG-019")
def test_nothing_boots_a_blocked_image_and_a_canary_still_may_come_beside_it() -> None:
    own = rolling(RolloutState.CANARY, blocked_images=frozenset({OLD}))
    assert [it.image for it in decided(own, 12).launch] == [NEW]
    new = rolling(RolloutState.REPLACING, blocked_images=frozenset({NEW}))
    assert decided(new, 12).launch == ()
    done = rolling(RolloutState.REPLACING, blocked_images=frozenset({OLD}))
    assert {it.image for it in decided(done, 12).launch} == {NEW}


def test_no_more_are_replaced_than_are_let_go_at_once() -> None:
    down = ScaleDown(idle_grace=MINUTE, window=0, at_once=2)
    old = some(9, an_instance, image=OLD)
    view = with_rules(
        a_fleet(scaling=a_scaling(min=9, down=down), instances=old), max_unavailable=9
    )
    assert len(for_image(decided(view))) == 2
