"""How many machines jobs take: an estimate that fills machines class by class, never job by job.

The scheduler places; this only reckons (PLN-012). Machines that are alike are one lot, so that ten
thousand jobs of a class are one division.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from forgeyard.model.equipment import Equipment, EquipmentRequirement
from forgeyard.model.units import Resources
from forgeyard.scheduler.devices import allocate, plus

Amounts = tuple[int, ...]
"""CPU, memory, disk, slots, and parts of a machine's devices."""
ALL_DEVICES: Final = 1_000_000
_MOST_SIDE_BY_SIDE: Final = 64
"""Of jobs that hold devices: no machine has more devices of one kind."""


class Source(StrEnum):
    """Where the room of a machine comes from, in the order in which it is used."""

    COMING = "coming"
    DRAINING = "draining"
    """It could be taken back."""
    NEW = "new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lot:
    """Machines of which each has the same room left."""

    source: Source
    free: Amounts
    offerings: frozenset[str]
    """Which of them it is, or may still be."""
    made_for: str = ""
    """The class that came first; empty while nothing is on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Jobs of one class that are to be put on machines."""

    name: str
    count: int
    each: Amounts
    offerings: frozenset[str]
    """Whose machines can run them."""


class Packing:
    """Machines with room, and how much of it is taken; more are added as far as they may be."""

    def __init__(self, size: Amounts, rooms: Iterable[tuple[Lot, int]] = ()) -> None:
        self.new = 0
        """How many machines had to be added."""
        self._size = size
        self._lots: dict[Lot, int] = {}
        for lot, count in rooms:
            self._add(lot, count)

    def used(self, source: Source) -> list[tuple[Lot, int]]:
        """List the machines of a source that have anything to do, in order of use."""
        return [
            (lot, count)
            for lot, count in self._lots.items()
            if lot.source is source and lot.made_for
        ]

    def put(self, load: Load, *, most_new: int, of: frozenset[str]) -> int:
        """Put jobs where there is room, then on new machines of `of`; tell how many found any."""
        left = load.count
        for lot, count in list(self._lots.items()):
            if not left:
                break
            left -= self._fill(lot, count, load, left=left)
        kinds = of & load.offerings
        if left and most_new > 0 and kinds:
            left -= self._open(load, left=left, most=most_new, kinds=kinds)
        return load.count - left

    def _fill(self, lot: Lot, count: int, load: Load, *, left: int) -> int:
        kinds = lot.offerings & load.offerings
        each = fitting(load.each, lot.free, most=left) if kinds else 0
        if not each:
            return 0
        self._take(lot, count)
        full = min(left // each, count)
        rest = left - full * each if full < count else 0
        self._add(lot, count - full - (rest > 0))
        for jobs, machines in ((each, full), (rest, int(rest > 0))):
            name = lot.made_for or load.name
            room = Lot(
                source=lot.source,
                free=_less(lot.free, load.each, jobs),
                offerings=kinds,
                made_for=name,
            )
            self._add(room, machines)
        return full * each + rest

    def _open(self, load: Load, *, left: int, most: int, kinds: frozenset[str]) -> int:
        each = fitting(load.each, self._size, most=left)
        if not each:
            return 0
        machines = min(-(-left // each), most)
        self.new += machines
        fresh = Lot(source=Source.NEW, free=self._size, offerings=kinds)
        return self._fill(fresh, machines, load, left=left)

    def _take(self, lot: Lot, count: int) -> None:
        """Take machines out of a lot that is about to be divided."""
        if lot in self._lots:
            self._lots[lot] -= count
            if not self._lots[lot]:
                del self._lots[lot]

    def _add(self, lot: Lot, count: int) -> None:
        if count:
            self._lots[lot] = self._lots.get(lot, 0) + count


def fitting(each: Amounts, free: Amounts, *, most: int) -> int:
    """Count how many of these fit side by side, at most so many."""
    counts = [have // want for want, have in zip(each, free, strict=True) if want > 0]
    return max(0, min([*counts, most]))


def size_of(resources: Resources) -> Amounts:
    """Write the room of an empty machine as amounts."""
    return (resources.cpu, resources.memory, resources.disk, resources.slots, ALL_DEVICES)


def each_of(resources: Resources, wanted: EquipmentRequirement, equipment: Equipment) -> Amounts:
    """Write what one job takes of a machine that is equipped like this."""
    devices = ALL_DEVICES // side_by_side(wanted, equipment) if wanted.wants_devices else 0
    return (resources.cpu, resources.memory, resources.disk, resources.slots, devices)


@lru_cache(maxsize=4096)
def side_by_side(wanted: EquipmentRequirement, equipment: Equipment) -> int:
    """Count how many jobs can hold devices of an idle machine at once; the scheduler chooses."""
    held: dict[str, int] = {}
    for count in range(_MOST_SIDE_BY_SIDE):
        shares = allocate(wanted, equipment, held)
        if shares is None:
            return max(1, count)
        held = plus(held, shares)
    return _MOST_SIDE_BY_SIDE


def share_of(each: Amounts, size: Sequence[int]) -> int:
    """Tell how much of a machine a job takes in its scarcest dimension, in thousandths."""
    return max(
        (want * 1_000 // max(have, 1) for want, have in zip(each, size, strict=True)), default=0
    )


def _less(free: Amounts, each: Amounts, jobs: int) -> Amounts:
    return tuple(have - jobs * want for have, want in zip(free, each, strict=True))
