"""What no decision of a fleet may ever do, in random worlds, and how fleets behave over time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgeyard.fleet.allocate import allocate
from forgeyard.fleet.bounds import most
from forgeyard.fleet.cost import for_so_long, hourly, till_midnight
from forgeyard.fleet.growing import permits
from forgeyard.fleet.matching import match
from forgeyard.fleet.muster import is_pinned, muster
from forgeyard.fleet.packing import Load, Packing, Source, size_of
from forgeyard.fleet.plan import decide
from forgeyard.fleet.view import COMING, Closed, FleetDecision, FleetView, InstanceView
from forgeyard.model.capability import Platform
from forgeyard.model.capacity import ScaleDownReason
from forgeyard.model.fleet import (
    CapacityReservation,
    FleetScope,
    FleetState,
    Guardrail,
    Lifetime,
    LifetimeKind,
    Market,
    Override,
    Placement,
    ScaleDown,
    ScaleUp,
    Scaling,
    Spread,
)
from forgeyard.model.job import Priority
from forgeyard.model.wishes import SpotWish
from forgeyard.scheduler.demand import Demand
from tests.fleets import (
    CHEAP,
    DEAR,
    HOUR,
    SIZE,
    SPOT,
    S,
    a_class,
    a_demand,
    a_fleet,
    a_scaling,
    an_instance,
    wanting,
)
from tests.scheduling import MINUTE, NOW, a_job, amounts
from tests.worlds import demand_hits, fixed, mostly, rarely

CLASSES = ("small", "large", "wide", "spotless", "mac", "theirs")
UNFORCED = frozenset(
    {ScaleDownReason.IDLE, ScaleDownReason.ABOVE_MAXIMUM, ScaleDownReason.UNUSABLE}
)
SEEDS = st.integers(0, 2**32)
BY_NAME = {it.name: it for it in (CHEAP, DEAR, SPOT)}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A few fleets and a demand."""

    fleets: tuple[FleetView, ...]
    demand: Demand


def some_demand(rng: Random) -> Demand:
    """Make demand of a few classes, of which not all can be served by all."""
    jobs = {
        "small": a_job("small"),
        "large": a_job("large", resources=amounts(cpu=3_000, memory_gib=2)),
        "wide": a_job("wide", resources=amounts(cpu=500, memory_gib=9)),
        "spotless": a_job("spotless", spot=SpotWish.FORBIDDEN),
        "mac": a_job("mac", requirements=replace(a_job().requirements, platform=Platform.MACOS)),
        "theirs": a_job("theirs", tenant_id="tnt_theirs"),
    }
    classes = tuple(
        wanting(
            rng.choice((0, 1, 3, 12, 60)), name, job=jobs[name], priority=rng.choice(list(Priority))
        )
        for name in CLASSES
        if rng.random() < 0.5
    )
    placing = [f"rnr_{place}" for place in range(8) if rng.random() < 0.1]
    return a_demand(*classes, placing=placing)


def some_machine(rng: Random, place: int) -> InstanceView:
    """Make a machine in any state."""
    offering = rng.choice((CHEAP, DEAR, SPOT))
    healthy = [S.HEALTHY] * 6
    state = rng.choice([*healthy, *S])
    is_up = state is S.HEALTHY
    leases = rng.randint(1, 3) if is_up and rng.random() < 0.4 else 0
    going = state in (S.DRAINING, S.TERMINATING)
    return an_instance(
        str(place),
        state=state,
        offering=offering.name,
        market=offering.market,
        region=offering.region,
        zone=offering.zone,
        cost=offering.cost,
        image=mostly(rng, "img-2", ("img-1", "img-bad")),
        requested_at=NOW - rng.randint(0, 5 * HOUR),
        idle_since=NOW - rng.randint(0, 20 * MINUTE) if is_up and not leases else None,
        leases=leases,
        jobs_ended=rng.randint(0, 3),
        pinned_until=rng.choice((None, None, None, NOW - 1, NOW + MINUTE)),
        draining_for=rng.choice(list(ScaleDownReason)) if going else None,
        interrupted=rng.random() < 0.08,
        is_healthy=rng.random() < 0.92,
        may_exist=state is not S.TERMINATED and rng.random() < 0.95,
    )


