"""What a run file may require of a runner's equipment, and how wrong wishes are refused."""

from typing import Any

import pytest

from forgeyard.errors import ForgeyardError, InvalidQuantity, InvalidRequirements, InvalidRunFile
from forgeyard.model.capability import Requirements
from forgeyard.model.equipment import (
    DeviceForm,
    DeviceRequirement,
    EquipmentRequirement,
    GpuRequirement,
    GpuSharing,
    GpuVendor,
    IsolationClass,
    NetworkMode,
    RuntimeRequirement,
    SandboxKind,
)
from forgeyard.model.units import GIB, Bytes
from forgeyard.runfile.compile import compile_run


def required(**requires: Any) -> Requirements:
    """Compile a job that requires this."""
    requires = {name.replace("_", "-"): value for name, value in requires.items()}
    document = {"jobs": {"a": {"steps": [{"run": "true"}], "requires": requires}}}
    return compile_run(document, fallback_name="ci").jobs[0].requires


def test_every_key_about_equipment_reaches_the_model() -> None:
    found = required(
        agent_version=">=0.1",
        cpu_features=["AVX2", "aes-ni"],
        runtimes={"podman": "*", "docker": ">=24"},
        sandbox="vm",
        network="denied",
        isolation="container",
        devices={"usb-programmer": 2, "phone": 1},
        gpu={
            "count": 2,
            "vendor": "nvidia",
            "model": "NVIDIA A100",
            "memory": "40Gi",
            "compute-capability": ">=8.0",
            "sharing": "exclusive",
        },
    )
    assert found.agent_version == ">=0.1"
    assert found.equipment == EquipmentRequirement(
        cpu_features=("aes-ni", "avx2"),
        runtimes=(
            RuntimeRequirement(name="docker", version=">=24"),
            RuntimeRequirement(name="podman"),
        ),
        sandbox=SandboxKind.VM,
        network=NetworkMode.DENIED,
        isolation=IsolationClass.CONTAINER,
        devices=(
            DeviceRequirement(kind="phone", count=1),
            DeviceRequirement(kind="usb-programmer", count=2),
        ),
        gpu=GpuRequirement(
            count=2,
            vendor=GpuVendor.NVIDIA,
            model="NVIDIA A100",
            memory=Bytes(40 * GIB),
            compute_capability=">=8.0",
            sharing=GpuSharing.EXCLUSIVE,
        ),
    )


def test_the_same_wishes_in_another_order_are_the_same() -> None:
    assert required(cpu_features=["a", "b"]) == required(cpu_features=["b", "a"])
    assert required(runtimes=["x", "y"]) == required(runtimes={"y": "*", "x": "*"})
    assert required(devices={"a": 1, "b": 2}) == required(devices={"b": 2, "a": 1})


def test_a_job_that_requires_nothing_wants_no_equipment() -> None:
    assert required().equipment == EquipmentRequirement()
    assert required(gpu={}).equipment.gpus == (GpuRequirement(count=1),)


