"""Carries a job's output to the server: masked, in order, in chunks, and to the last line.

What waits to be sent is bounded: while the server does not answer, a job that goes on printing is
made to wait by its full pipe. Past the log limit the rest is dropped and the job never waits.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from forgeyard.agent.masking import Masker
from forgeyard.errors import ForgeyardError
from forgeyard.model.protocol import MAX_LOG_CHUNK

CHUNK_AFTER_S = 0.2
ROOM = 8 * MAX_LOG_CHUNK
NOTES = "forgeyard"
"""The step under which the agent's own remarks appear."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of one step's output; sequence numbers count from 1 without a gap."""

    sequence: int
    step: str
    data: bytes


Send = Callable[[LogChunk], Awaitable[None]]


@dataclass(slots=True)
class _Piece:
    step: str
    data: bytearray


class LogStream:
    """The log of one attempt; `run` sends what `write` takes in."""

    def __init__(self, send: Send, *, masker: Masker, limit: int) -> None:
        self._send = send
        self._masker = masker
        self._limit = limit
        self._taken = 0
        self._waiting: list[_Piece] = []
        self._size = 0
        self._sequence = 0
        self._step = ""
        self._closing = False
        self._broken = False
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def write(self, step: str, data: bytes) -> None:
        """Take output of a step, waiting for room if the server is behind."""
        if self._taken > self._limit:
            return
        if step != self._step:
            await self.end_step()
            self._step = step
        await self._put(step, self._masker.feed(data))

    async def end_step(self) -> None:
        """Let go what was held back because a secret might have begun in it."""
        await self._put(self._step, self._masker.flush())

    async def note(self, text: str) -> None:
        """Say something in the agent's own name."""
        await self.write(NOTES, f"{text}\n".encode())
        await self.end_step()

    async def close(self) -> None:
        """Take in nothing more; `run` ends when everything is sent."""
        await self.end_step()
        self._closing = True
        self._news.set()

    async def run(self) -> None:
        """Send chunks in order until closed and empty; `send` repeats and gives up by raising."""
        try:
            while (chunk := await self._next()) is not None:
                await self._deliver(chunk)
        finally:
            self._broken = True
            self._drop()

    async def _put(self, step: str, data: bytes) -> None:
        # One byte past the limit is sent, so that the server marks the log as cut short.
        data = data[: max(0, self._limit + 1 - self._taken)]
        self._taken += len(data)
        while data and not self._broken:
            await self._room.wait()
            self._append(step, data[:MAX_LOG_CHUNK])
            data = data[MAX_LOG_CHUNK:]

    def _append(self, step: str, data: bytes) -> None:
        if self._broken:
            return
        if self._waiting and self._waiting[-1].step == step:
            self._waiting[-1].data += data
        else:
            self._waiting.append(_Piece(step, bytearray(data)))
        self._size += len(data)
        self._news.set()
        if self._size >= ROOM:
            self._room.clear()

    async def _next(self) -> LogChunk | None:
        """Wait for a full chunk, a whole step, or a moment of patience after the first byte."""
        while not self._waiting:
            if self._closing:
                return None
            self._news.clear()
            await self._news.wait()
        if not self._is_ripe():
            await self._linger()
        return self._cut()

    def _is_ripe(self) -> bool:
        first = self._waiting[0]
        return self._closing or len(self._waiting) > 1 or len(first.data) >= MAX_LOG_CHUNK

    async def _linger(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + CHUNK_AFTER_S
        while not self._is_ripe() and (left := until - loop.time()) > 0:
            self._news.clear()
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                return

    def _cut(self) -> LogChunk:
        first = self._waiting[0]
        end = min(len(first.data), MAX_LOG_CHUNK)
        is_last = self._closing or len(self._waiting) > 1
        if end < len(first.data) or not is_last:
            end = whole_characters(first.data, end)
        data = bytes(first.data[:end])
        del first.data[:end]
        if not first.data:
            self._waiting.pop(0)
        self._size -= len(data)
        if self._size < ROOM:
            self._room.set()
        self._sequence += 1
        return LogChunk(sequence=self._sequence, step=first.step, data=data)

    async def _deliver(self, chunk: LogChunk) -> None:
        try:
            await self._send(chunk)
        except ForgeyardError as error:
            # Refused for good, not for a lost lease: the job matters more than this piece.
            _log.warning("log chunk refused", sequence=chunk.sequence, error=error.message)

    def _drop(self) -> None:
        self._waiting.clear()
        self._size = 0
        self._room.set()


def whole_characters(data: bytes | bytearray, end: int) -> int:
    """Move a cut back to where it splits no UTF-8 character; `end` stays if that cannot help."""
    for back in range(1, 4):
        at = end - back
        if at <= 0:
            return end
        byte = data[at]
        if byte < 0x80 or byte >= 0xF8:
            return end
        if byte >= 0xC0:
            length = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return at if length > back else end
    return end
