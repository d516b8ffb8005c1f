"""Fleets, machines and demand as values, each with defaults that never matter to the test."""

from collections.abc import Iterable
from dataclasses import replace

from forgeyard.fleet.view import FleetView, InstanceView
from forgeyard.model.capability import Architecture, Platform
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.fleet import (
    CapacityClass,
    FleetSpec,
    Market,
    Offering,
    ScaleDown,
    ScaleUp,
    Scaling,
)
from forgeyard.model.job import Priority
from forgeyard.model.units import Resources
from forgeyard.scheduler.demand import Demand, DemandClass
from forgeyard.scheduler.snapshot import SchedulingJob
from tests.scheduling import MINUTE, NOW, a_job, amounts

S = CapacityInstanceState
HOUR = 60 * MINUTE
SIZE = amounts(cpu=4_000, memory_gib=16, disk_gib=100, slots=4)
CHEAP = Offering(name="cheap", region="eu", zone="eu-a", cost=100_000)
DEAR = Offering(name="dear", region="eu", zone="eu-b", cost=300_000)
SPOT = Offering(name="spot", region="eu", zone="eu-a", cost=40_000, market=Market.PREEMPTIBLE)
EAGER = ScaleDown(idle_grace=MINUTE, window=0, at_once=100)
"""Shrinks after a minute, as far as it may at once."""
FAST = ScaleUp(per_minute=1_000, burst=1_000)


def a_scaling(**changed: object) -> Scaling:
    """Describe bounds that are in nobody's way: up to 100 machines, at once."""
    return replace(Scaling(max=100, up=FAST, down=EAGER), **changed)


def a_class(**changed: object) -> CapacityClass:
    """Describe Linux machines of 4 cores, 16 GiB and 4 slots."""
    base = CapacityClass(
        platform=Platform.LINUX,
        architecture=Architecture.X86_64,
        resources=SIZE,
        image="img-2",
    )
    return replace(base, **changed)


def a_fleet(name: str = "linux", **changed: object) -> FleetView:
    """Describe an empty fleet; fields of its document and of the view may be given."""
    parts = {"scaling", "placement", "lifetime", "guardrail", "scope", "capacity", "offerings"}
    parts |= {"protected", "provider"}
    written = {key: value for key, value in changed.items() if key in parts}
    seen = {key: value for key, value in changed.items() if key not in parts}
    spec = FleetSpec(name=name, capacity=a_class(), offerings=(CHEAP,), scaling=a_scaling())
    return replace(FleetView(fleet_id=f"flt_{name}", spec=replace(spec, **written)), **seen)


def an_instance(name: str, **changed: object) -> InstanceView:
    """Describe a machine that came up an hour ago and has been idle since."""
    base = InstanceView(
        instance_id=f"cin_{name}",
        state=S.HEALTHY,
        offering="cheap",
        runner_id=f"rnr_{name}",
        region="eu",
        zone="eu-a",
        image="img-2",
        cost=100_000,
        requested_at=NOW - HOUR,
        healthy_at=NOW - HOUR,
        idle_since=NOW - HOUR,
    )
    return replace(base, **changed)


def a_busy(name: str, **changed: object) -> InstanceView:
    """Describe a machine that has a job."""
    return an_instance(name, **{"leases": 1, "idle_since": None, **changed})


def coming(name: str, **changed: object) -> InstanceView:
    """Describe a machine that was asked for and is not there yet."""
    given = {
        "state": S.PROVISIONING,
        "idle_since": None,
        "healthy_at": None,
        "runner_id": "",
        "requested_at": NOW - MINUTE,
    }
    return an_instance(name, **{**given, **changed})


def some(count: int, make: object, **changed: object) -> tuple[InstanceView, ...]:
    """Describe so many alike."""
    assert callable(make)
    return tuple(make(f"{make.__name__}-{place:05}", **changed) for place in range(count))


def wanting(
    count: int,
    name: str = "small",
    *,
    job: SchedulingJob | None = None,
    priority: Priority = Priority.NORMAL,
    resources: Resources | None = None,
) -> DemandClass:
    """Describe jobs that wait for room: 1 core and 1 GiB each."""
    example = job or a_job(name)
    if resources is not None:
        example = replace(example, resources=resources)
    return DemandClass(
        requirement_class=name,
        example=example,
        count=count,
        oldest_wait=MINUTE,
        priority=priority,
    )


def a_demand(*classes: DemandClass, placing: Iterable[str] = ()) -> Demand:
    """Describe unmet demand."""
    return Demand(
        demand_id="sha256:demand", taken_at=NOW, classes=classes, placing=frozenset(placing)
    )
