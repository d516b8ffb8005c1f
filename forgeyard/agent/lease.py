"""A lease as its holder knows it: until when it certainly holds, and why to stop.

Refuses to trust an event loop's timers: a frozen process or a suspended host wakes up late, so
whoever is about to act asks the clock again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import StrEnum
from typing import TypeVar

from forgeyard.model.ids import SessionId
from forgeyard.model.protocol import Holder, Offer, Renewal
from forgeyard.model.units import Millis

T = TypeVar("T")
Clock = Callable[[], float]
"""Seconds that only go forward, also while the host sleeps."""
LOOK_AGAIN_S = 0.5
"""After so long, waiting code asks the clock whether the lease still holds."""
FOREVER = float("inf")
SHORTEST_PACE_S = 0.1


class StopReason(StrEnum):
    """Why work on a lease ends before its time."""

    CANCELLED = "cancelled"  # somebody asked for it
    LOST = "lost"  # the server gave it away, or does not know it
    LAPSED = "lapsed"  # no renewal was acknowledged for too long
    TIMED_OUT = "timed_out"  # the present phase took too long
    SHUTDOWN = "shutdown"  # this agent was told to end at once

    @property
    def is_fenced(self) -> bool:
        """Tell whether the attempt may be another's by now: kill at once, report nothing."""
        return self in (StopReason.LOST, StopReason.LAPSED)


class Interrupted(Exception):
    """Work on a lease ends here; raised and caught inside the agent only."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class HeldLease:
    """One lease of this agent; every acknowledged request moves its deadline."""

    def __init__(self, offer: Offer, *, session_id: SessionId, clock: Clock) -> None:
        self.offer = offer
        self.lease_id = offer.lease_id
        self.holder = Holder(session_id=session_id, epoch=offer.epoch)
        self.clock = clock
        self._grace = offer.grace
        self._acknowledged = float("-inf")
        self._deadline = float("-inf")
        self.renew_within_s = FOREVER
        """A third of the time that a renewal lasts, so that two may get lost."""
        self._reason: StopReason | None = None
        self._asked = asyncio.Event()
        self.leaves_at: float | None = None
        """When this machine is taken away, by the clock, if anybody has said so."""
        self._noticed = asyncio.Event()

    def renewal(self) -> Renewal:
        """Ask for more time on this lease."""
        return Renewal(lease_id=self.lease_id, epoch=self.offer.epoch)

    def acknowledged(self, *, sent_at: float, ttl: Millis, grace: Millis | None = None) -> None:
        """Count the lease's time from before the newest acknowledged request was sent.

        The server counts from when it handled that request, so it never ends the lease earlier.
        """
        if sent_at < self._acknowledged:
            return
        self._acknowledged = sent_at
        self._grace = self._grace if grace is None else grace
        self._deadline = sent_at + (ttl + self._grace) / 1000
        self.renew_within_s = max(ttl / 3000, SHORTEST_PACE_S)

    def stop(self, reason: StopReason) -> None:
        """Ask the work to end; the first reason counts, unless a later one takes the lease away."""
        if self._reason is None or (reason.is_fenced and not self._reason.is_fenced):
            self._reason = reason
            # Wakes all who wait now; who begins to wait later has asked for the reason before.
            asked, self._asked = self._asked, asyncio.Event()
            asked.set()

    def notice(self, leaves_at: float) -> None:
        """Hear that this machine is taken away, and when; heard again, it changes nothing."""
        if self.leaves_at is None:
            self.leaves_at = leaves_at
            self._noticed.set()

    async def noticed(self) -> float:
        """Wait until this machine is said to be taken away; tell in how many seconds."""
        await self._noticed.wait()
        return max(0.0, (self.leaves_at or 0.0) - self.clock())

    @property
    def is_stopping(self) -> bool:
        """Tell whether somebody asked the work to end."""
        return self._reason is not None

    def fenced(self) -> StopReason | None:
        """Tell why the attempt may be another's by now, if it may."""
        reason = self.stop_reason()
        return reason if reason is not None and reason.is_fenced else None

    def stop_reason(self, *, until: float = FOREVER) -> StopReason | None:
        """Tell why to stop now, if at all; `until` is when the present phase times out."""
        now = self.clock()
        if self._reason is not None and self._reason.is_fenced:
            return self._reason
        if now >= self._deadline:
            return StopReason.LAPSED
        if self._reason is None and now >= until:
            return StopReason.TIMED_OUT
        return self._reason

    def check(self, *, until: float = FOREVER) -> None:
        """Pass only while the lease holds and nobody asked to stop.

        Raises:
            Interrupted: with the reason.
        """
        reason = self.stop_reason(until=until)
        if reason is not None:
            raise Interrupted(reason)

    async def watch(self, work: Coroutine[object, object, T], *, until: float = FOREVER) -> T:
        """Await `work` until there is any reason to stop; then cancel it and see it end.

        Raises:
            Interrupted: with the reason.
        """
        return await self._await(work, lambda: self.stop_reason(until=until), until=until)

    async def hold(self, work: Coroutine[object, object, T]) -> T:
        """Await `work` as long as the attempt is ours, also while it is being cancelled.

        Raises:
            Interrupted: with the reason.
        """
        return await self._await(work, self.fenced, until=FOREVER)

    async def _await(
        self,
        work: Coroutine[object, object, T],
        why: Callable[[], StopReason | None],
        *,
        until: float,
    ) -> T:
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                reason = why()
                if reason is not None:
                    raise Interrupted(reason)
                await self.pause_for(task, until=until)
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def nap(self, seconds: float) -> None:
        """Sleep, but wake when somebody asks the work to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._asked.wait()

    async def pause_for(self, task: "asyncio.Future[T]", *, until: float = FOREVER) -> None:
        """Wait for `task`, for a new request to stop, or until it is time to look at the clock."""
        left = min(until, self._deadline) - self.clock()
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait(
                (task, asked),
                timeout=max(0.0, min(left, LOOK_AGAIN_S)),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
