"""Requests about one lease, repeated while the server is down and as long as the lease holds.

A server that says the lease is stale ends the work: there is nobody to report to.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from forgeyard.agent.backoff import BackOff, persist
from forgeyard.agent.client import AgentClient
from forgeyard.agent.ending import Ending
from forgeyard.agent.lease import FOREVER, HeldLease, Interrupted, StopReason
from forgeyard.agent.logs import LogChunk
from forgeyard.errors import Forbidden, NotFound, StaleRejected, Unavailable
from forgeyard.model.protocol import (
    Complete,
    CompletionVerdict,
    Phase,
    Progress,
    StepResult,
    TestCounts,
    Usage,
)

T = TypeVar("T")
LONGEST_MESSAGE = 4_000
_GONE = (StaleRejected, NotFound, Forbidden)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was measured and counted in an attempt, however it ended."""

    usage: Usage
    steps: tuple[StepResult, ...]
    tests: TestCounts | None


class Reports:
    """What one attempt says to the server."""

    def __init__(
        self, client: AgentClient, held: HeldLease, *, longest_back_off: float, rng: random.Random
    ) -> None:
        self._client = client
        self._held = held
        self._longest = longest_back_off
        self._rng = rng

    async def accept(self) -> bool:
        """Take the offer, asking until the server answers or the offer has certainly lapsed."""
        held, back_off = self._held, self._back_off()
        until = held.clock() + (held.offer.ttl + held.offer.grace) / 1000
        while not held.is_stopping:
            sent_at = held.clock()
            try:
                accepted = await self._client.accept(held.lease_id, held.holder)
            except Unavailable as error:
                if held.clock() >= until:
                    _log.warning("offer not taken", lease=held.lease_id, error=error.message)
                    return False
                await held.nap(back_off.delay())
            except _GONE as error:
                _log.info("offer gone", lease=held.lease_id, error=error.message)
                return False
            else:
                held.acknowledged(sent_at=sent_at, ttl=accepted.ttl, grace=accepted.grace)
                return True
        return False

    async def progress(self, phase: Phase, *, until: float) -> float:
        """Report the next phase; the answer confirms that the lease is still ours.

        Tells when the request was sent that was answered: the server counts the phase from later.
        """
        held = self._held
        message = Progress(session_id=held.holder.session_id, epoch=held.holder.epoch, phase=phase)

        async def say() -> float:
            sent_at = held.clock()
            await self._client.progress(held.lease_id, message)
            return sent_at

        return await self.insist(say, until=until, what=phase.value, gone=_GONE)

    async def log(self, chunk: LogChunk) -> None:
        """Send one chunk, however often it takes; only the loss of the lease ends that."""
        call = persist(
            lambda: self._client.log(
                self._held.lease_id,
                self._held.holder,
                sequence=chunk.sequence,
                step=chunk.step,
                data=chunk.data,
            ),
            back_off=self._back_off(),
            what="log",
        )
        try:
            await call
        except _GONE:
            raise self._lost() from None

    async def insist(
        self,
        call: Callable[[], Awaitable[T]],
        *,
        what: str,
        until: float = FOREVER,
        tries: int | None = None,
        gone: tuple[type[Exception], ...] = (StaleRejected,),
    ) -> T:
        """Repeat a request while the server is unavailable and nothing tells us to stop.

        Raises:
            Interrupted: the lease is not ours any more, or the phase is over.
            Unavailable: after `tries` failures, if given.
        """
        back_off = self._back_off()
        try:
            return await self._held.watch(
                persist(call, back_off=back_off, tries=tries, what=what), until=until
            )
        except gone:
            raise self._lost() from None

    async def complete(self, ending: Ending, found: Findings) -> CompletionVerdict:
        """Report the end.

        Raises:
            Interrupted: the lease is not ours any more.
        """
        held = self._held
        message = Complete(
            session_id=held.holder.session_id,
            epoch=held.holder.epoch,
            outcome=ending.outcome,
            failure_class=ending.failure_class,
            exit_code=ending.exit_code,
            message=ending.message[:LONGEST_MESSAGE],
            usage=found.usage,
            steps=found.steps,
            tests=found.tests,
        )
        call = persist(
            lambda: self._client.complete(held.lease_id, message),
            back_off=self._back_off(),
            what="complete",
        )
        try:
            return (await held.hold(call)).verdict
        except _GONE:
            raise self._lost() from None

    def _lost(self) -> Interrupted:
        self._held.stop(StopReason.LOST)
        return Interrupted(StopReason.LOST)

    def _back_off(self) -> BackOff:
        return BackOff(longest=self._longest, rng=self._rng)