def some_scaling(rng: Random) -> Scaling:
    return Scaling(
        min=rng.choice((0, 0, 1, 3, 6)),
        max=rng.choice((1, 4, 8, 20)),
        warm=rng.choice((0, 0, 1, 2)),
        scale_to_zero=rng.random() < 0.8,
        up=ScaleUp(per_minute=rng.choice((1, 5, 60)), burst=rng.choice((1, 3, 40))),
        down=ScaleDown(
            idle_grace=rng.choice((0, 5 * MINUTE)),
            window=rng.choice((0, 5 * MINUTE)),
            at_once=rng.choice((1, 3, 10)),
        ),
        quarantined=rng.choice((0, 2)),
    )


def some_fleet(rng: Random, place: int) -> FleetView:
    """Make a fleet with machines, history and bounds of all sorts."""
    count = rng.choice((0, 2, 5, 9))
    kind = mostly(rng, LifetimeKind.PERSISTENT, list(LifetimeKind))
    held = CapacityReservation(
        reservation_id="r", quantity=rng.randint(1, 6), starts_at=NOW, ends_at=NOW + HOUR
    )
    states = [FleetState.ACTIVE] * 6 + list(FleetState)
    override = Override(min=rarely(rng, (0, 2)), max=rarely(rng, (1, 3)), expires_at=NOW + 1)
    return a_fleet(
        f"f{place}",
        scaling=some_scaling(rng),
        offerings=tuple(rng.sample((CHEAP, DEAR, SPOT), rng.randint(1, 3))),
        capacity=a_class(platform=mostly(rng, Platform.LINUX, [Platform.MACOS])),
        placement=Placement(
            spread=rng.choice(list(Spread)),
            spot_percent=rng.choice((0, 50, 100, 100)),
            stable_fallback=rng.random() < 0.8,
        ),
        lifetime=Lifetime(kind=kind, age=2 * HOUR, jobs=2),
        guardrail=Guardrail(
            hourly=rng.choice((None, 500_000, 1_500_000, 4_000_000)),
            daily=rng.choice((None, 3_000_000, 20_000_000, 90_000_000)),
        ),
        scope=FleetScope(tenant_id=rarely(rng, ("tnt_theirs",))),
        protected=rng.random() < 0.05,
        state=rng.choice(states),
        provider_frozen=rng.random() < 0.05,
        override=override if rng.random() < 0.5 else None,
        reservations=(held,) if rng.random() < 0.2 else (),
        instances=tuple(some_machine(rng, place) for place in range(count)),
        closed=(Closed(offering="cheap", until=NOW + 1, reason="out"),)
        if rng.random() < 0.2
        else (),
        launches=tuple(NOW - rng.randint(0, 2 * MINUTE) for _ in range(rng.choice((0, 0, 2, 5)))),
        wanted=tuple((NOW - rng.randint(0, 9 * MINUTE), rng.randint(0, 8)) for _ in range(3)),
        spent_today=rng.choice((0, 1_000_000, 4_000_000)),
        forecast=rarely(rng, (2, 7)),
        futile=frozenset({"small"}) if rng.random() < 0.05 else frozenset(),
        blocked_images=frozenset({"img-bad"}),
    )


def quiet(rng: Random, view: FleetView) -> FleetView:
    """Let most of a fleet's machines idle, and nothing be wanted of it but its minimum."""
    down = ScaleDown(idle_grace=rng.choice((0, MINUTE)), window=0, at_once=rng.choice((2, 10)))
    scaling = a_scaling(min=rng.choice((0, 1, 2, 3)), max=rng.choice((3, 4, 20, 20)), down=down)
    machines = [
        replace(
            some_machine(rng, place),
            state=S.HEALTHY,
            leases=leases,
            draining_for=None,
            may_exist=True,
            is_healthy=rng.random() < 0.8,
            idle_since=None if leases else NOW - rng.randint(0, 20) * MINUTE,
        )
        for place in range(rng.randint(4, 9))
        for leases in (int(rng.random() < 0.25),)
    ]
    spec = replace(view.spec, scaling=scaling, lifetime=Lifetime())
    return replace(
        view, spec=spec, instances=tuple(machines), wanted=(), reservations=(), forecast=None
    )


