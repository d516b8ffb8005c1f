"""What fleets would do if …: the planner's own functions, played forward over ticks.

Nothing is asked and nothing is written. What a plan cannot know is assumed, plainly: machines come
up after a time that the caller gives, jobs that have a machine keep it, nobody submits or cancels
anything, and what is let go is gone a tick later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from forgeyard.fleet.allocate import allocate
from forgeyard.fleet.need import loads_of
from forgeyard.fleet.packing import Load, Lot, Packing, Source, size_of
from forgeyard.fleet.plan import decide
from forgeyard.fleet.telling import told
from forgeyard.fleet.view import COMING, FleetDecision, FleetView, InstanceView, Launch
from forgeyard.model.capacity import CapacityInstanceState, ScaleDownReason
from forgeyard.model.fleet import DAY_MS
from forgeyard.scheduler.demand import Demand
from forgeyard.scheduler.snapshot import SchedulingJob, Snapshot

HOUR_MS: Final = 3600 * 1000
S = CapacityInstanceState
_GOING: Final = frozenset({S.FAILED, S.TERMINATING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What a fleet would decide after a while, and what had become of its machines by then."""

    after: int
    """Milliseconds from now."""
    came: int
    """Machines that came up since the tick before."""
    gone: int
    waiting: int
    """Jobs of its share that have no machine yet."""
    decision: FleetDecision
    line: str
    """The decision in words."""


def more_jobs(snapshot: Snapshot, like: SchedulingJob, count: int) -> Snapshot:
    """Add so many jobs that want what one of them wants, as if they were submitted now."""
    fresh = replace(like, bounds=(), refused_by={}, eligible_at=snapshot.taken_at)
    more = tuple(replace(fresh, job_id=f"{like.job_id}+{place}") for place in range(1, count + 1))
    return replace(snapshot, jobs=(*snapshot.jobs, *more), waiting=snapshot.waiting + count)


def play(
    fleet_id: str,
    fleets: Sequence[FleetView],
    demand: Demand,
    *,
    boots: Mapping[str, int],
    now: int,
    every: int,
    ticks: int,
) -> tuple[Tick, ...]:
    """Tell what a fleet would decide at each tick, all fleets deciding together.

    `boots` is how long the machines of each fleet take from the wish to being well.
    """
    fields = _Fields(fleets, demand, boots, now=now)
    return tuple(fields.tick(fleet_id, now=now + number * every) for number in range(ticks))


def news(ticks: Sequence[Tick]) -> tuple[Tick, ...]:
    """Leave out the ticks in which nothing happens that the one before did not say as well."""
    kept = [
        tick
        for place, tick in enumerate(ticks)
        if not place or place == len(ticks) - 1 or _is_news(tick, ticks[place - 1])
    ]
    return tuple(kept)


def _is_news(tick: Tick, before: Tick) -> bool:
    decision = tick.decision
    happened = tick.came or tick.gone or decision.launch or decision.drain or decision.keep
    return bool(happened) or decision != before.decision


