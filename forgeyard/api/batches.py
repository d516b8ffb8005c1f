"""Calls of many agents written in one transaction, each answered by itself.

What comes alone is written at once. Whatever comes while a batch is being written, or just after,
forms the next one. What a batch could not do for a call is done for that call alone, beside the
batches, so that a call which has to wait or cannot be stored holds up nobody else.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from forgeyard import clock, telemetry
from forgeyard.errors import Overloaded, StoreUnavailable

PACE_S: Final = 0.05
"""Batches begin so far apart, for a few calls in each of many transactions is what costs."""
MOST: Final = 2_000
"""How much one transaction may change."""
ROOM: Final = 10_000
"""How many calls may wait: more than that are told to come again."""
ROOM_ALONE: Final = 1_000
LANES: Final = 2
"""How many calls are done alone at a time."""

Call = TypeVar("Call")
Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[Call, Answer]):
    """What is done with calls; both functions run in threads."""

    name: str
    together: Callable[[Sequence[Call]], Sequence[Answer | None]]
    """Do many in one transaction; None stands for what has to be done alone."""
    alone: Callable[[Call], Answer]
    weigh: Callable[[Call], int] = lambda _: 1
    """Tell how much one call changes."""


@dataclass(frozen=True, slots=True)
class _Asked(Generic[Call, Answer]):
    call: Call
    answer: asyncio.Future[Answer]


class Batches(Generic[Call, Answer]):
    """Turns calls into batches; lives in one event loop, and needs nobody to run it."""

    def __init__(
        self,
        work: Work[Call, Answer],
        *,
        pace_s: float = PACE_S,
        most: int = MOST,
        room: int = ROOM,
        room_alone: int = ROOM_ALONE,
    ) -> None:
        self._work = work
        self._pace_s = pace_s
        self._most = most
        self._room = room
        self._room_alone = room_alone
        self._queue: deque[_Asked[Call, Answer]] = deque()
        self._lanes = asyncio.Semaphore(LANES)
        self._alone: set[asyncio.Task[None]] = set()
        self._writing: asyncio.Task[None] | None = None
        self._next_at = 0.0

    async def ask(self, call: Call) -> Answer:
        """Have a call written, soon and with others; answer as if it had come alone.

        Raises:
            Overloaded: too many calls wait already.
        """
        if len(self._queue) >= self._room:
            raise self._overloaded(self._room)
        one: _Asked[Call, Answer] = _Asked(call, asyncio.get_running_loop().create_future())
        self._queue.append(one)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return await one.answer

    async def _write_all(self) -> None:
        """Write batch after batch until nobody waits."""
        try:
            while self._queue:
                await self._until(self._next_at)
                self._next_at = clock.monotonic() + self._pace_s
                await self._write(self._take())
        finally:
            self._writing = None

    async def _until(self, moment: float) -> None:
        if (wait := moment - clock.monotonic()) > 0:
            await asyncio.sleep(wait)

    def _take(self) -> list[_Asked[Call, Answer]]:
        """Take who has waited longest, as many as one transaction may serve."""
        taken: list[_Asked[Call, Answer]] = []
        weight = 0
        while self._queue:
            weight += self._work.weigh(self._queue[0].call)
            if taken and weight > self._most:
                break
            one = self._queue.popleft()
            if not one.answer.done():  # else its caller has gone
                taken.append(one)
        return taken

    async def _write(self, batch: Sequence[_Asked[Call, Answer]]) -> None:
        if not batch:
            return
        telemetry.BATCHED.labels(self._work.name).observe(len(batch))
        try:
            answers = await asyncio.to_thread(self._work.together, [one.call for one in batch])
        except StoreUnavailable as error:
            for one in batch:
                _refuse(one, StoreUnavailable(error.message))
            return
        except Exception as error:
            # One of them cannot be stored, and the database does not say which.
            _log.warning("%d %s go alone, for together they failed: %r", *self._told(batch), error)
            answers = [None] * len(batch)
        for one, answer in zip(batch, answers, strict=True):
            if answer is None:
                self._send_alone(one)
            elif not one.answer.done():
                one.answer.set_result(answer)

    def _told(self, batch: Sequence[_Asked[Call, Answer]]) -> tuple[int, str]:
        return len(batch), self._work.name

    def _send_alone(self, one: _Asked[Call, Answer]) -> None:
        if len(self._alone) >= self._room_alone:
            _refuse(one, self._overloaded(self._room_alone))
            return
        task = asyncio.create_task(self._do_alone(one))
        self._alone.add(task)
        task.add_done_callback(self._alone.discard)

    async def _do_alone(self, one: _Asked[Call, Answer]) -> None:
        async with self._lanes:
            if one.answer.done():
                return
            try:
                answer = await asyncio.to_thread(self._work.alone, one.call)
            except Exception as error:
                # Whatever it is, it is this caller's.
                _refuse(one, error)
            else:
                if not one.answer.done():
                    one.answer.set_result(answer)

    def _overloaded(self, room: int) -> Overloaded:
        return Overloaded(
            f"{room} {self._work.name} wait already", field=self._work.name, allowed="come again"
        )


def _refuse(one: _Asked[Call, Answer], error: Exception) -> None:
    if not one.answer.done():
        one.answer.set_exception(error)
