"""How many machines a fleet needs for its share of the demand: a packing, machines to come first.

Free room on healthy machines is not credited a second time: the demand is what the scheduler could
not place there. Machines that are coming are credited, whatever they were made for, and those that
drain for want of work, for they could be taken back.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forgeyard.fleet.matching import Promises
from forgeyard.fleet.muster import Muster
from forgeyard.fleet.packing import Load, Lot, Packing, Source, each_of, share_of, size_of
from forgeyard.fleet.view import FleetView, InstanceView
from forgeyard.model.fleet import MOST_INSTANCES
from forgeyard.scheduler.demand import Demand, DemandClass
from forgeyard.scheduler.order import BASE


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A machine that demand asks for: for whom first, and what it may be."""

    made_for: str
    offerings: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the demand takes of a fleet."""

    busy: int
    coming: int
    """How many of the machines that are coming have something to do."""
    returning: Mapping[str, int]
    """How many that drain would have, by offering."""
    more: tuple[Wish, ...]
    """One for each machine that there must be beyond those."""

    @property
    def there(self) -> int:
        """Count the machines of it that are there or coming."""
        return self.busy + self.coming

    @property
    def total(self) -> int:
        """Count all machines that demand has something to do for."""
        return self.there + sum(self.returning.values()) + len(self.more)


def need(view: FleetView, loads: Iterable[Load], there: Muster) -> Need:
    """Reckon what these jobs take."""
    packing = packing_of(view, there)
    everything = frozenset(it.name for it in view.spec.offerings)
    for load in loads:
        packing.put(load, most_new=MOST_INSTANCES - packing.new, of=everything)
    returning = Counter[str]()
    for lot, count in packing.used(Source.DRAINING):
        returning.update({name: count for name in lot.offerings})
    return Need(
        busy=len(there.busy),
        coming=sum(count for _, count in packing.used(Source.COMING)),
        returning=dict(returning),
        more=tuple(
            Wish(made_for=lot.made_for, offerings=lot.offerings)
            for lot, count in packing.used(Source.NEW)
            for _ in range(count)
        ),
    )


def packing_of(view: FleetView, there: Muster) -> Packing:
    """Begin with the room of machines that are coming, then of those that could return."""
    size = size_of(view.spec.capacity.resources)
    rooms = (
        *_rooms(there.coming, size, Source.COMING),
        *_rooms((it for it in there.returning if not it.leases), size, Source.DRAINING),
    )
    return Packing(size, rooms)


def _rooms(
    instances: Iterable[InstanceView], size: tuple[int, ...], source: Source
) -> list[tuple[Lot, int]]:
    counts = Counter(it.offering for it in instances)
    return [
        (Lot(source=source, free=size, offerings=frozenset({offering})), count)
        for offering, count in sorted(counts.items())
    ]


def loads_of(view: FleetView, share: Mapping[str, int], demand: Demand) -> list[Load]:
    """Describe a share as loads: the most urgent first, and among those the largest."""
    size, promises = size_of(view.spec.capacity.resources), Promises(view)
    loads: list[tuple[int, Load]] = []
    for one in demand.classes:
        count = share.get(one.requirement_class, 0)
        if count > 0:
            load = load_of(view, one, count, offerings=promises.serving(one))
            loads.append((-BASE[one.priority], load))
    loads.sort(key=lambda it: (it[0], -share_of(it[1].each, size), it[1].name))
    return [load for _, load in loads]


def load_of(view: FleetView, wanted: DemandClass, count: int, *, offerings: frozenset[str]) -> Load:
    """Describe some jobs of a class as a load on the machines of such offerings."""
    job = wanted.example
    return Load(
        name=wanted.requirement_class,
        count=count,
        each=each_of(job.resources, job.requirements.equipment, view.spec.capacity.equipment),
        offerings=offerings,
    )
