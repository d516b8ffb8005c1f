"""What one fleet does next: demand in, machines out, and every bound named that changed anything.

A pure function of one reading of the store. It decides; whoever applies it judges again, under
locks, that a machine which drains has no lease and that the maximum holds.
"""

from collections.abc import Mapping

from forgeyard.fleet.bounds import aim
from forgeyard.fleet.growing import step_up
from forgeyard.fleet.muster import muster
from forgeyard.fleet.need import loads_of, need
from forgeyard.fleet.shrinking import step_down
from forgeyard.fleet.trail import Trail
from forgeyard.fleet.view import ClampKind, FleetDecision, FleetView
from forgeyard.scheduler.demand import Demand


def decide(view: FleetView, share: Mapping[str, int], *, demand: Demand, now: int) -> FleetDecision:
    """Decide what a fleet makes, takes back and lets go, given its share of the demand."""
    there = muster(view, demand, now)
    jobs = Trail(sum(share.values()))
    served = _not_futile(jobs, view, share)
    wanted = need(view, loads_of(view, served, demand), there)
    aimed = aim(view, wanted.total, now)
    up = step_up(view, wanted, aimed, there=there, demand=demand, now=now)
    growing = len(up.keep) + len(up.launch)
    down = step_down(view, aimed, there=there, growing=growing, now=now)
    return FleetDecision(
        needed=wanted.total,
        wanted=aimed.wanted,
        usable=len(there.usable),
        launch=up.launch,
        drain=down.drain,
        keep=up.keep,
        clamps=(*jobs.clamps, *aimed.clamps, *up.clamps, *down.clamps),
    )


def _not_futile(jobs: Trail, view: FleetView, share: Mapping[str, int]) -> dict[str, int]:
    """Leave out the classes for which machines came up in vain (FLT-079); it counts jobs."""
    served = {name: count for name, count in share.items() if name not in view.futile}
    after = view.spec.scaling.up.futile_after
    text = f"{after} machines came up for such jobs, and none could run them"
    jobs.at_most(ClampKind.FUTILE, sum(served.values()), text)
    return served
