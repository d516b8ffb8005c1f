"""Very many agents in one process: they speak the agent protocol, and run nothing."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import TypeAdapter

from forgeyard.agent.backoff import BackOff
from forgeyard.model.protocol import Heartbeat, Register
from tests.builders import a_registration

PATIENCE_S: Final = 10.0
"""How long an agent waits for an answer before it gives up on it."""
ROOT: Final = "/agent/v1/sessions"
BROKEN: Final = "connection broken"
"""What becomes of a request when nobody is there to answer it."""
_register, _heartbeat = TypeAdapter(Register), TypeAdapter(Heartbeat)


@dataclass(kw_only=True)
class Tally:
    """What became of every request."""

    answers: Counter[str] = field(default_factory=Counter)
    heartbeats_s: list[float] = field(default_factory=list)
    """How long each heartbeat took that was answered, from when there was somebody to answer it."""
    delays_s: list[float] = field(default_factory=list)
    """How long agents waited before they tried again."""

    def slowest(self, percent: int) -> float:
        """Tell how long all heartbeats took but for the slowest few per cent."""
        ordered = sorted(self.heartbeats_s)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


class Unanswered(Exception):
    """A request came to nothing; the agent backs off."""


@dataclass(kw_only=True)
class Agent:
    """One agent: a session, its heartbeats and its long poll, each on a connection of its own."""

    name: str
    port: int
    token: str
    tally: Tally
    rng: random.Random
    session_id: str = ""
    every_s: float = 0.0

    async def live(self) -> None:
        """Register, then say again and again that it lives; register anew if it is told to."""
        while True:
            talk, listen = Line(self), Line(self)
            wanted = replace(a_registration(self.name), key=f"{self.rng.random()}")
            message = _register.dump_json(wanted)
            said = await self._insist(talk, ROOT, message, "registered")
            self.session_id, self.every_s = said["session_id"], said["heartbeat_every"] / 1_000
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._beat(talk))
                    tasks.create_task(self._poll(listen))
            except* LookupError:
                self.tally.answers["session lost"] += 1
            finally:
                talk.close()
                listen.close()

    async def _beat(self, line: "Line") -> None:
        path, message = f"{ROOT}/{self.session_id}/heartbeat", _heartbeat.dump_json(Heartbeat())
        while True:
            await self._insist(line, path, message, "heartbeat")
            await asyncio.sleep(self.every_s)

    async def _poll(self, line: "Line") -> None:
        while True:
            await self._insist(line, f"{ROOT}/{self.session_id}/poll?wait_ms=5000", b"", "poll")

    async def _insist(self, line: "Line", path: str, body: bytes, what: str) -> dict[str, Any]:
        """Ask until there is an answer, backing off as agents do."""
        back_off, began = BackOff(longest=15.0, rng=self.rng), time.monotonic()
        while True:
            try:
                answer = await line.ask(path, body)
            except Unanswered as error:
                self.tally.answers[str(error)] += 1
                delay = back_off.delay()
                self.tally.delays_s.append(delay)
                await asyncio.sleep(delay)
                if str(error) == BROKEN:
                    began = time.monotonic()
            else:
                self.tally.answers[what] += 1
                if what == "heartbeat":
                    self.tally.heartbeats_s.append(time.monotonic() - began)
                return answer


class Line:
    """A connection that is opened when it is needed, and opened anew when it broke."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: bytes) -> dict[str, Any]:
        """Post a message; return the answer.

        Raises:
            Unanswered: there was none in time, or the server says that it cannot now.
            LookupError: the session has ended.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                status, head, answer = await self._exchange(path, body)
        except TimeoutError:
            self.close()
            raise Unanswered("timed out") from None
        except (OSError, EOFError):
            self.close()
            raise Unanswered(BROKEN) from None
        if status in (429, 503):
            told = "with" if b"retry-after:" in head.lower() else "WITHOUT"
            raise Unanswered(f"{status} {told} Retry-After")
        if status in (404, 409):
            raise LookupError(answer)
        if status >= 300:
            raise Unanswered(f"{status}")
        return json.loads(answer) if answer else {}

    async def _exchange(self, path: str, body: bytes) -> tuple[int, bytes, bytes]:
        if self._ends is None:
            self._ends = await asyncio.open_connection("127.0.0.1", self._agent.port)
        reader, writer = self._ends
        head = (
            f"POST {path} HTTP/1.1\r\nHost: forgeyard\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self._agent.token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        head_bytes = await reader.readuntil(b"\r\n\r\n")
        fields = head_bytes.lower().split(b"\r\n")
        lengths = [int(one.split(b":")[1]) for one in fields if one.startswith(b"content-length:")]
        answer = await reader.readexactly(lengths[0] if lengths else 0)
        if b"connection: close" in fields:
            self.close()
        return int(head_bytes.split(b" ", 2)[1]), head_bytes, answer

    def close(self) -> None:
        """Hang up."""
        if self._ends is not None:
            with suppress(RuntimeError):
                self._ends[1].close()
            self._ends = None


async def living(agents: Sequence[Agent], within: "asyncio.Task[Any]") -> None:
    """Let agents live side by side until a task has ended."""
    lives = [asyncio.ensure_future(agent.live()) for agent in agents]
    try:
        await asyncio.wait((within, *lives), return_when=asyncio.FIRST_COMPLETED)
        await within
    finally:
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)
