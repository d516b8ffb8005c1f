"""What nvidia-smi says is read line by line, and never trusted beyond what it says."""

import pytest

from forgeyard.agent.equipment import configured_gpus, parse_gpus
from forgeyard.errors import InvalidQuantity
from forgeyard.machine_settings import AgentConfig, GpuConfig
from forgeyard.model.equipment import MAX_GPUS, Gpu, GpuSharing, GpuVendor
from forgeyard.model.units import GIB, MIB, Bytes

LINE = "GPU-8c0f-1, NVIDIA A100-SXM4-40GB, 40960, 8.0, Exclusive_Process\n"


@pytest.mark.requirement("DEV-001")
def test_each_line_is_a_gpu() -> None:
    assert parse_gpus(LINE + "GPU-8c0f-2, Tesla T4, 15360, 7.5, Default\n") == (
        Gpu(
            vendor=GpuVendor.NVIDIA,
            model="NVIDIA A100-SXM4-40GB",
            memory=Bytes(40 * GIB),
            compute_capability="8.0",
            sharing=GpuSharing.EXCLUSIVE,
        ),
        Gpu(
            vendor=GpuVendor.NVIDIA,
            model="Tesla T4",
            memory=Bytes(15_360 * MIB),
            compute_capability="7.5",
            sharing=None,
        ),
    )


@pytest.mark.requirement("DEV-001")
def test_a_gpu_is_called_what_its_driver_calls_it() -> None:
    found = parse_gpus(LINE + "not a uuid, Tesla T4, 15360, 7.5, Default\n") or ()
    assert [gpu.id for gpu in found] == ["GPU-8c0f-1", None]


def test_what_the_driver_does_not_know_stays_unknown() -> None:
    (gpu,) = parse_gpus("[N/A], Odd, [N/A], [N/A], [N/A]") or ()
    assert (gpu.memory, gpu.compute_capability, gpu.sharing) == (None, None, None)
    (gpu,) = parse_gpus(f"odd, Odd, {'9' * 30}, 8.0.1, Exclusive_Process") or ()
    assert (gpu.memory, gpu.compute_capability) == (None, None)


def test_a_driver_without_devices_has_none() -> None:
    assert parse_gpus("\n") == ()


@pytest.mark.parametrize(
    "answer",
    ["No devices were found", "a, b, c", "a, 1, 2, 3", "a, 1, 2, 3, 4, 5", LINE * (MAX_GPUS + 1)],
)
def test_an_answer_that_is_no_list_of_gpus_tells_nothing(answer: str) -> None:
    assert parse_gpus(answer) is None


def test_configured_gpus_say_what_the_operator_says_and_no_more() -> None:
    config = AgentConfig(gpus=(GpuConfig(memory="0.5Gi", vendor=GpuVendor.AMD), GpuConfig()))
    assert configured_gpus(config) == (
        Gpu(vendor=GpuVendor.AMD, memory=Bytes(GIB // 2)),
        Gpu(),
    )


def test_the_memory_of_a_gpu_that_cannot_be_read_names_the_setting() -> None:
    with pytest.raises(InvalidQuantity) as refused:
        configured_gpus(AgentConfig(gpus=(GpuConfig(), GpuConfig(memory="much"))))
    assert refused.value.field == "agent.gpus.1.memory"
