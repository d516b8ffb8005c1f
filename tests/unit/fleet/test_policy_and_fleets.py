"""What policy demands of jobs decides which fleets may make machines for them."""

from dataclasses import replace

import pytest

from forgeyard.fleet.matching import match
from forgeyard.fleet.view import FleetView
from forgeyard.model import policy_document
from forgeyard.model.equipment import Equipment, EquipmentRequirement, Gpu, GpuRequirement
from forgeyard.model.fleet import FleetScope, IsolationClass
from forgeyard.model.injection import Injection
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Millis
from forgeyard.model.wishes import Purpose, SchedulingClass, Wishes
from forgeyard.scheduler.spot import spot_wish
from forgeyard.scheduler.standing import SchedulingPool, Sharing
from tests.builders import a_job_spec
from tests.fleets import CHEAP, DEAR, SPOT, a_class, a_fleet, wanting
from tests.scheduling import a_job

NO_RULE: dict[str, object] = {}
GPU = EquipmentRequirement(gpus=(GpuRequirement(count=1),))


def policy(requires: dict[str, object], **more: object) -> SchedulingPolicy:
    rule = {"name": "tests go there", "when": {"purpose": ["test"]}, "requires": requires}
    return policy_document.read({"rules": [rule] if requires else [], **more})


def able(
    said: SchedulingPolicy,
    *fleets: FleetView,
    hurry: SchedulingClass = SchedulingClass.NORMAL,
    wanted: EquipmentRequirement | None = None,
) -> list[str]:
    """List the fleets and offerings that may serve a job once policy has had its say."""
    rules = Injection(
        rules=said.rules, nameable_pools=said.nameable_pools, longest_offline=Millis(0), version=1
    )
    spec = a_job_spec(wishes=Wishes(purpose=Purpose.TEST))
    if wanted is not None:
        spec = replace(spec, requires=replace(spec.requires, equipment=wanted))
    requires = rules.into(spec, queue="main", scheduling_class=hurry).requires
    spot = spot_wish(None, hurry=hurry, trust=requires.trust, policy=said)
    one = wanting(1, job=a_job(requirements=requires, spot=spot))
    return sorted(f"{it.spec.name}/{name}" for it in fleets for name in match(it, one).offerings)


def in_pool(name: str, **changed: object) -> SchedulingPool:
    return replace(SchedulingPool(pool_id=f"pol_{name}", name=name), **changed)


@pytest.mark.requirement("DEM-022")
def test_policy_chooses_providers_by_the_pools_that_their_fleets_fill() -> None:
    ours = a_fleet("ours", provider="libvirt", pool=in_pool("house"))
    cloud = a_fleet("cloud", provider="aws", pool=in_pool("cloud"))
    assert able(policy(NO_RULE), ours, cloud) == ["cloud/cheap", "ours/cheap"]
    assert able(policy({"pools": ["house"]}), ours, cloud) == ["ours/cheap"]


@pytest.mark.requirement("DEM-022")
def test_policy_chooses_regions() -> None:
    both = a_fleet(offerings=(CHEAP, replace(DEAR, region="us")))
    assert able(policy(NO_RULE), both) == ["linux/cheap", "linux/dear"]
    assert able(policy({"regions": ["us"]}), both) == ["linux/dear"]
    assert able(policy({"regions": ["asia"]}), both) == []


@pytest.mark.requirement("DEM-022")
def test_policy_keeps_releases_off_machines_that_may_go() -> None:
    fleet, release = a_fleet(offerings=(CHEAP, SPOT)), SchedulingClass.RELEASE
    assert able(policy(NO_RULE), fleet) == ["linux/cheap", "linux/spot"]
    assert able(policy(NO_RULE, spot_guard=1), fleet, hurry=release) == ["linux/cheap"]
    assert able(policy(NO_RULE, spot_guard=0), fleet, hurry=release) == [
        "linux/cheap",
        "linux/spot",
    ]


@pytest.mark.requirement("DEM-022")
def test_a_dedicated_fleet_and_its_gpus_are_for_those_that_they_were_given_to() -> None:
    """A scope of the fleet, or the owner of its pool, each shuts everybody else out."""
    class_ = a_class(equipment=Equipment(gpus=(Gpu(model="x"),)))
    scoped = a_fleet("scoped", capacity=class_, scope=FleetScope(project_id="prj_other"))
    reserved = {"sharing": Sharing.RESERVED, "owner": "project other"}
    owned = a_fleet("owned", capacity=class_, pool=in_pool("g", owner_id="prj_other", **reserved))
    free = a_fleet("free", capacity=class_)
    assert able(policy(NO_RULE), scoped, owned, free, wanted=GPU) == ["free/cheap"]
    mine = replace(owned, pool=replace(owned.pool, owner_id="prj_default"))
    assert able(policy(NO_RULE), mine, wanted=GPU) == ["owned/cheap"]
    assert able(policy(NO_RULE), a_fleet(), wanted=GPU) == []


@pytest.mark.requirement("DEM-022")
def test_policy_puts_a_machine_between_jobs_that_are_hostile_to_each_other() -> None:
    weak = a_fleet("weak", capacity=a_class(isolation=IsolationClass.CONTAINER))
    strong = a_fleet("strong", capacity=a_class(isolation=IsolationClass.VM))
    assert able(policy(NO_RULE), weak, strong) == ["strong/cheap", "weak/cheap"]
    assert able(policy({"isolation": "vm"}), weak, strong) == ["strong/cheap"]
