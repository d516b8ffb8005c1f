"""Requests of agents to the API, and their answers: late, lost, repeated, out of order."""

from collections.abc import Callable
from typing import Generic, TypeVar

from forgeyard.errors import Corrupt, ForgeyardError, Unavailable
from forgeyard.model.protocol import Assignments
from tests.simulation.weather import Fault
from tests.simulation.world import World

T = TypeVar("T")
PATIENCE = 4_000
"""So long an agent waits for an answer."""
QUICK, SLOW = (1, 60), (200, 3_000)
NOT_HEARD = Unavailable("no answer")


class Network:
    """The way from any host to the API, and whether there is an API."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_serving = True
        self._newest: dict[str, int] = {}
        self._sent = 0

    def ask(
        self,
        who: str,
        what: str,
        call: Callable[[], T],
        *,
        heard: Callable[[T | ForgeyardError], None],
        is_cut_off: Callable[[], bool],
    ) -> None:
        """Send a request; exactly one of its answer, a refusal and no answer is heard."""
        world, weather = self.world, self.world.weather
        self._sent += 1
        request = Request(self, who, what, call, heard, is_cut_off, self._sent)
        world.after(PATIENCE, who, request.give_up, unless=lambda: request.is_over)
        if is_cut_off() or weather.strikes(Fault.REQUEST_LOST, weather.lost):
            return
        world.after(self.delay(), f"{who} {what}", request.arrive)
        if weather.strikes(Fault.REQUEST_TWICE, weather.twice):
            world.after(self.delay() + world.between(0, 8_000), f"{who} {what}", request.repeat)

    def delay(self) -> int:
        """Draw how long a message is on its way."""
        world = self.world
        return world.between(*(QUICK if world.rng.random() < 0.85 else SLOW))

    def note_order(self, who: str, number: int) -> None:
        """Notice that a request arrives after one that was sent later."""
        if number < self._newest.get(who, 0):
            self.world.weather.note(Fault.REQUEST_LATE)
        self._newest[who] = max(number, self._newest.get(who, 0))


class Request(Generic[T]):
    """One request under way."""

    def __init__(
        self,
        network: Network,
        who: str,
        what: str,
        call: Callable[[], T],
        heard: Callable[[T | ForgeyardError], None],
        is_cut_off: Callable[[], bool],
        number: int,
    ) -> None:
        self._network = network
        self._world = network.world
        self._who = who
        self._what = what
        self._call = call
        self._heard = heard
        self._is_cut_off = is_cut_off
        self._number = number
        self.is_over = False

    def arrive(self) -> None:
        """Be handled by an API process, and answered."""
        answer = self._handled()
        if answer is None:
            return
        world, weather = self._world, self._world.weather
        if weather.strikes(Fault.ANSWER_LOST, weather.lost):
            return
        world.after(self._network.delay(), self._who, lambda: self._hear(answer))

    def repeat(self) -> None:
        """Be handled once more; nobody listens any more."""
        self._handled()

    def give_up(self) -> None:
        """Stop waiting for an answer."""
        self._tell(NOT_HEARD)

    def _handled(self) -> T | ForgeyardError | None:
        if self._is_cut_off() or not self._network.is_serving:
            return None
        self._network.note_order(self._who, self._number)
        try:
            answer: T | ForgeyardError = self._call()
        except Corrupt:
            raise  # always a bug of ours
        except ForgeyardError as error:
            answer = error
        if answer != Assignments():
            self._world.tell(self._who, f"{self._what} #{self._number} -> {_brief(answer)}")
        return answer

    def _hear(self, answer: T | ForgeyardError) -> None:
        if not self._is_cut_off():
            self._tell(answer)

    def _tell(self, answer: T | ForgeyardError) -> None:
        if not self.is_over:
            self.is_over = True
            self._heard(answer)


def _brief(answer: object) -> str:
    if isinstance(answer, ForgeyardError):
        return f"{type(answer).__name__} ({answer.message})"
    if isinstance(answer, Assignments):
        offers = ", ".join(offer.lease_id[-6:] for offer in answer.offers)
        cancels = ", ".join(lease_id[-6:] for lease_id in answer.cancel)
        return f"offers [{offers}] cancel [{cancels}] drain {answer.drain}"
    return str(answer)[:160]
