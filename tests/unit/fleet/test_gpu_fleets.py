"""Machines with GPUs, which are dear and scarce: made for jobs that need one, and for no others."""

from dataclasses import replace

import pytest

from forgeyard.fleet.allocate import allocate
from forgeyard.fleet.plan import decide
from forgeyard.fleet.view import ClampKind, Closed, FleetView
from forgeyard.model.equipment import (
    Equipment,
    EquipmentRequirement,
    Gpu,
    GpuRequirement,
    GpuVendor,
)
from forgeyard.model.fleet import Offering
from forgeyard.model.units import GIB
from forgeyard.scheduler.demand import Demand
from tests.fleets import (
    HOUR,
    a_class,
    a_demand,
    a_fleet,
    a_scaling,
    an_instance,
    wanting,
)
from tests.scheduling import NOW, a_job_that_requires

PRICE = 4_000_000
ON_DEMAND = Offering(name="gpu", machine="p4d.24xlarge", cost=PRICE)
ELSEWHERE = replace(ON_DEMAND, name="elsewhere", zone="b", cost=PRICE + 1)
A100 = Gpu(vendor=GpuVendor.NVIDIA, model="A100", memory=40 * GIB)
TRAINING = a_job_that_requires(
    "train",
    equipment=EquipmentRequirement(
        gpus=(GpuRequirement(vendor=GpuVendor.NVIDIA, memory=24 * GIB),)
    ),
)


def gpus(**changed: object) -> FleetView:
    given = {
        "capacity": a_class(equipment=Equipment(gpus=(A100,))),
        "offerings": (ON_DEMAND,),
        "scaling": a_scaling(warm=0),
        **changed,
    }
    return a_fleet("gpus", **given)


def trained(count: int) -> Demand:
    return a_demand(wanting(count, "train", job=TRAINING))


@pytest.mark.requirement("PRI-057", "PRV-021")
def test_only_machines_with_gpus_are_made_for_jobs_that_need_one_and_none_for_others() -> None:
    fleets = (gpus(), a_fleet("plain"))
    mixed = a_demand(wanting(2, "train", job=TRAINING), wanting(8))
    found = allocate(mixed, fleets, NOW)
    assert found.shares == {"flt_gpus": {"train": 2}, "flt_plain": {"small": 8}}
    assert not found.unserved
    made = decide(fleets[0], found.of("flt_gpus"), demand=mixed, now=NOW)
    assert [one.made_for for one in made.launch] == ["train", "train"]
    small = gpus(capacity=a_class(equipment=Equipment(gpus=(replace(A100, memory=16 * GIB),))))
    (left,) = allocate(trained(1), (small, a_fleet("plain")), NOW).unserved
    assert set(left.reasons) == {"gpus", "plain"}


@pytest.mark.requirement("DEV-014")
def test_a_gpu_fleet_keeps_nothing_warm_costs_nothing_idle_and_goes_back_to_nothing() -> None:
    view = gpus()
    assert decide(view, {}, demand=a_demand(), now=NOW).launch == ()
    assert len(decide(view, {"train": 1}, demand=trained(1), now=NOW).launch) == 1
    idle = replace(view, instances=(an_instance("a", offering="gpu", cost=PRICE),))
    gone = decide(idle, {}, demand=a_demand(), now=NOW + HOUR)
    assert [one.instance_id for one in gone.drain] == ["cin_a"]
    warm = gpus(scaling=a_scaling(warm=1))
    assert len(decide(warm, {}, demand=a_demand(), now=NOW).launch) == 1, "warm is a choice"


@pytest.mark.requirement("PRV-021")
def test_where_gpus_have_run_out_another_place_is_tried_and_then_jobs_wait_and_it_is_said() -> None:
    out = Closed(offering="gpu", until=NOW + HOUR, reason="out of capacity: p4d.24xlarge")
    both = gpus(offerings=(ON_DEMAND, ELSEWHERE), closed=(out,))
    made = decide(both, {"train": 1}, demand=trained(1), now=NOW)
    assert [one.offering for one in made.launch] == ["elsewhere"]
    one = gpus(closed=(out,))
    waits = decide(
        one, allocate(trained(1), (one,), NOW).of("flt_gpus"), demand=trained(1), now=NOW
    )
    assert waits.launch == ()
    (clamp,) = (it for it in waits.clamps if it.kind is ClampKind.NO_OFFERING)
    assert "out of capacity: p4d.24xlarge" in clamp.text
