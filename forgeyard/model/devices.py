"""Devices and GPUs one by one: what each is called, and whether it is what a job asks for.

The scheduler gives them out one by one, and the agent tells its jobs which they have. What has no
id of its own is called by its kind and its place in the report.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import lru_cache

from forgeyard.model.capability import in_range
from forgeyard.model.equipment import (
    WHOLE,
    Device,
    DeviceRequirement,
    Equipment,
    Gpu,
    GpuRequirement,
    GpuSharing,
)
from forgeyard.model.units import Rounding, bytes_text

NamedGpu = tuple[str, Gpu]
NamedDevice = tuple[str, Device]
GpuTest = Callable[[str, Gpu], bool | None]
DeviceTest = Callable[[str, Device], bool | None]
"""Tells whether a property holds; `None` is "could not tell"."""


class Aspect(StrEnum):
    """One thing in which equipment can fall short."""

    CPU_FEATURE = "cpu_feature"
    RUNTIME = "runtime"
    RUNTIME_VERSION = "runtime_version"
    SANDBOX = "sandbox"
    NETWORK = "network"
    ISOLATION = "isolation"
    DEVICE = "device"
    DEVICE_ATTRIBUTE = "device_attribute"
    GPU = "gpu"
    GPU_ID = "gpu_id"
    GPU_VENDOR = "gpu_vendor"
    GPU_MODEL = "gpu_model"
    GPU_MEMORY = "gpu_memory"
    GPU_COMPUTE_CAPABILITY = "gpu_compute_capability"
    GPU_SHARING = "gpu_sharing"
    GPU_SAME_MODEL = "gpu_same_model"


def named_gpus(gpus: Sequence[Gpu]) -> list[NamedGpu]:
    """Name every GPU of a report."""
    return [(gpu.id or f"gpu/{place}", gpu) for place, gpu in enumerate(gpus)]


def named_devices(devices: Sequence[Device]) -> Iterator[NamedDevice]:
    """Name every single device of a report, those counted without an id by their place."""
    counted: Counter[str] = Counter()
    for device in devices:
        if device.id is not None and device.count == 1:
            yield device.id, device
            continue
        name = device.id or device.kind
        for _ in range(device.count):
            yield f"{name}/{counted[name]}", device
            counted[name] += 1


def devices_of_kind(kind: str, devices: Sequence[Device]) -> list[NamedDevice]:
    """Name the devices of one kind."""
    return list(named_devices([device for device in devices if device.kind == kind]))


def device_ids(equipment: Equipment) -> list[str]:
    """List the names of everything that is given out one by one."""
    return [
        *(name for name, _ in named_gpus(equipment.gpus or ())),
        *(name for name, _ in named_devices(equipment.devices or ())),
    ]


def gpu_fits(wanted: GpuRequirement, gpu: NamedGpu) -> bool:
    """Tell whether a GPU surely has everything that is asked of each."""
    return all(fits(*gpu) is True for _, fits in gpu_properties(wanted))


def device_fits(wanted: DeviceRequirement, device: NamedDevice) -> bool:
    """Tell whether a device of the right kind surely has everything that is asked for."""
    return all(fits(*device) is True for fits in device_properties(wanted))


def gpu_properties(wanted: GpuRequirement) -> Iterator[tuple[Aspect, GpuTest]]:
    """Say how each property that is asked of a GPU is judged."""
    vendor, model, memory = wanted.vendor, wanted.model, wanted.memory
    capability, sharing = wanted.compute_capability, wanted.sharing
    if wanted.id is not None:
        yield Aspect.GPU_ID, lambda name, _: name == wanted.id
    if vendor is not None:
        yield Aspect.GPU_VENDOR, lambda _, gpu: None if gpu.vendor is None else gpu.vendor is vendor
    if model is not None:
        yield Aspect.GPU_MODEL, lambda _, gpu: _is_called(gpu.model, model)
    if memory is not None:
        yield Aspect.GPU_MEMORY, lambda _, gpu: None if gpu.memory is None else gpu.memory >= memory
    if capability is not None:
        yield (
            Aspect.GPU_COMPUTE_CAPABILITY,
            lambda _, gpu: in_range(gpu.compute_capability, capability),
        )
    if sharing is not None:
        yield Aspect.GPU_SHARING, lambda _, gpu: _is(gpu.sharing, sharing)
    if wanted.share is not None:
        # Whoever gets a part of a GPU has neighbours, and only safe partitions bear that.
        yield Aspect.GPU_SHARING, lambda _, gpu: _is(gpu.sharing, GpuSharing.SHARED)


def device_properties(wanted: DeviceRequirement) -> list[DeviceTest]:
    """Say how each property that is asked of a device of the right kind is judged."""
    model, system, level = wanted.model, wanted.os_version, wanted.api_level
    tests: list[DeviceTest] = []
    if wanted.id is not None:
        tests.append(lambda name, _: name == wanted.id)
    if model is not None:
        tests.append(lambda _, device: _is_called(device.model, model))
    if system is not None:
        tests.append(lambda _, device: in_range(device.os_version, system))
    if level is not None:
        tests.append(lambda _, device: in_range(device.api_level, level))
    if wanted.abi is not None:
        tests.append(lambda _, device: _is(device.abi, wanted.abi))
    if wanted.form is not None:
        tests.append(lambda _, device: _is(device.form, wanted.form))
    return tests


def _is(found: str | None, wanted: str | None) -> bool | None:
    return None if found is None else found == wanted


def _is_called(found: str | None, wanted: str) -> bool | None:
    return None if found is None else found.casefold() == wanted.casefold()


def largest_family(gpus: Sequence[NamedGpu]) -> int:
    """Count the GPUs of the model that comes most often; an unknown one is of no family."""
    families = Counter(gpu.model.casefold() for _, gpu in gpus if gpu.model is not None)
    return max(families.values(), default=0)


def device_wish(wanted: DeviceRequirement) -> str:
    """Print devices that are wanted: `2 devices phone (API level >=33, physical)`."""
    parts = (
        wanted.id,
        wanted.model,
        wanted.os_version and f"OS {wanted.os_version}",
        wanted.api_level and f"API level {wanted.api_level}",
        wanted.abi and f"ABI {wanted.abi}",
        wanted.form,
    )
    noun = "device" if wanted.count == 1 else "devices"
    return f"{wanted.count} {noun} {wanted.kind}{_in_brackets(parts)}"


@lru_cache(maxsize=256)
def gpu_wish(wanted: GpuRequirement) -> str:
    """Print GPUs that are wanted: `2 GPUs (nvidia, 16 GiB, compute capability >=8.0)`."""
    memory = wanted.memory
    parts = (
        wanted.id,
        wanted.vendor,
        wanted.model,
        None if memory is None else bytes_text(memory, rounding=Rounding.REQUEST),
        wanted.compute_capability and f"compute capability {wanted.compute_capability}",
        wanted.sharing,
        "of one model" if wanted.same_model else None,
    )
    of = "" if wanted.share is None else f"{share_text(wanted.share)} of "
    return f"{of}{counted_gpus(wanted.count)}{_in_brackets(parts)}"


def share_text(share: int) -> str:
    """Print thousandths as a decimal number: `0.18`."""
    return f"{share / WHOLE:.3f}".rstrip("0").rstrip(".")


def counted_gpus(count: int) -> str:
    """Print a number of GPUs."""
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _in_brackets(parts: Sequence[str | None]) -> str:
    said = ", ".join(part for part in parts if part)
    return f" ({said})" if said else ""