@pytest.mark.parametrize(
    ("requires", "field", "kind"),
    [
        ({"agent_version": "0.1"}, "agent-version", InvalidRequirements),
        ({"cpu_features": ["avx2", "AVX2"]}, "cpu-features.1", InvalidRunFile),
        ({"cpu_features": ["a b"]}, "cpu-features.0", InvalidRunFile),
        ({"cpu_features": [f"f{n}" for n in range(51)]}, "cpu-features", InvalidRunFile),
        ({"runtimes": {"docker": "24"}}, "runtimes.docker", InvalidRequirements),
        ({"runtimes": ["docker", "docker"]}, "runtimes.1", InvalidRunFile),
        ({"runtimes": "docker"}, "runtimes", InvalidRunFile),
        ({"runtimes": [f"r{n}" for n in range(33)]}, "runtimes", InvalidRunFile),
        ({"sandbox": "chroot"}, "sandbox", InvalidRunFile),
        ({"network": "offline"}, "network", InvalidRunFile),
        ({"isolation": "good"}, "isolation", InvalidRunFile),
        ({"devices": {"phone": 0}}, "devices.phone", InvalidRunFile),
        ({"devices": {"phone": 1_001}}, "devices.phone", InvalidRunFile),
        ({"devices": {"phone": True}}, "devices.phone", InvalidRunFile),
        ({"devices": ["phone"]}, "devices", InvalidRunFile),
        ({"devices": {f"d{n}": 1 for n in range(65)}}, "devices", InvalidRunFile),
        ({"gpu": 1}, "gpu", InvalidRunFile),
        ({"gpu": {"count": 0}}, "gpu.count", InvalidRunFile),
        ({"gpu": {"count": 65}}, "gpu.count", InvalidRunFile),
        ({"gpu": {"vendor": "acme"}}, "gpu.vendor", InvalidRunFile),
        ({"gpu": {"model": "x" * 129}}, "gpu.model", InvalidRunFile),
        ({"gpu": {"memory": "much"}}, "gpu.memory", InvalidQuantity),
        ({"gpu": {"memory": "2Pi"}}, "gpu.memory", InvalidRequirements),
        ({"gpu": {"memory": 0}}, "gpu.memory", InvalidRequirements),
        ({"gpu": {"compute-capability": "8"}}, "gpu.compute-capability", InvalidRequirements),
        ({"gpu": {"sharing": "maybe"}}, "gpu.sharing", InvalidRunFile),
        ({"gpu": [{}, {"count": 0}]}, "gpu.1.count", InvalidRunFile),
        ({"gpu": [{}] * 9}, "gpu", InvalidRunFile),
        ({"gpu": {"share": 0}}, "gpu.share", InvalidRequirements),
        ({"gpu": {"share": 1.001}}, "gpu.share", InvalidRequirements),
        ({"gpu": [{"share": "half"}]}, "gpu.0.share", InvalidRequirements),
        ({"gpu": {"id": "a", "count": 2}}, "gpu.count", InvalidRequirements),
        ({"gpu": {"same-model": "yes"}}, "gpu.same-model", InvalidRunFile),
        (
            {"devices": {"phone": {"api-level": "33"}}},
            "devices.phone.api-level",
            InvalidRequirements,
        ),
        ({"devices": {"phone": {"form": "soft"}}}, "devices.phone.form", InvalidRunFile),
        ({"devices": {"phone": {"count": 0}}}, "devices.phone.count", InvalidRunFile),
        (
            {"devices": {"phone": {"id": "x", "count": 2}}},
            "devices.phone.count",
            InvalidRequirements,
        ),
    ],
)
def test_a_wrong_wish_is_refused_with_its_path(
    requires: dict[str, Any], field: str, kind: type[ForgeyardError]
) -> None:
    with pytest.raises(kind) as refused:
        required(**requires)
    assert refused.value.field == f"jobs.a.requires.{field}"
    assert refused.value.allowed


def test_a_misspelt_key_of_a_gpu_is_told_what_was_meant() -> None:
    with pytest.raises(InvalidRunFile, match="did you mean 'memory'") as refused:
        required(gpu={"memroy": "1Gi"})
    assert "compute-capability" in str(refused.value.allowed)


@pytest.mark.requirement("DEV-001", "DEV-004")
def test_gpus_and_devices_are_asked_for_one_by_one() -> None:
    wanted = required(
        gpu=[{"share": 0.18}, {"count": 2, "same-model": True}, {"id": "GPU-a"}],
        devices={"phone": {"api-level": ">=33", "abi": "arm64-v8a", "form": "physical"}},
    ).equipment
    assert wanted.gpus == (
        GpuRequirement(share=180),
        GpuRequirement(count=2, same_model=True),
        GpuRequirement(id="GPU-a"),
    )
    assert wanted.devices == (
        DeviceRequirement(
            kind="phone", api_level=">=33", abi="arm64-v8a", form=DeviceForm.PHYSICAL
        ),
    )


@pytest.mark.parametrize(
    ("given", "share"), [(0.18, 180), ("0.1801", 181), (1, 1_000), ("1e-9", 1)]
)
def test_a_part_of_a_gpu_is_rounded_up_to_thousandths(given: object, share: int) -> None:
    assert required(gpu={"share": given}).equipment.gpus[0].share == share
