"""Whether a fleet may serve a class of jobs: the scheduler's eligibility, asked of a promise."""

from dataclasses import replace

import pytest

from forgeyard.fleet.matching import match
from forgeyard.fleet.view import FleetView
from forgeyard.model.capability import (
    Architecture,
    Platform,
    Requirements,
    Toolchain,
    ToolchainRequirement,
    TrustClass,
)
from forgeyard.model.equipment import (
    Device,
    DeviceRequirement,
    Equipment,
    EquipmentRequirement,
    Gpu,
    GpuRequirement,
    IsolationClass,
    SandboxKind,
)
from forgeyard.model.fleet import FleetScope, FleetState, Placement
from forgeyard.model.fleet import IsolationClass as FleetIsolation
from forgeyard.model.units import Resources
from forgeyard.model.wishes import SpotWish
from forgeyard.scheduler.standing import SchedulingPool, Sharing
from tests.fleets import CHEAP, DEAR, SPOT, a_class, a_fleet, wanting
from tests.scheduling import a_job, a_job_that_requires, amounts


def serves(view: FleetView, **wanted: object) -> frozenset[str]:
    return match(view, wanting(1, job=a_job_that_requires(**wanted))).offerings


def why_not(view: FleetView, **wanted: object) -> str:
    return match(view, wanting(1, job=a_job_that_requires(**wanted))).text


@pytest.mark.requirement("DEM-011", "DEM-012", "DEM-015")
@pytest.mark.requirement("PRI-047", "INV-047", "TST-011")
def test_a_promise_is_held_against_every_hard_requirement() -> None:
    python = a_fleet(capacity=a_class(toolchains=(Toolchain(name="python", version="3.12"),)))
    wanted = (ToolchainRequirement(name="python", version=">=3.11"),)
    assert serves(python, toolchains=wanted) == {"cheap"}
    assert why_not(a_fleet(), toolchains=wanted) == "needs python >=3.11, has no python"
    assert serves(a_fleet(capacity=a_class(labels={"disk": "fast"})), labels={"disk": "fast"})
    assert not serves(a_fleet(), labels={"disk": "fast"})


KINDS = {
    "linux-x86_64-standard": a_class(),
    "linux-x86_64-gpu": a_class(
        labels={"kind": "gpu"}, equipment=Equipment(gpus=(Gpu(model="x"),))
    ),
    "windows-x86_64": a_class(platform=Platform.WINDOWS),
    "macos-arm64": a_class(platform=Platform.MACOS, architecture=Architecture.AARCH64),
    "android-device-host": a_class(
        labels={"kind": "android"}, equipment=Equipment(devices=(Device(kind="android"),))
    ),
}
X86 = {"architecture": Architecture.X86_64}
WANTED = {
    "linux-x86_64-gpu": {
        "platform": Platform.LINUX,
        "equipment": EquipmentRequirement(gpus=(GpuRequirement(),)),
        **X86,
    },
    "windows-x86_64": {"platform": Platform.WINDOWS, **X86},
    "macos-arm64": {"platform": Platform.MACOS, "architecture": Architecture.AARCH64},
    "android-device-host": {
        "equipment": EquipmentRequirement(devices=(DeviceRequirement(kind="android"),))
    },
}


@pytest.mark.requirement("FLM-004")
def test_each_usual_kind_of_machine_is_a_class_that_jobs_can_ask_for() -> None:
    fleets = {name: a_fleet(name, capacity=kind) for name, kind in KINDS.items()}
    assert len({kind.class_id for kind in KINDS.values()}) == len(KINDS)
    for name, wanted in WANTED.items():
        assert [one for one, view in fleets.items() if serves(view, **wanted)] == [name]
    plain = {"platform": Platform.LINUX, **X86}
    able = [one for one, view in fleets.items() if serves(view, **plain)]
    assert able == ["linux-x86_64-standard", "linux-x86_64-gpu", "android-device-host"]


def test_amounts_are_held_against_what_a_machine_has() -> None:
    large = wanting(1, resources=amounts(cpu=8_000))
    assert match(a_fleet(), large).text == "needs 8 cores, has 4 cores"
    bigger = a_class(resources=amounts(cpu=8_000, memory_gib=16, disk_gib=100))
    assert match(a_fleet(capacity=bigger), large).offerings


def test_devices_are_those_of_the_class() -> None:
    wanted = EquipmentRequirement(gpus=(GpuRequirement(count=2),))
    one = a_class(equipment=Equipment(gpus=(Gpu(model="x"),)))
    two = a_class(equipment=Equipment(gpus=(Gpu(model="x"), Gpu(model="x"))))
    assert not serves(a_fleet(capacity=one), equipment=wanted)
    assert serves(a_fleet(capacity=two), equipment=wanted)


@pytest.mark.requirement("FLM-013", "FLM-014")
def test_demand_never_moves_a_protected_fleet() -> None:
    signing = a_class(trust=TrustClass.SIGNING_RESTRICTED)
    view = a_fleet(protected=True, capacity=signing)
    assert "protected" in why_not(view, trust=TrustClass.SIGNING_RESTRICTED)
    open_one = a_fleet(capacity=signing)
    assert serves(open_one, trust=TrustClass.SIGNING_RESTRICTED)
    assert not serves(open_one), "restricted trust must be asked for"


