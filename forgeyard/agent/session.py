"""One session with the server: asks for work, keeps leases alive, says that it lives.

Ends when it was drained, or with `StaleRejected` when the server knows it no more; then all its
leases are fenced, and nothing of them may go on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import structlog

from forgeyard.agent import host, secrets
from forgeyard.agent.backoff import BackOff, persist
from forgeyard.agent.lease import HeldLease, StopReason
from forgeyard.agent.offers import Refusal, Situation, available_shells, refusal
from forgeyard.agent.pulse import Pulse
from forgeyard.agent.warmup import WarmUp
from forgeyard.agent.work import Shop, Work
from forgeyard.errors import (
    Conflict,
    ForgeyardError,
    NotFound,
    StaleRejected,
    Unauthenticated,
    Unavailable,
)
from forgeyard.model.ids import LeaseId
from forgeyard.model.protocol import (
    MAX_LEASES,
    Assignments,
    HeartbeatAnswer,
    Offer,
    Register,
    Registered,
    Reject,
    Renew,
    RenewalVerdict,
)

T = TypeVar("T")
POLL_MS = 20_000
REST_S = 0.5
"""The shortest time between two polls that bring nothing."""
GLANCE_S = 0.25
"""How soon a lease is noticed that wants to be renewed sooner than those before it."""
CLOSE_WITHIN_S = 5.0
UNKNOWN_TRIES = 3
"""So often in a row a server may say that it does not know this agent, before it is believed."""
REMEMBERED = 1_000
"""How many refused offers are remembered, for they come again until the refusal is heard."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Wishes:
    """What the operator of this host wants of its agent."""

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    """Take nothing more, finish what runs, then end."""
    halt: asyncio.Event = field(default_factory=asyncio.Event)
    """End what runs, too."""