def a_world(seed: int) -> World:
    rng = Random(seed)
    demand = some_demand(rng)
    fleets = [some_fleet(rng, place) for place in range(rng.randint(1, 4))]
    if rng.random() < 0.4:
        demand, fleets = replace(demand, classes=()), [quiet(rng, view) for view in fleets]
    return World(fleets=tuple(fleets), demand=demand)


WORLDS = st.builds(a_world, SEEDS)


def decisions(world: World) -> list[tuple[FleetView, FleetDecision]]:
    shares = allocate(world.demand, world.fleets, NOW)
    return [
        (view, decide(view, shares.of(view.fleet_id), demand=world.demand, now=NOW))
        for view in world.fleets
    ]


@pytest.mark.requirement("FLM-010")
@pytest.mark.requirement("TST-035", "ACC-040", "INV-049", "PRI-052", "GAT-017")
def test_no_decision_makes_more_than_the_maximum_the_rate_and_the_money_allow() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=WORLDS)
    def check(world: World) -> None:
        for view, decision in decisions(world):
            existing = muster(view, world.demand, NOW).existing
            made = [BY_NAME[it.offering] for it in decision.launch]
            hits["made some"] += bool(made)
            hits["made none for want of room"] += not made and existing >= most(view, NOW)
            assert existing + len(made) <= max(existing, most(view, NOW))
            assert len(made) <= permits(view, NOW)
            cost, rule = sum(it.cost for it in made), view.spec.guardrail
            running = hourly(view.instances)
            if made and rule.hourly is not None:
                hits["under an hourly ceiling"] += 1
                assert running + cost <= rule.hourly
            if made and rule.daily is not None:
                hits["under a daily ceiling"] += 1
                assert (
                    view.spent_today + for_so_long(running + cost, till_midnight(NOW)) <= rule.daily
                )
            assert not {it.offering for it in decision.launch} & {it.offering for it in view.closed}

    check()
    demand_hits(hits, "made some", "made none for want of room")
    demand_hits(hits, "under an hourly ceiling", "under a daily ceiling")


@pytest.mark.requirement("DRN-001", "DRN-004", "DRN-008")
@pytest.mark.requirement("PRI-049", "ACC-042")
def test_nobody_who_works_or_is_pinned_is_let_go_and_the_minimum_stays() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=WORLDS)
    def check(world: World) -> None:
        for view, decision in decisions(world):
            by_id = {it.instance_id: it for it in view.instances}
            assert len({it.instance_id for it in decision.drain}) == len(decision.drain)
            for one in decision.drain:
                machine = by_id[one.instance_id]
                hits[one.reason] += 1
                assert machine.may_exist
                if one.reason in UNFORCED:
                    assert not machine.leases
                    assert machine.runner_id not in world.demand.placing
                if not machine.interrupted and machine.image != "img-bad":
                    assert not is_pinned(machine, NOW)
            by_choice = sum(it.reason is ScaleDownReason.IDLE for it in decision.drain)
            if by_choice:
                left = len(muster(view, world.demand, NOW).ready) - by_choice
                hits["let go above a minimum"] += by_choice if view.spec.scaling.min else 0
                assert left >= decision.wanted
                assert not decision.launch
                assert not decision.keep

    check()
    demand_hits(hits, *UNFORCED, ScaleDownReason.INTERRUPTED, "let go above a minimum")


