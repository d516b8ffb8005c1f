"""Who serves which part of the demand: each job once, the cheapest able fleet first."""

from dataclasses import replace
from typing import Any

import pytest

from forgeyard.fleet.allocate import allocate
from forgeyard.fleet.plan import decide
from forgeyard.fleet.view import ClampKind, Closed, FleetView
from forgeyard.model.capability import Platform, Toolchain, ToolchainRequirement
from forgeyard.model.capacity import ScaleDownReason
from forgeyard.model.fleet import FleetState, Guardrail, Placement
from forgeyard.model.job import Priority
from forgeyard.model.wishes import SpotWish
from tests.fleets import (
    CHEAP,
    DEAR,
    SPOT,
    S,
    a_class,
    a_demand,
    a_fleet,
    a_scaling,
    an_instance,
    coming,
    some,
    wanting,
)
from tests.scheduling import NOW, a_job, a_job_that_requires


def shares(jobs: int, *fleets: FleetView, **changed: Any) -> dict[str, int]:
    found = allocate(a_demand(wanting(jobs, **changed)), fleets, NOW)
    assert not found.unserved
    return {name.removeprefix("flt_"): share["small"] for name, share in found.shares.items()}


def cheap(**changed: Any) -> FleetView:
    return a_fleet("cheap", offerings=(CHEAP,), **changed)


def dear(**changed: Any) -> FleetView:
    return a_fleet("dear", offerings=(DEAR,), **changed)


@pytest.mark.requirement("CST-006", "CST-007")
@pytest.mark.requirement("PHA-022")
def test_the_cheapest_of_those_that_could_serves() -> None:
    assert shares(40, dear(), cheap()) == {"cheap": 40}


@pytest.mark.requirement("CST-005", "DEM-026", "ACC-058", "INV-059")
def test_a_cheap_fleet_that_could_not_run_a_job_is_no_choice() -> None:
    mac = a_fleet("mac", capacity=a_class(platform=Platform.MACOS))
    job = a_job_that_requires(platform=Platform.LINUX)
    assert shares(40, mac, dear(), job=job) == {"dear": 40}
    assert shares(40, replace(mac, prices={"cheap": 0}), dear(), job=job) == {"dear": 40}
    (left,) = allocate(a_demand(wanting(40, job=job)), (mac,), NOW).unserved
    assert left.count == 40


@pytest.mark.requirement("CST-007", "PRI-066")
def test_what_a_provider_asks_at_present_counts_before_what_the_document_says() -> None:
    assert shares(40, dear(prices={"dear": 90_000}), cheap()) == {"dear": 40}
    assert shares(40, dear(prices={"dear": 90_000}), cheap(prices={"cheap": 1})) == {"cheap": 40}


@pytest.mark.requirement("ACC-059", "INV-059", "CST-011")
def test_jobs_wait_at_a_ceiling_and_never_run_on_less_than_they_need() -> None:
    """A fleet that is cheaper, has room and could not run them gets none of them."""
    poor = dear(guardrail=Guardrail(hourly=DEAR.cost - 1))
    mac = a_fleet("mac", capacity=a_class(platform=Platform.MACOS))
    demand = a_demand(wanting(4, job=a_job_that_requires(platform=Platform.LINUX)))
    found = allocate(demand, (mac, poor), NOW)
    assert found.shares == {"flt_dear": {"small": 4}}
    made = decide(poor, found.of("flt_dear"), demand=demand, now=NOW)
    assert made.launch == ()
    (clamp,) = (it for it in made.clamps if it.kind is ClampKind.HOURLY_COST)
    assert (clamp.before, clamp.after) == (1, 0)
    assert decide(mac, found.of("flt_mac"), demand=demand, now=NOW).launch == ()


@pytest.mark.requirement("FOP-029")
def test_machines_that_have_a_tool_already_are_made_for_the_jobs_that_want_it() -> None:
    equipped = a_fleet(
        "dear", offerings=(DEAR,), capacity=a_class(toolchains=(Toolchain(name="rust"),))
    )
    job = a_job_that_requires(toolchains=(ToolchainRequirement(name="rust"),))
    assert shares(40, cheap(), equipped, job=job) == {"dear": 40}
    assert shares(40, cheap(), equipped) == {"cheap": 40}


def test_prices_are_compared_for_a_job_and_not_for_a_machine() -> None:
    large = a_class(
        resources=a_class().resources.plus(a_class().resources).plus(a_class().resources)
    )
    three_times = a_fleet(
        "large", offerings=(CHEAP.__class__(name="l", cost=250_000),), capacity=large
    )
    assert shares(12, cheap(), three_times) == {"large": 12}


@pytest.mark.requirement("PLN-006")
def test_fleets_of_one_price_take_turns() -> None:
    found = shares(40, a_fleet("a"), a_fleet("b"), a_fleet("c", instances=some(2, an_instance)))
    assert found == {"a": 16, "b": 16, "c": 8}


