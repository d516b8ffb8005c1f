"""Hosts with their agents, by the rules of `forgeyard.agent.session` and `loop`.

A frozen host does nothing, and neither do its processes; when it thaws everything is late. A
crashed one loses its memory but for the journal of the leases that it took.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from forgeyard.agent.backoff import BackOff
from forgeyard.agent.lease import StopReason
from forgeyard.agent.offers import Refusal, Situation, refusal
from forgeyard.errors import Conflict, ForgeyardError, NotFound, StaleRejected
from forgeyard.model.capability import Capabilities
from forgeyard.model.equipment import Device, Equipment
from forgeyard.model.protocol import (
    Assignments,
    Heartbeat,
    HeartbeatAnswer,
    Offer,
    Register,
    Registered,
    Reject,
    Renew,
    RenewalVerdict,
    RenewAnswer,
)
from forgeyard.model.runner import RejectReason, ResourcePressure, RunnerHealth
from forgeyard.model.units import GIB
from forgeyard.store import leases, runners
from forgeyard.store.dispatch import assignments
from forgeyard.store.engine import read, write
from forgeyard.store.leases import Refused
from tests.builders import a_registration, some_capabilities, some_resources
from tests.simulation.network import Network
from tests.simulation.weather import Fault
from tests.simulation.works import Work
from tests.simulation.world import World, never

T = TypeVar("T")
SLOTS = 3
ODD = 0.08
"""How often an agent turns an offer down for reasons of its own."""


def capabilities_of(rng: random.Random, number: int) -> Capabilities:
    """Draw what a host has: some have boards, the zones are two."""
    boards = rng.choice((0, 1, 2)) if number > 1 else 1
    has = Equipment(devices=(Device(kind="board", count=boards),) if boards else ())
    return some_capabilities(labels={"zone": "ab"[number % 2]}, equipment=has)


class Host:
    """One machine, and the agent on it."""

    def __init__(self, world: World, network: Network, number: int) -> None:
        self.world = world
        self.name = f"host-{number}"
        self.longest_back_off_s = 3.0
        self.is_up = False
        self.is_frozen = False
        self.works: dict[str, Work] = {}
        self._network = network
        self._clock_began = world.rng.uniform(0, 1e6)
        self._life = 0
        """Grows whenever the agent begins anew; what was meant for an earlier one is void."""
        self._missed: list[Callable[[], None]] = []
        self._cut_off_until = 0
        self._journal: set[str] = set()
        self._refused: dict[str, Refusal] = {}
        self._session: Registered | None = None
        self._is_told_to_drain = False
        self._is_leaving = False
        self._pressure = ResourcePressure.NORMAL
        self._health = RunnerHealth.HEALTHY
        self._capabilities = capabilities_of(world.rng, number)
        self._message: Register = a_registration(
            self.name,
            capabilities=self._capabilities,
            total=some_resources(cpu=2_000, memory=4 * GIB, disk=20 * GIB, slots=SLOTS),
        )

    def clock(self) -> float:
        """Tell the host's own time in seconds."""
        return self._clock_began + self.world.now_ms / 1000

    def after(
        self, delay_ms: float, act: Callable[[], None], *, unless: Callable[[], bool] = never
    ) -> None:
        """Do something later, unless the agent has died by then; late if the host is frozen."""
        life = self._life
        self.world.after(
            delay_ms,
            self.name,
            lambda: self._act(act),
            unless=lambda: self._life != life or unless(),
        )

    def _act(self, act: Callable[[], None]) -> None:
        if self.is_frozen:
            self._missed.append(act)
        else:
            act()

    def ask(
        self, what: str, call: Callable[[], T], heard: Callable[[T | ForgeyardError], None]
    ) -> None:
        """Ask the server; what is heard after the agent died is heard by nobody."""
        life = self._life

        def listen(answer: T | ForgeyardError) -> None:
            if self._life == life:
                self._act(lambda: heard(answer))

        self._network.ask(self.name, what, call, heard=listen, is_cut_off=self._is_cut_off)

    def over(self, lease_id: str) -> None:
        """Forget work that is over; its processes are gone."""
        self.works.pop(lease_id, None)
        if self._is_leaving and not self.works:
            self._leave()

    def _is_cut_off(self) -> bool:
        return self.world.now_ms < self._cut_off_until

    # What the agent does by itself.

    def start(self) -> None:
        """Start the agent: clear what is left of an earlier one, then register."""
        self._life += 1
        self.is_up, self.is_frozen, self._missed = True, False, []
        for work in self.works.values():
            work.kill()
        self.works.clear()
        self._refused.clear()
        self._session, self._is_leaving, self._is_told_to_drain = None, False, False
        self._pressure, self._health = ResourcePressure.NORMAL, RunnerHealth.HEALTHY
        self._begin_session()

    def _begin_session(self) -> None:
        back_off = BackOff(longest=self.longest_back_off_s, rng=self.world.rng)
        self._register(self._with_key(), back_off)

    def _with_key(self) -> Register:
        return replace(self._message, key=f"{self.world.rng.getrandbits(128):032x}")

    def _register(self, message: Register, back_off: BackOff) -> None:
        def call() -> Registered:
            with write(self.world.engine) as connection:
                policy = self.world.policy(connection).lease
                return runners.register(connection, message, policy=policy, rng=self.world.ids)

        def heard(answer: Registered | ForgeyardError) -> None:
            if isinstance(answer, ForgeyardError):
                again = self._with_key() if isinstance(answer, Conflict) else message
                self.after(back_off.delay() * 1000, lambda: self._register(again, back_off))
                return
            self._session = answer
            self.longest_back_off_s = answer.longest_back_off / 1000
            for loop in (self._poll, self._beat, self._renew):
                loop(answer, BackOff(longest=self.longest_back_off_s, rng=self.world.rng))

        self.ask("register", call, heard)

    def _again(
        self,
        session: Registered,
        delay_ms: float,
        act: Callable[[Registered, BackOff], None],
        back_off: BackOff,
    ) -> None:
        self.after(
            delay_ms, lambda: act(session, back_off), unless=lambda: self._session is not session
        )

    def _failed(
        self,
        session: Registered,
        error: ForgeyardError,
        act: Callable[[Registered, BackOff], None],
        back_off: BackOff,
    ) -> None:
        """Ask again in a while, or begin a new session if the server does not know this one."""
        if self._session is not session:
            return
        if not isinstance(error, Conflict | NotFound):
            self._again(session, back_off.delay() * 1000, act, back_off)
            return
        self.world.tell(self.name, f"session lost: {error.message}")
        self._session = None
        for work in list(self.works.values()):
            work.stop(StopReason.LOST)
        if self._is_leaving:
            self._leave()
        else:
            self.after(100, self._begin_session)

    def _poll(self, session: Registered, back_off: BackOff) -> None:
        def call() -> Assignments:
            with read(self.world.engine) as connection:
                policy = self.world.policy(connection).lease
                answer = assignments(connection, [session.session_id], policy=policy)
            if session.session_id not in answer:
                raise StaleRejected("this session is not open", field="session_id")
            return answer[session.session_id]

        def heard(answer: Assignments | ForgeyardError) -> None:
            if isinstance(answer, ForgeyardError):
                self._failed(session, answer, self._poll, back_off)
                return
            back_off.reset()
            if self._session is session:
                self._heed(session, answer)
            pause = (500, 2_000) if self.world.weather.is_calm else (800, 5_000)
            self._again(session, self.world.between(*pause), self._poll, back_off)

        self.ask("poll", call, heard)

    def _heed(self, session: Registered, answer: Assignments) -> None:
        self._is_told_to_drain = answer.drain
        for lease_id in answer.cancel:
            if lease_id in self.works:
                self.works[lease_id].stop(StopReason.CANCELLED)
        for offer in answer.offers:
            self._consider(session, offer)

    def _consider(self, session: Registered, offer: Offer) -> None:
        if offer.lease_id in self._journal:
            return
        refused = self._refused.get(offer.lease_id)
        refused = refused or refusal(offer.spec, self._situation(), devices=offer.devices)
        if refused is None and self.world.weather.strikes("offer turned down oddly", ODD):
            refused = Refusal(reason=RejectReason.DISK_INSUFFICIENT, detail="an odd day")
        if refused is not None:
            self._refused[offer.lease_id] = refused
            self._turn_down(session, offer, refused)
            return
        self._journal.add(offer.lease_id)
        work = Work(self, offer, session_id=session.session_id)
        self.works[offer.lease_id] = work
        work.begin()

    def _turn_down(self, session: Registered, offer: Offer, refused: Refusal) -> None:
        message = Reject(
            session_id=session.session_id,
            epoch=offer.epoch,
            reason=refused.reason,
            detail=refused.detail,
        )

        def call() -> object:
            with write(self.world.engine) as connection:
                policy = self.world.policy(connection).lease
                answer = leases.reject(connection, offer.lease_id, message, policy=policy)
            if isinstance(answer, Refused):
                raise StaleRejected(answer.reason)
            return answer

        self.ask(f"reject {offer.lease_id[-6:]}", call, lambda _: None)

    def _situation(self) -> Situation:
        return Situation(
            draining=self._is_told_to_drain or self._is_leaving,
            quarantined="",
            free_slots=SLOTS - sum(work.slots for work in self.works.values()),
            pressure=self._pressure,
            free_disk=20 * GIB,
            granted=frozenset(),
            shells=frozenset(("sh", "bash")),
            toolchains=self._capabilities.toolchains,
            equipment=self._capabilities.equipment,
        )

    def _beat(self, session: Registered, back_off: BackOff) -> None:
        active = tuple(work.held.lease_id for work in self.works.values() if work.is_active)
        message = Heartbeat(
            pressure=self._pressure,
            health=self._health,
            draining=self._is_leaving,
            held=active,
        )

        def call() -> HeartbeatAnswer:
            return self.world.change(runners.heartbeat, session.session_id, message)

        def heard(answer: HeartbeatAnswer | ForgeyardError) -> None:
            if isinstance(answer, ForgeyardError):
                self._failed(session, answer, self._beat, back_off)
                return
            back_off.reset()
            if self._session is session:
                self._is_told_to_drain = answer.drain
                for lease_id in answer.abandon:
                    if lease_id in self.works:
                        self.works[lease_id].stop(StopReason.LOST)
            self._again(session, session.heartbeat_every, self._beat, back_off)

        self.ask("heartbeat", call, heard)

    def _renew(self, session: Registered, back_off: BackOff) -> None:
        works = [work for work in self.works.values() if work.is_active]
        pace = min((session.renew_every, *(1000 * work.held.renew_within_s for work in works)))
        if not works:
            self._again(session, pace / 2, self._renew, back_off)
            return
        renewals = tuple(work.held.renewal() for work in works)
        message, sent_at = Renew(session_id=session.session_id, leases=renewals), self.clock()

        def call() -> RenewAnswer:
            with write(self.world.engine) as connection:
                return leases.renew(connection, message, policy=self.world.policy(connection).lease)

        def heard(answer: RenewAnswer | ForgeyardError) -> None:
            if isinstance(answer, ForgeyardError):
                self._failed(session, answer, self._renew, back_off)
                return
            back_off.reset()
            self._renewed(answer, sent_at)
            self._again(session, pace, self._renew, back_off)

        self.ask(f"renew {len(renewals)}", call, heard)

    def _renewed(self, answer: RenewAnswer, sent_at: float) -> None:
        for renewed in answer.leases:
            work = self.works.get(renewed.lease_id)
            if work is None or not work.is_active:
                continue
            if renewed.verdict is RenewalVerdict.STALE:
                work.stop(StopReason.LOST)
                continue
            work.held.acknowledged(sent_at=sent_at, ttl=renewed.ttl)
            if renewed.verdict is RenewalVerdict.CANCEL:
                work.stop(StopReason.CANCELLED)
            else:
                work.look()

    # What befalls the host.

    def cut_off(self, for_ms: int) -> None:
        """Lose every message to and from the host for a while."""
        self._cut_off_until = self.world.now_ms + for_ms

    def freeze(self) -> None:
        """Stop everything on the host, its processes too."""
        self.is_frozen = True
        for work in self.works.values():
            if work.runs is not None:
                self.world.running.pop(work.runs.lease_id, None)

    def thaw(self) -> None:
        """Go on; what was missed happens now, in whatever order."""
        if not self.is_frozen:
            return
        self.is_frozen, missed, self._missed = False, self._missed, []
        self.world.tell(self.name, f"thaws, {len(missed)} things late")
        for work in list(self.works.values()):
            if work.runs is not None:
                # The first thing that runs again on a host is not always its agent; but it is
                # before anything that the processes do can be heard of.
                self.world.running[work.runs.lease_id] = work.runs
            work.look()
        self.world.rng.shuffle(missed)
        for act in missed:
            self.after(self.world.between(0, 50), act)

    def crash(self) -> None:
        """Lose the machine with everything that ran on it."""
        self._die()
        for work in self.works.values():
            work.kill()
        self.works.clear()

    def crash_agent(self) -> int:
        """Lose the agent alone; tell after how many milliseconds somebody must have restarted it.

        Nobody else ends its processes, so that must be before their leases lapse.
        """
        left = [work.held._deadline - self.clock() for work in self.works.values() if work.runs]
        self._die()
        return round(max(0.0, min((2.5, *left))) * 1000)

    def _die(self) -> None:
        self._life += 1
        self.is_up, self.is_frozen, self._missed, self._session = False, False, [], None

    def leave(self) -> None:
        """Take nothing more, finish what runs, then go."""
        self._is_leaving = True
        if not self.works:
            self._leave()

    def _leave(self) -> None:
        session = self._session
        if session is not None:
            self.ask("close", lambda: self._close(session), lambda _: None)
        self._die()
        self.world.tell(self.name, "has left")

    def _close(self, session: Registered) -> None:
        with write(self.world.engine) as connection:
            policy = self.world.policy(connection).lease
            runners.close(connection, session.session_id, policy=policy)

    def be_unwell(self, pressure: ResourcePressure, health: RunnerHealth) -> None:
        """Report from now on how the host does."""
        self._pressure, self._health = pressure, health


