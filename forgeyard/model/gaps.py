"""What a runner's equipment lacks of what a job wants: each gap with both sides in words.

The scheduler judges by it, and the agent once more before it takes an offer. Beyond a mismatch
there is *unknown*: the runner could not tell, which is as hard an obstacle (ELG-018).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from forgeyard.model.capability import in_range
from forgeyard.model.equipment import (
    NO_EQUIPMENT,
    DeviceRequirement,
    Equipment,
    EquipmentRequirement,
    Gpu,
    GpuRequirement,
    RuntimeRequirement,
)
from forgeyard.model.units import Rounding, bytes_text

GPUS_TOLD = 3
"""How many kinds of GPU a sentence lists."""


class Aspect(StrEnum):
    """One thing in which equipment can fall short."""

    CPU_FEATURE = "cpu_feature"
    RUNTIME = "runtime"
    RUNTIME_VERSION = "runtime_version"
    SANDBOX = "sandbox"
    NETWORK = "network"
    ISOLATION = "isolation"
    DEVICE = "device"
    GPU = "gpu"
    GPU_VENDOR = "gpu_vendor"
    GPU_MODEL = "gpu_model"
    GPU_MEMORY = "gpu_memory"
    GPU_COMPUTE_CAPABILITY = "gpu_compute_capability"
    GPU_SHARING = "gpu_sharing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One thing that is missing, or of which the runner could not tell whether it is."""

    aspect: Aspect
    is_known: bool
    wanted: str
    offered: str
    path: str
    """Which entry of a job's requirements it is about."""


def has_gaps(wanted: EquipmentRequirement, offered: Equipment) -> bool:
    """Tell whether anything is missing or unknown, and stop at the first such thing."""
    if wanted == NO_EQUIPMENT:
        return False
    return next(_gaps_but_gpus(wanted, offered), None) is not None or (
        wanted.gpu is not None and _gpu_shortage(wanted.gpu, offered.gpus) is not None
    )


def gaps(wanted: EquipmentRequirement, offered: Equipment) -> Iterator[Gap]:
    """List everything that is missing or unknown, in a fixed order."""
    yield from _gaps_but_gpus(wanted, offered)
    if wanted.gpu is not None:
        yield from _gpus(wanted.gpu, offered.gpus)


def _gaps_but_gpus(wanted: EquipmentRequirement, offered: Equipment) -> Iterator[Gap]:
    yield from _features(wanted.cpu_features, offered.cpu_features)
    for runtime in wanted.runtimes:
        yield from _runtime(runtime, offered)
    kinds = (
        (Aspect.SANDBOX, wanted.sandbox, offered.sandboxes),
        (Aspect.NETWORK, wanted.network, offered.network_modes),
        (Aspect.ISOLATION, wanted.isolation, offered.isolation),
    )
    for aspect, kind, found in kinds:
        if kind is not None and (found is None or kind not in found):
            yield Gap(
                aspect=aspect,
                is_known=found is not None,
                wanted=f"{aspect} {kind}",
                offered=_one_of(aspect, found),
                path=aspect.value,
            )
    for device in wanted.devices:
        yield from _device(device, offered)


def wants(wanted: EquipmentRequirement) -> tuple[tuple[str, str], ...]:
    """List everything that a job wants by its path, in the words that gaps use."""
    kinds = (
        (Aspect.SANDBOX, wanted.sandbox),
        (Aspect.NETWORK, wanted.network),
        (Aspect.ISOLATION, wanted.isolation),
    )
    return (
        *(("cpu-features", f"CPU feature {feature}") for feature in wanted.cpu_features),
        *((f"runtimes.{runtime.name}", _runtime_text(runtime)) for runtime in wanted.runtimes),
        *((aspect.value, f"{aspect} {kind}") for aspect, kind in kinds if kind is not None),
        *((f"devices.{device.kind}", _device_text(device)) for device in wanted.devices),
        *((("gpu", _gpu_text(wanted.gpu)),) if wanted.gpu else ()),
    )


def _features(wanted: Sequence[str], offered: Sequence[str] | None) -> Iterator[Gap]:
    """Name all missing features at once: a list of them is one obstacle to a reader."""
    missing = sorted(set(wanted) - set(offered or ()))
    if missing:
        noun = "CPU feature" if len(missing) == 1 else "CPU features"
        none = " and ".join(f"no {feature}" for feature in missing)
        yield Gap(
            aspect=Aspect.CPU_FEATURE,
            is_known=offered is not None,
            wanted=f"{noun} {' and '.join(missing)}",
            offered="unknown CPU features" if offered is None else none,
            path="cpu-features",
        )


def _runtime(wanted: RuntimeRequirement, offered: Equipment) -> Iterator[Gap]:
    named = [runtime for runtime in offered.runtimes or () if runtime.name == wanted.name]
    fits = [
        True if wanted.version is None else in_range(runtime.version, wanted.version)
        for runtime in named
    ]
    if True in fits:
        return
    versions = " and ".join(runtime.version or "unknown" for runtime in named)
    missing = "unknown runtimes" if offered.runtimes is None else f"no {wanted.name}"
    yield Gap(
        aspect=Aspect.RUNTIME_VERSION if named else Aspect.RUNTIME,
        is_known=None not in fits if named else offered.runtimes is not None,
        wanted=_runtime_text(wanted),
        offered=f"{wanted.name} {versions}" if named else missing,
        path=f"runtimes.{wanted.name}",
    )