@pytest.mark.parametrize(
    ("bound", "first"),
    [
        ({"state": FleetState.FROZEN}, 0),
        ({"provider_frozen": True}, 0),
        ({"closed": (Closed(offering="cheap", until=NOW + 1, reason="quota"),)}, 0),
        ({"closed": (Closed(offering="", until=NOW + 1, reason="it is down"),)}, 0),
        ({"blocked_images": frozenset({"img-2"})}, 0),
        ({"scaling": a_scaling(max=3)}, 12),
        ({"guardrail": Guardrail(hourly=200_000)}, 8),
        ({"guardrail": Guardrail(daily=1), "spent_today": 2}, 0),
        ({"futile": frozenset({"small"})}, 0),
    ],
    ids=lambda it: str(it)[:30],
)
@pytest.mark.case("FLT-073")
@pytest.mark.requirement("FOP-005", "FRC-022")
def test_what_a_fleet_may_not_make_goes_to_the_next_within_the_same_pass(
    bound: dict[str, Any], first: int
) -> None:
    rest = {"cheap": first} if first else {}
    assert shares(40, cheap(**bound), dear()) == {**rest, "dear": 40 - first}


@pytest.mark.requirement("FOP-022", "FOP-023")
def test_of_fleets_of_one_class_price_and_placement_choose_the_region_unless_the_job_does() -> None:
    near = a_fleet("near", offerings=(replace(CHEAP, region="eu"),))
    far = a_fleet("far", offerings=(replace(DEAR, region="us"),))
    assert near.spec.capacity.class_id == far.spec.capacity.class_id
    assert shares(40, near, far) == {"near": 40}
    full = replace(near, spec=replace(near.spec, scaling=a_scaling(max=3)))
    assert shares(40, full, far) == {"near": 12, "far": 28}
    there = a_job_that_requires("small", regions=("us",))
    assert shares(8, near, far, job=there) == {"far": 8}
    both = a_fleet("both", offerings=(*near.spec.offerings, *far.spec.offerings))
    bound = replace(both, spec=replace(both.spec, placement=Placement(regions=("us",))))
    demand = a_demand(wanting(4))
    for view, offering in ((both, "cheap"), (bound, "dear")):
        made = decide(view, {"small": 4}, demand=demand, now=NOW).launch
        assert [it.offering for it in made] == [offering]


def test_what_nobody_may_make_stays_with_the_first_whose_decision_says_why() -> None:
    full = cheap(scaling=a_scaling(max=3))
    other = dear(scaling=a_scaling(max=1))
    found = allocate(a_demand(wanting(40)), [full, other], NOW)
    assert found.shares == {"flt_cheap": {"small": 36}, "flt_dear": {"small": 4}}
    decision = decide(full, found.of("flt_cheap"), demand=a_demand(wanting(40)), now=NOW)
    assert [str(it.kind) for it in decision.clamps] == ["maximum"]
    frozen = cheap(state=FleetState.FROZEN)
    assert shares(40, frozen, other) == {"dear": 40}, "one that thaws by nobody's hand is worse"


def test_room_that_is_coming_is_used_first_wherever_it_is() -> None:
    on_its_way = dear(instances=some(3, coming, offering="dear"))
    assert shares(40, cheap(), on_its_way) == {"cheap": 28, "dear": 12}
    draining = dear(
        instances=(
            an_instance("d", offering="dear", state=S.DRAINING, draining_for=ScaleDownReason.IDLE),
        )
    )
    assert shares(40, cheap(), draining) == {"cheap": 36, "dear": 4}


def test_jobs_that_would_rather_stay_go_to_machines_that_stay() -> None:
    spot = a_fleet("spot", offerings=(SPOT,))
    assert shares(4, spot, cheap()) == {"spot": 4}
    assert shares(4, spot, cheap(), job=a_job("small", spot=SpotWish.AVOIDED)) == {"cheap": 4}


def test_the_more_urgent_class_is_served_first() -> None:
    urgent = wanting(8, "urgent", priority=Priority.HIGH)
    found = allocate(a_demand(urgent, wanting(8)), [cheap(scaling=a_scaling(max=2)), dear()], NOW)
    assert found.shares == {"flt_cheap": {"urgent": 8}, "flt_dear": {"small": 8}}


@pytest.mark.requirement("DEM-016", "DEM-025")
@pytest.mark.requirement("TST-012")
def test_demand_that_no_fleet_could_serve_is_told_with_every_reason() -> None:
    job = a_job_that_requires(platform=Platform.WINDOWS)
    found = allocate(a_demand(wanting(3, job=job)), [cheap(protected=True), dear()], NOW)
    assert found.shares == {}
    (one,) = found.unserved
    assert one.count == 3
    assert one.reasons["dear"] == "needs platform windows, has platform linux"
    assert "protected" in one.reasons["cheap"]


def test_demand_that_its_quotas_hold_back_is_nobodys() -> None:
    assert allocate(a_demand(wanting(0)), [cheap()], NOW).unserved == ()


def test_without_fleets_all_demand_is_unserved() -> None:
    (one,) = allocate(a_demand(wanting(2)), [], NOW).unserved
    assert (one.count, one.reasons) == (2, {})
