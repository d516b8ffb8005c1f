"""The events of a simulation and their order: one at a time, each at its moment.

Whoever calls the store may be held up between two of its transactions, and others act meanwhile.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from forgeyard.errors import StoreUnavailable
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.protocol import Outcome
from forgeyard.store import policies
from forgeyard.store.engine import write
from tests.simulation.database import Database, Mishap
from tests.simulation.weather import Fault, Weather

T = TypeVar("T")
SHORT_WHILE = 3_000
"""So long a call may be held up in the middle, in milliseconds."""


class Violated(BaseException):
    """Something does not hold that must always hold; no error handling of the product stops it."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process of a job that runs on a host right now."""

    lease_id: str
    job_id: str
    host: str
    since_ms: int


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that somebody is going to do, unless there is no reason any more."""

    who: str
    act: Callable[[], None]
    unless: Callable[[], bool]


def never() -> bool:
    """Keep an event that always happens."""
    return False


class World:
    """What happens when, to whom, and what was written about it."""

    def __init__(self, seed: int, database: Database, built_in: SchedulingPolicy) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.ids = random.Random(f"{seed}/ids")
        self.database = database
        self.engine: sa.Engine = database.engine
        self.built_in = built_in
        self.weather = Weather.of(self.rng)
        self.steps = 0
        self.lines: list[str] = []
        self.look: Callable[[], None] = lambda: None
        """Demands what must hold, after every event."""
        self.acknowledged: Callable[[str, Outcome], None] = lambda _attempt, _outcome: None
        """Takes note that an agent was told that its result counts."""
        self.running: dict[str, Process] = {}
        """The processes of jobs that run right now, by lease."""
        self.spared: frozenset[str] = frozenset()
        """Leases that lived when the service came back last."""
        self.spared_until = 0
        """Until then none of them may expire."""
        self._queue: list[tuple[int, int, Event]] = []
        self._drawn = 0
        self._is_held_up = False
        database.turn.meanwhile = self._meanwhile
        database.turn.draw = self._mishap

    @property
    def now_ms(self) -> int:
        """Tell the virtual time."""
        return self.database.time.now_ms

    def after(
        self,
        delay_ms: float,
        who: str,
        act: Callable[[], None],
        *,
        unless: Callable[[], bool] = never,
    ) -> None:
        """Let somebody act in so many milliseconds, unless that is pointless by then."""
        self._drawn += 1
        at = self.now_ms + max(0, round(delay_ms))
        event = Event(who=who, act=act, unless=unless)
        heapq.heappush(self._queue, (at, self._drawn, event))

    def between(self, least: float, most: float) -> int:
        """Draw a length of time."""
        return round(self.rng.uniform(least, most))

    def tell(self, who: str, what: str) -> None:
        """Write a line of the log."""
        self.lines.append(f"{self.steps:5} {(self.now_ms % 10**8) / 1000:9.3f} {who}: {what}")

    def step(self) -> None:
        """Let the next event happen, then look whether everything holds."""
        at, _, event = heapq.heappop(self._queue)
        if event.unless():
            return
        self.database.time.reach(at)
        self.steps += 1
        try:
            event.act()
        except Exception as error:
            # Whoever calls expects some errors and takes them; this is none of those.
            said = str(error).splitlines()[0][:300]
            raise Violated(f"{event.who}: {type(error).__name__}: {said}") from error
        self.look()

    def change(self, function: Callable[..., T], *arguments: object, **named: object) -> T:
        """Call the store in a transaction of its own."""
        with write(self.engine) as connection:
            return function(connection, *arguments, **named)

    def policy(self, connection: sa.Connection) -> SchedulingPolicy:
        """Read the policy in force."""
        return policies.current(connection, self.built_in).policy

    def insist(self, who: str, act: Callable[[], None]) -> None:
        """Do something again and again until the database takes it."""
        try:
            act()
        except StoreUnavailable as error:
            self.tell(who, f"tries again: {error.message}")
            self.after(self.between(200, 2_000), who, lambda: self.insist(who, act))

    def _meanwhile(self) -> None:
        """Hold up whoever is about to write, and let some of those act whose turn is soon."""
        if self._is_held_up or not self._queue:
            return
        if not self.weather.strikes(Fault.INTERLEAVED, self.weather.interleaved):
            return
        self._is_held_up, until = True, self.now_ms + self.between(0, SHORT_WHILE)
        try:
            for _ in range(self.rng.randint(1, 4)):
                if self._queue and self._queue[0][0] <= until:
                    self.step()
        finally:
            self._is_held_up = False

    def _mishap(self) -> Mishap | None:
        mishap = self.rng.choice(tuple(Mishap))
        return mishap if self.weather.strikes(mishap, self.weather.database) else None
