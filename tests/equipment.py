"""Random equipment and wishes, and a judge of both that was written apart from the product's."""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from forgeyard.model.equipment import (
    Device,
    DeviceRequirement,
    Equipment,
    EquipmentRequirement,
    Gpu,
    GpuRequirement,
    GpuSharing,
    GpuVendor,
    IsolationClass,
    NetworkMode,
    Runtime,
    RuntimeRequirement,
    SandboxKind,
)
from forgeyard.model.units import GIB, Bytes

T = TypeVar("T")
FEATURES = ("avx2", "avx512f", "neon")
RUNTIMES = ("docker", "podman")
KINDS = ("usb-programmer", "phone")
VERSIONS = ("1.2", "1.10", "2.0", "2.5.1", None)
RANGES = (">=1.10", "<2.5", "==2.*", ">=1.2,<3", "!=2.0")
VENDORS = (GpuVendor.NVIDIA, GpuVendor.NVIDIA, GpuVendor.AMD, None)
MODELS = ("A100", "a10", None)
CAPABILITIES = ("6.1", "7.5", "8.0", None)
LEAST = (">=8.0", ">=7.5", ">=9.0")
SIZES = (8, 24, 80, None)


def some_equipment(rng: Random) -> Equipment:
    """Make what a runner has; about one thing in six it cannot tell."""
    return Equipment(
        cpu_features=known(rng, lambda: sample(rng, FEATURES)),
        runtimes=known(rng, lambda: some_runtimes(rng)),
        sandboxes=known(rng, lambda: sample(rng, tuple(SandboxKind)[:3])),
        network_modes=known(rng, lambda: sample(rng, tuple(NetworkMode))),
        isolation=known(rng, lambda: sample(rng, tuple(IsolationClass)[:3])),
        devices=known(rng, lambda: some_devices(rng)),
        gpus=known(rng, lambda: tuple(some_gpu(rng) for _ in range(rng.randint(0, 3)))),
    )


def known(rng: Random, make: Callable[[], T]) -> T | None:
    """Leave a thing unknown now and then."""
    return None if rng.random() < 1 / 6 else make()


def sample(rng: Random, values: Sequence[T]) -> tuple[T, ...]:
    """Take any number of values in any order."""
    return tuple(rng.sample(values, rng.randint(0, len(values))))


def some_runtimes(rng: Random) -> tuple[Runtime, ...]:
    """Make runtimes, now and then two of a name."""
    names = rng.choices(RUNTIMES, k=rng.randint(0, 3))
    return tuple(Runtime(name=name, version=rng.choice(VERSIONS)) for name in names)


def some_devices(rng: Random) -> tuple[Device, ...]:
    """Make devices, now and then two entries of a kind."""
    kinds = rng.choices(KINDS, k=rng.randint(0, 3))
    return tuple(Device(kind=kind, count=rng.randint(1, 2)) for kind in kinds)


def some_gpu(rng: Random) -> Gpu:
    """Make a GPU of which something may be unknown."""
    size = rng.choice(SIZES)
    return Gpu(
        vendor=rng.choice(VENDORS),
        model=rng.choice(MODELS),
        memory=None if size is None else Bytes(size * GIB),
        compute_capability=rng.choice(CAPABILITIES),
        sharing=rng.choice((GpuSharing.EXCLUSIVE, GpuSharing.SHARED, None)),
    )


def some_wishes(rng: Random, share: float) -> EquipmentRequirement:
    """Make what a job wants; each thing is asked for with this probability."""

    def asked(make: Callable[[], T], otherwise: T) -> T:
        return make() if rng.random() < share else otherwise

    def maybe(make: Callable[[], T]) -> T | None:
        return make() if rng.random() < share else None

    return EquipmentRequirement(
        cpu_features=asked(lambda: sample(rng, FEATURES[:2]), ()),
        runtimes=asked(lambda: (some_runtime_wish(rng),), ()),
        sandbox=maybe(lambda: rng.choice(tuple(SandboxKind)[:3])),
        network=maybe(lambda: rng.choice(tuple(NetworkMode))),
        isolation=maybe(lambda: rng.choice(tuple(IsolationClass)[:3])),
        devices=asked(
            lambda: (DeviceRequirement(kind=rng.choice(KINDS), count=rng.randint(1, 3)),), ()
        ),
        gpu=maybe(lambda: some_gpu_wish(rng)),
    )


def some_runtime_wish(rng: Random) -> RuntimeRequirement:
    """Ask for a runtime, half of the time in a range."""
    return RuntimeRequirement(name=rng.choice(RUNTIMES), version=rng.choice((*RANGES, *[None] * 5)))


