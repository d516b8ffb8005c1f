"""One seed: fleets that are used and broken for a while, then left alone until they rest."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from forgeyard.model.capability import TrustClass
from forgeyard.model.fleet import (
    CapacityClass,
    FleetSpec,
    Guardrail,
    Market,
    Offering,
    PhaseDeadlines,
    ScaleDown,
    ScaleUp,
    Scaling,
)
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import lineage
from tests.fleet.fake import Knobs
from tests.simulation.clock import BEGINNING, clocks_that_jump
from tests.simulation.database import Database
from tests.simulation.fleet.agents import SIZE, Agents
from tests.simulation.fleet.cloud import Cloud
from tests.simulation.fleet.control import Control, unheard
from tests.simulation.fleet.ledger import Ledger
from tests.simulation.fleet.people import People
from tests.simulation.story import Told, _silence
from tests.simulation.world import Violated, World

POLICY = SchedulingPolicy()
MINUTE = 60_000
REST_WITHIN = 180 * MINUTE
"""A breaker stays open for up to an hour, and one that opens again adds to that."""
CAPACITY = CapacityClass(resources=SIZE, trust=TrustClass.TRUSTED_INTERNAL)
OFFERINGS = (
    Offering(name="spot", market=Market.PREEMPTIBLE, cost=30_000, zone="a"),
    Offering(name="cheap", cost=100_000, zone="a"),
    Offering(name="dear", cost=150_000, zone="b"),
)
SCALING = Scaling(
    max=4,
    quarantined=1,
    up=ScaleUp(per_minute=6, burst=4),
    down=ScaleDown(idle_grace=MINUTE, window=MINUTE, at_once=2, drain_within=2 * MINUTE),
)
DEADLINES = PhaseDeadlines(
    provision=4 * MINUTE, bootstrap=3 * MINUTE, enrol=2 * MINUTE, terminate=3 * MINUTE
)
SPECS = {
    "alpha": FleetSpec(
        name="alpha",
        provider="one",
        capacity=CAPACITY,
        offerings=OFFERINGS,
        scaling=replace(SCALING, min=1),
        deadlines=DEADLINES,
    ),
    "beta": FleetSpec(
        name="beta",
        provider="two",
        capacity=CAPACITY,
        offerings=OFFERINGS[1:],
        scaling=replace(SCALING, max=5),
        deadlines=DEADLINES,
        guardrail=Guardrail(hourly=320_000),
    ),
}


class Story:
    """Everybody who takes part in one seed."""

    def __init__(self, seed: int, database: Database, specs: dict[str, FleetSpec]) -> None:
        database.restart()
        self.world = world = World(seed, database, POLICY)
        weather = world.weather
        weather.is_calm = True
        self.clouds = {
            "one": Cloud(world, "one", knobs=Knobs(dedupes=True)),
            "two": Cloud(world, "two", knobs=Knobs(dedupes=False)),
        }
        self.agents = Agents(world)
        for cloud in self.clouds.values():
            cloud.booted = lambda made, cloud=cloud: self.agents.boot(cloud, made)
        self.control = Control(world, self.clouds)
        world.change(lineage.leave_mark, rng=world.ids)
        self.people = People(world, self.clouds, self.control, specs)
        self.ledger = Ledger(world, self.clouds, self.agents)
        world.look = self.ledger.look
        weather.is_calm = False
        for cloud in self.clouds.values():
            cloud.odds = world.rng.choice((0.03, 0.1, 0.2))
        self.control.begin()
        self.people.begin()

    def calm_down(self) -> None:
        """Let nothing go wrong any more, and put right what was."""
        self.world.weather.is_calm = True
        self.world.tell("weather", "clears up")
        self.people.put_right()

    def until_rest(self, within: int = REST_WITHIN) -> None:
        """Go on until nothing is left to do; too long is a violation."""
        until = self.world.now_ms + within
        while left := self.ledger.unrest():
            if self.world.now_ms > until:
                raise Violated(f"no rest: {left}")
            for _ in range(15):
                self.world.step()


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
    specs: dict[str, FleetSpec] = SPECS,
    then: Callable[[Story], None] = to_rest,
) -> Told:
    """Play one seed for so many events, then, if nothing else is said, until everything rests."""
    violation, calm_at = "", 0
    with alone(seed):
        story = Story(seed, database, specs)
        world = story.world
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
        happened=Counter(world.weather.happened),
        violation=violation,
    )


@contextmanager
def alone(seed: int) -> Iterator[None]:
    """Let nothing of this process matter: no clock, no Temporal, no log."""
    with ExitStack() as stack:
        stack.enter_context(clocks_that_jump(seed))
        stack.enter_context(_silence())
        stack.enter_context(unheard())
        yield
