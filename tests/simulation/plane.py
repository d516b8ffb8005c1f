"""What plans, commits, relays and sweeps: the product's activities, called by made-up workflows.

Scheduler loops decide with the product's `SchedulerLoop` when to look again.
"""

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import sqlalchemy as sa

from activities import contracts, relay
from activities.scheduling import SchedulingActivities
from forgeyard.errors import StoreUnavailable
from forgeyard.model.transitions import LIVE_LEASE_STATES
from forgeyard.store import liveness, outbox, tables
from forgeyard.store.engine import read, write
from forgeyard.store.sweep import SweepResult, sweep
from tests.builders import PARTITION
from tests.simulation.database import Mishap
from tests.simulation.flows import Flows
from tests.simulation.network import Network
from tests.simulation.weather import Fault
from tests.simulation.world import Violated, World
from workflows import scheduler_loop
from workflows.scheduler_loop import SchedulerLoop

PARTITIONS = (PARTITION, "second")
"""Each has a loop of its own, and they share the runners."""
BEAT = 3_000
ODDS_OF_LATE = 0.25
WOKEN = "a wake began a cycle"


class Scheduler:
    """One process that plans and commits cycles, and remembers runners of its own."""

    def __init__(self, world: World, name: str, partition: str) -> None:
        self.world = world
        self.name = name
        self._partition = contracts.Partition(partition=partition)
        self._activities = SchedulingActivities(world.engine, world.built_in, rng=world.ids)

    def is_pending(self) -> bool:
        """Tell whether any job waits."""
        return self._activities.is_pending(self._partition)

    def plan(self) -> contracts.CyclePlan:
        """Plan a cycle."""
        plan = self._activities.plan_cycle(self._partition)
        self.world.tell(
            self.name, f"plan {plan.cycle_id}: {plan.planned} of {plan.eligible} waiting"
        )
        return plan

    def commit(self, cycle_id: int) -> contracts.CycleCommit:
        """Commit a cycle."""
        request = contracts.Cycle(cycle_id=cycle_id, partition=self._partition.partition)
        outcome = self._activities.commit_cycle(request)
        self.world.tell(
            self.name, f"commit {cycle_id}: {outcome.granted} granted, {outcome.refused} refused"
        )
        return outcome

    def commit_until_heard(self, cycle_id: int) -> None:
        """Commit a cycle, again if nobody heard how it went."""
        self.world.insist(self.name, lambda: done(self.commit(cycle_id)))


class _Rules(SchedulerLoop):
    """Decide as a loop of this release does; it has no Temporal to ask for its release."""

    def _goes_on(self) -> bool:
        return True

    def _is_told(self) -> bool:
        with patch.object(scheduler_loop, "_read", lambda wake: wake):  # it came as it is
            return super()._is_told()


class Loop:
    """The loop of a partition: one cycle at a time, woken or by itself."""

    def __init__(self, world: World, relays: "Relay", partition: str) -> None:
        self._world = world
        self._relay = relays
        self._name = f"loop of {partition}"
        self._scheduler = Scheduler(world, self._name, partition)
        self._rules = _Rules(contracts.LoopState(partition=partition))
        self._is_busy = False
        self._waits = 0
        self._wait()

    def wake(self, wake: contracts.Wake) -> None:
        """Be told that something has changed."""
        self._rules.wake(wake)
        if not self._is_busy and self._rules._is_told():
            self._world.weather.note(WOKEN)
            self._begin()

    def _look(self) -> None:
        """See whether a job waits although nobody said so."""
        try:
            pending = bool(self._rules._state.fruitless) or self._scheduler.is_pending()
        except StoreUnavailable:
            pending = True
        if pending:
            self._begin()
        else:
            self._rules._state = replace(self._rules._state, wait_ms=scheduler_loop.FALLBACK_MS)
            self._wait()

    def _wait(self) -> None:
        """Look again after as long as the rules say, unless woken before."""
        self._waits += 1
        waits = self._waits
        self._world.after(
            self._rules._state.wait_ms, self._name, self._look, unless=lambda: self._waits != waits
        )

    def _begin(self) -> None:
        self._waits += 1
        self._is_busy = True
        state = self._rules._state
        handled = state.handled if state.newest is None else state.newest.generation
        self._rules._state = replace(state, newest=None, handled=handled)
        try:
            plan = self._scheduler.plan()
        except StoreUnavailable as error:
            self._failed(error)
            return
        if plan.planned:
            delay = self._world.between(0, 50)
            late = self._world.weather.strikes(Fault.COMMIT_LATE, ODDS_OF_LATE)
            delay += self._world.between(1_000, 12_000) if late else 0
            self._world.after(delay, self._name, lambda: self._commit(plan))
        else:
            self._finish(plan, 0)

    def _commit(self, plan: contracts.CyclePlan) -> None:
        try:
            granted = self._scheduler.commit(plan.cycle_id).granted
        except StoreUnavailable as error:
            self._world.tell(self._name, f"commit again: {error.message}")
            self._world.after(
                self._world.between(500, 2_000), self._name, lambda: self._commit(plan)
            )
            return
        if self._world.weather.strikes(Fault.COMMIT_TWICE, ODDS_OF_LATE):
            self._world.after(
                self._world.between(0, 20_000),
                "an older worker",
                lambda: self._scheduler.commit_until_heard(plan.cycle_id),
            )
        self._relay.soon()
        self._finish(plan, granted)

    def _finish(self, plan: contracts.CyclePlan, granted: int) -> None:
        summary = contracts.CycleSummary(
            cycle_id=plan.cycle_id,
            eligible=plan.eligible,
            planned=plan.planned,
            granted=granted,
            full=plan.full,
            parked=plan.parked,
            more=plan.more,
            wake_in_ms=plan.wake_in_ms,
        )
        self._rules._state = self._rules._after(summary)
        self._rest()

    def _failed(self, error: StoreUnavailable) -> None:
        self._world.tell(self._name, f"the cycle failed: {error.message}")
        self._rules._state = self._rules._after_nothing(failure=error.message)
        self._rest()

    def _rest(self) -> None:
        self._is_busy = False
        if self._rules._is_told():
            self._world.weather.note(WOKEN)
            self._world.after(0, self._name, self._begin, unless=lambda: self._is_busy)
        else:
            self._wait()


