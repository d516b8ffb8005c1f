"""From a queue to machines: what the scheduler leaves over, who serves it, and who must not."""

from dataclasses import replace
from typing import Any

import pytest

from forgeyard.fleet.allocate import allocate
from forgeyard.fleet.plan import decide
from forgeyard.fleet.view import ClampKind, Closed, FleetDecision, FleetView
from forgeyard.model.capability import Platform, TrustClass
from forgeyard.model.equipment import (
    Equipment,
    EquipmentRequirement,
    Gpu,
    GpuRequirement,
    IsolationClass,
)
from forgeyard.model.fleet import FleetScope, Guardrail
from forgeyard.model.fleet import IsolationClass as FleetIsolation
from forgeyard.model.holdings import Holdings
from forgeyard.model.wishes import SpotWish
from forgeyard.scheduler.demand import unmet
from forgeyard.scheduler.scopes import Quota, SchedulingScope, Usage
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot
from tests.fleets import CHEAP, DEAR, SPOT, a_class, a_demand, a_fleet, a_scaling, wanting
from tests.scheduling import NOW, POLICY, a_job, a_job_that_requires, a_runner, a_snapshot, amounts


def jobs(count: int, name: str = "j", **changed: Any) -> list[SchedulingJob]:
    given = {"requirement_class": "c", **changed}
    return [a_job(f"{name}{place:05}", **given) for place in range(count)]


def decisions(seen: Snapshot, *fleets: FleetView) -> dict[str, FleetDecision]:
    """Decide for all fleets as one tick does."""
    demand = unmet(seen, POLICY)
    shares = allocate(demand, fleets, NOW)
    return {
        it.spec.name: decide(it, shares.of(it.fleet_id), demand=demand, now=NOW) for it in fleets
    }


def launches(seen: Snapshot, *fleets: FleetView) -> dict[str, int]:
    return {name: len(it.launch) for name, it in decisions(seen, *fleets).items()}


@pytest.mark.requirement("ACC-038", "INV-048", "PRI-074", "PRI-048")
def test_machines_follow_from_what_the_scheduler_has_no_room_for_and_from_nothing_else() -> None:
    def made(waiting: int, *runners: SchedulingRunner) -> int:
        return launches(a_snapshot(jobs(waiting), runners), a_fleet())["linux"]

    assert made(10) == 3
    assert made(10, a_runner()) == 2, "four of them have a place"
    assert made(10, a_runner("a"), a_runner("b"), a_runner("c")) == 0
    assert made(0) == 0


@pytest.mark.requirement("TST-025", "ACC-057", "INV-060", "PRI-067", "GAT-017")
def test_no_machine_is_made_for_what_a_quota_holds_back() -> None:
    def made(**quota: Any) -> int:
        scope = SchedulingScope(
            scope_id="tnt_default",
            name="acme",
            kind="tenant",
            quota=Quota(**quota),
            used=Usage(jobs=1),
        )
        return launches(a_snapshot(jobs(40), [], scopes={"tnt_default": scope}), a_fleet())["linux"]

    assert made() == 10
    assert made(jobs=9) == 2
    assert made(jobs=1) == 0


@pytest.mark.requirement("PRI-067")
def test_who_has_had_less_is_placed_and_machines_are_made_for_who_has_had_more() -> None:
    def made(**served: int) -> dict[str, int]:
        scopes = {
            name: SchedulingScope(scope_id=name, name=name, kind="tenant", finish_tag=tag)
            for name, tag in served.items()
        }
        parts = ("organization_id", "project_id", "queue_id")
        waiting = [
            job
            for name in served
            for job in jobs(4, name, tenant_id=name, **dict.fromkeys(parts, f"of {name}"))
        ]
        own = [a_fleet(name, scope=FleetScope(tenant_id=name)) for name in served]
        return launches(a_snapshot(waiting, [a_runner()], scopes=scopes), *own)

    much = 10**12
    assert made(a=0, b=much) == {"a": 0, "b": 1}
    assert made(a=much, b=0) == {"a": 1, "b": 0}


HERE, THERE = replace(CHEAP, region="eu"), replace(CHEAP, name="there", region="us")
OUT = {
    "offering": {"closed": (Closed(offering="cheap", until=NOW + 1, reason="no capacity"),)},
    "provider": {"provider_frozen": True},
}


@pytest.mark.requirement("TST-026", "PRI-070", "PHA-022", "ACC-066")
@pytest.mark.parametrize("out", OUT)
def test_where_a_region_fails_an_equal_fleet_elsewhere_serves_who_may_be_there(out: str) -> None:
    failing = a_fleet("eu", offerings=(HERE,), **OUT[out])
    other = a_fleet("us", offerings=(THERE,))
    anywhere = a_snapshot(jobs(8), [])
    assert launches(anywhere, failing, other) == {"eu": 0, "us": 2}
    bound = a_job_that_requires(regions=("eu",)).requirements
    assert launches(a_snapshot(jobs(8, requirements=bound), []), failing, other) == {
        "eu": 0,
        "us": 0,
    }