def some_gpu_wish(rng: Random) -> GpuRequirement:
    """Ask for GPUs by one or a few of their properties."""

    def maybe(values: Sequence[T]) -> T | None:
        return rng.choice(values) if rng.random() < 0.4 else None

    size = maybe((16, 40))
    return GpuRequirement(
        count=rng.choice((1, 1, 1, 2)),
        vendor=maybe((GpuVendor.NVIDIA, GpuVendor.AMD)),
        model=maybe(("a100", "A10")),
        memory=None if size is None else Bytes(size * GIB),
        compute_capability=maybe(LEAST),
        sharing=maybe(tuple(GpuSharing)),
    )


def naive_codes(want: EquipmentRequirement, have: Equipment) -> set[str]:
    """List the reasons against equipment, from the description of the rules alone."""
    return {
        *naive_members("cpu_feature", want.cpu_features, have.cpu_features),
        *naive_members("sandbox", [want.sandbox] * bool(want.sandbox), have.sandboxes),
        *naive_members("network", [want.network] * bool(want.network), have.network_modes),
        *naive_members("isolation", [want.isolation] * bool(want.isolation), have.isolation),
        *(code for device in want.devices for code in naive_device(device, have.devices)),
        *(code for runtime in want.runtimes for code in naive_runtime(runtime, have.runtimes)),
        *(naive_gpu(want.gpu, have.gpus) if want.gpu else ()),
    }


def naive_members(name: str, want: Sequence[object], have: Sequence[object] | None) -> set[str]:
    """Judge what must all be in a set."""
    if have is None:
        return {f"{name}_unknown"} if want else set()
    return {f"{name}_mismatch" for one in want if have.count(one) == 0}


def naive_device(want: DeviceRequirement, have: Sequence[Device] | None) -> set[str]:
    """Count the devices of a kind one by one."""
    if have is None:
        return {"device_unknown"}
    there = [one.kind for one in have for _ in range(one.count)]
    return {"device_mismatch"} if there.count(want.kind) < want.count else set()


def naive_runtime(want: RuntimeRequirement, have: Sequence[Runtime] | None) -> set[str]:
    """Judge runtimes: absent, or there in no version that is known to be right."""
    if have is None:
        return {"runtime_unknown"}
    versions = [one.version for one in have if one.name == want.name]
    if not versions:
        return {"runtime_mismatch"}
    if want.version is None or any(naive_version(it, want.version) for it in versions if it):
        return set()
    return {"runtime_version_unknown" if None in versions else "runtime_version_mismatch"}


def naive_gpu(want: GpuRequirement, have: Sequence[Gpu] | None) -> set[str]:
    """Judge GPUs: the first property that leaves too few of those that had all before it."""
    if have is None:
        return {"gpu_unknown"}
    if len(have) < want.count:
        return {"gpu_mismatch"}
    tests = ["vendor", "model", "memory", "compute_capability", "sharing"]
    for place, name in enumerate(tests):
        before = [gpu for gpu in have if all(naive_has(want, gpu, one) for one in tests[:place])]
        passed = [gpu for gpu in before if naive_has(want, gpu, name)]
        doubtful = [gpu for gpu in before if getattr(gpu, name) is None and gpu not in passed]
        if len(passed) < want.count:
            fewer = len(passed) + len(doubtful) < want.count
            return {f"gpu_{name}_{'mismatch' if fewer else 'unknown'}"}
    return set()


def naive_has(want: GpuRequirement, gpu: Gpu, name: str) -> bool:
    """Tell whether one GPU surely has one property that is asked for."""
    wish, has = getattr(want, name), getattr(gpu, name)
    if wish is None:
        return True
    if has is None:
        return False
    if name == "memory":
        return bool(has >= wish)
    if name == "compute_capability":
        return float(has) >= float(wish.removeprefix(">="))
    return str(has).lower() == str(wish).lower()


def naive_version(version: str | None, wanted: str) -> bool:
    """Compare dotted numbers part by part."""
    return version is not None and all(
        naive_clause(naive_numbers(version), clause) for clause in wanted.split(",")
    )


def naive_clause(have: tuple[int, ...], clause: str) -> bool:
    """Judge one clause of a range; 2 equals 2.0.0, and `==2.*` is a prefix."""
    operator = clause[:2] if clause[1] == "=" else clause[0]
    bound = clause.removeprefix(operator)
    if bound.endswith(".*"):
        prefix = tuple(int(part) for part in bound.removesuffix(".*").split("."))
        return have[: len(prefix)] == prefix
    limit = naive_numbers(bound)
    return {">=": have >= limit, "<": have < limit, "!=": have != limit}[operator]


def naive_numbers(text: str) -> tuple[int, ...]:
    """Read a dotted number, filled up to four parts."""
    parts = [int(part) for part in text.split(".")]
    return tuple(parts + [0] * (4 - len(parts)))
