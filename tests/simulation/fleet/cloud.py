"""A provider as the product sees it: the fake one, with crashes and others around every call.

It knows what is true: which machines were really made, for whom, and which of them nobody can have
known of, because the call that made them came after its caller had been given up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from forgeyard.errors import ForgeyardError
from forgeyard.fleet.ports import (
    Check,
    Interruption,
    Listing,
    Machine,
    ProvisionRequest,
    Sought,
)
from forgeyard.model.capacity import MachineState
from forgeyard.model.fleet import Offering
from tests.fleet.fake import NEVER, FakeProvider, Knobs, Thing
from tests.simulation.world import Violated, World

T = TypeVar("T")
HANGS = (90_000, 240_000)
"""So much later a call arrives whose caller has died."""


class Mishap(StrEnum):
    """What may happen around a call."""

    BEFORE = "a worker died between its note and the call"
    AFTER = "a worker died between the call and its record"
    LATE = "a create arrived after its caller was given up"


class Crashed(BaseException):
    """The process that called is no more; no error handling of the product sees this."""


@dataclass(kw_only=True)
class Made:
    """A machine that we asked for, as it really is."""

    thing: Thing
    request: ProvisionRequest
    is_late: bool
    at: int

    @property
    def instance_id(self) -> str:
        """Name the machine of a fleet that it was made for."""
        return self.request.owner.instance_id


class Cloud:
    """Implements the port over the fake provider."""

    kind = "fake"

    def __init__(self, world: World, name: str, *, knobs: Knobs) -> None:
        self.name = name
        self.fake = FakeProvider(lambda: world.now_ms, seed=world.seed, knobs=knobs)
        self.made: dict[str, Made] = {}
        self.foreign: set[str] = set()
        """Machines that look like ours and are not."""
        self.booted: Callable[[Made], None] = lambda _made: None
        self.ending: Callable[[Made], None] = lambda _made: None
        """Demands what must hold before a machine is ended."""
        self.odds = 0.0
        self._world = world
        self._is_out_of_hand = False

    # The port

    def inspect(self, sought: Sought) -> Machine | None:
        """Look, as the fake does."""
        return self._around("inspect", lambda: self.fake.inspect(sought))

    def list_machines(self, installation: str) -> Listing:
        """List, as the fake does."""
        return self._around("list", lambda: self.fake.list_machines(installation))

    def provision(self, request: ProvisionRequest) -> Machine:
        """Make a machine, perhaps after its caller has died."""
        weather = self._world.weather
        if self.fake.knobs.dedupes and weather.strikes(Mishap.LATE, self.odds / 2):
            delay = self._world.between(*HANGS)
            self._world.after(delay, self.name, lambda: self._made_late(request))
            raise Crashed
        return self._around("provision", lambda: self._provision(request, is_late=False))

    def terminate(self, sought: Sought) -> None:
        """End a machine, if we may."""
        self._around("terminate", lambda: self._terminate(sought))

    def interruptions(self) -> tuple[Interruption, ...]:
        """Hear what was announced."""
        return self._around("interruptions", self.fake.interruptions)

    def acknowledge(self, receipts: tuple[str, ...]) -> None:
        """Forget what was heard."""
        self._around("acknowledge", lambda: self.fake.acknowledge(receipts))

    def check(self, offerings: tuple[Offering, ...]) -> tuple[Check, ...]:
        """Look at what a doctor looks at."""
        return self.fake.check(offerings)

    # What is true

    def living(self) -> list[Made]:
        """List the machines of ours that exist and that nobody has begun to end."""
        return [one for one in self.made.values() if self.is_living(one.thing)]

    def is_living(self, thing: Thing) -> bool:
        """Tell whether a machine exists and nobody has begun to end it."""
        now = self._world.now_ms
        return thing.stopping_at > now and thing.gone_at > now

    def left(self) -> list[str]:
        """Name what costs money and was asked for by us."""
        return [ref for ref in self.fake.existing() if ref in self.made]

    def plant(self, ref: str, tags: dict[str, str]) -> None:
        """Put a machine there that is not ours, whatever its tags say."""
        self.fake.plant(ref, tags)
        self.foreign.add(ref)

    def demand_foreign_untouched(self) -> None:
        """Insist that nobody has touched what is not ours."""
        for ref in self.foreign:
            if self.fake._things[ref].stopping_at != NEVER:
                raise Violated(f"machine {ref} is not ours and was ended")

    # Within

    def _around(self, what: str, call: Callable[[], T]) -> T:
        """Call, with others acting before and after it, and its caller dying at times."""
        world = self._world
        world.database.turn.meanwhile()
        if what in ("provision", "terminate") and world.weather.strikes(Mishap.BEFORE, self.odds):
            world.tell(self.name, f"{what}: its caller dies before it")
            raise Crashed
        try:
            answer = call()
        except ForgeyardError as error:
            world.weather.note(f"{what} answered {error.code}")
            world.tell(self.name, f"{what}: {error.code} {error.message}")
            raise
        if what != "inspect":
            world.tell(self.name, f"{what}: {_brief(answer)}")
        if what in ("provision", "terminate") and world.weather.strikes(Mishap.AFTER, self.odds):
            world.tell(self.name, f"{what}: its caller dies after it")
            raise Crashed
        world.database.turn.meanwhile()
        return answer

    def _made_late(self, request: ProvisionRequest) -> None:
        self._world.tell(self.name, "a create arrives late")
        try:
            self._provision(request, is_late=True)
        except ForgeyardError as error:
            self._world.tell(self.name, f"late create: {error.message}")

    def _provision(self, request: ProvisionRequest, *, is_late: bool) -> Machine:
        known = set(self.fake._things)
        try:
            return self.fake.provision(request)
        finally:
            for ref in set(self.fake._things) - known:
                thing = self.fake._things[ref]
                made = Made(thing=thing, request=request, is_late=is_late, at=self._world.now_ms)
                self.made[ref] = made
                self._world.weather.note("a machine was made")
                self.booted(made)

    def _terminate(self, sought: Sought) -> None:
        thing = self.fake._find(sought)
        if thing is not None:
            if thing.ref not in self.made:
                raise Violated(f"the end of {thing.ref} was asked for, which is not ours")
            self.ending(self.made[thing.ref])
        self._world.weather.note("the end of a machine was asked for")
        self.fake.terminate(sought)


def is_running(made: Made, now: int) -> bool:
    """Tell whether a machine runs."""
    return made.thing.state(now) is MachineState.RUNNING


def _brief(answer: object) -> str:
    if isinstance(answer, Listing):
        return f"{len(answer.machines)} machines{'' if answer.complete else ', not all'}"
    return f"{answer.ref} {answer.state}" if isinstance(answer, Machine) else "done"
