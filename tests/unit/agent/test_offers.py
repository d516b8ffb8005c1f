"""An offer that this host cannot honour any more is turned down with the reason."""

from dataclasses import replace
from typing import Any

import pytest

from forgeyard.agent.offers import Situation, refusal, search_path
from forgeyard.machine_settings import ToolchainConfig
from forgeyard.model.capability import Requirements, Toolchain, ToolchainRequirement
from forgeyard.model.equipment import Device, DeviceRequirement, Equipment, EquipmentRequirement
from forgeyard.model.job import Step
from forgeyard.model.runner import RejectReason, ResourcePressure
from forgeyard.model.units import GIB
from tests.builders import a_job_spec, some_resources


def a_situation(**changed: object) -> Situation:
    """Describe a host with room for anything."""
    situation = Situation(
        draining=False,
        quarantined="",
        free_slots=2,
        pressure=ResourcePressure.NORMAL,
        free_disk=10 * GIB,
        granted=frozenset({"TOKEN"}),
        shells=frozenset({"sh"}),
        toolchains=(Toolchain(name="python", version="3.11.2"),),
        equipment=Equipment(cpu_features=("avx2",), devices=(Device(kind="phone", count=1),)),
    )
    return replace(situation, **changed)


def needs(name: str, version: str | None = None, digest: str | None = None) -> Requirements:
    """Ask for one toolchain."""
    return Requirements(
        toolchains=(ToolchainRequirement(name=name, version=version, digest=digest),)
    )


def equipped(**wanted: object) -> Requirements:
    """Ask for equipment."""
    return Requirements(equipment=EquipmentRequirement(**wanted))


def phones(count: int) -> Requirements:
    """Ask for phones."""
    return equipped(devices=(DeviceRequirement(kind="phone", count=count),))


def test_an_ordinary_offer_is_taken() -> None:
    spec = a_job_spec(secrets=("TOKEN",), requires=needs("python", ">=3.11,<4"))
    assert refusal(spec, a_situation()) is None
    assert refusal(a_job_spec(requires=phones(1)), a_situation()) is None


@pytest.mark.parametrize(
    ("spec", "situation", "reason", "word"),
    [
        ({}, {"draining": True}, RejectReason.DRAINING, "draining"),
        ({}, {"free_slots": 0}, RejectReason.RESOURCE_PRESSURE, "slot"),
        ({}, {"pressure": ResourcePressure.MEMORY}, RejectReason.RESOURCE_PRESSURE, "memory"),
        ({}, {"free_disk": 1}, RejectReason.DISK_INSUFFICIENT, "disk"),
        ({"secrets": ("OTHER",)}, {}, RejectReason.LOCAL_POLICY, "OTHER"),
        ({"requires": needs("node")}, {}, RejectReason.CAPABILITY_CHANGED, "node"),
        ({"requires": needs("python", ">=3.12")}, {}, RejectReason.CAPABILITY_CHANGED, "python"),
        (
            {"requires": needs("python", digest="sha256:1")},
            {},
            RejectReason.CAPABILITY_CHANGED,
            "python",
        ),
        (
            {"steps": (Step(name="x", run="true", shell="bash"),)},
            {},
            RejectReason.UNSUPPORTED_SPEC,
            "bash",
        ),
        (
            {"requires": equipped(cpu_features=("avx512f",))},
            {},
            RejectReason.CAPABILITY_CHANGED,
            "avx512f",
        ),
        ({"requires": phones(2)}, {}, RejectReason.CAPABILITY_CHANGED, "needs 2 devices phone"),
        (
            {"requires": phones(1)},
            {"equipment": Equipment()},
            RejectReason.CAPABILITY_CHANGED,
            "unknown devices",
        ),
        ({"resources": some_resources(slots=3)}, {}, RejectReason.RESOURCE_PRESSURE, "slot"),
    ],
)
def test_what_is_missing_is_named(
    spec: dict[str, Any], situation: dict[str, Any], reason: RejectReason, word: str
) -> None:
    refused = refusal(a_job_spec(**spec), a_situation(**situation))
    assert refused is not None
    assert refused.reason is reason
    assert word in refused.detail


def test_pressure_on_the_processor_alone_is_no_reason() -> None:
    assert refusal(a_job_spec(), a_situation(pressure=ResourcePressure.CPU)) is None


def test_the_path_begins_with_the_toolchains_that_the_job_asked_for() -> None:
    offered = (
        ToolchainConfig(name="python", version="3.10.1", bin="/tools/310"),
        ToolchainConfig(name="python", version="3.12.4", bin="/tools/312"),
        ToolchainConfig(name="node", version="20.1.0", bin="/tools/node"),
    )
    known = tuple(replace(tool.toolchain(), digest=f"sha256:{tool.bin}") for tool in offered)
    for wish, found in (
        (needs("python", ">=3.12"), "/tools/312:/usr/bin"),
        (needs("python", digest="sha256:/tools/310"), "/tools/310:/usr/bin"),
        (Requirements(), "/usr/bin"),
        (needs("git"), "/usr/bin"),
    ):
        assert search_path(wish.toolchains, offered, known=known, path="/usr/bin") == found
