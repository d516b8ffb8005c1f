"""What boots on a machine of a fleet: an agent that redeems its token and works, or does not.

It is much simpler than the agents of the other simulation: it does everything in one round. What
lies between agent and server goes wrong there.
"""

from collections import defaultdict
from dataclasses import replace
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, cast

from forgeyard.errors import Conflict, Forbidden, ForgeyardError, NotFound, Unavailable
from forgeyard.model.protocol import (
    Complete,
    Heartbeat,
    Holder,
    Offer,
    Outcome,
    Registered,
    Renew,
    Renewal,
    RenewalVerdict,
)
from forgeyard.model.runner import RunnerHealth
from forgeyard.model.units import GIB
from forgeyard.store import enrolments, leases, quarantine, runners
from forgeyard.store.dispatch import assignments
from forgeyard.store.engine import read, write
from forgeyard.store.enrolments import COPIED, Alarm
from forgeyard.store.entrance import Entry
from forgeyard.store.identities import Issued, Signed
from forgeyard.trust import tokens
from forgeyard.trust.invitations import Invitations
from forgeyard.trust.tokens import Token
from tests.builders import a_registration, some_capabilities, some_resources
from tests.simulation.fleet.cloud import Cloud, Made, is_running
from tests.simulation.world import Violated, World
from tests.trusting import no_evidence

ROUND = 15_000
TOKEN_KEY = b"k" * 32
SIZE = some_resources(cpu=2_000, memory=4 * GIB, disk=20 * GIB, slots=2)
DAY = 86_400_000


class Sort(StrEnum):
    """How an agent is; all but the first are faults."""

    WELL = "an agent that is well"
    NEVER_ENROLS = "an agent that never enrols"
    NEVER_WELL = "an agent that is never well"
    SMALL = "an agent on a machine that is too small"
    FALLS_SILENT = "an agent that falls silent"
    COPIED = "a token that came with two keys"


ODD = tuple(sort for sort in Sort if sort is not Sort.WELL)


class Tokens(Invitations):
    """The tokens of an installation, from a key that is in no file."""

    def __init__(self) -> None:
        super().__init__(cast("Any", SimpleNamespace(pin=lambda: "pin")))

    def token(self, enrolment_id: str, binding: str) -> Token:
        """Derive the token of an enrolment."""
        return tokens.derive(TOKEN_KEY, enrolment_id, binding)

    def mark(self, token: Token) -> str:
        """Say what stands in the store for a token."""
        return tokens.mark(TOKEN_KEY, token)