def befall(host: Host) -> None:
    """Let something happen to a host, or nothing, and something again in a while."""
    world, weather = host.world, host.world.weather
    world.after(world.between(4_000, 20_000), host.name, lambda: befall(host))
    if weather.is_calm or not host.is_up or host.is_frozen:
        return
    fate = world.rng.choice(_FATES)
    world.tell(host.name, fate.value)
    weather.note(fate)
    _STRIKE[fate](host)


def _cut_off(host: Host) -> None:
    host.cut_off(host.world.between(500, 40_000))


def _freeze(host: Host) -> None:
    host.freeze()
    world = host.world
    life = host._life
    world.after(world.between(500, 40_000), host.name, host.thaw, unless=lambda: host._life != life)


def _crash(host: Host) -> None:
    host.crash()
    host.world.after(host.world.between(500, 40_000), host.name, host.start)


def _crash_agent(host: Host) -> None:
    host.world.after(host.crash_agent(), host.name, host.start)


def _drain_itself(host: Host) -> None:
    host.leave()
    host.world.after(host.world.between(15_000, 40_000), host.name, lambda: _come_back(host))


def _come_back(host: Host) -> None:
    if not host.is_up:
        host.start()
    else:
        host.world.after(5_000, host.name, lambda: _come_back(host))


def _be_unwell(host: Host) -> None:
    rng = host.world.rng
    host.be_unwell(rng.choice(tuple(ResourcePressure)), rng.choice(tuple(RunnerHealth)))
    host.world.after(
        host.world.between(5_000, 20_000),
        host.name,
        lambda: host.be_unwell(ResourcePressure.NORMAL, RunnerHealth.HEALTHY),
    )


_STRIKE: dict[Fault, Callable[[Host], None]] = {
    Fault.CUT_OFF: _cut_off,
    Fault.FROZEN: _freeze,
    Fault.CRASHED: _crash,
    Fault.AGENT_CRASHED: _crash_agent,
    Fault.DRAINED_ITSELF: _drain_itself,
    Fault.UNWELL: _be_unwell,
}
_FATES = (*_STRIKE, Fault.CUT_OFF, Fault.FROZEN)
