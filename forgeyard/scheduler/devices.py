"""Which GPUs and devices a job gets on one runner: given out one by one, never by their sum.

A pure function of what the job wants, what the runner has and what leases hold of it. A job gets
the least capable that do, and a part of a GPU rather where another part is given away already.
Plan, explanation and commit ask the same function, so that they agree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from forgeyard.model.capability import numbers_of
from forgeyard.model.devices import (
    NamedDevice,
    NamedGpu,
    counted_gpus,
    device_fits,
    device_wish,
    devices_of_kind,
    gpu_fits,
    gpu_wish,
    named_gpus,
    share_text,
)
from forgeyard.model.equipment import (
    WHOLE,
    DeviceForm,
    DeviceRequirement,
    DeviceShare,
    Equipment,
    EquipmentRequirement,
    GpuRequirement,
    GpuSharing,
)

Held = Mapping[str, int]
"""What leases hold of a runner's devices: thousandths by device."""
ALL_FREE: Held = {}
MODELS_TRIED = 256
"""Looks at a choice of models for requests of one model each; beyond them a job does not fit."""
SHARES_TOLD = 3
Unit = TypeVar("Unit", NamedGpu, NamedDevice)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    """How many units of a set one request wants; no unit serves two requests."""

    count: int
    units: frozenset[int]
    share: int = WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A sort of device of which too little is free now, with both sides in words."""

    sort: str
    """`gpu` or `device`."""
    wanted: str
    free: str


def allocate(
    wanted: EquipmentRequirement, equipment: Equipment, held: Held
) -> tuple[DeviceShare, ...] | None:
    """Choose devices for every request at once, or find that they do not all fit."""
    if not wanted.wants_devices:
        return ()
    return _allocated(wanted, equipment, held) if held else _allocated_idle(wanted, equipment)


@lru_cache(maxsize=4096)
def _allocated_idle(
    wanted: EquipmentRequirement, equipment: Equipment
) -> tuple[DeviceShare, ...] | None:
    """Choose where nothing is held: many runners have the same, many jobs want the same."""
    return _allocated(wanted, equipment, ALL_FREE)


def _allocated(
    wanted: EquipmentRequirement, equipment: Equipment, held: Held
) -> tuple[DeviceShare, ...] | None:
    gpus = _gpus(wanted.gpus, equipment, held)
    devices = None if gpus is None else _devices(wanted.devices, equipment, held)
    return None if gpus is None or devices is None else (*gpus, *devices)


def plus(held: Held, shares: Sequence[DeviceShare]) -> dict[str, int]:
    """Add what one more lease holds."""
    sums = dict(held)
    for one in shares:
        sums[one.device_id] = sums.get(one.device_id, 0) + one.share
    return sums


def minus(held: Held, shares: Sequence[DeviceShare]) -> dict[str, int]:
    """Take away what a lease holds that ends."""
    sums = dict(held)
    for one in shares:
        sums[one.device_id] = sums.get(one.device_id, 0) - one.share
    return sums


def shortages(wanted: EquipmentRequirement, equipment: Equipment, held: Held) -> Iterator[Shortage]:
    """Tell of what too little is free, for a job whose every request could be met alone."""
    if _gpus(wanted.gpus, equipment, held) is None:
        wishes = " and ".join(gpu_wish(one) for one in wanted.gpus)
        yield Shortage(sort="gpu", wanted=wishes, free=_free_gpus(wanted.gpus, equipment, held))
    if _devices(wanted.devices, equipment, held) is None:
        wishes = " and ".join(device_wish(one) for one in wanted.devices)
        free = sum(not held.get(name) for name in _fitting_devices(wanted.devices, equipment))
        yield Shortage(sort="device", wanted=wishes, free=str(free or "none"))


def _gpus(
    wanted: Sequence[GpuRequirement], equipment: Equipment, held: Held
) -> tuple[DeviceShare, ...] | None:
    if not wanted:
        return ()
    units = sorted(named_gpus(equipment.gpus or ()), key=lambda unit: _gpu_rank(unit, held))
    demands = [_demand(one, units, held) for one in wanted]
    models = [_model_choices(one, it, units) for one, it in zip(wanted, demands, strict=True)]
    chosen = _Choice(models, len(units)).search()
    return None if chosen is None else _shares(chosen[1], chosen[0], units)


def _gpu_rank(unit: NamedGpu, held: Held) -> tuple[object, ...]:
    """Order GPUs: the fullest first, then the least capable; one that can be shared is spared."""
    name, gpu = unit
    return (
        -held.get(name, 0),
        gpu.memory or 0,
        numbers_of(gpu.compute_capability),
        gpu.sharing is GpuSharing.SHARED,
    )


def _demand(wanted: GpuRequirement, units: Sequence[NamedGpu], held: Held) -> _Demand:
    share = WHOLE if wanted.share is None else wanted.share
    fitting = (
        place
        for place, unit in enumerate(units)
        if held.get(unit[0], 0) + share <= WHOLE and gpu_fits(wanted, unit)
    )
    return _Demand(count=wanted.count, units=frozenset(fitting), share=share)


def _model_choices(
    wanted: GpuRequirement, demand: _Demand, units: Sequence[NamedGpu]
) -> list[_Demand]:
    """Split what must be of one model by model, those with the least capable GPU first."""
    if not wanted.same_model:
        return [demand]
    families: dict[str, set[int]] = {}
    for place in sorted(demand.units):
        model = units[place][1].model
        if model is not None:
            families.setdefault(model.casefold(), set()).add(place)
    return [
        _Demand(count=demand.count, units=frozenset(family), share=demand.share)
        for family in families.values()
        if len(family) >= demand.count
    ]


class _Choice:
    """Chooses a model for every request of one model, and drops what does not fit at once."""

    def __init__(self, options: Sequence[Sequence[_Demand]], units: int) -> None:
        self._options = options
        self._units = units
        self._tries = 0

    def search(self) -> tuple[list[_Demand], list[list[int]]] | None:
        """Find demands that fit together, one of each list of options, and the units of each."""
        free = [place for place, options in enumerate(self._options) if len(options) != 1]
        fixed = {
            place: options[0] for place, options in enumerate(self._options) if len(options) == 1
        }
        found = self._extend(fixed, free)
        if found is None:
            return None
        return [found[0][place] for place in sorted(found[0])], found[1]

    def _extend(
        self, chosen: dict[int, _Demand], free: list[int]
    ) -> tuple[dict[int, _Demand], list[list[int]]] | None:
        self._tries += 1
        if self._tries > MODELS_TRIED:
            return None
        given = _Matching([chosen[place] for place in sorted(chosen)]).match(self._units)
        if given is None or not free:
            return None if given is None else (chosen, given)
        extended = (
            self._extend({**chosen, free[0]: option}, free[1:]) for option in self._options[free[0]]
        )
        return next((found for found in extended if found is not None), None)


def _devices(
    wanted: Sequence[DeviceRequirement], equipment: Equipment, held: Held
) -> tuple[DeviceShare, ...] | None:
    """Match kind by kind: devices of two kinds never stand in for each other."""
    found: list[DeviceShare] = []
    for kind in dict.fromkeys(one.kind for one in wanted):
        units = sorted(devices_of_kind(kind, equipment.devices or ()), key=_device_rank)
        demands = [
            _Demand(
                count=one.count,
                units=frozenset(
                    place
                    for place, unit in enumerate(units)
                    if not held.get(unit[0]) and device_fits(one, unit)
                ),
            )
            for one in wanted
            if one.kind == kind
        ]
        given = _Matching(demands).match(len(units))
        if given is None:
            return None
        found.extend(_shares(given, demands, units))
    return tuple(found)


def _device_rank(unit: NamedDevice) -> tuple[object, ...]:
    """Order devices: what is made of software first, then the oldest."""
    _, device = unit
    physical = device.form is not DeviceForm.SIMULATOR
    return physical, numbers_of(device.api_level), numbers_of(device.os_version)


def _shares(
    given: Sequence[Sequence[int]], demands: Sequence[_Demand], units: Sequence[Unit]
) -> tuple[DeviceShare, ...]:
    return tuple(
        DeviceShare(device_id=units[place][0], share=demand.share)
        for demand, places in zip(demands, given, strict=True)
        for place in sorted(places)
    )


class _Matching:
    """Gives each demand its number of units, preferring those that come first.

    Units join one by one by augmenting paths. The sets of units that can be matched form a
    matroid, so taking each that can join uses the best set there is.
    """

    def __init__(self, demands: Sequence[_Demand]) -> None:
        self._demands = demands
        self._given: list[list[int]] = [[] for _ in demands]

    def match(self, units: int) -> list[list[int]] | None:
        """Match as many units as are wanted; `None` if that cannot be."""
        missing = sum(demand.count for demand in self._demands)
        for unit in range(units):
            if not missing:
                break
            missing -= self._join(unit, set())
        return None if missing else self._given

    def _join(self, unit: int, tried: set[int]) -> bool:
        """Find a place for a unit, moving others where that helps."""
        for number, demand in enumerate(self._demands):
            if number in tried or unit not in demand.units:
                continue
            tried.add(number)
            given = self._given[number]
            if len(given) < demand.count:
                given.append(unit)
                return True
            for place, other in enumerate(given):
                if self._join(other, tried):
                    given[place] = unit
                    return True
        return False


def _free_gpus(wanted: Sequence[GpuRequirement], equipment: Equipment, held: Held) -> str:
    """Say what is left of the GPUs that any of the requests could use: a number, or each part."""
    fitting = [
        WHOLE - held.get(unit[0], 0)
        for unit in named_gpus(equipment.gpus or ())
        if any(gpu_fits(one, unit) for one in wanted)
    ]
    if all(one.share is None for one in wanted):
        return str(sum(left == WHOLE for left in fitting) or "none")
    told = sorted(fitting, reverse=True)[:SHARES_TOLD]
    return " and ".join(f"{share_text(left)} of {counted_gpus(1)}" for left in told) or "none"


def _fitting_devices(wanted: Sequence[DeviceRequirement], equipment: Equipment) -> set[str]:
    """Name the devices that any of the requests could use."""
    return {
        unit[0]
        for one in wanted
        for unit in devices_of_kind(one.kind, equipment.devices or ())
        if device_fits(one, unit)
    }