def _device(wanted: DeviceRequirement, offered: Equipment) -> Iterator[Gap]:
    found = sum(device.count for device in offered.devices or () if device.kind == wanted.kind)
    if found < wanted.count:
        yield Gap(
            aspect=Aspect.DEVICE,
            is_known=offered.devices is not None,
            wanted=_device_text(wanted),
            offered="unknown devices" if offered.devices is None else str(found or "none"),
            path=f"devices.{wanted.kind}",
        )


def _gpus(wanted: GpuRequirement, offered: tuple[Gpu, ...] | None) -> Iterator[Gap]:
    shortage = _gpu_shortage(wanted, offered)
    if shortage is not None:
        aspect, is_known = shortage
        yield Gap(
            aspect=aspect,
            is_known=is_known,
            wanted=_gpu_text(wanted),
            offered="unknown GPUs" if offered is None else _gpus_text(offered),
            path="gpu",
        )


def _gpu_shortage(
    wanted: GpuRequirement, offered: tuple[Gpu, ...] | None
) -> tuple[Aspect, bool] | None:
    """Narrow the GPUs down by one property after the other; name the one that leaves too few.

    Beside it stands whether that is known. Words are not made here, for most of them nobody reads.
    """
    if offered is None:
        return Aspect.GPU, False
    left = offered
    if len(left) < wanted.count:
        return Aspect.GPU, True
    for aspect, fits in _properties(wanted):
        answers = [(gpu, fits(gpu)) for gpu in left]
        left = tuple(gpu for gpu, answer in answers if answer is True)
        if len(left) < wanted.count:
            maybe = sum(answer is not False for _, answer in answers)
            return aspect, maybe < wanted.count
    return None


def _properties(wanted: GpuRequirement) -> Iterator[tuple[Aspect, Callable[[Gpu], bool | None]]]:
    """Say how each property that is asked for is judged; `None` is "could not tell"."""
    vendor, model, memory = wanted.vendor, wanted.model, wanted.memory
    capability, sharing = wanted.compute_capability, wanted.sharing
    if vendor is not None:
        yield Aspect.GPU_VENDOR, lambda gpu: None if gpu.vendor is None else gpu.vendor is vendor
    if model is not None:
        name = model.casefold()
        yield (
            Aspect.GPU_MODEL,
            lambda gpu: None if gpu.model is None else gpu.model.casefold() == name,
        )
    if memory is not None:
        yield Aspect.GPU_MEMORY, lambda gpu: None if gpu.memory is None else gpu.memory >= memory
    if capability is not None:
        yield (
            Aspect.GPU_COMPUTE_CAPABILITY,
            lambda gpu: in_range(gpu.compute_capability, capability),
        )
    if sharing is not None:
        yield (
            Aspect.GPU_SHARING,
            lambda gpu: None if gpu.sharing is None else gpu.sharing is sharing,
        )


def _one_of(aspect: Aspect, kinds: Sequence[str] | None) -> str:
    if kinds is None:
        return f"an unknown {aspect}"
    return f"{aspect} {' or '.join(kinds)}" if kinds else f"no {aspect}"


def _runtime_text(wanted: RuntimeRequirement) -> str:
    return f"runtime {wanted.name} {wanted.version or ''}".rstrip()


def _device_text(wanted: DeviceRequirement) -> str:
    return f"{wanted.count} {'device' if wanted.count == 1 else 'devices'} {wanted.kind}"


@lru_cache(maxsize=256)
def _gpu_text(wanted: GpuRequirement) -> str:
    """Print GPUs that are wanted: `2 GPUs (nvidia, 16 GiB, compute capability >=8.0)`."""
    memory = wanted.memory
    parts = (
        wanted.vendor,
        wanted.model,
        None if memory is None else bytes_text(memory, rounding=Rounding.REQUEST),
        wanted.compute_capability and f"compute capability {wanted.compute_capability}",
        wanted.sharing,
    )
    said = ", ".join(part for part in parts if part)
    return _counted(wanted.count) + (f" ({said})" if said else "")


@lru_cache(maxsize=1024)
def _gpus_text(gpus: tuple[Gpu, ...]) -> str:
    """Print GPUs that are there, those alike together and only the first kinds."""
    kinds = Counter(_one_gpu_text(gpu) for gpu in gpus)
    told = [f"{_counted(count)} ({text})" for text, count in list(kinds.items())[:GPUS_TOLD]]
    more = len(gpus) - sum(list(kinds.values())[:GPUS_TOLD])
    return " and ".join([*told, *([f"{more} more"] if more else [])]) or "no GPU"


def _one_gpu_text(gpu: Gpu) -> str:
    memory = gpu.memory
    return ", ".join(
        (
            gpu.vendor or "unknown vendor",
            gpu.model or "unknown model",
            "unknown memory" if memory is None else bytes_text(memory, rounding=Rounding.CAPACITY),
            f"compute capability {gpu.compute_capability or 'unknown'}",
            gpu.sharing or "unknown sharing",
        )
    )


def _counted(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
