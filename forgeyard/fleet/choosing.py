"""Which offering each new machine is: open, where it is needed, affordable, cheapest.

Every machine is chosen in view of those chosen before it, so that no bound is only looked at when
a batch begins.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from forgeyard.fleet.cost import Budget
from forgeyard.fleet.matching import in_place
from forgeyard.fleet.view import ClampKind, FleetView, InstanceView
from forgeyard.model.fleet import Market, Offering, Spread
from forgeyard.model.wishes import SpotWish


class Chooser:
    """Chooses offerings for one machine after the other."""

    def __init__(self, view: FleetView, usable: Iterable[InstanceView], now: int) -> None:
        self._view = view
        self._here = {it.name: (place, it) for place, it in enumerate(in_place(view))}
        self._shut = closed(view, now)
        self._budget = Budget(view, now)
        usable = tuple(usable)
        self._machines = len(usable)
        self._spot = sum(it.market is Market.PREEMPTIBLE for it in usable)
        self._crowd = Counter(self._corner(it.region, it.zone) for it in usable)
        self.refused = Counter[ClampKind]()
        """How many machines were not made, by what stood against them."""
        self.turned = 0
        """How many had to be stable ones that would have been preemptible."""

    @property
    def shut_text(self) -> str:
        """Say which offerings are closed, and why."""
        texts = (f"{name}: {reason}" for name, reason in sorted(self._shut.items()))
        return "; ".join(texts) or "it has no offering for such jobs where its machines may be"

    def choose(self, among: frozenset[str] | None, wish: SpotWish) -> Offering | None:
        """Choose one machine, or count what stands against it; `None` among means any."""
        here = [it for it in self._here if among is None or it in among]
        ranked = sorted(
            (it for it in here if it not in self._shut), key=lambda it: self._rank(it, wish)
        )
        offerings = [self._here[name][1] for name in ranked]
        fitting = [it for it in offerings if self._in_share(it, here)]
        if not fitting:
            self.refused[ClampKind.SPOT_SHARE if offerings else ClampKind.NO_OFFERING] += 1
            return None
        for offering in fitting:
            if self._budget.against(offering.cost) is None:
                self._take(offering)
                self.turned += offering is not offerings[0] and _is_spot(offerings[0])
                return offering
        cheapest = min(fitting, key=lambda it: it.cost)
        self.refused[self._budget.against(cheapest.cost) or ClampKind.HOURLY_COST] += 1
        return None

    def _rank(self, name: str, wish: SpotWish) -> tuple[int, int, int, int]:
        place, offering = self._here[name]
        unwished = (wish is SpotWish.AVOIDED and _is_spot(offering)) or (
            wish is SpotWish.PREFERRED and not _is_spot(offering)
        )
        crowd = self._crowd[self._corner(offering.region, offering.zone)]
        return (int(unwished), crowd, offering.cost, place)

    def _in_share(self, offering: Offering, here: Iterable[str]) -> bool:
        """Tell whether the mix of preemptible and stable machines allows one more of these."""
        placement, total = self._view.spec.placement, self._machines + 1
        most_spot = placement.spot_percent * total // 100
        if _is_spot(offering):
            return self._spot + 1 <= most_spot
        if placement.stable_fallback or not any(_is_spot(self._here[it][1]) for it in here):
            return True
        return self._machines - self._spot + 1 <= total - most_spot

    def _take(self, offering: Offering) -> None:
        self._budget.take(offering.cost)
        self._machines += 1
        self._spot += _is_spot(offering)
        self._crowd[self._corner(offering.region, offering.zone)] += 1

    def _corner(self, region: str, zone: str) -> str:
        """Name the place over which machines are spread; one for all where they are not."""
        spread = self._view.spec.placement.spread
        if spread is Spread.ZONE:
            return f"{region}/{zone}"
        return region if spread is Spread.REGION else ""


def closed(view: FleetView, now: int) -> Mapping[str, str]:
    """Tell which offerings are not asked for at present, each with its reason."""
    shut = {it.offering: it.reason for it in view.closed if now < it.until}
    names = (it.name for it in view.spec.offerings)
    return {name: shut.get(name) or shut[""] for name in names if name in shut or "" in shut}


def open_offerings(view: FleetView, now: int) -> tuple[Offering, ...]:
    """List the offerings that a fleet may ask for."""
    shut = closed(view, now)
    return tuple(it for it in in_place(view) if it.name not in shut)


def _is_spot(offering: Offering) -> bool:
    return offering.market is Market.PREEMPTIBLE
