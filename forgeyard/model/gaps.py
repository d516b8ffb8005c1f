"""What a runner's equipment lacks of what a job wants: each gap with both sides in words.

The scheduler judges by it, and the agent once more before it takes an offer. Beyond a mismatch
there is *unknown*: the runner could not tell, which is as hard an obstacle (ELG-018).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from forgeyard.model.capability import in_range
from forgeyard.model.devices import (
    Aspect,
    NamedGpu,
    counted_gpus,
    device_properties,
    device_wish,
    devices_of_kind,
    gpu_properties,
    gpu_wish,
    largest_family,
    named_gpus,
)
from forgeyard.model.equipment import (
    NO_EQUIPMENT,
    Device,
    DeviceRequirement,
    Equipment,
    EquipmentRequirement,
    Gpu,
    GpuRequirement,
    RuntimeRequirement,
)
from forgeyard.model.units import Rounding, bytes_text

__all__ = ["Aspect", "Gap", "gaps", "has_gaps", "wants"]

GPUS_TOLD = 3
"""How many kinds of GPU a sentence lists."""


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
    return next(_gaps_but_gpus(wanted, offered), None) is not None or any(
        _gpu_shortage(gpu, offered.gpus) is not None for gpu in wanted.gpus
    )


def gaps(wanted: EquipmentRequirement, offered: Equipment) -> Iterator[Gap]:
    """List everything that is missing or unknown, in a fixed order."""
    yield from _gaps_but_gpus(wanted, offered)
    for gpu in wanted.gpus:
        yield from _gpus(gpu, offered.gpus)


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
        *((f"devices.{device.kind}", device_wish(device)) for device in wanted.devices),
        *(("gpu", gpu_wish(gpu)) for gpu in wanted.gpus),
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
    """Count the devices of a kind, then those of them that have what is asked for."""
    if offered.devices is None:
        yield Gap(
            aspect=Aspect.DEVICE,
            is_known=False,
            wanted=device_wish(wanted),
            offered="unknown devices",
            path=f"devices.{wanted.kind}",
        )
        return
    found = devices_of_kind(wanted.kind, offered.devices)
    tests = device_properties(wanted)
    answers = [[fits(name, device) for fits in tests] for name, device in found]
    fitting = sum(all(answer is True for answer in one) for one in answers)
    maybe = sum(False not in one for one in answers)
    if fitting < wanted.count:
        short = len(found) < wanted.count
        yield Gap(
            aspect=Aspect.DEVICE if short else Aspect.DEVICE_ATTRIBUTE,
            is_known=short or maybe < wanted.count,
            wanted=device_wish(wanted),
            offered=str(len(found) or "none") if short else _devices_text(offered, wanted.kind),
            path=f"devices.{wanted.kind}",
        )


def _gpus(wanted: GpuRequirement, offered: tuple[Gpu, ...] | None) -> Iterator[Gap]:
    shortage = _gpu_shortage(wanted, offered)
    if shortage is not None:
        aspect, is_known = shortage
        yield Gap(
            aspect=aspect,
            is_known=is_known,
            wanted=gpu_wish(wanted),
            offered=_gpus_offered(aspect, offered),
            path="gpu",
        )


def _gpus_offered(aspect: Aspect, offered: tuple[Gpu, ...] | None) -> str:
    if offered is None:
        return "unknown GPUs"
    if aspect is Aspect.GPU_ID:
        return " and ".join(name for name, _ in named_gpus(offered)[:GPUS_TOLD])
    return _gpus_text(offered)


def _gpu_shortage(
    wanted: GpuRequirement, offered: tuple[Gpu, ...] | None
) -> tuple[Aspect, bool] | None:
    """Narrow the GPUs down by one property after the other; name the one that leaves too few.

    Beside it stands whether that is known. Words are not made here, for most of them nobody reads.
    """
    if offered is None:
        return Aspect.GPU, False
    left: Sequence[NamedGpu] = named_gpus(offered)
    if len(left) < wanted.count:
        return Aspect.GPU, True
    for aspect, fits in gpu_properties(wanted):
        answers = [(gpu, fits(*gpu)) for gpu in left]
        left = [gpu for gpu, answer in answers if answer is True]
        if len(left) < wanted.count:
            maybe = sum(answer is not False for _, answer in answers)
            return aspect, maybe < wanted.count
    if wanted.same_model and (family := largest_family(left)) < wanted.count:
        unknown = sum(gpu.model is None for _, gpu in left)
        return Aspect.GPU_SAME_MODEL, family + unknown < wanted.count
    return None


def _one_of(aspect: Aspect, kinds: Sequence[str] | None) -> str:
    if kinds is None:
        return f"an unknown {aspect}"
    return f"{aspect} {' or '.join(kinds)}" if kinds else f"no {aspect}"


def _runtime_text(wanted: RuntimeRequirement) -> str:
    return f"runtime {wanted.name} {wanted.version or ''}".rstrip()


@lru_cache(maxsize=1024)
def _gpus_text(gpus: tuple[Gpu, ...]) -> str:
    """Print GPUs that are there, those alike together and only the first kinds."""
    kinds = Counter(_one_gpu_text(gpu) for gpu in gpus)
    told = [f"{counted_gpus(count)} ({text})" for text, count in list(kinds.items())[:GPUS_TOLD]]
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


def _devices_text(offered: Equipment, kind: str) -> str:
    """Print the devices of a kind, those alike together and only the first sorts."""
    alike = Counter(_one_device_text(one) for one in offered.devices or () if one.kind == kind)
    return " and ".join(list(alike)[:GPUS_TOLD])


def _one_device_text(device: Device) -> str:
    parts = (
        device.model or "unknown model",
        f"OS {device.os_version or 'unknown'}",
        f"API level {device.api_level or 'unknown'}",
        f"ABI {device.abi or 'unknown'}",
        device.form or "unknown form",
    )
    return f"{device.kind} ({', '.join(parts)})"