class Agents:
    """All agents that ever booted."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.on: dict[str, Agent] = {}
        """By the machine, as its provider calls it."""
        self.keys: defaultdict[str, set[str]] = defaultdict(set)
        """The keys that each enrolment gave a certificate for."""
        self.sorts: list[Sort] = []
        """How the next agents are, where a test decides that."""

    def boot(self, cloud: Cloud, made: Made) -> None:
        """Let the agent of a new machine come up once it runs."""
        sort = self.sorts.pop(0) if self.sorts else Sort.WELL
        if self.world.weather.strikes("an agent that is not well", 0.3):
            sort = self.world.rng.choice(ODD)
            self.world.weather.note(sort)
        agent = Agent(self, cloud, made, sort)
        self.on[made.thing.ref] = agent
        delay = made.thing.start_ms + self.world.between(3_000, 30_000)
        self.world.after(delay, agent.name, agent.enrol)


class Agent:
    """One agent, with all that it does."""

    def __init__(self, agents: Agents, cloud: Cloud, made: Made, sort: Sort) -> None:
        self.name = made.request.runner_name
        self.sort = sort
        self.is_silent = False
        self.heard_at = 0
        self.works: dict[str, tuple[Offer, int]] = {}
        """Leases that were accepted, and when each is done."""
        self._agents, self._world = agents, agents.world
        self._made, self._cloud = made, cloud.name
        self._session: Registered | None = None
        self._is_alive = lambda: is_running(made, self._world.now_ms)
        self._lasts = self._world.between(60_000, 600_000)

    def enrol(self) -> None:
        """Redeem the token, and again while its window has not opened."""
        if not self._is_alive() or self.sort is Sort.NEVER_ENROLS:
            return
        try:
            runner_id = self._redeemed(f"key/{self._cloud}/{self._made.thing.ref}")
        except Unavailable:
            self._world.after(10_000, self.name, self.enrol)
            return
        except ForgeyardError as error:
            self._world.tell(self.name, f"cannot enrol: {error.message}")
            return
        self._world.tell(self.name, f"enrolled as {runner_id}")
        if self.sort is Sort.COPIED:
            self._world.after(20_000, self.name, self._thief)
        self._register(runner_id)

    def _thief(self) -> None:
        """Bring the token with another key, as who has copied it."""
        try:
            self._redeemed("key/of a thief")
        except ForgeyardError as error:
            self._world.tell(self.name, f"a thief: {error.message}")

    def _redeemed(self, key: str) -> str:
        token = tokens.read(self._made.request.bootstrap.token)
        world = self._world
        with write(world.engine) as connection:
            answer = enrolments.redeem(
                connection,
                token.enrolment_id,
                tokens.mark(TOKEN_KEY, token),
                f"{key}/{world.seed}",
                sign=self._signed,
                prove=no_evidence,
                rng=world.ids,
            )
            if isinstance(answer, Alarm):
                if answer.runner_id is not None:
                    policy = world.policy(connection).lease
                    quarantine.shut_out_if_known(
                        connection, answer.runner_id, COPIED, policy=policy
                    )
                world.tell(self.name, "the alarm is raised")
        if not isinstance(answer, Issued):
            raise Forbidden("this token was used with another key")
        keys = self._agents.keys[token.enrolment_id]
        keys.add(key)
        if len(keys) > 1:
            raise Violated(f"the token of {self.name} gave two machines a certificate")
        return answer.runner_id

    def _signed(self, runner_id: str) -> Signed:
        serial = f"{self._world.ids.getrandbits(128):x}"
        return Signed(serial=serial, pem=runner_id, ends_at=self._world.now_ms + DAY)

    def _register(self, runner_id: str) -> None:
        if not self._is_alive():
            return
        small = self.sort is Sort.SMALL
        message = replace(
            a_registration(
                self.name,
                capabilities=some_capabilities(),
                total=some_resources(cpu=500, memory=GIB) if small else SIZE,
            ),
            clock_ms=self._world.now_ms,
            key=f"{self._world.rng.getrandbits(128):032x}",
        )
        try:
            with write(self._world.engine) as connection:
                policy = self._world.policy(connection).lease
                self._session = runners.register(
                    connection,
                    message,
                    policy=policy,
                    rng=self._world.ids,
                    entry=Entry(runner_id=runner_id),
                )
        except Unavailable:
            self._world.after(5_000, self.name, lambda: self._register(runner_id))
            return
        except ForgeyardError as error:
            self._world.tell(self.name, f"is not let in: {error.message}")
            return
        self._world.after(500, self.name, self._round)

    def _round(self) -> None:
        """Report, take what is offered, renew and complete."""
        world, session = self._world, self._session
        if session is None or not self._is_alive() or self.is_silent:
            return
        if self.sort is Sort.FALLS_SILENT and world.now_ms > self._made.at + self._lasts:
            world.tell(self.name, "falls silent")
            self.is_silent = True
            return
        try:
            drain = self._reported(session)
            self._renew(session)
            self._complete(session)
            if not drain:
                self._accept(session)
        except Unavailable as error:
            world.tell(self.name, f"tries again: {error.message}")
        except (Conflict, NotFound, Forbidden) as error:
            world.tell(self.name, f"session lost: {error.message}")
            self.works.clear()
            self._session = None
            if self.sort is Sort.WELL and isinstance(error, Conflict):
                runner_id = session.runner_id
                world.after(5_000, self.name, lambda: self._register(runner_id))
            return
        world.after(ROUND if self.works else 1.5 * ROUND, self.name, self._round)

    def _reported(self, session: Registered) -> bool:
        sick = self.sort is Sort.NEVER_WELL
        message = Heartbeat(
            held=tuple(self.works), health=RunnerHealth.UNHEALTHY if sick else RunnerHealth.HEALTHY
        )
        answer = self._world.change(runners.heartbeat, session.session_id, message)
        self.heard_at = self._world.now_ms
        for lease_id in answer.abandon:
            self.works.pop(lease_id, None)
        return answer.drain

    def _renew(self, session: Registered) -> None:
        if not self.works:
            return
        held = tuple(
            Renewal(lease_id=lease_id, epoch=offer.epoch)
            for lease_id, (offer, _) in self.works.items()
        )
        message = Renew(session_id=session.session_id, leases=held)
        with write(self._world.engine) as connection:
            policy = self._world.policy(connection).lease
            answer = leases.renew(connection, message, policy=policy)
        for one in answer.leases:
            if one.verdict is not RenewalVerdict.RENEWED:
                self.works.pop(one.lease_id, None)

    def _complete(self, session: Registered) -> None:
        for lease_id, (offer, done_at) in list(self.works.items()):
            if self._world.now_ms < done_at:
                continue
            message = Complete(
                session_id=session.session_id, epoch=offer.epoch, outcome=Outcome.SUCCEEDED
            )
            self._call(leases.complete, lease_id, message)
            self.works.pop(lease_id, None)

    def _accept(self, session: Registered) -> None:
        with read(self._world.engine) as connection:
            policy = self._world.policy(connection).lease
            told = assignments(connection, [session.session_id], policy=policy)
        answer = told.get(session.session_id)
        for offer in answer.offers if answer else ():
            holder = Holder(session_id=session.session_id, epoch=offer.epoch)
            taken = self._call(leases.accept, offer.lease_id, holder)
            if not isinstance(taken, leases.Refused):
                done_at = self._world.now_ms + self._world.between(20_000, 150_000)
                self.works[offer.lease_id] = offer, done_at

    def _call(self, function: Any, lease_id: str, message: object) -> object:
        with write(self._world.engine) as connection:
            policy = self._world.policy(connection).lease
            return function(connection, lease_id, message, policy=policy)