def rivals(world: World, relays: "Relay") -> None:
    """From time to time let a second scheduler plan, and commit late, twice or never."""
    world.after(world.between(4_000, 16_000), "rival", lambda: rivals(world, relays))
    if not world.weather.strikes(Fault.RIVAL, 0.9):
        return
    rival = Scheduler(world, "rival", world.rng.choice(PARTITIONS))

    def plan() -> None:
        try:
            planned = rival.plan()
        except StoreUnavailable:
            return
        if not planned.planned or world.weather.strikes(Fault.COMMIT_NEVER, 0.2):
            return
        for _ in range(1 + world.weather.strikes(Fault.COMMIT_TWICE, 0.3)):
            late = world.weather.strikes(Fault.COMMIT_LATE, 0.4)
            delay = world.between(2_000, 20_000) if late else world.between(0, 500)
            world.after(delay, "rival", lambda: rival.commit_until_heard(planned.cycle_id))
        world.after(world.between(0, 1_000), "rival", relays.soon)

    for _ in range(world.rng.randint(1, 4)):
        world.after(world.between(0, 2_000), "rival", plan)


class Relay:
    """Carries events to workflows and wakes to the loop, through the product's own bookkeeping."""

    def __init__(
        self, world: World, flows: Flows, tell_loop: Callable[[str, contracts.Wake], None]
    ) -> None:
        self._world = world
        self._flows = flows
        self._tell_loop = tell_loop
        self._is_asked = False
        self.is_temporal_out = False

    def soon(self) -> None:
        """Relay what was committed just now."""
        if not self._is_asked:
            self._is_asked = True
            self._world.after(self._world.between(0, 200), "relay", self.send)

    def send(self) -> None:
        """Relay whatever there is, or leave it to upkeep."""
        self._is_asked = False
        try:
            self.wake()
            self.events(older_than_ms=0)
        except StoreUnavailable as error:
            self._world.tell("relay", f"left to upkeep: {error.message}")

    def wake(self) -> None:
        """Tell the loops of the newest wakes."""
        for partition in PARTITIONS:
            wake = relay._claim_due_wake(self._world.engine, partition)
            if isinstance(wake, int):
                self.soon()
            elif wake is not None:
                self._signal(partition, wake)

    def _signal(self, partition: str, wake: contracts.Wake) -> None:
        if self._world.weather.strikes(Fault.WAKE_LOST, self._world.weather.temporal):
            return
        if self.is_temporal_out:
            relay._unclaim_wake(self._world.engine, partition, wake)
            return
        delay = self._world.between(0, 100)
        self._world.after(delay, partition, lambda: self._tell_loop(partition, wake))

    def events(self, *, older_than_ms: int) -> None:
        """Claim a batch, send it, record what arrived."""
        world = self._world
        rows = relay._claim(world.engine, older_than_ms)
        if not rows:
            return
        if world.weather.strikes(Fault.RELAY_DIED, world.weather.temporal):
            return
        last = {row["stream"]: row for row in rows}
        arrived = {stream for stream, row in last.items() if self._send(row)}
        if world.weather.strikes(Fault.SENT_TWICE, world.weather.temporal):
            return
        delivered = {row["event_id"] for row in rows if row["stream"] in arrived}
        relay._record(world.engine, rows, delivered)

    def _send(self, row: relay.Row) -> bool:
        if self.is_temporal_out:
            return False
        attempt_id = row["stream"]
        ended = row["kind"] != contracts.LEASE_GRANTED
        if not self._flows.start(attempt_id, ended=ended):
            return relay._is_settled(self._world.engine, attempt_id)
        return True