ABLE = a_class(trust=TrustClass.TRUSTED_INTERNAL, isolation=FleetIsolation.VM)
LACKS: dict[str, dict[str, Any]] = {
    "platform": {"capacity": replace(ABLE, platform=Platform.MACOS)},
    "trust": {"capacity": replace(ABLE, trust=TrustClass.UNTRUSTED_GENERAL)},
    "isolation": {"capacity": replace(ABLE, isolation=FleetIsolation.CONTAINER)},
    "region": {"offerings": (THERE,)},
    "tenant": {"scope": FleetScope(tenant_id="tnt_other")},
    "spot": {"offerings": (SPOT,)},
}


@pytest.mark.requirement("TST-023", "ACC-066", "GAT-017")
@pytest.mark.parametrize("lacks", LACKS)
def test_where_money_ends_jobs_wait_rather_than_go_where_they_must_not(lacks: str) -> None:
    """The other fleet is cheaper, has no ceiling, and lacks one thing that the jobs need."""
    needs = a_job_that_requires(
        platform=Platform.LINUX,
        regions=("eu",),
        trust=TrustClass.TRUSTED_INTERNAL,
        equipment=EquipmentRequirement(isolation=IsolationClass.VM),
    ).requirements
    ceiling = Guardrail(hourly=2 * DEAR.cost)
    poor = a_fleet("poor", capacity=ABLE, offerings=(DEAR,), guardrail=ceiling)
    other = {"capacity": ABLE, "offerings": (HERE,)}
    seen = a_snapshot(jobs(40, requirements=needs, spot=SpotWish.FORBIDDEN), [])
    found = decisions(seen, poor, a_fleet("other", **{**other, **LACKS[lacks]}))
    assert len(found["poor"].launch) == 2
    assert ClampKind.HOURLY_COST in {it.kind for it in found["poor"].clamps}
    assert found["other"].launch == ()
    equal = decisions(seen, poor, a_fleet("other", **other))
    assert len(equal["other"].launch) == 10, "only that one thing keeps them away"


@pytest.mark.requirement("ACC-067", "INV-066")
def test_what_is_near_a_job_neither_keeps_it_waiting_nor_makes_a_machine() -> None:
    """All that it could wish for is on a runner without room; another one is free."""
    near: dict[str, Any] = {
        "inputs": (("sha256:a", 10**9),),
        "closures": ("npm-1",),
        "home": "rnr_near",
    }
    held = Holdings(objects={"sha256:a": 10**9}, closures=("npm-1",))
    full = a_runner("near", holdings=held, reserved=amounts(4_000, 12, 100, 4))
    waiting = jobs(6, **near)
    found = decisions(a_snapshot(waiting, [full, a_runner("far")]), a_fleet())
    assert unmet(a_snapshot(waiting, [full, a_runner("far")]), POLICY).placing == {"rnr_far"}
    assert len(found["linux"].launch) == 1, "for the two for whom the other one has no room either"
    plain = decisions(a_snapshot(jobs(6), [full, a_runner("far")]), a_fleet())
    assert found == plain


@pytest.mark.requirement("TST-030")
def test_scarce_machines_with_gpus_are_made_within_their_bounds_for_those_who_need_them() -> None:
    gpus = Equipment(gpus=(Gpu(model="x"), Gpu(model="x")))
    scarce = a_fleet(
        "gpu",
        capacity=a_class(equipment=gpus),
        offerings=(replace(DEAR, cost=5_000_000),),
        scaling=a_scaling(min=1, max=3),
    )
    plain = a_fleet("plain")
    wants = a_job_that_requires(
        equipment=EquipmentRequirement(gpus=(GpuRequirement(count=1),))
    ).requirements
    learning = jobs(10, "gpu", requirements=wants, requirement_class="gpu")
    found = decisions(a_snapshot([*learning, *jobs(40)], []), scarce, plain)
    assert (found["gpu"].wanted, len(found["gpu"].launch)) == (3, 3), "five would be needed"
    assert ClampKind.MAXIMUM in {it.kind for it in found["gpu"].clamps}
    assert len(found["plain"].launch) == 10
    few = decisions(a_snapshot(learning[:4], []), scarce, plain)
    assert (few["gpu"].wanted, len(few["plain"].launch)) == (2, 0), "two on each machine"
    nothing = decisions(a_snapshot(jobs(4), []), scarce, plain)
    assert (nothing["gpu"].wanted, len(nothing["plain"].launch)) == (1, 1)


@pytest.mark.requirement("ACC-064", "ACC-040", "INV-049", "PRI-050", "PRI-051")
def test_how_many_are_kept_for_nobody_is_what_the_document_says() -> None:
    def wanted(**scaling: Any) -> int:
        view = a_fleet(scaling=a_scaling(**scaling))
        return decide(view, {}, demand=a_demand(wanting(0)), now=NOW).wanted

    assert wanted() == 0
    assert wanted(scale_to_zero=False) == 1
    assert wanted(warm=2) == 2
    assert wanted(warm=2, max=1) == 1
