"""Who is admitted: a report against what was granted, complaint by complaint."""

from dataclasses import replace

import pytest

from activities.provisioning import grant_of
from forgeyard.fleet import admission
from forgeyard.model.capability import Architecture, Platform, Toolchain, TrustClass
from forgeyard.model.enrolment import Admission, CloudMachine, Expectation, Grant
from forgeyard.model.equipment import (
    Device,
    Equipment,
    Gpu,
    GpuSharing,
    GpuVendor,
    IsolationClass,
    Provenance,
)
from forgeyard.model.protocol import Register, Report
from forgeyard.model.units import GIB
from forgeyard.trust.evidence import Doubt, Facts
from tests.builders import a_fleet_spec, a_registration, some_capabilities

NOW = 1_700_000_000_000
GRANT = Grant(
    trust=TrustClass.SIGNING_RESTRICTED,
    labels={"zone": "b", "trusted.key": "7"},
    trusted=("trusted.hsm", "trusted.signer"),
    expects=Expectation(platform=Platform.LINUX, architecture=Architecture.X86_64, cpu=4_000),
)
HSM = Device(kind="trusted.hsm")


def a_message(**changed: object) -> Register:
    return replace(a_registration("build-7"), **{"clock_ms": NOW, **changed})


def judged(message: Register, grant: Grant = GRANT, *, versions: str = "") -> admission.Verdict:
    return admission.judge(
        message, grant, expected_name="build-7", agent_versions=versions, now=NOW
    )


def offering(**changed: object) -> Register:
    return a_message(capabilities=some_capabilities(**changed))


def with_device(device: Device) -> Register:
    return offering(equipment=Equipment(devices=(device,)))


def test_a_machine_as_it_was_meant_waits_for_its_first_heartbeat() -> None:
    assert judged(a_message()) == admission.Verdict(admission=Admission.PENDING)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (replace(a_message(), runner_name="build-8"), "that of build-7"),
        (a_message(clock_ms=None), "takes for the time"),
        (a_message(clock_ms=NOW + 301_000), "301 s ahead"),
        (a_message(clock_ms=NOW - 301_000), "301 s behind"),
        (offering(architecture=Architecture.AARCH64), "architecture is aarch64, expected x86_64"),
        (offering(platform=None), "platform is unknown, expected linux"),
        (with_device(Device(kind="trusted.other")), "offers trusted.other"),
        (offering(labels={"trusted.root": "1"}), "offers trusted.root"),
        (offering(toolchains=(Toolchain(name="trusted.notary"),)), "offers trusted.notary"),
    ],
)
@pytest.mark.requirement("BOO-009", "BOO-011")
def test_what_was_not_meant_is_turned_away_with_the_reason(message: Register, reason: str) -> None:
    verdict = judged(message)
    assert verdict.admission is Admission.REJECTED
    assert reason in verdict.reason


def test_a_machine_that_is_smaller_than_its_class_is_turned_away() -> None:
    grant = replace(GRANT, expects=Expectation(memory=64 * GIB))
    assert "expected 68719476736 at least" in judged(a_message(), grant).reason


A100 = Gpu(vendor=GpuVendor.NVIDIA, model="A100", memory=80 * GIB, compute_capability="8.0")
A100_HALF = replace(A100, memory=40 * GIB)
T4 = Gpu(vendor=GpuVendor.NVIDIA, model="T4", memory=16 * GIB, compute_capability="7.5")


@pytest.mark.requirement("DEV-015")
@pytest.mark.parametrize(
    ("promised", "reported", "is_admitted"),
    [
        ((A100,), (A100,), True),
        ((A100,), (replace(A100, model="a100", compute_capability="8.6"), T4), True),
        ((A100_HALF, A100), (A100_HALF, A100), True),
        ((A100_HALF, A100_HALF), (A100, A100_HALF), True),
        ((Gpu(memory=8 * GIB), A100), (A100, T4), True),
        ((A100,), (A100_HALF,), False),
        ((A100, A100), (A100,), False),
        ((A100,), (T4, T4), False),
        ((A100,), (replace(A100, compute_capability="7.0"),), False),
        ((A100,), (replace(A100, memory=None),), False),
        ((replace(T4, sharing=GpuSharing.EXCLUSIVE),), (T4,), False),
        ((T4,), (), False),
        ((T4,), None, False),
    ],
)
def test_a_machine_has_the_gpus_that_its_offering_was_said_to_have(
    promised: tuple[Gpu, ...], reported: tuple[Gpu, ...] | None, is_admitted: bool
) -> None:
    """What the provider sold and what the agent finds are compared before any job comes."""
    spec = a_fleet_spec()
    capacity = replace(spec.capacity, equipment=Equipment(gpus=promised))
    expects = grant_of(spec, capacity).expects
    grant = replace(GRANT, expects=replace(GRANT.expects, gpus=expects.gpus))
    verdict = judged(offering(equipment=Equipment(gpus=reported)), grant)
    assert (verdict.admission is Admission.PENDING) is is_admitted
    assert ("GPUs that are expected" in verdict.reason) is not is_admitted