class Upkeep:
    """Sweeps, and sends what nobody sent."""

    def __init__(self, world: World, relays: Relay, partition: str) -> None:
        self._world = world
        self._relay = relays
        self._partition = partition
        self._name = f"upkeep of {partition}"
        self._rounds = 0
        self._again()

    def _again(self) -> None:
        world = self._world
        pause = world.built_in.sweep.period
        if world.weather.strikes(Fault.UPKEEP_OUT, 0.04):
            pause += world.between(5_000, 40_000)
        self._rounds += 1
        rounds = self._rounds
        world.after(pause, self._name, self.round, unless=lambda: self._rounds != rounds)

    def round(self) -> None:
        """Sweep once, now, and again after a period."""
        self._again()
        world = self._world
        try:
            with read(world.engine) as connection:
                policy = world.policy(connection)
            swept = sweep(world.engine, self._partition, policy)
            acted = swept.expired or swept.due or swept.settled or swept.repaired
            if acted or swept.alert:
                world.tell(self._name, _brief(swept))
            self._demand_health(swept.alert, swept.repaired)
            self._relay.wake()
            self._relay.events(older_than_ms=0 if acted else policy.sweep.outbox_age)
        except StoreUnavailable as error:
            world.tell(self._name, f"failed: {error.message}")

    def _demand_health(self, alert: str, repaired: int) -> None:
        """Insist that nothing was to be repaired, and nothing failed but what we broke."""
        if repaired:
            raise Violated(f"reservations were wrong and had to be repaired: {alert}")
        for part in alert.split("; "):
            if " failed: " in part and not any(mishap.value in part for mishap in Mishap):
                raise Violated(f"the sweep could not do its work: {part}")


class Service:
    """The API processes: they beat while they serve, and are out now and then."""

    def __init__(self, world: World, network: Network) -> None:
        self._world = world
        self._network = network
        self._beat()
        world.after(world.between(10_000, 60_000), "api", self._go_out)

    def _beat(self) -> None:
        world = self._world
        world.after(BEAT, "api", self._beat, unless=lambda: not self._network.is_serving)
        try:
            with write(world.engine) as connection:
                gap = liveness.beat_renewal(connection, policy=world.policy(connection))
        except StoreUnavailable as error:
            world.tell("api", f"renewal beat failed: {error.message}")
            return
        if gap:
            world.tell("api", f"bridges a gap of {gap} ms")
            self._spare()

    def _spare(self) -> None:
        """Note whom the outage that ended just now must not cost anything."""
        world, leases = self._world, tables.leases
        alive = leases.c.state.in_([state.value for state in LIVE_LEASE_STATES])
        with read(world.engine) as connection:
            policy = world.policy(connection).lease
            living = connection.execute(sa.select(leases.c.lease_id).where(alive)).scalars()
            world.spared = frozenset(living)
        shortest = min(policy.offer_ttl, policy.execution_ttl)
        world.spared_until = world.now_ms + shortest + policy.longest_back_off

    def _go_out(self) -> None:
        world = self._world
        world.after(world.between(20_000, 90_000), "api", self._go_out)
        if self._network.is_serving and world.weather.strikes(Fault.SERVICE_OUT, 0.8):
            self._network.is_serving = False
            world.tell("api", "is out")
            world.after(world.between(500, 45_000), "api", self.come_back)

    def come_back(self) -> None:
        """Serve again, the beat first of all."""
        if not self._network.is_serving:
            self._network.is_serving = True
            self._world.tell("api", "is back")
            self._beat()


def outages_of_temporal(world: World, relays: Relay) -> None:
    """Let Temporal be away now and then."""
    world.after(
        world.between(8_000, 40_000), "temporal", lambda: outages_of_temporal(world, relays)
    )
    if not relays.is_temporal_out and world.weather.strikes(Fault.TEMPORAL_OUT, 0.5):
        relays.is_temporal_out = True
        world.after(
            world.between(2_000, 25_000),
            "temporal",
            lambda: setattr(relays, "is_temporal_out", False),
        )


def _brief(swept: SweepResult) -> str:
    counts = f"{swept.expired} expired, {swept.due} due, {swept.settled} settled"
    return f"{counts}; {swept.alert}" if swept.alert else counts


def undelivered(engine: sa.Engine) -> int:
    """Count the events that have not arrived."""
    with read(engine) as connection:
        return outbox.undelivered(connection)


def done(_: object) -> None:
    """Forget an answer."""
