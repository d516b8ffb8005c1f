"""Long polls: one reader per process asks the store for everybody who waits.

An offer, a cancellation, a drain or a notice is answered at once when it is news to the session,
and repeated every few seconds while it lasts, for the answer that carried it may have been lost
(DSP: at least once; agents dedupe by lease id).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from forgeyard import clock
from forgeyard.errors import StaleRejected
from forgeyard.model.protocol import Assignments

REPEAT_S: Final = 2.0
LOOK_S: Final = 2.0
PAUSE_AFTER_ERROR_S: Final = 1.0
HINT_S: Final = 0.01
GAPS: Final = 4
"""A hint lets the reader read so many times as often as its period says, not more."""
REMEMBERED_SESSIONS: Final = 10_000

_log = logging.getLogger(__name__)
Fetch = Callable[[Collection[str]], Mapping[str, Assignments]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What a session was last told, and when."""

    offers: frozenset[str] = frozenset()
    cancel: frozenset[str] = frozenset()
    drain: bool = False
    leaving: bool = False
    at: float = 0.0

    def lacks(self, found: Assignments, *, now: float) -> bool:
        """Tell whether the session should hear this now."""
        offers = {offer.lease_id for offer in found.offers}
        cancel = set(found.cancel)
        leaving = found.leaving is not None
        news = offers - self.offers or cancel - self.cancel or found.drain != self.drain
        news = news or leaving != self.leaving
        return bool(news) or (bool(offers or cancel or leaving) and now - self.at >= REPEAT_S)


class _Poll:
    """One request that waits; `latest` is what the reader last found for it."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Assignments] = asyncio.get_running_loop().create_future()
        self.latest = Assignments()
        self.is_seen = False
        self.is_hasty = False
        """Its time was up before the reader came by: the first look answers it."""

    def settle(self, found: Assignments) -> None:
        """Answer, unless the request has gone."""
        if not self.answer.done():
            self.answer.set_result(found)

    def refuse(self, error: Exception) -> None:
        """Fail the request, unless it has gone."""
        if not self.answer.done():
            self.answer.set_exception(error)


class AssignmentReader:
    """Answer waiting sessions from one periodic read; lives in one event loop."""

    def __init__(
        self,
        fetch: Fetch,
        *,
        period_s: float,
        changed: Callable[[], bool] | None = None,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        """Read every `period_s`, and sooner when `changed` says that there may be news."""
        self._fetch = fetch
        self._changed = changed
        self._period_s = period_s
        self._monotonic = monotonic
        self._polls: dict[str, _Poll] = {}
        self._told: dict[str, _Told] = {}
        self._wanted = asyncio.Event()
        self._closed = False

    async def wait(self, session_id: str, *, seconds: float) -> Assignments:
        """Wait for news, at most so long but for one look; then tell what there is, news or not.

        A session's newer poll ends its older one, which nobody reads any more.

        Raises:
            StaleRejected: the session is not open.
        """
        poll = _Poll()
        older = self._polls.get(session_id)
        if older is not None:
            older.settle(older.latest)
        if self._closed:
            return poll.latest
        self._polls[session_id] = poll
        self._wanted.set()
        try:
            await asyncio.wait((poll.answer,), timeout=seconds)
            if not poll.is_seen:
                poll.is_hasty = True
                await asyncio.wait((poll.answer,), timeout=LOOK_S)
            poll.settle(poll.latest)
            return poll.answer.result()
        finally:
            poll.answer.cancel()
            if self._polls.get(session_id) is poll:
                del self._polls[session_id]

    async def run(self, stop: asyncio.Event) -> None:
        """Read for the waiting sessions until told to stop, then let them all go."""
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                if not self._polls:
                    self._wanted.clear()
                    await _first(stopping, asyncio.create_task(self._wanted.wait()), None)
                    continue
                pause = await self._round_surviving_errors()
                await self._rest(stopping, pause)
        finally:
            stopping.cancel()
            self._closed = True
            for poll in self._polls.values():
                poll.settle(poll.latest)

    async def _rest(self, stopping: asyncio.Task[Literal[True]], pause: float) -> None:
        """Sleep until it is time to read again, or until a hint that comes late enough."""
        if self._changed is None or pause > self._period_s:
            await _first(stopping, None, pause)
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + pause
        await _first(stopping, None, pause / GAPS)
        while not stopping.done() and not self._changed() and loop.time() < until:
            await _first(stopping, None, HINT_S)

    async def _round_surviving_errors(self) -> float:
        try:
            await self.read_once()
        except Exception as error:
            # Pollers wait on; the store may be back before their time is up.
            _log.warning("reading assignments failed: %s", error)
            return PAUSE_AFTER_ERROR_S
        return self._period_s

    async def read_once(self) -> None:
        """Read once for everybody who waits now, and answer those with news."""
        polls = dict(self._polls)
        if not polls:
            return
        answers = await asyncio.to_thread(self._fetch, tuple(polls))
        now = self._monotonic()
        for session_id, poll in polls.items():
            found = answers.get(session_id)
            if found is None:
                self._told.pop(session_id, None)
                poll.refuse(StaleRejected("this session is not open", field="session_id"))
            else:
                self._consider(session_id, poll, found, now=now)

    def _consider(self, session_id: str, poll: _Poll, found: Assignments, *, now: float) -> None:
        poll.latest, poll.is_seen = found, True
        told = self._told.get(session_id, _Told())
        if poll.answer.done() or not (poll.is_hasty or told.lacks(found, now=now)):
            return
        poll.settle(found)
        self._told.pop(session_id, None)  # so that insertion order is order of use
        self._told[session_id] = _Told(
            offers=frozenset(offer.lease_id for offer in found.offers),
            cancel=frozenset(found.cancel),
            drain=found.drain,
            leaving=found.leaving is not None,
            at=now,
        )
        while len(self._told) > REMEMBERED_SESSIONS:
            del self._told[next(iter(self._told))]


async def _first(
    stopping: asyncio.Task[Literal[True]],
    other: asyncio.Task[Literal[True]] | None,
    seconds: float | None,
) -> None:
    """Sleep until we stop, until the other thing happens, or for so long."""
    waiting = [stopping] if other is None else [stopping, other]
    await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if other is not None:
        other.cancel()
