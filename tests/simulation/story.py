"""One seed: a system that is used and broken for a while, then left alone until it rests."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from forgeyard.model.policy import (
    BackfillPolicy,
    LeasePolicy,
    PreemptionPolicy,
    SchedulingPolicy,
    SweepPolicy,
)
from forgeyard.model.units import Millis
from forgeyard.store.engine import read
from tests.simulation.clock import BEGINNING, clocks_that_jump
from tests.simulation.database import Database
from tests.simulation.flows import Flows
from tests.simulation.hosts import Host, befall
from tests.simulation.ledger import Ledger, is_at_rest
from tests.simulation.network import Network
from tests.simulation.people import People
from tests.simulation.plane import (
    PARTITIONS,
    Loop,
    Relay,
    Service,
    Upkeep,
    outages_of_temporal,
    rivals,
)
from tests.simulation.weather import Fault
from tests.simulation.world import Violated, World

POLICY = SchedulingPolicy(
    lease=LeasePolicy(
        offer_ttl=Millis(5_000),
        execution_ttl=Millis(14_000),
        renew_every=Millis(3_000),
        connectivity_grace=Millis(4_000),
        longest_back_off=Millis(3_000),
        deadline_slack=Millis(3_000),
        settle_within=Millis(4_000),
        session_silence=Millis(13_000),
        refusal_memory=Millis(5_000),
        penalty_half_life=Millis(60_000),
    ),
    sweep=SweepPolicy(period=Millis(3_000), renewal_gap=Millis(10_000), outbox_age=Millis(3_000)),
    backfill=BackfillPolicy(after=Millis(15_000)),
    preemption=PreemptionPolicy(rest=Millis(5_000), patience=Millis(10_000)),
)
"""The product's policy, about five times as fast."""
REST_WITHIN = 400_000
"""The work that is left must be done within so much virtual time."""
RECOVERED_WITHIN = 3 * 3_000 + 14_000 + 6_000 + 3_000
"""What nobody works for must be free again: three sweeps, and a lease with grace and back-off."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """How a seed ended."""

    seed: int
    steps: int
    virtual_ms: int
    rested_ms: int
    lines: tuple[str, ...]
    happened: Counter[str]
    violation: str = ""


class Story:
    """Everybody who takes part in one seed."""

    def __init__(self, seed: int, database: Database) -> None:
        database.restart()
        self.world = world = World(seed, database, POLICY)
        world.weather.is_calm = True
        self.network = Network(world)
        count = world.rng.randint(2, 4)
        self.hosts = [Host(world, self.network, number) for number in range(count)]
        self.flows = Flows(world)
        self.relay = Relay(world, self.flows, lambda name, wake: self.loops[name].wake(wake))
        self.loops = {name: Loop(world, self.relay, name) for name in PARTITIONS}
        self.people = People(world, tuple(host.name for host in self.hosts))
        self.service = Service(world, self.network)
        self.ledger = Ledger(world=world, is_held=self._is_held)
        world.look, world.acknowledged = self.ledger.look, self.ledger.acknowledged
        world.weather.is_calm = False
        self._begin()

    def _begin(self) -> None:
        world = self.world
        for number, host in enumerate(self.hosts):
            late = number and world.weather.strikes(Fault.BOOTED, 0.5)
            world.after(world.between(5_000, 40_000) if late else number, host.name, host.start)
            world.after(world.between(3_000, 15_000), host.name, lambda host=host: befall(host))
        swept = (*PARTITIONS, *PARTITIONS[: world.rng.randint(0, 1)])
        self.upkeep = [Upkeep(world, self.relay, name) for name in swept]
        self._relaying()
        rivals(world, self.relay)
        outages_of_temporal(world, self.relay)
        self.people.begin()

    def _relaying(self) -> None:
        """Relay as API processes do after what they committed."""
        self.world.after(self.world.between(2_000, 7_000), "relay", self._relaying)
        self.relay.send()

    def _is_held(self, lease_id: str) -> bool:
        works = (host.works.get(lease_id) for host in self.hosts if host.is_up)
        return any(
            work is not None and work.is_active and work.held.fenced() is None for work in works
        )

    def calm_down(self) -> None:
        """Let nothing go wrong any more, and put right what was."""
        world = self.world
        world.weather.is_calm = True
        world.tell("weather", "clears up")
        self.relay.is_temporal_out = False
        self.service.come_back()
        for upkeep in self.upkeep:
            upkeep.round()
        for host in self.hosts:
            host.cut_off(0)
            host.thaw()
            if not host.is_up:
                host.start()
        self.people.put_right()

    def until_rest(self) -> None:
        """Go on until nothing is open; too long is a violation, and so is what was left behind."""
        world, calm_at = self.world, self.world.now_ms
        left = self._left_behind()
        for _ in self._while_open(calm_at + RECOVERED_WITHIN):
            pass
        if world.now_ms >= calm_at + RECOVERED_WITHIN:
            self.ledger.demand_recovered(calm_at, left - self._worked_on())
        for _ in self._while_open(calm_at + REST_WITHIN):
            pass
        self.ledger.demand_rest()

    def _while_open(self, until_ms: int) -> Iterator[None]:
        """Let events happen until then, or until nothing is open any more."""
        while self.world.now_ms < until_ms:
            for _ in range(20):
                self.world.step()
            with read(self.world.engine) as connection:
                if is_at_rest(connection):
                    return
            yield

    def _left_behind(self) -> set[str]:
        """List the leases that live and that no agent knows of any more."""
        live = {
            name for name, state in self.ledger.leases.items() if state in ("offered", "active")
        }
        return live - self._worked_on()

    def _worked_on(self) -> set[str]:
        return {lease_id for host in self.hosts for lease_id in host.works}


def to_rest(story: Story) -> None:
    """Let the weather clear up, and demand that everything comes to rest."""
    story.calm_down()
    story.until_rest()


def broken_off(_story: Story) -> None:
    """Leave everything as it is."""


def simulate(
    seed: int,
    steps: int,
    database: Database,
    *,
    clocks: int = 0,
    rough: float = 1.0,
    then: Callable[[Story], None] = to_rest,
) -> Told:
    """Play one seed for so many events, then, if nothing else is said, until everything rests."""
    violation, calm_at = "", 0
    with clocks_that_jump(clocks or seed), _silence():
        story = Story(seed, database)
        world = story.world
        world.weather.worsen(rough)
        try:
            while world.steps < steps:
                world.step()
            calm_at = world.now_ms
            then(story)
        except Violated as found:
            violation = str(found)
            world.tell("VIOLATED", violation)
    return Told(
        seed=seed,
        steps=world.steps,
        virtual_ms=(calm_at or world.now_ms) - BEGINNING,
        rested_ms=world.now_ms - calm_at if calm_at else 0,
        lines=tuple(world.lines),
        happened=world.weather.happened,
        violation=violation,
    )


@contextmanager
def _silence() -> Iterator[None]:
    """Keep quiet about what we break ourselves."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