@pytest.mark.requirement("FLM-009")
@pytest.mark.requirement("INV-049", "PRI-052")
def test_a_fleet_that_nothing_hinders_has_its_minimum_after_every_decision() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=WORLDS)
    def check(world: World) -> None:
        for view, decision in decisions(world):
            least, there = view.spec.scaling.min, muster(view, world.demand, NOW)
            gone = {it.instance_id for it in decision.drain}
            usable = [it for it in there.usable if it.instance_id not in gone]
            after = len(usable) + len(decision.launch) + len(decision.keep)
            # As many may be missing for a while as a change of image is allowed to cost.
            if any(it.reason is ScaleDownReason.IMAGE for it in decision.drain):
                after += view.spec.rollout.max_unavailable
            if view.override is None and view.state is FleetState.ACTIVE and least:
                hits["has a minimum"] += 1
                short = {it.kind for it in decision.clamps if it.after < it.before}
                hits["reached it"] += after >= min(least, most(view, NOW))
                assert short or after >= least

    check()
    demand_hits(hits, "has a minimum", "reached it")


@pytest.mark.requirement("TST-035", "INV-049", "ACC-040", "PRI-052")
def test_no_decision_wants_less_than_the_minimum_or_more_than_the_maximum() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=WORLDS)
    def check(world: World) -> None:
        for view, decision in decisions(world):
            override, scaling = view.override, view.spec.scaling
            least = scaling.min if override is None or override.min is None else override.min
            least = min(least, most(view, NOW))
            if view.state in (FleetState.DRAINING, FleetState.DELETING):
                least = 0
            hits["at the minimum"] += decision.wanted == least > 0
            hits["at the maximum"] += decision.wanted == most(view, NOW) > least
            hits["between"] += least < decision.wanted < most(view, NOW)
            assert least <= decision.wanted <= most(view, NOW)

    check()
    demand_hits(hits, "at the minimum", "at the maximum", "between")


@pytest.mark.requirement("DEM-016")
@pytest.mark.requirement("TST-011", "INV-047")
def test_every_job_is_counted_for_one_fleet_that_could_run_it_or_is_unserved() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=WORLDS)
    def check(world: World) -> None:
        found = allocate(world.demand, world.fleets, NOW)
        unserved = {it.requirement_class: it.count for it in found.unserved}
        for one in world.demand.classes:
            name = one.requirement_class
            shares = [share.get(name, 0) for share in found.shares.values()]
            assert sum(shares) + unserved.get(name, 0) == one.count
            hits["served by several"] += sum(map(bool, shares)) > 1
            hits["unserved"] += name in unserved
            for view in world.fleets:
                if found.of(view.fleet_id).get(name):
                    hits["served"] += 1
                    assert match(view, one).offerings

    check()
    demand_hits(hits, "served", "served by several", "unserved")


@fixed
@given(seed=SEEDS)
def test_decisions_are_pure_functions_of_what_was_read(seed: int) -> None:
    world, rng = a_world(seed), Random(seed)
    shuffled = [
        replace(view, instances=tuple(rng.sample(view.instances, len(view.instances))))
        for view in rng.sample(world.fleets, len(world.fleets))
    ]
    again = decisions(replace(world, fleets=tuple(shuffled)))
    by_fleet = {view.fleet_id: decision for view, decision in again}
    assert by_fleet == {view.fleet_id: decision for view, decision in decisions(world)}


def test_preemptible_machines_never_exceed_their_share_by_a_decision() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=WORLDS)
    def check(world: World) -> None:
        for view, decision in decisions(world):
            kept = [it for it in view.instances if it.instance_id in decision.keep]
            there = (*muster(view, world.demand, NOW).usable, *kept)
            total, spot = len(there), sum(it.market is Market.PREEMPTIBLE for it in there)
            for one in decision.launch:
                total += 1
                if BY_NAME[one.offering].market is Market.PREEMPTIBLE:
                    spot += 1
                    hits["made a preemptible one"] += 1
                    assert spot * 100 <= view.spec.placement.spot_percent * total

    check()
    demand_hits(hits, "made a preemptible one")


def first_fit(loads: list[Load]) -> int:
    """Put job by job on the first machine that has room: the estimate's plain counterpart."""
    machines: list[list[int]] = []
    for load in loads:
        for _ in range(load.count):
            found = next(
                (it for it in machines if all(h >= w for h, w in zip(it, load.each, strict=True))),
                None,
            )
            if found is None:
                found = list(size_of(SIZE))
                machines.append(found)
            found[:] = [have - want for have, want in zip(found, load.each, strict=True)]
    return len(machines)