class Session:
    """An open session and the work taken in it."""

    def __init__(
        self, shop: Shop, registered: Registered, registration: Register, wishes: Wishes
    ) -> None:
        self._shop = shop
        self._id = registered.session_id
        self._registered = registered
        self._pulse = Pulse(shop, registration)
        self._news = asyncio.Event()
        """Something is to be said before the next heartbeat is due."""
        self._wishes = wishes
        self._works: dict[LeaseId, Work] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: dict[LeaseId, Refusal] = {}
        self._told_to_drain = False
        self._leaves_at: float | None = None
        """When this machine is taken away, by this host's clock, if anybody has said so."""
        self._log = _log.bind(session=self._id)

    async def run(self) -> None:
        """Work until drained.

        Raises:
            StaleRejected: the session is over; all its work has been killed.
        """
        loops = [
            asyncio.ensure_future(loop)
            for loop in (
                self._poll(),
                self._beat(),
                self._refresh(),
                self._renew(),
                self._drain(),
            )
        ]
        warming = asyncio.ensure_future(self._warm_up())
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        finally:
            for loop in (*loops, warming):
                loop.cancel()
            await asyncio.gather(*loops, warming, return_exceptions=True)
            await asyncio.shield(asyncio.ensure_future(self._end_all(StopReason.LOST)))
        await self._close()

    async def _warm_up(self) -> None:
        """Fetch what a new machine is to have at hand, if the server has something for it."""
        if not self._registered.warmup:
            return
        await WarmUp(
            self._shop,
            self._id,
            every=self._registered.heartbeat_every / 1000,
            longest_back_off=self._registered.longest_back_off / 1000,
        ).run()
        self._pulse.tell_holdings()
        self._news.set()

    async def _poll(self) -> None:
        """Ask for offers and cancellations, again and again."""
        back_off, loop = self._back_off(), asyncio.get_running_loop()
        while True:
            asked_at = loop.time()
            answer = await self._ask(
                lambda: self._shop.client.poll(self._id, wait_ms=POLL_MS), back_off
            )
            if answer is None:
                continue
            self._notice(answer)
            await self._heed(answer)
            if not answer.offers and not answer.cancel:
                await asyncio.sleep(max(0.0, REST_S - (loop.time() - asked_at)))

    def _notice(self, answer: Assignments) -> None:
        """Hear whether this machine is taken away; whatever works here is told of it."""
        if answer.leaving is not None:
            if self._leaves_at is None:
                self._log.warning("this machine will be taken away", in_ms=answer.leaving)
                # Not from when it was asked: the question may have waited for long.
                self._leaves_at = self._shop.clock() + answer.leaving / 1000
            for work in self._works.values():
                work.held.notice(self._leaves_at)

    async def _heed(self, answer: Assignments) -> None:
        self._told_to_drain = answer.drain
        for lease_id in answer.cancel:
            self._stop(lease_id, StopReason.CANCELLED)
        for offer in answer.offers:
            try:
                await self._consider(offer)
            except Unavailable as error:
                # The journal cannot be written: without it nothing may be started.
                self._log.error("offer left alone", lease=offer.lease_id, error=error.message)

    async def _consider(self, offer: Offer) -> None:
        """Take an offer or turn it down; one that was seen before changes nothing."""
        if offer.lease_id in self._works or self._shop.journal.knows(offer.lease_id):
            return
        refused = self._refused.get(offer.lease_id)
        if refused is None:
            situation = await asyncio.to_thread(self._situation)
            refused = refusal(offer.spec, situation, devices=offer.devices)
        if refused is not None:
            if len(self._refused) >= REMEMBERED:
                self._refused.clear()
            self._refused[offer.lease_id] = refused
            await self._turn_down(offer, refused)
        elif self._shop.journal.take(offer.lease_id, now=self._shop.now()):
            self._begin(offer)

    def _begin(self, offer: Offer) -> None:
        held = HeldLease(offer, session_id=self._id, clock=self._shop.clock)
        work = Work(
            self._shop,
            held,
            equipment=self._pulse.report.capabilities.equipment,
            longest_back_off=self._registered.longest_back_off / 1000,
            known=self._pulse.report.capabilities.toolchains,
            doubt=self._look_again,
        )
        self._works[offer.lease_id] = work
        self._spawn(self._see_through(work))

    async def _see_through(self, work: Work) -> None:
        try:
            await work.run()
        finally:
            del self._works[work.held.lease_id]
            if self._shop.health.quarantined:
                self._news.set()

    async def _turn_down(self, offer: Offer, refused: Refusal) -> None:
        """Say no once; if it is not heard, the offer comes again."""
        self._log.info("offer refused", lease=offer.lease_id, reason=refused.detail)
        message = Reject(
            session_id=self._id, epoch=offer.epoch, reason=refused.reason, detail=refused.detail
        )
        with suppress(ForgeyardError):
            await self._shop.client.reject(offer.lease_id, message)

    def _situation(self) -> Situation:
        """Look at the host as it is now; blocking."""
        config, offered = self._shop.config, self._pulse.report.capabilities
        taken = sum(work.slots for work in list(self._works.values()) if not work.is_over)
        return Situation(
            draining=self._told_to_drain
            or self._leaves_at is not None
            or self._wishes.drain.is_set(),
            quarantined=self._shop.health.quarantined,
            free_slots=config.jobs - taken,
            pressure=self._pulse.pressure,
            free_disk=host.disk(self._shop.work_dir).left,
            granted=self._granted(),
            shells=available_shells(config.path),
            toolchains=offered.toolchains,
            equipment=offered.equipment,
        )

    def _granted(self) -> frozenset[str]:
        path = self._shop.config.secrets_file
        if not path:
            return frozenset()
        try:
            return frozenset(secrets.load(Path(path)))
        except ForgeyardError as error:
            self._log.error("no secrets are granted", error=error.message)
            return frozenset()

    async def _beat(self) -> None:
        """Say at the agreed pace that the session lives, and at once when there is news."""
        back_off, every = self._back_off(), self._registered.heartbeat_every / 1000
        while True:
            self._news.clear()
            answer = await self._ask(self._say_that_we_live, back_off)
            if answer is None:
                continue
            self._told_to_drain = answer.drain
            for lease_id in answer.abandon:
                self._stop(lease_id, StopReason.LOST)
            # Not wait_for: on Python 3.11 it may swallow a cancellation.
            with suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await self._news.wait()

    async def _say_that_we_live(self) -> HeartbeatAnswer:
        message = await self._pulse.message(
            tuple(work.held.lease_id for work in self._active()),
            draining=self._wishes.drain.is_set(),
        )
        answer = await self._shop.client.heartbeat(self._id, message)
        self._pulse.heard(message)
        self._shop.heard(answer.store_mark)
        return answer

    async def _refresh(self) -> None:
        """Look at the host anew from time to time; the next heartbeat says what was found."""
        while True:
            await asyncio.sleep(self._shop.config.refresh_s)
            await self._pulse.look_again(is_idle=not self._works)

    async def _look_again(self) -> None:
        """Look at the host anew and say at once what was found, without insisting."""
        await self._pulse.look_again(is_idle=False)
        with suppress(ForgeyardError):
            await self._say_that_we_live()

    async def _renew(self) -> None:
        """Keep all leases alive, in one request."""
        back_off = self._back_off(longest=self._registered.renew_every / 1000)
        while True:
            works = self._active()
            if works and not await self._renew_these(works, back_off):
                continue
            await self._until_renewals_are_due()

    async def _until_renewals_are_due(self) -> None:
        """Wait as long as the server wanted; less if a lease lasts shorter than it did then."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            left = began + self._pace_s() - clock()
            if left <= 0:
                return
            await asyncio.sleep(min(left, GLANCE_S))

    def _pace_s(self) -> float:
        leases = (work.held.renew_within_s for work in self._active())
        return min((self._registered.renew_every / 1000, *leases))

    async def _renew_these(self, works: list[Work], back_off: BackOff) -> bool:
        renewals = tuple(work.held.renewal() for work in works)
        sent_at = self._shop.clock()
        answer = await self._ask(
            lambda: self._shop.client.renew(Renew(session_id=self._id, leases=renewals)), back_off
        )
        if answer is None:
            return False
        for renewed in answer.leases:
            work = self._works.get(renewed.lease_id)
            if work is None or not work.is_active:
                continue
            if renewed.verdict is RenewalVerdict.STALE:
                work.held.stop(StopReason.LOST)
                continue
            work.held.acknowledged(sent_at=sent_at, ttl=renewed.ttl)
            if renewed.verdict is RenewalVerdict.CANCEL:
                work.held.stop(StopReason.CANCELLED)
        return True

    async def _drain(self) -> None:
        """Wait for the wish to end, then for what runs; end it after the drain timeout."""
        await self._wishes.drain.wait()
        self._news.set()
        self._log.info("draining", running=len(self._works))
        halt = asyncio.ensure_future(self._wishes.halt.wait())
        until = asyncio.get_running_loop().time() + self._shop.config.drain_timeout_s
        try:
            while self._tasks and not halt.done():
                left = until - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                await asyncio.wait(
                    (halt, *self._tasks), timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            halt.cancel()
        await self._end_all(StopReason.SHUTDOWN)

    async def _end_all(self, reason: StopReason) -> None:
        """End all work and wait until nothing of it is left."""
        for lease_id in list(self._works):
            self._stop(lease_id, reason)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _close(self) -> None:
        """Say goodbye, for a while: whoever is not known to be gone is offered work."""
        call = persist(
            lambda: self._shop.client.close(self._id), back_off=self._back_off(), what="goodbye"
        )
        with suppress(ForgeyardError, TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await call

    async def _ask(self, call: Callable[[], Awaitable[T]], back_off: BackOff) -> T | None:
        """Make one call; after a failure rest and return None.

        Raises:
            StaleRejected: the server does not know this session any more, or whose agent this is.
        """
        try:
            answer = await call()
        except (Conflict, NotFound) as error:
            raise StaleRejected(error.message) from error
        except ForgeyardError as error:
            if isinstance(error, Unauthenticated) and back_off.tries >= UNKNOWN_TRIES:
                raise StaleRejected(error.message) from error
            delay = back_off.delay()
            self._log.warning("server unavailable", error=error.message, wait_s=round(delay, 2))
            await asyncio.sleep(delay)
            return None
        back_off.reset()
        return answer

    def _active(self) -> list[Work]:
        return [work for work in self._works.values() if work.is_active][:MAX_LEASES]

    def _stop(self, lease_id: LeaseId, reason: StopReason) -> None:
        work = self._works.get(lease_id)
        if work is not None:
            work.held.stop(reason)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _back_off(self, *, longest: float | None = None) -> BackOff:
        agreed = self._registered.longest_back_off / 1000
        return BackOff(longest=min(agreed, longest or agreed), rng=self._shop.rng)