class _Fields:
    """All fleets and the demand of one partition while they are played."""

    def __init__(
        self,
        fleets: Sequence[FleetView],
        demand: Demand,
        boots: Mapping[str, int],
        *,
        now: int,
    ) -> None:
        self._views = {it.fleet_id: _with_placed(it, demand.placing) for it in fleets}
        self._demand = replace(demand, placing=frozenset())
        self._boots = boots
        self._begun_at = self._now = now
        self._made = 0

    def tick(self, fleet_id: str, *, now: int) -> Tick:
        """Let time pass and every fleet decide; tell of one of them."""
        before = self._views[fleet_id]
        if now > self._now:
            for name, view in self._views.items():
                self._views[name] = self._passed(view, now=now)
        self._now = now
        moved = self._views[fleet_id]
        views, demand = list(self._views.values()), self._demand
        allocation = allocate(demand, views, now)
        decisions = {
            it.fleet_id: decide(it, allocation.of(it.fleet_id), demand=demand, now=now)
            for it in views
        }
        for name, decision in decisions.items():
            self._views[name] = self._decided(self._views[name], decision, now=now)
        return Tick(
            after=now - self._begun_at,
            came=_came(before, moved),
            gone=len(before.instances) - len(moved.instances),
            waiting=sum(allocation.of(fleet_id).values()),
            decision=decisions[fleet_id],
            line=told(moved, decisions[fleet_id]),
        )

    def _passed(self, view: FleetView, *, now: int) -> FleetView:
        """Let machines go that nothing runs on, let others come up, and count what they cost."""
        hourly = sum(it.cost for it in view.instances if it.may_exist)
        spent = view.spent_today if now // DAY_MS == self._now // DAY_MS else 0
        left = tuple(it for it in view.instances if not _is_gone(it))
        since = now - self._boots[view.fleet_id]
        ready = {it.instance_id for it in left if it.state in COMING and it.requested_at <= since}
        loads = self._loads(view) if ready else []
        return replace(
            view,
            instances=tuple(
                self._filled(view, it, loads, now=now) if it.instance_id in ready else it
                for it in left
            ),
            spent_today=spent + hourly * (now - self._now) // HOUR_MS,
        )

    def _loads(self, view: FleetView) -> list[Load]:
        waiting = {
            it.requirement_class: it.count
            for it in self._demand.classes
            if it.requirement_class not in view.futile
        }
        return loads_of(view, waiting, self._demand)

    def _filled(
        self, view: FleetView, one: InstanceView, loads: Sequence[Load], *, now: int
    ) -> InstanceView:
        """Give a machine that comes up the jobs that it has room for, the most urgent first."""
        room = Lot(
            source=Source.COMING,
            free=size_of(view.spec.capacity.resources),
            offerings=frozenset({one.offering}),
        )
        packing = Packing(room.free, [(room, 1)])
        left = {it.requirement_class: it.count for it in self._demand.classes}
        taken = {
            load.name: packing.put(
                replace(load, count=left[load.name]), most_new=0, of=frozenset[str]()
            )
            for load in loads
            if left[load.name]
        }
        self._take(taken)
        leases = sum(taken.values())
        return replace(
            one,
            state=S.HEALTHY,
            runner_id=one.runner_id or one.instance_id,
            healthy_at=now,
            leases=leases,
            idle_since=None if leases else now,
        )

    def _take(self, taken: Mapping[str, int]) -> None:
        """Count jobs as waiting no more."""
        if any(taken.values()):
            classes = tuple(
                replace(it, count=it.count - taken.get(it.requirement_class, 0))
                for it in self._demand.classes
            )
            self._demand = replace(self._demand, classes=classes)

    def _decided(self, view: FleetView, decision: FleetDecision, *, now: int) -> FleetView:
        """Do what was decided, as a commit does it."""
        going = {it.instance_id: it.reason for it in decision.drain}
        kept = frozenset(decision.keep)
        there = (_moved(it, going, kept, now=now) for it in view.instances)
        window = view.spec.scaling.down.window
        return replace(
            view,
            instances=(*there, *(self._asked_for(view, it, now=now) for it in decision.launch)),
            launches=(
                *(at for at in view.launches if now - at < HOUR_MS),
                *(now for _ in decision.launch),
            ),
            wanted=(
                *((at, count) for at, count in view.wanted if now - at < window),
                (now, decision.wanted),
            ),
        )

    def _asked_for(self, view: FleetView, launch: Launch, *, now: int) -> InstanceView:
        offering = view.priced.offering(launch.offering)
        assert offering is not None
        self._made += 1
        return InstanceView(
            instance_id=f"new-{self._made:05}",
            state=S.PROVISIONING,
            offering=offering.name,
            market=offering.market,
            zone=offering.zone,
            region=offering.region,
            image=launch.image or view.spec.capacity.image,
            cost=offering.cost,
            requested_at=now,
            made_for=launch.made_for,
        )


def _with_placed(view: FleetView, placing: frozenset[str]) -> FleetView:
    """Give machines the jobs that the cycle of this very instant gives them."""
    return replace(
        view,
        instances=tuple(
            replace(it, leases=it.leases + 1, idle_since=None) if it.runner_id in placing else it
            for it in view.instances
        ),
    )


def _is_gone(one: InstanceView) -> bool:
    return one.state in _GOING or (one.state is S.DRAINING and not one.leases)


def _moved(
    one: InstanceView,
    going: Mapping[str, ScaleDownReason],
    kept: frozenset[str],
    *,
    now: int,
) -> InstanceView:
    if one.instance_id in going:
        return replace(one, state=S.DRAINING, draining_for=going[one.instance_id])
    if one.instance_id in kept:
        idle_since = None if one.leases else now
        return replace(one, state=S.HEALTHY, draining_for=None, idle_since=idle_since)
    return one


def _came(before: FleetView, after: FleetView) -> int:
    coming = {it.instance_id for it in before.instances if it.state in COMING}
    return sum(it.instance_id in coming and it.state is S.HEALTHY for it in after.instances)