@pytest.mark.requirement("PLN-012")
def test_lots_take_as_many_machines_as_job_by_job() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(seed=SEEDS)
    def check(seed: int) -> None:
        rng, of = Random(seed), frozenset({"cheap"})
        loads = [
            Load(
                name=str(place),
                count=rng.randint(0, 30),
                each=(rng.randint(0, 4_000), rng.randint(0, 16) * 2**30, 0, rng.randint(0, 2), 0),
                offerings=of,
            )
            for place in range(rng.randint(1, 6))
        ]
        packing = Packing(size_of(SIZE))
        for load in loads:
            assert packing.put(load, most_new=1_000, of=of) == load.count
        naive = first_fit(loads)
        hits["the same"] += packing.new == naive
        hits["several machines"] += naive > 3
        assert abs(packing.new - naive) <= max(1, naive // 8)
        assert all(have >= 0 for lot, _ in packing.used(Source.NEW) for have in lot.free)

    check()
    demand_hits(hits, "the same", "several machines")


TICK = 10_000
BOOT = MINUTE


@dataclass(slots=True)
class Yard:
    """Fleets, their machines and a queue, tick by tick; machines take 60 s to come up."""

    views: dict[str, FleetView]
    lasts: int
    machines: dict[str, dict[str, InstanceView]] = field(default_factory=dict)
    ends: dict[str, list[int]] = field(default_factory=dict)
    queue: int = 0
    done: int = 0
    now: int = NOW
    made: int = 0
    steps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By fleet, when it grew or shrank, and by how much."""
    peak: int = 0

    def tick(self, arriving: int) -> None:
        self.queue += arriving
        self._age()
        self._place()
        demand = replace(
            a_demand(*([wanting(self.queue)] if self.queue else [])), taken_at=self.now
        )
        views = [self._seen(name) for name in self.views]
        shares = allocate(demand, views, self.now)
        for view in views:
            decision = decide(view, shares.of(view.fleet_id), demand=demand, now=self.now)
            self._apply(view, decision)
        self.peak = max(self.peak, sum(map(len, self.machines.values())))
        self.now += TICK

    def _age(self) -> None:
        for machines in self.machines.values():
            for name, machine in list(machines.items()):
                ends = [at for at in self.ends.get(name, []) if at > self.now]
                self.done += len(self.ends.get(name, [])) - len(ends)
                self.ends[name] = ends
                machine = replace(machine, leases=len(ends))
                if machine.leases:
                    machine = replace(machine, idle_since=None)
                elif machine.state is S.HEALTHY and machine.idle_since is None:
                    machine = replace(machine, idle_since=self.now)
                if machine.state in COMING and self.now - machine.requested_at >= BOOT:
                    machine = replace(machine, state=S.HEALTHY, idle_since=self.now)
                machines[name] = machine
                if machine.state is S.DRAINING and not machine.leases:
                    del machines[name]

    def _place(self) -> None:
        for machines in self.machines.values():
            for name, machine in machines.items():
                while self.queue and machine.state is S.HEALTHY and len(self.ends[name]) < 4:
                    self.queue -= 1
                    self.ends[name].append(self.now + self.lasts)
                if self.ends[name]:
                    machines[name] = replace(machine, leases=len(self.ends[name]), idle_since=None)

    def _seen(self, name: str) -> FleetView:
        return replace(self.views[name], instances=tuple(self.machines.get(name, {}).values()))

    def _apply(self, view: FleetView, decision: FleetDecision) -> None:
        machines = self.machines.setdefault(view.fleet_id, {})
        for one in decision.drain:
            assert not machines[one.instance_id].leases
            machines[one.instance_id] = replace(
                machines[one.instance_id], state=S.DRAINING, draining_for=one.reason
            )
        for name in decision.keep:
            machines[name] = replace(machines[name], state=S.HEALTHY, draining_for=None)
        for _ in decision.launch:
            self.made += 1
            name = f"cin_{self.made:06}"
            machine = an_instance(str(self.made), state=S.PROVISIONING, requested_at=self.now)
            machines[name] = replace(machine, instance_id=name, idle_since=None)
            self.ends[name] = []
        assert len(machines) <= view.spec.scaling.max
        change = len(decision.launch) + len(decision.keep) - len(decision.drain)
        if change:
            self.steps.setdefault(view.fleet_id, []).append((self.now, change))
        keep = view.spec.scaling.down.window
        self.views[view.fleet_id] = replace(
            self.views[view.fleet_id],
            wanted=(
                *((at, n) for at, n in view.wanted if self.now - at < keep),
                (self.now, decision.wanted),
            ),
            launches=(
                *(at for at in view.launches if self.now - at < 2 * MINUTE),
                *[self.now] * len(decision.launch),
            ),
        )

    def turns(self, fleet_id: str) -> list[int]:
        """List when a fleet that had grown began to shrink."""
        steps = self.steps.get(fleet_id, [])
        return [at for (_, was), (at, by) in pairwise(steps) if was > 0 > by]


WIDE = a_scaling(
    max=200,
    up=ScaleUp(per_minute=120, burst=60),
    down=ScaleDown(idle_grace=MINUTE, window=5 * MINUTE, at_once=20),
)


def a_yard(*, lasts: int, scaling: Scaling = WIDE, **changed: object) -> Yard:
    given: Mapping[str, object] = {"scaling": scaling, **changed}
    return Yard(views={f"flt_{name}": a_fleet(name, **given) for name in "ab"}, lasts=lasts)


@pytest.mark.requirement("PLN-014")
@pytest.mark.requirement("TST-043", "GAT-021")
def test_bursts_that_come_again_and_again_do_not_make_a_fleet_thrash() -> None:
    yard = a_yard(lasts=MINUTE)
    for step in range(6 * 60):
        yard.tick(80 if step % 18 == 0 else 0)
    for fleet_id in yard.views:
        turns = yard.turns(fleet_id)
        assert all(b - a >= 5 * MINUTE for a, b in pairwise(turns))
    assert yard.done >= 19 * 80
    assert yard.made <= 40, "twenty bursts of twenty machines' work need no four hundred"


@pytest.mark.parametrize("every", [30, 36, 42])
def test_bursts_further_apart_than_the_window_turn_a_fleet_once_each(every: int) -> None:
    yard = a_yard(lasts=MINUTE)
    for step in range(6 * every):
        yard.tick(80 if step % every == 0 else 0)
    for fleet_id in yard.views:
        turns = yard.turns(fleet_id)
        assert all(b - a >= 5 * MINUTE for a, b in pairwise(turns))
        assert len(turns) <= 6


@pytest.mark.requirement("FLM-008")
@pytest.mark.requirement("TST-042", "GAT-021")
def test_ten_thousand_jobs_at_once_are_run_by_two_fleets_which_end_empty() -> None:
    yard = a_yard(lasts=2 * MINUTE)
    yard.tick(10_000)
    for _ in range(6 * 60):
        yard.tick(0)
    assert yard.done == 10_000
    assert yard.peak == 400, "both fleets reached their maximum, and neither passed it"
    assert sum(map(len, yard.machines.values())) == 0
    assert {len(yard.turns(fleet_id)) for fleet_id in yard.views} == {1}


@pytest.mark.requirement("TST-041", "ACC-069")
@pytest.mark.requirement("PHA-024")
def test_two_fleets_of_thousands_come_up_together_work_and_go() -> None:
    up, down = ScaleUp(per_minute=2_000, burst=2_000), replace(WIDE.down, at_once=500)
    yard = a_yard(lasts=2 * MINUTE, scaling=a_scaling(max=1_500, up=up, down=down))
    yard.tick(10_000)
    for _ in range(6 * 12):
        yard.tick(0)
    assert yard.done == 10_000
    assert 2_500 <= yard.peak <= 3_000, "four jobs on each, and nobody waits for a second turn"
    assert sum(map(len, yard.machines.values())) == 0
