"""Random equipment and wishes, and a judge of both that was written apart from the product's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations, product
from random import Random
from typing import TypeVar

from forgeyard.model.equipment import (
    Device,
    DeviceForm,
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
PHONES = ("Pixel 8", "pixel 9", None)
ABIS = ("arm64-v8a", "x86_64", None)
VERSIONS = ("1.2", "1.10", "2.0", "2.5.1", None)
RANGES = (">=1.10", "<2.5", "==2.*", ">=1.2,<3", "!=2.0")
VENDORS = (GpuVendor.NVIDIA, GpuVendor.NVIDIA, GpuVendor.AMD, None)
MODELS = ("A100", "a10", "T4", None)
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
        gpus=known(rng, lambda: tuple(some_gpu(rng, n) for n in range(rng.randint(0, 4)))),
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
    return tuple(
        Device(
            kind=kind,
            count=rng.randint(1, 2),
            id=f"{kind}-{place}" if rng.random() < 0.3 else None,
            model=rng.choice(PHONES),
            os_version=rng.choice(VERSIONS),
            api_level=rng.choice(("33", "34", None)),
            abi=rng.choice(ABIS),
            form=rng.choice((*DeviceForm, None)),
        )
        for place, kind in enumerate(kinds)
    )


def some_gpu(rng: Random, place: int = 0) -> Gpu:
    """Make a GPU of which something may be unknown."""
    size = rng.choice(SIZES)
    return Gpu(
        id=f"GPU-{place}" if rng.random() < 0.5 else None,
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
        devices=asked(lambda: (some_device_wish(rng),), ()),
        gpus=asked(lambda: tuple(some_gpu_wish(rng) for _ in range(rng.choice((1, 1, 2)))), ()),
    )


def some_device_wish(rng: Random) -> DeviceRequirement:
    """Ask for devices, now and then by a property or by name."""

    def maybe(values: Sequence[T]) -> T | None:
        return rng.choice(values) if rng.random() < 0.15 else None

    kind = rng.choice(KINDS)
    return DeviceRequirement(
        kind=kind,
        count=rng.choice((1, 1, 2, 3)),
        id=maybe((f"{kind}-0", f"{kind}/0")),
        model=maybe(("pixel 8", "Pixel 9")),
        os_version=maybe(RANGES),
        api_level=maybe((">=34",)),
        abi=maybe(("arm64-v8a",)),
        form=maybe(tuple(DeviceForm)),
    )


def some_runtime_wish(rng: Random) -> RuntimeRequirement:
    """Ask for a runtime, half of the time in a range."""
    return RuntimeRequirement(name=rng.choice(RUNTIMES), version=rng.choice((*RANGES, *[None] * 5)))


def some_gpu_wish(rng: Random) -> GpuRequirement:
    """Ask for GPUs by one or a few of their properties."""

    def maybe(values: Sequence[T]) -> T | None:
        return rng.choice(values) if rng.random() < 0.4 else None

    size, count = maybe((16, 40)), rng.choice((1, 1, 1, 2))
    if rng.random() < 0.15:
        return GpuRequirement(count=2, same_model=True)
    return GpuRequirement(
        count=count,
        vendor=maybe((GpuVendor.NVIDIA, GpuVendor.AMD)),
        model=maybe(("a100", "A10")),
        memory=None if size is None else Bytes(size * GIB),
        compute_capability=maybe(LEAST),
        sharing=maybe(tuple(GpuSharing)),
        id=rng.choice(("GPU-0", "gpu/1")) if rng.random() < 0.1 else None,
        same_model=rng.random() < 0.2,
        share=rng.choice((180, 500, 800)) if rng.random() < 0.3 else None,
    )


def naive_codes(want: EquipmentRequirement, have: Equipment) -> set[str]:
    """List the reasons against equipment, from the description of the rules alone."""
    codes = naive_single_codes(want, have)
    if not any(code.startswith(("gpu", "device")) for code in codes):
        for sort, alone in (("gpu", {"devices": ()}), ("device", {"gpus": ()})):
            if not naive_allocations(replace(want, **alone), have, {}):
                codes.add(f"{sort}_mismatch")
    return codes


def naive_single_codes(want: EquipmentRequirement, have: Equipment) -> set[str]:
    """List the reasons against each wish alone."""
    return {
        *naive_members("cpu_feature", want.cpu_features, have.cpu_features),
        *naive_members("sandbox", [want.sandbox] * bool(want.sandbox), have.sandboxes),
        *naive_members("network", [want.network] * bool(want.network), have.network_modes),
        *naive_members("isolation", [want.isolation] * bool(want.isolation), have.isolation),
        *(code for device in want.devices for code in naive_device(device, have.devices)),
        *(code for runtime in want.runtimes for code in naive_runtime(runtime, have.runtimes)),
        *(code for gpu in want.gpus for code in naive_gpu(gpu, have.gpus)),
    }


def naive_members(name: str, want: Sequence[object], have: Sequence[object] | None) -> set[str]:
    """Judge what must all be in a set."""
    if have is None:
        return {f"{name}_unknown"} if want else set()
    return {f"{name}_mismatch" for one in want if have.count(one) == 0}


def naive_device(want: DeviceRequirement, have: Sequence[Device] | None) -> set[str]:
    """Count the devices of a kind one by one, then those that are known to be right."""
    if have is None:
        return {"device_unknown"}
    there = [(name, one) for name, one in naive_names(have) if one.kind == want.kind]
    if len(there) < want.count:
        return {"device_mismatch"}
    answers = [naive_is(want, name, one) for name, one in there]
    if answers.count(True) >= want.count:
        return set()
    may = len(answers) - answers.count(False) >= want.count
    return {f"device_attribute_{'unknown' if may else 'mismatch'}"}


def naive_names(have: Sequence[Device]) -> list[tuple[str, Device]]:
    """Name devices: by their id, else by what they are and their number."""
    named: list[tuple[str, Device]] = []
    for one in have:
        for number in range(one.count):
            if one.id and one.count == 1:
                named.append((one.id, one))
            elif one.id:
                named.append((f"{one.id}/{number}", one))
            else:
                before = [it for it, other in named if it.startswith(f"{one.kind}/")]
                named.append((f"{one.kind}/{len(before)}", one))
    return named


def naive_is(want: DeviceRequirement, name: str, have: Device) -> bool | None:
    """Tell whether a device is what is asked for; None if nobody can tell."""
    answers: list[bool | None] = [want.id is None or want.id == name]
    for wish, has in ((want.model, have.model), (want.abi, have.abi), (want.form, have.form)):
        same = None if has is None else str(has).lower() == str(wish).lower()
        answers.append(True if wish is None else same)
    ranges = ((want.os_version, have.os_version), (want.api_level, have.api_level))
    for wish, has in ranges:
        inside = None if has is None or wish is None else naive_version(has, wish)
        answers.append(True if wish is None else inside)
    return False if False in answers else None if None in answers else True


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
    here = [(gpu.id or f"gpu/{place}", gpu) for place, gpu in enumerate(have)]
    if want.id is not None:
        here = [(name, gpu) for name, gpu in here if name == want.id]
        if len(here) < want.count:
            return {"gpu_id_mismatch"}
    for name in ("vendor", "model", "memory", "compute_capability", "sharing", "share"):
        passed = [(it, gpu) for it, gpu in here if naive_has(want, gpu, name)]
        field = "sharing" if name == "share" else name
        if len(passed) < want.count:
            doubtful = [one for one in here if getattr(one[1], field) is None]
            fewer = len(passed) + len(doubtful) < want.count
            return {f"gpu_{field}_{'mismatch' if fewer else 'unknown'}"}
        here = passed
    models = [gpu.model.lower() for _, gpu in here if gpu.model]
    most = max([models.count(model) for model in models], default=0)
    if want.same_model and most < want.count:
        may = most + len(here) - len(models) >= want.count
        return {f"gpu_same_model_{'unknown' if may else 'mismatch'}"}
    return set()


def naive_has(want: GpuRequirement, gpu: Gpu, name: str) -> bool:
    """Tell whether one GPU surely has one property that is asked for."""
    if name == "share":
        return want.share is None or gpu.sharing == "shared"
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


def naive_allocations(want: EquipmentRequirement, have: Equipment, held: Mapping[str, int]) -> bool:
    """Try every way to give devices out one by one, until one works."""
    wishes: list[GpuRequirement | DeviceRequirement] = [*want.gpus, *want.devices]
    gpus = [(gpu.id or f"gpu/{place}", gpu) for place, gpu in enumerate(have.gpus or ())]
    devices = naive_names(have.devices or ())

    def choices(wish: GpuRequirement | DeviceRequirement) -> list[tuple[str, ...]]:
        if isinstance(wish, DeviceRequirement):
            good = [
                name
                for name, one in devices
                if one.kind == wish.kind and naive_is(wish, name, one) and held.get(name, 0) == 0
            ]
            return list(combinations(good, wish.count))
        names = ["vendor", "model", "memory", "compute_capability", "sharing", "share"]
        share = wish.share or 1_000
        fine = [
            (name, gpu)
            for name, gpu in gpus
            if wish.id in (None, name)
            and all(naive_has(wish, gpu, one) for one in names)
            and held.get(name, 0) + share <= 1_000
        ]
        return [
            tuple(name for name, _ in some)
            for some in combinations(fine, wish.count)
            if not wish.same_model
            or (
                (None not in [gpu.model for _, gpu in some])
                and len({(gpu.model or "").lower() for _, gpu in some}) == 1
            )
        ]

    return any(
        len(set(chain(*some))) == sum(wish.count for wish in wishes)
        for some in product(*(choices(wish) for wish in wishes))
    )
