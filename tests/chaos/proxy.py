"""A TCP proxy that does to a connection what networks do: delays, cuts, silence, repetition.

It stands between any two parts, in a thread of its own, and is told what to do while it runs. Bytes
are never changed or lost in the middle of a connection, for TCP would not let that happen: what is
not delivered is late, or its connection is reset. Words serve for protocols with requests, such as
HTTP: what an agent asks can be kept back, repeated, or lose its answer.
"""

import asyncio
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

CHUNK: Final = 65_536
HANG_UP_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""Closing a socket that lingers for no time sends RST instead of FIN."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Toward(StrEnum):
    """Which way bytes go; the client is whoever connects to the proxy."""

    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What is done to whatever passes from now on; by default, nothing."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    """Each chunk is late by up to so much more, as the seed draws it."""
    bytes_per_s: float = 0.0
    """In each direction of each connection; 0 is no limit."""
    silent: frozenset[Toward] = frozenset()
    """Nothing arrives that way until this ends; connections are accepted all the same."""
    refuses: bool = False
    """Whoever connects is hung up on."""
    loses: float = 0.0
    """The chance of each chunk to be lost, and its connection with it."""
    repeats: bytes = b""
    """Requests with this in them are sent once more, on a connection of their own."""
    repetitions: int = 1
    loses_answers: bytes = b""
    """Answers with this in them are lost, and their connections with them."""
    keeps_requests: bytes = b""
    """Requests with this in them wait until this ends."""
    keeps_answers_to: bytes = b""
    """Requests with this in them arrive, and their answers wait until this ends."""


@dataclass(eq=False, slots=True)
class Link:
    """One connection of a client, and ours to the server for it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    far_reader: asyncio.StreamReader
    far_writer: asyncio.StreamWriter
    down: asyncio.Task[None] | None = None
    keeps: bool = False
    """The next answer is to be kept."""

    def writers(self) -> tuple[asyncio.StreamWriter, asyncio.StreamWriter]:
        """Give both ends."""
        return self.writer, self.far_writer