@pytest.mark.requirement("FLM-006", "FOP-027", "RSV-006")
def test_a_dedicated_fleet_makes_nothing_for_others() -> None:
    mine = a_fleet(scope=FleetScope(tenant_id="tnt_default"))
    theirs = a_fleet(scope=FleetScope(tenant_id="tnt_other"))
    project = a_fleet(scope=FleetScope(project_id="prj_other"))
    assert serves(mine)
    assert why_not(theirs) == "it serves tenant tnt_other alone"
    assert why_not(project) == "it serves project prj_other alone"


@pytest.mark.requirement("FLM-007", "FOP-028")
@pytest.mark.requirement("ACC-061", "INV-068")
def test_a_job_that_must_be_alone_in_a_virtual_machine_gets_no_less() -> None:
    wanted = EquipmentRequirement(isolation=IsolationClass.VM)
    assert serves(a_fleet(capacity=a_class(isolation=FleetIsolation.VM)), equipment=wanted)
    for weaker in (FleetIsolation.PROCESS, FleetIsolation.CONTAINER):
        assert not serves(a_fleet(capacity=a_class(isolation=weaker)), equipment=wanted)
    sandbox = EquipmentRequirement(sandbox=SandboxKind.VM)
    has = a_class(equipment=Equipment(sandboxes=(SandboxKind.VM,)))
    assert serves(a_fleet(capacity=has), equipment=sandbox)
    assert not serves(a_fleet(), equipment=sandbox), "what is not promised satisfies nobody"


@pytest.mark.requirement("FOP-026")
def test_tenants_share_a_fleet_as_far_as_its_isolation_and_trust_allow() -> None:
    weak, strong = a_fleet(), a_fleet(capacity=a_class(isolation=FleetIsolation.VM))
    signing = a_fleet(capacity=a_class(trust=TrustClass.SIGNING_RESTRICTED))
    alone = Requirements(equipment=EquipmentRequirement(isolation=IsolationClass.VM))
    trusting = Requirements(trust=TrustClass.SIGNING_RESTRICTED)
    for tenant in ("tnt_one", "tnt_other"):

        def served(view: FleetView, job: Requirements, tenant: str = tenant) -> bool:
            wanted = wanting(1, job=a_job(tenant_id=tenant, requirements=job))
            return bool(match(view, wanted).offerings)

        plain = Requirements()
        assert [served(view, plain) for view in (weak, strong, signing)] == [True, True, False]
        assert [served(view, alone) for view in (weak, strong, signing)] == [False, True, False]
        assert [served(view, trusting) for view in (weak, strong, signing)] == [False, False, True]


@pytest.mark.requirement("FOP-024", "PLN-004")
def test_where_a_job_may_run_is_a_hard_bound() -> None:
    elsewhere = replace(DEAR, region="us")
    view = a_fleet(offerings=(CHEAP, elsewhere))
    assert serves(view, regions=("us",)) == {"dear"}
    assert not serves(view, regions=("asia",))


@pytest.mark.requirement("PLN-005", "PLN-007")
def test_a_placement_leaves_out_offerings_that_are_elsewhere() -> None:
    view = a_fleet(offerings=(CHEAP, DEAR), placement=Placement(zones=("eu-b",)))
    assert serves(view) == {"dear"}
    nowhere = a_fleet(placement=Placement(regions=("us",)))
    assert why_not(nowhere) == "none of its offerings is where its machines may be"


@pytest.mark.requirement("SPT-005")
def test_a_job_that_forbids_machines_that_may_go_gets_one_that_stays() -> None:
    view = a_fleet(offerings=(SPOT, CHEAP))
    forbidding = wanting(1, job=a_job(spot=SpotWish.FORBIDDEN))
    assert match(view, forbidding).offerings == {"cheap"}
    assert match(view, wanting(1)).offerings == {"spot", "cheap"}
    assert "one that may be taken away" in match(view, forbidding).against["spot"]


def test_the_pool_of_its_runners_decides_as_it_would_for_a_runner() -> None:
    named = a_fleet(pool=SchedulingPool(name="fast"))
    assert serves(named, pools=("fast",))
    assert why_not(named, pools=("slow",)) == "needs pool slow, has pool fast"
    reserved = SchedulingPool(
        name="theirs", sharing=Sharing.RESERVED, owner_id="prj_x", owner="project x"
    )
    assert "reserved for project x" in why_not(a_fleet(pool=reserved))
    assert not serves(a_fleet(pool=SchedulingPool(draining=True, reason="old")))


@pytest.mark.parametrize("state", [FleetState.DRAINING, FleetState.DELETING])
def test_a_fleet_that_is_given_up_serves_nobody(state: FleetState) -> None:
    assert why_not(a_fleet(state=state)) == f"it is {state}"


def test_nothing_is_wanted_of_a_machine_that_says_nothing() -> None:
    assert serves(a_fleet(), platform=None) == {"cheap"}
    assert match(a_fleet(), wanting(1, resources=Resources())).offerings
    assert Requirements().platform is None


@pytest.mark.requirement("PRI-047", "INV-058")
def test_equal_promises_are_one_class_and_another_image_makes_another() -> None:
    assert a_class().class_id == a_class().class_id
    others = (
        a_class(image="img-3"),
        a_class(trust=TrustClass.SIGNING_RESTRICTED),
        a_class(labels={"disk": "fast"}),
        a_class(resources=amounts(cpu=8_000)),
    )
    assert len({it.class_id for it in (a_class(), *others)}) == 5
