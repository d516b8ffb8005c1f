"""Blobs in and out, in bounded memory whatever their size.

An upload writes in a thread of its own small pool, so that slow senders can only wait for each
other; it pulls each piece from the event loop when the last one is on disk.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import BinaryIO, Final

from anyio import CapacityLimiter, from_thread, to_thread
from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect

from forgeyard.api.dependencies import ApiDependencies
from forgeyard.errors import ForgeyardError, InvalidRequest, TooLarge, WrongDigest
from forgeyard.store import blobs
from forgeyard.store.engine import write

UPLOADS_AT_ONCE: Final = 16
IDLE_S: Final = 60.0
READ_AWAY: Final = 8 * 2**20
READ_AWAY_S: Final = 2.0
PIECE: Final = 256 * 1024


class Uploads:
    """Receive request bodies into the blob store, only so many at once."""

    def __init__(self, at_once: int = UPLOADS_AT_ONCE) -> None:
        self._limiter = CapacityLimiter(at_once)

    async def receive(
        self, request: Request, deps: ApiDependencies, *, digest: str, limit: int
    ) -> int:
        """Store the body of a request under its digest, record it, and return its size.

        Raises:
            TooLarge: it is larger than `limit`; known from its header, or on the way.
            WrongDigest: it does not hash to `digest`.
            InvalidRequest: it broke off, or stood still for too long.
        """
        try:
            self._check_declared(request, limit)
            return await self._store(request, deps, digest=digest, limit=limit)
        except ForgeyardError:
            await read_away(request)
            raise

    def _check_declared(self, request: Request, limit: int) -> None:
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared[:20]) > limit:
            raise TooLarge(
                f"the upload is larger than {limit} bytes",
                field="body",
                value=declared,
                allowed=f"at most {limit} bytes",
            )

    async def _store(
        self, request: Request, deps: ApiDependencies, *, digest: str, limit: int
    ) -> int:
        pieces = _pieces(request.stream())
        return await to_thread.run_sync(
            lambda: _keep(deps, pieces, digest=digest, limit=limit), limiter=self._limiter
        )


async def read_away(request: Request) -> None:
    """Read on for a bounded while, so that the sender of a refused upload gets to read why."""
    left = READ_AWAY
    with contextlib.suppress(ClientDisconnect, RuntimeError, TimeoutError):
        async with asyncio.timeout(READ_AWAY_S):
            async for piece in request.stream():
                left -= len(piece)
                if left <= 0:
                    return


def _keep(deps: ApiDependencies, pieces: Iterator[bytes], *, digest: str, limit: int) -> int:
    size = deps.blobs.put(pieces, digest=digest, limit=limit)
    with write(deps.engine) as connection:
        blobs.record(connection, digest, size)
    return size


def _pieces(stream: AsyncIterator[bytes]) -> Iterator[bytes]:
    """Pull an asynchronous stream from a worker thread."""
    while True:
        piece = from_thread.run(_next, stream)
        if piece is None:
            return
        yield piece


async def _next(stream: AsyncIterator[bytes]) -> bytes | None:
    try:
        async with asyncio.timeout(IDLE_S):
            return await anext(stream)
    except StopAsyncIteration:
        return None
    except ClientDisconnect:
        raise InvalidRequest("the upload broke off", field="body") from None
    except TimeoutError:
        raise InvalidRequest("the upload stood still for too long", field="body") from None


def _nothing() -> None:
    """Leave a damaged blob to whoever looks after the store."""


def download(
    request: Request,
    file: BinaryIO,
    *,
    digest: str,
    size: int,
    media_type: str,
    name: str,
    damaged: Callable[[], None] = _nothing,
) -> Response:
    """Send a blob; its digest is its ETag, so a caller who has it already gets nothing.

    `damaged` is called when the bytes turn out to be others; the caller never gets the last ones.
    """
    headers = {
        "ETag": f'"{digest}"',
        "Cache-Control": "private, max-age=31536000, immutable",
        "Content-Disposition": f'attachment; filename="{name}"',
    }
    if f'"{digest}"' in request.headers.get("if-none-match", ""):
        file.close()
        return Response(status_code=304, headers=headers)
    return StreamingResponse(
        _read(file, damaged),
        media_type=media_type,
        headers={**headers, "Content-Length": str(size)},
    )


def _read(file: BinaryIO, damaged: Callable[[], None]) -> Iterator[bytes]:
    with file:
        try:
            while piece := file.read(PIECE):
                yield piece
        except WrongDigest:
            damaged()
            raise
