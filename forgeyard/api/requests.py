"""What happens to a request before any route sees it: it gets an id, and its body a bound.

A body is read whole, up to the limit, before anything parses it. Only the paths named as streams
get theirs in pieces; their routes count for themselves.
"""

import asyncio
import re
from collections.abc import Callable, Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forgeyard.api.problems import REQUEST_ID, refusal
from forgeyard.errors import ForgeyardError, InvalidRequest, TooLarge

BODY_TIMEOUT_S = 30.0
DRAIN_FACTOR = 4
"""How much of a refused body is read away, so that its sender gets to read the refusal."""

_ACCEPTABLE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIds:
    """Give every request an id, the caller's if it is well-formed, and send it back."""

    def __init__(self, app: ASGIApp, *, draw: Callable[[], str]) -> None:
        self._app = app
        self._draw = draw

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Put the id into the request's state and into the answer's headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if _ACCEPTABLE_ID.fullmatch(given) else self._draw()
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class BodyLimit:
    """Read a body before any route does, and refuse one that is too large or too slow."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limit: int,
        streams: Collection[re.Pattern[str]] = (),
        timeout_s: float = BODY_TIMEOUT_S,
    ) -> None:
        self._app = app
        self._limit = limit
        self._streams = tuple(streams)
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its whole body, or answer 413 or 408."""
        if scope["type"] != "http" or self._is_stream(scope):
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(scope, receive)
        except TimeoutError:
            await self._refuse(_TooSlow("the body did not arrive in time"), scope, receive, send)
        except TooLarge as error:
            await self._refuse(error, scope, receive, send)
        else:
            if body is not None:
                await self._app(scope, _replay(body, receive), send)

    def _is_stream(self, scope: Scope) -> bool:
        return scope["method"] == "PUT" and any(
            path.fullmatch(scope["path"]) for path in self._streams
        )

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Collect the body; nothing if the caller has gone."""
        declared = Headers(scope=scope).get("content-length", "0")
        size = int(declared) if declared.isdigit() and len(declared) < 20 else self._limit + 1
        pieces: list[bytes] = []
        received = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            piece: bytes = message.get("body", b"")
            received += len(piece)
            more = bool(message.get("more_body", False))
            if max(size, received) <= self._limit:
                pieces.append(piece)
            elif not more or received > self._limit * DRAIN_FACTOR:
                raise self._too_large(max(size, received))
            if not more:
                return b"".join(pieces)

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge(
            f"the body is larger than {self._limit} bytes",
            field="body",
            value=f"at least {size}",
            allowed=f"at most {self._limit} bytes",
        )

    async def _refuse(
        self, error: ForgeyardError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        await refusal(error, scope["state"].get("request_id"))(scope, receive, send)


class _TooSlow(InvalidRequest):
    """A body takes too long to arrive."""

    code = "request.too_slow"
    status = 408


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hand out the body once, then whatever really comes next."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_message