@pytest.mark.requirement("BOO-012")
@pytest.mark.parametrize(
    ("versions", "expected"),
    [("", Admission.PENDING), (">=0.1,<1", Admission.PENDING), (">=2", Admission.REJECTED)],
)
def test_the_version_of_the_agent_has_to_fit(versions: str, expected: Admission) -> None:
    assert judged(a_message(), versions=versions).admission is expected


def test_an_agent_of_an_unknown_version_does_not_fit_a_range() -> None:
    assert "unknown version" in judged(offering(agent_version=""), versions=">=0").reason


def test_five_minutes_of_skew_are_still_believed() -> None:
    assert judged(a_message(clock_ms=NOW - 300_000)).admission is Admission.PENDING


@pytest.mark.requirement("BOO-008", "INV-055")
def test_trust_and_labels_are_what_was_granted_whatever_is_reported() -> None:
    claimed = offering(trust=TrustClass.CONFIDENTIAL, labels={"zone": "a", "rack": "4"})
    has = admission.granted(claimed, GRANT).capabilities
    assert has.trust is TrustClass.SIGNING_RESTRICTED
    assert has.labels == {"zone": "b", "trusted.key": "7", "rack": "4"}
    assert has.provenance["trust"] is Provenance.PROVISIONED


@pytest.mark.requirement("ELG-039", "ELG-044")
def test_a_granted_device_is_provisioned_and_one_that_is_not_is_left_out() -> None:
    phone, other = Device(kind="phone"), Device(kind="trusted.other")
    reported = offering(equipment=Equipment(devices=(HSM, phone, other)))
    devices = admission.granted(reported, GRANT).capabilities.equipment.devices
    assert devices is not None
    assert [(one.kind, one.provenance) for one in devices] == [
        ("trusted.hsm", Provenance.PROVISIONED),
        ("phone", Provenance.SELF_REPORTED),
    ]


def test_a_granted_device_that_was_not_reported_is_not_there() -> None:
    """What is granted may be offered; nobody says that it is plugged in."""
    has = admission.granted(offering(equipment=Equipment(devices=())), GRANT)
    assert has.capabilities.equipment.devices == ()


def test_labels_beyond_what_there_is_room_for_are_left_out_before_granted_ones() -> None:
    many = {f"label-{n}": "x" for n in range(64)}
    labels = admission.granted(offering(labels=many), GRANT).capabilities.labels
    assert len(labels) == 64
    assert labels["zone"] == "b"


FACTS = Facts(account="123456789012", region="eu-1", instance="i-1", launched_at=NOW - 60_000)
MACHINE = CloudMachine(account="123456789012")


@pytest.mark.parametrize("more", [{}, {"region": "eu-1", "instance": "i-1"}])
def test_a_cloud_machine_as_it_was_meant_is_not_doubted(more: dict[str, str]) -> None:
    assert admission.doubt(FACTS, replace(MACHINE, **more), now=NOW) is None


@pytest.mark.parametrize(
    ("facts", "wanted", "why"),
    [
        ({"account": "210987654321"}, {}, Doubt.OTHER_ACCOUNT),
        ({}, {"region": "eu-2"}, Doubt.OTHER_REGION),
        ({}, {"instance": "i-2"}, Doubt.OTHER_INSTANCE),
        ({"launched_at": NOW - 3_600_001}, {}, Doubt.STALE),
        ({"launched_at": NOW - 60_001}, {"launched_within_ms": 60_000}, Doubt.STALE),
        ({"launched_at": NOW + 300_001}, {}, Doubt.STALE),
    ],
)
def test_another_cloud_machine_is_doubted_for_a_reason(
    facts: dict[str, object], wanted: dict[str, object], why: Doubt
) -> None:
    found = admission.doubt(replace(FACTS, **facts), replace(MACHINE, **wanted), now=NOW)
    assert found is not None
    assert found.doubt is why


@pytest.mark.requirement("FOP-028")
def test_what_stands_around_a_machine_is_the_enrolments_to_say() -> None:
    inside = Report(
        capabilities=some_capabilities(equipment=Equipment(isolation=(IsolationClass.PROCESS,))),
        total=a_message().total,
        headroom=a_message().headroom,
    )
    vm = replace(GRANT, isolation=(IsolationClass.VM,))
    said = admission.granted(inside, vm).capabilities.equipment.isolation
    assert said == (IsolationClass.PROCESS, IsolationClass.VM)
    assert admission.granted(inside, GRANT) != admission.granted(inside, vm)
    unknown = replace(inside, capabilities=some_capabilities())
    assert admission.granted(unknown, GRANT).capabilities.equipment.isolation is None
