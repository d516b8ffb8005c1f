"""Which fleet serves how much of the demand: no job is counted for two, so none is bought twice.

Room that is coming anywhere is used first. Then the fleet that could run a job cheapest makes
machines for it, and what it may not make goes to the next within the same pass (FLT-073). What all
that could serve it may not make stays with the first of them, whose decision says what keeps it.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from forgeyard.fleet.bounds import most
from forgeyard.fleet.choosing import open_offerings
from forgeyard.fleet.cost import Budget
from forgeyard.fleet.matching import Promises, why_not
from forgeyard.fleet.muster import Muster, muster
from forgeyard.fleet.need import load_of, packing_of
from forgeyard.fleet.packing import Load, fitting, size_of
from forgeyard.fleet.view import Allocation, FleetView, Unserved
from forgeyard.model.fleet import FleetState, Market, Offering
from forgeyard.model.wishes import SpotWish
from forgeyard.scheduler.demand import Demand, DemandClass

PER_MACHINE = 1_000_000
"""Prices for a job are compared in millionths of a machine's price."""
NO_PRICE = 2**62


def allocate(demand: Demand, fleets: Sequence[FleetView], now: int) -> Allocation:
    """Share the demand out among fleets."""
    desks = [_Desk(view, demand, now) for view in sorted(fleets, key=lambda it: it.fleet_id)]
    wanted = [it for it in demand.classes if it.count]
    left = {it.requirement_class: it.count for it in wanted}
    able = {it.requirement_class: [d for d in desks if d.can_serve(it)] for it in wanted}
    for one in wanted:
        for desk in able[one.requirement_class]:
            left[one.requirement_class] -= desk.use_room(one, left[one.requirement_class])
    for one in wanted:
        name = one.requirement_class
        left[name] -= _bought(one, able[name], left[name])
        if left[name] and able[name]:
            _home(one, able[name]).queue(one, left[name])
            left[name] = 0
    return Allocation(
        shares={desk.view.fleet_id: desk.share for desk in desks if desk.share},
        unserved=tuple(_unserved(it, desks) for it in wanted if left[it.requirement_class]),
    )


class _Desk:
    """One fleet while demand is shared out: what it could run, and what it may still make."""

    def __init__(self, view: FleetView, demand: Demand, now: int) -> None:
        self.view = view
        self.share: dict[str, int] = {}
        there = muster(view, demand, now)
        self._size = size_of(view.spec.capacity.resources)
        self._packing = packing_of(view, there)
        self._open = {it.name: it for it in open_offerings(view, now)}
        self._usable = len(there.usable)
        self._most = _purchasable(view, there, tuple(self._open.values()), now)
        self._promises = Promises(view)
        self._offerings: dict[str, frozenset[str]] = {}

    def serving(self, wanted: DemandClass) -> frozenset[str]:
        """Find out once with which offerings it may serve a class."""
        name = wanted.requirement_class
        if name not in self._offerings:
            is_futile = name in self.view.futile
            able = frozenset[str]() if is_futile else self._promises.serving(wanted)
            self._offerings[name] = able
        return self._offerings[name]

    def why_not(self, wanted: DemandClass) -> str:
        """Say why it may not serve a class."""
        return why_not(self.view, wanted)

    def can_serve(self, wanted: DemandClass) -> bool:
        """Tell whether its machines could run the jobs of a class."""
        return bool(self.serving(wanted))

    @property
    def is_stopped(self) -> bool:
        """Tell whether it makes nothing whatever comes."""
        return _is_stopped(self.view)

    @property
    def crowd(self) -> tuple[int, str]:
        """Rank fleets of one price: the one with the fewest machines is next."""
        return (self._usable + self._packing.new, self.view.fleet_id)

    def rank(self, wanted: DemandClass) -> tuple[int, int]:
        """Rank it for a class: offerings that its jobs do not avoid, then the lowest price."""
        each = max(1, fitting(self._load(wanted, 1).each, self._size, most=PER_MACHINE))
        ranks = (
            (_unwished(it, wanted), it.cost * PER_MACHINE // each) for it in self._serving(wanted)
        )
        return min(ranks, default=(2, NO_PRICE))

    def use_room(self, wanted: DemandClass, count: int) -> int:
        """Put jobs on machines that are there already in some way; tell how many."""
        return self._put(wanted, count, most_new=0)

    def buy(self, wanted: DemandClass, count: int) -> int:
        """Put jobs on machines that it may make as well; tell how many."""
        return self._put(wanted, count, most_new=self._most - self._packing.new)

    def a_machine_full(self, wanted: DemandClass, count: int) -> int:
        """Tell how many of so many jobs one new machine takes."""
        return fitting(self._load(wanted, count).each, self._size, most=count)

    def queue(self, wanted: DemandClass, count: int) -> None:
        """Count jobs for it although it may make no machine for them now."""
        name = wanted.requirement_class
        self.share[name] = self.share.get(name, 0) + count

    def _put(self, wanted: DemandClass, count: int, *, most_new: int) -> int:
        if not count:
            return 0
        load = self._load(wanted, count)
        placed = self._packing.put(load, most_new=most_new, of=frozenset(self._open))
        if placed:
            self.queue(wanted, placed)
        return placed

    def _load(self, wanted: DemandClass, count: int) -> Load:
        return load_of(self.view, wanted, count, offerings=self.serving(wanted))

    def _serving(self, wanted: DemandClass) -> list[Offering]:
        names = self.serving(wanted)
        return [it for name, it in self._open.items() if name in names]


def _purchasable(view: FleetView, there: Muster, offerings: Sequence[Offering], now: int) -> int:
    """Count the machines that a fleet might make at all, however fast."""
    if _is_stopped(view) or not offerings:
        return 0
    room = max(0, most(view, now) - there.existing)
    affordable = Budget(view, now).most(min(it.cost for it in offerings))
    return room if affordable is None else min(room, affordable)


def _is_stopped(view: FleetView) -> bool:
    frozen = view.provider_frozen or view.state is FleetState.FROZEN
    return frozen or view.spec.capacity.image in view.blocked_images


def _bought(wanted: DemandClass, desks: Iterable[_Desk], count: int) -> int:
    """Let fleets make machines, the cheapest first; those of one price take turns."""
    left = count
    ranked = sorted(desks, key=lambda desk: desk.rank(wanted))
    for _, alike in groupby(ranked, key=lambda desk: desk.rank(wanted)):
        taking = list(alike)
        while left and taking:
            desk = min(taking, key=lambda it: it.crowd)
            some = left if len(taking) == 1 else desk.a_machine_full(wanted, left)
            placed = desk.buy(wanted, some)
            left -= placed
            if placed < max(1, some):
                taking.remove(desk)
    return count - left


def _home(wanted: DemandClass, desks: Sequence[_Desk]) -> _Desk:
    """Choose where jobs wait that nobody may make a machine for."""
    return min(desks, key=lambda desk: (desk.is_stopped, *desk.rank(wanted), desk.view.fleet_id))


def _unwished(offering: Offering, wanted: DemandClass) -> int:
    wish, is_spot = wanted.example.spot, offering.market is Market.PREEMPTIBLE
    return int(wish is (SpotWish.AVOIDED if is_spot else SpotWish.PREFERRED))


def _unserved(wanted: DemandClass, desks: Iterable[_Desk]) -> Unserved:
    return Unserved(
        requirement_class=wanted.requirement_class,
        count=wanted.count,
        reasons={desk.view.spec.name: desk.why_not(wanted) for desk in desks},
    )
