from dataclasses import replace

import pytest

from forgeyard.errors import InvalidRequirements
from forgeyard.model.capability import (
    GENERAL_TRUST,
    Capabilities,
    Toolchain,
    TrustClass,
    parse_range,
    report_digest,
)
from forgeyard.model.equipment import (
    Device,
    Equipment,
    Gpu,
    GpuVendor,
    IsolationClass,
    NetworkMode,
    Provenance,
    Runtime,
    SandboxKind,
)
from forgeyard.store.codec import decode, encode


@pytest.mark.requirement("ELG-019")
@pytest.mark.parametrize("text", [">=3.11,<4", "==22.*", "", "~=1.4", "!=2.0"])
def test_a_pep_440_range_can_be_read(text: str) -> None:
    assert str(parse_range(text, field="python")) is not None


@pytest.mark.parametrize("text", ["3.11", "latest", ">=", ">=3.11 || <2", "^1.2"])
def test_another_range_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidRequirements) as refused:
        parse_range(text, field="jobs.a.requires.toolchains.python")
    error = refused.value
    assert (error.field, error.value) == ("jobs.a.requires.toolchains.python", text)
    assert "PEP 440" in (error.allowed or "")


def test_a_runner_that_says_nothing_is_not_trusted_with_secrets() -> None:
    assert Capabilities().trust is TrustClass.UNTRUSTED_GENERAL
    assert TrustClass.SIGNING_RESTRICTED not in GENERAL_TRUST
    assert TrustClass.CONFIDENTIAL not in GENERAL_TRUST


FULL = Equipment(
    cpu_features=("avx2", "sse4_2"),
    runtimes=(Runtime(name="docker", version="24.0.7"), Runtime(name="podman")),
    sandboxes=(SandboxKind.NONE, SandboxKind.VM),
    network_modes=(NetworkMode.HOST, NetworkMode.DENIED),
    isolation=(IsolationClass.PROCESS, IsolationClass.VM),
    devices=(Device(kind="phone", count=2), Device(kind="usb-programmer")),
    gpus=(Gpu(vendor=GpuVendor.NVIDIA, model="A100"), Gpu(vendor=GpuVendor.AMD)),
)


def a_report(**changed: object) -> Capabilities:
    report = Capabilities(
        toolchains=(Toolchain(name="git", version="2"), Toolchain(name="git", version="3")),
        labels={"zone": "a", "disk": "nvme"},
        equipment=FULL,
    )
    return replace(report, **changed)


def digest(report: Capabilities) -> str:
    return report_digest(encode(report))


@pytest.mark.requirement("ELG-027")
def test_the_digest_of_a_report_does_not_depend_on_the_order_of_its_parts() -> None:
    turned = {name: getattr(FULL, name)[::-1] for name in Equipment.__slots__}
    report = a_report()
    backwards = a_report(
        toolchains=report.toolchains[::-1],
        labels=dict(reversed(list(report.labels.items()))),
        equipment=Equipment(**turned),
    )
    assert encode(backwards) != encode(report)
    assert digest(backwards) == digest(report)


@pytest.mark.requirement("ELG-027")
@pytest.mark.parametrize("part", Equipment.__slots__)
def test_the_digest_tells_every_part_of_the_equipment_and_unknown_from_none(part: str) -> None:
    less, none, unknown = (
        a_report(equipment=replace(FULL, **{part: value}))
        for value in (getattr(FULL, part)[:1], (), None)
    )
    assert len({digest(it) for it in (a_report(), less, none, unknown)}) == 4


def test_the_digest_covers_how_entries_are_known_and_the_version_of_the_report() -> None:
    probed = a_report(toolchains=(Toolchain(name="git", provenance=Provenance.PROBED),))
    configured = a_report(toolchains=(Toolchain(name="git", provenance=Provenance.CONFIGURED),))
    versions = (a_report(schema_version=1), a_report(schema_version=2))
    assert len({digest(it) for it in (probed, configured, *versions)}) == 4


@pytest.mark.requirement("ELG-018")
def test_a_report_of_an_older_agent_leaves_its_equipment_unknown() -> None:
    old = (
        '{"platform":"linux","os_version":"12","architecture":"x86_64","toolchains":'
        '[{"name":"git","version":"2.39.5","digest":null}],"labels":{},'
        '"trust":"trusted_internal","agent_version":"0.1.0","schema_version":1}'
    )
    report = decode(Capabilities, old)
    assert report.equipment == Equipment()
    assert all(getattr(report.equipment, name) is None for name in Equipment.__slots__)
    assert report.toolchains[0].provenance is Provenance.SELF_REPORTED
    assert report.schema_version == 1


def test_a_report_lists_every_provenance_that_it_claims() -> None:
    assert a_report().provenances() == {Provenance.SELF_REPORTED}
    verified = Gpu(provenance=Provenance.VERIFIED)
    provisioned = Device(kind="phone", provenance=Provenance.PROVISIONED)
    probed = Runtime(name="docker", provenance=Provenance.PROBED)
    report = Capabilities(
        equipment=Equipment(gpus=(verified,), devices=(provisioned,), runtimes=(probed,)),
        provenance={"platform": Provenance.CONFIGURED},
    )
    assert report.provenances() == set(Provenance) - {Provenance.SELF_REPORTED}
