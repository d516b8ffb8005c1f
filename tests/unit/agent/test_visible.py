"""What a job is told of devices: its own, and nothing of anybody else's."""

import pytest

from forgeyard.agent.visible import environment, missing
from forgeyard.model.equipment import Device, DeviceShare, Equipment, Gpu, GpuVendor

HOST = Equipment(
    gpus=(
        Gpu(id="GPU-a", vendor=GpuVendor.NVIDIA),
        Gpu(vendor=GpuVendor.AMD),
        Gpu(vendor=GpuVendor.NVIDIA),
        Gpu(vendor=GpuVendor.AMD),
    ),
    devices=(Device(kind="phone", count=2),),
)


def given(*names: str) -> dict[str, str]:
    return environment([DeviceShare(device_id=name) for name in names], HOST)


@pytest.mark.requirement("ELG-012", "DEV-001")
def test_a_job_sees_its_gpus_by_id_or_by_their_number_among_those_of_their_vendor() -> None:
    assert given("GPU-a", "gpu/3", "phone/1") == {
        "FORGEYARD_DEVICES": "GPU-a,gpu/3,phone/1",
        "CUDA_VISIBLE_DEVICES": "GPU-a",
        "HIP_VISIBLE_DEVICES": "1",
    }
    assert given("gpu/2")["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.requirement("DEV-001")
def test_a_job_without_devices_sees_no_gpu_at_all() -> None:
    nothing = {"FORGEYARD_DEVICES": "", "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    assert given() == nothing
    assert environment((), Equipment()) == nothing


def test_a_device_that_the_host_never_reported_is_missing() -> None:
    offered = [DeviceShare(device_id=name) for name in ("GPU-a", "GPU-z", "phone/2")]
    assert missing(offered, HOST) == ["GPU-z", "phone/2"]
