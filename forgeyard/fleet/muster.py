"""The machines of a fleet, sorted by what may be expected of each of them.

What may exist counts against the maximum whatever its state; what is usable counts towards what is
wanted; a machine that drains is no capacity at all, and a sick one does not hold up the minimum.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from forgeyard.fleet.drift import has_drifted
from forgeyard.fleet.view import COMING, FleetView, InstanceView
from forgeyard.model.capacity import CapacityInstanceState, ScaleDownReason
from forgeyard.model.fleet import LifetimeKind
from forgeyard.scheduler.demand import Demand

_CAN_RETURN = frozenset({ScaleDownReason.IDLE, ScaleDownReason.ABOVE_MAXIMUM})
Machines = tuple[InstanceView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Muster:
    """The machines of a fleet by what they are good for, each list by id."""

    existing: int
    """What counts against the maximum."""
    coming: Machines
    busy: Machines
    """Well, and with a lease or about to get one."""
    idle: Machines
    """Well, and without a lease."""
    returning: Machines
    """Draining, and could be taken back."""
    interrupted: Machines
    """Their provider will take them away."""
    blocked: Machines
    """Of an image that must not run any more."""
    unwell: Machines
    """Without a lease, and not well enough for one."""
    lapsed: Machines
    """They have served their time; of the old ones as many as are drained at once."""
    spared: int
    """How many more have served their time, but are pinned."""

    @property
    def ready(self) -> Machines:
        """List what takes work."""
        return (*self.busy, *self.idle)

    @property
    def usable(self) -> Machines:
        """List what counts towards what is wanted."""
        return (*self.coming, *self.busy, *self.idle)


def muster(view: FleetView, demand: Demand, now: int) -> Muster:
    """Sort the machines of a fleet."""
    there = sorted((it for it in view.instances if it.may_exist), key=lambda it: it.instance_id)
    healthy = [it for it in there if it.state is CapacityInstanceState.HEALTHY]
    interrupted = [it for it in there if it.interrupted and _is_up(it)]
    blocked = [it for it in healthy if it.image in view.blocked_images and not it.interrupted]
    others = [it for it in healthy if not it.interrupted and it not in blocked]
    unwell = [it for it in others if not it.is_healthy]
    well = [it for it in others if it.is_healthy]
    old = [it for it in well if has_served(it, view, now)]
    lapsed = _let_go([it for it in old if not is_pinned(it, now)], view)
    ready = _without(well, lapsed)
    busy = [it for it in ready if _has_work(it, demand)]
    return Muster(
        existing=_counted(there, view),
        coming=tuple(it for it in there if it.state in COMING and not it.interrupted),
        busy=tuple(busy),
        idle=tuple(_without(ready, busy)),
        returning=tuple(it for it in there if _can_return(it, view, now)),
        interrupted=tuple(interrupted),
        blocked=tuple(blocked),
        unwell=tuple(it for it in unwell if not _has_work(it, demand)),
        lapsed=tuple(lapsed),
        spared=sum(is_pinned(it, now) for it in old),
    )


def is_pinned(instance: InstanceView, now: int) -> bool:
    """Tell whether people keep a machine for now (DRN-008, DRN-010)."""
    return instance.pinned_until is not None and now < instance.pinned_until


def has_served(instance: InstanceView, view: FleetView, now: int) -> bool:
    """Tell whether a machine has served its time: by age, or by the jobs that it has had."""
    life, jobs = view.spec.lifetime, instance.jobs_ended + instance.leases
    if life.kind is LifetimeKind.MAX_AGE:
        return 0 < life.age <= now - instance.requested_at
    if life.kind is LifetimeKind.ONE_JOB:
        return jobs >= 1
    return life.kind is LifetimeKind.MAX_JOBS and 0 < life.jobs <= jobs


def _let_go(old: list[InstanceView], view: FleetView) -> list[InstanceView]:
    """Let go of the oldest that have served their time; of those that had their jobs, all.

    A job more than it may have is what the limit is there to prevent; an hour more is not.
    """
    by_age = view.spec.lifetime.kind is LifetimeKind.MAX_AGE
    oldest = sorted(old, key=lambda it: (it.requested_at, it.instance_id))
    return oldest[: view.spec.scaling.down.at_once] if by_age else oldest


def _has_work(instance: InstanceView, demand: Demand) -> bool:
    return instance.leases > 0 or instance.runner_id in demand.placing


def _is_up(instance: InstanceView) -> bool:
    """Tell whether draining a machine would mean anything."""
    return instance.state in COMING or instance.state is CapacityInstanceState.HEALTHY


def _can_return(instance: InstanceView, view: FleetView, now: int) -> bool:
    """Tell whether a machine drains only because nobody needed it."""
    return (
        instance.state is CapacityInstanceState.DRAINING
        and instance.draining_for in _CAN_RETURN
        and instance.is_healthy
        and not instance.interrupted
        and instance.image not in view.blocked_images
        and not has_drifted(instance, view)
        and not has_served(instance, view, now)
    )


def _counted(there: Iterable[InstanceView], view: FleetView) -> int:
    """Count what may exist; sick machines under observation have their own small allowance."""
    states = [it.state for it in there]
    kept = states.count(CapacityInstanceState.QUARANTINED)
    return len(states) - min(kept, view.spec.scaling.quarantined)


def _without(some: list[InstanceView], others: list[InstanceView]) -> list[InstanceView]:
    gone = {it.instance_id for it in others}
    return [it for it in some if it.instance_id not in gone]
