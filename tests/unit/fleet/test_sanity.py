"""What nobody can have meant by the document of a fleet, and what may only surprise."""

from dataclasses import replace

import pytest

from forgeyard.errors import InvalidRequest
from forgeyard.fleet import sanity
from forgeyard.fleet.differences import Difference, differences
from forgeyard.model.capability import TrustClass
from forgeyard.model.fleet import (
    CapacityClass,
    FleetScope,
    FleetSpec,
    Guardrail,
    IsolationClass,
    Lifetime,
    LifetimeKind,
    Market,
    Offering,
    PhaseDeadlines,
    Placement,
    Rollout,
    Scaling,
    WarmUp,
)
from tests.builders import a_fleet_spec, some_resources

PRICED = (Offering(name="a", region="north", zone="n1", cost=500_000),)
SPOT = (Offering(name="a", market=Market.PREEMPTIBLE),)


def fields(spec: FleetSpec) -> list[str]:
    return [one.field for one in sanity.problems(spec)]


def noted(spec: FleetSpec) -> list[str]:
    return [one.field for one in sanity.notes(spec)]


def of_class(**changed: object) -> CapacityClass:
    return replace(a_fleet_spec().capacity, **changed)


def test_a_plain_document_has_no_problem() -> None:
    assert sanity.problems(a_fleet_spec()) == ()
    sanity.demand_sane(a_fleet_spec())


@pytest.mark.requirement("FRC-033")
@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"name": "Builders"}, "name"),
        ({"name": "-b"}, "name"),
        ({"name": "b" * 64}, "name"),
        ({"capacity": CapacityClass()}, "capacity.resources.cpu"),
        ({"capacity": of_class(resources=some_resources(slots=0))}, "capacity.resources.slots"),
        ({"scaling": Scaling(min=3, max=2)}, "scaling.min"),
        ({"rollout": Rollout(max_surge=0, max_unavailable=0)}, "rollout.max_surge"),
        ({"rollout": Rollout(canaries=11)}, "rollout.canaries"),
        ({"warmup": WarmUp(within=0)}, "warmup.within"),
        ({"warmup": WarmUp(within=3_600_001)}, "warmup.within"),
        ({"scaling": Scaling(warm=3, max=2)}, "scaling.warm"),
        ({"offerings": (*PRICED, *PRICED)}, "offerings.1.name"),
        ({"placement": Placement(regions=("north",))}, "placement.regions.0"),
        ({"offerings": PRICED, "placement": Placement(zones=("n2",))}, "placement.zones.0"),
        ({"offerings": SPOT, "placement": Placement(spot_percent=0)}, "placement.spot_percent"),
        ({"lifetime": Lifetime(kind=LifetimeKind.MAX_AGE)}, "lifetime.age"),
        ({"lifetime": Lifetime(kind=LifetimeKind.MAX_JOBS)}, "lifetime.jobs"),
        ({"lifetime": Lifetime(jobs=3)}, "lifetime.jobs"),
        ({"lifetime": Lifetime(kind=LifetimeKind.ONE_JOB)}, "capacity.resources.slots"),
        ({"guardrail": Guardrail(currency="eur")}, "guardrail.currency"),
        ({"offerings": PRICED, "guardrail": Guardrail(hourly=499_999)}, "guardrail.hourly"),
        ({"offerings": PRICED, "guardrail": Guardrail(daily=0)}, "guardrail.daily"),
        ({"deadlines": PhaseDeadlines(enrol=0)}, "deadlines.enrol"),
    ],
)
def test_each_contradiction_names_its_field(changed: dict[str, object], field: str) -> None:
    spec = a_fleet_spec(**changed)
    assert field in fields(spec)
    with pytest.raises(InvalidRequest) as caught:
        sanity.demand_sane(spec)
    assert caught.value.field == fields(spec)[0]
    assert caught.value.allowed


@pytest.mark.requirement("FLM-014")
def test_people_alone_decide_how_many_machines_may_sign() -> None:
    signing = a_fleet_spec(capacity=of_class(trust=TrustClass.SIGNING_RESTRICTED))
    assert fields(signing) == ["protected"]
    assert fields(replace(signing, protected=True)) == []


@pytest.mark.requirement("FOP-007", "FOP-028")
def test_tenants_that_would_share_weakly_parted_machines_are_pointed_out() -> None:
    shared = a_fleet_spec()
    assert noted(shared) == ["capacity.isolation"]
    assert "a lifetime of one job" in sanity.notes(shared)[0].allowed
    assert noted(replace(shared, scope=FleetScope(tenant_id="tnt_a"))) == []
    assert noted(replace(shared, capacity=of_class(isolation=IsolationClass.VM))) == []
    assert noted(replace(shared, capacity=of_class(trust=TrustClass.TRUSTED_INTERNAL))) == []
    assert noted(replace(shared, lifetime=Lifetime(kind=LifetimeKind.ONE_JOB))) == []


def test_a_fleet_that_never_comes_to_zero_although_it_might_is_pointed_out() -> None:
    safe = of_class(isolation=IsolationClass.VM)
    kept = a_fleet_spec(capacity=safe, scaling=Scaling(min=1))
    assert noted(kept) == ["scaling.scale_to_zero"]
    assert noted(replace(kept, scaling=Scaling(min=1, scale_to_zero=False))) == []
    assert noted(replace(kept, offerings=SPOT, scaling=Scaling())) == ["placement.stable_fallback"]


def test_differences_name_what_is_said_otherwise_and_nothing_else() -> None:
    before = a_fleet_spec(offerings=PRICED)
    after = replace(before, scaling=Scaling(max=50), offerings=(*PRICED, *SPOT), protected=True)
    assert differences(before, before) == ()
    found = {one.field: one for one in differences(before, after)}
    assert found["scaling.max"] == Difference(field="scaling.max", before="10", after="50")
    assert found["protected"] == Difference(field="protected", before="false", after="true")
    assert found["offerings.1.market"].before is None
    assert set(found) == {
        *("scaling.max", "protected"),
        *(f"offerings.1.{name}" for name in ("name", "market", "cost")),
    }
    assert all(one.before is None for one in differences(None, after))