@dataclass(kw_only=True)
class Proxy:
    """Carries TCP from a port of its own to a port, or a Unix socket, of this machine."""

    target: int | Path
    host: str = "127.0.0.1"
    """The address on which it listens."""
    seed: int = 1
    weather: Weather = Weather()
    counts: Counter[str] = field(default_factory=Counter)
    """How often what was done; tests look at it to see that their fault took place."""
    held: threading.Event = field(default_factory=threading.Event)
    """Set once a request or an answer is being kept."""

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        self._counted = b""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listener = socket.create_server((self.host, 0), backlog=2048)
        self._port = int(listener.getsockname()[1])
        self._server = self._do(asyncio.start_server(self._serve, sock=listener))

    @property
    def port(self) -> int:
        """Tell where clients connect."""
        return self._port

    @property
    def url(self) -> str:
        """Tell the same to clients that speak HTTP."""
        return f"http://127.0.0.1:{self.port}"

    # What a test tells it

    def let(self, **weather: Any) -> None:
        """Change some of the weather, and keep the rest."""
        self._do(self._turn(replace(self.weather, **weather)))

    def clear(self) -> None:
        """Let everything pass from now on, what was kept first."""
        self._do(self._turn(Weather()))

    def blackhole(self, *ways: Toward) -> None:
        """Let nothing arrive, one way or both, though connections stand."""
        self.let(silent=frozenset(ways or Toward))

    def drop(self) -> None:
        """Reset what stands, and refuse whoever connects."""
        self.let(refuses=True)
        self.reset()

    def reset(self) -> int:
        """Hang up on both sides of every connection with RST; return how many there were."""
        return self._do(self._reset())

    def half_close(self, way: Toward) -> None:
        """Tell whoever receives this way that nothing more will come; the other way goes on."""
        self._do(self._half_close(way))

    def keep_requests(self, word: str) -> None:
        """Let no request through that has this word in it."""
        self.held.clear()
        self.let(keeps_requests=word.encode())

    def keep_answers(self, word: str) -> None:
        """Let requests with this word through, and keep their answers."""
        self.held.clear()
        self.let(keeps_answers_to=word.encode())

    def count_answers(self, word: str) -> None:
        """Count from now on, as `counted`, the answers that have this word in them."""
        self._counted = word.encode()
        self.counts["counted"] = 0

    def close(self) -> None:
        """End every connection and the thread."""
        if self._thread.is_alive():
            self._do(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def __enter__(self) -> Self:
        """Use it for the length of a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()

    # What it does, in its own thread

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _turn(self, weather: Weather) -> None:
        self.weather = weather
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _reset(self) -> int:
        links = list(self._links)
        for link in links:
            self._hang_up(link)
        return len(links)

    async def _half_close(self, way: Toward) -> None:
        for link in self._links:
            writer = link.far_writer if way is Toward.SERVER else link.writer
            with suppress(OSError, RuntimeError):
                writer.write_eof()
                self.counts["half-closed"] += 1

    async def _close(self) -> None:
        self._server.close()
        for link in list(self._links):
            for writer in link.writers():
                writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _hang_up(self, link: Link) -> None:
        for writer in link.writers():
            _reset(writer)
        self.counts["reset"] += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts["connections"] += 1
        if self.weather.refuses:
            self.counts["refused"] += 1
            _reset(writer)
            return
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            self.counts["unreachable"] += 1
            _reset(writer)
            return
        link = Link(reader, writer, far_reader, far_writer)
        self._links.add(link)
        link.down = self._spawn(self._down(link))
        try:
            await self._up(link)
            await link.down
        finally:
            self._links.discard(link)
            for end in link.writers():
                end.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.target, Path):
            return await asyncio.open_unix_connection(self.target, limit=CHUNK)
        return await asyncio.open_connection("127.0.0.1", self.target, limit=CHUNK)

    async def _up(self, link: Link) -> None:
        """Carry what the client says."""
        with suppress(OSError):
            while data := await link.reader.read(CHUNK):
                if self._wants_requests():
                    data += await _rest_of(link.reader, data)
                await self._request(link, data)
        await self._end(link.far_writer)

    def _wants_requests(self) -> bool:
        weather = self.weather
        return bool(weather.keeps_requests or weather.keeps_answers_to or weather.repeats)

    async def _request(self, link: Link, data: bytes) -> None:
        weather = self.weather
        if weather.keeps_answers_to and weather.keeps_answers_to in data:
            link.keeps = True
        if weather.keeps_requests and weather.keeps_requests in data:
            await self._keep(lambda: bool(self.weather.keeps_requests))
            await self._reconnect(link)
        if await self._pass(link, data, Toward.SERVER):
            link.far_writer.write(data)
            await link.far_writer.drain()
        if weather.repeats and weather.repeats in data:
            for _ in range(weather.repetitions):
                self._spawn(self._repeat(data))

    async def _reconnect(self, link: Link) -> None:
        """Connect anew, for a server hangs up on whoever says nothing for so long."""
        if link.down is not None:
            link.down.cancel()
        link.far_writer.close()
        link.far_reader, link.far_writer = await self._connect()
        link.down = self._spawn(self._down(link))

    async def _repeat(self, data: bytes) -> None:
        """Send a request again; nobody hears the answer."""
        with suppress(OSError):
            reader, writer = await self._connect()
            writer.write(data)
            await writer.drain()
            self.counts["repeated"] += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(20):
                    await reader.read(CHUNK)
            writer.close()

    async def _down(self, link: Link) -> None:
        """Carry what the server says."""
        with suppress(OSError):
            while data := await link.far_reader.read(CHUNK):
                if link.keeps:
                    await self._keep(lambda: bool(self.weather.keeps_answers_to))
                    link.keeps = False
                loses = self.weather.loses_answers
                if loses and loses in data:
                    self.counts["answers lost"] += 1
                    self._hang_up(link)
                    return
                self.counts["counted"] += bool(self._counted) and self._counted in data
                if await self._pass(link, data, Toward.CLIENT):
                    link.writer.write(data)
                    await link.writer.drain()
        await self._end(link.writer)

    async def _keep(self, still: Any) -> None:
        self.counts["kept"] += 1
        self.held.set()
        while still():
            await self._changed.wait()

    async def _pass(self, link: Link, data: bytes, way: Toward) -> bool:
        """Hold a chunk up as the weather is; tell whether it is to arrive at all."""
        weather = self.weather
        if weather.loses and self._rng.random() < weather.loses:
            self.counts["lost"] += 1
            self._hang_up(link)
            return False
        delay = weather.latency_s + self._rng.uniform(0, weather.jitter_s)
        if weather.bytes_per_s:
            delay += len(data) / weather.bytes_per_s
        if delay:
            self.counts["delayed"] += 1
            await asyncio.sleep(delay)
        if way in self.weather.silent:
            self.counts[f"silenced toward {way}"] += 1
            while way in self.weather.silent:
                await self._changed.wait()
        self.counts[f"bytes toward {way}"] += len(data)
        return True

    async def _end(self, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, RuntimeError):
            writer.write_eof()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _rest_of(reader: asyncio.StreamReader, begun: bytes) -> bytes:
    """Read the rest of a request: its headers and body may come one after the other."""
    rest = b""
    while b"\r\n\r\n" not in begun + rest:
        if not (more := await reader.read(CHUNK)):
            return rest
        rest += more
    head, _, body = (begun + rest).partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    missing = int(length[1]) - len(body) if length else 0
    while missing > 0 and (more := await reader.read(min(missing, CHUNK))):
        rest += more
        missing -= len(more)
    return rest


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        sock = writer.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, HANG_UP_AT_ONCE)
    writer.transport.abort()
