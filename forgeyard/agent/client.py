"""Speaks the agent API, version 1: protocol shapes in, protocol shapes out, our errors on failure.

Refuses to retry: the caller knows whether its lease still holds. But when an address fails, the
next call goes to the next one. Uploads and downloads have their own connections, so that a slow
transfer never holds up a renewal.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self, TypeVar, cast

import httpx
from pydantic import TypeAdapter, ValidationError

from forgeyard.addresses import Addresses
from forgeyard.errors import (
    Conflict,
    Forbidden,
    ForgeyardError,
    NotFound,
    Rejected,
    StaleRejected,
    StoreHeld,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WrongDigest,
)
from forgeyard.model.enrolment import Authorities, Awaited, Enrol, Identity, Renewal
from forgeyard.model.ids import Digest, LeaseId, SessionId
from forgeyard.model.protocol import (
    MARK_HEADER,
    Accepted,
    Assignments,
    Complete,
    CompletionAnswer,
    Heartbeat,
    HeartbeatAnswer,
    Holder,
    Progress,
    Register,
    Registered,
    Reject,
    Renew,
    RenewAnswer,
    WarmUpOutcome,
    WarmUpPlan,
)

T = TypeVar("T")
ROOT: Final = "/agent/v1"
PIECE = 2**18
SHORT = httpx.Timeout(10.0, connect=5.0)
LONG = httpx.Timeout(60.0, connect=5.0, pool=600.0)

_registered = TypeAdapter(Registered)
_heartbeat_answer = TypeAdapter(HeartbeatAnswer)
_assignments = TypeAdapter(Assignments)
_accepted = TypeAdapter(Accepted)
_renew_answer = TypeAdapter(RenewAnswer)
_completion_answer = TypeAdapter(CompletionAnswer)
_warmup_plan = TypeAdapter(WarmUpPlan)
_authorities = TypeAdapter(Authorities)
_identity = TypeAdapter(Identity)
_awaited = TypeAdapter(Awaited)
_problem_shape = TypeAdapter(dict[str, object])
_BY_STATUS: Final[dict[int, type[ForgeyardError]]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
}
_BY_CODE: Final[dict[str, type[ForgeyardError]]] = {
    kind.code: kind
    for kind in (StaleRejected, StoreHeld, WrongDigest, TooLarge, Forbidden, NotFound)
}


class AgentClient:
    """One agent's connection to the agent API, wherever it answers; use as a context manager."""

    def __init__(
        self,
        urls: Sequence[str],
        token: str = "",
        *,
        tls: ssl.SSLContext | None = None,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect with a token, or with what `tls` shows and trusts; tell of every answer."""
        self._heard = heard
        self._addresses = Addresses(urls)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._older: list[httpx.AsyncClient] = []
        self._talk, self._bulk = self._connections(tls)

    def _connections(
        self, tls: ssl.SSLContext | None
    ) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
        # Proxies and certificates come from arguments only, never from the environment.
        talk, bulk = (
            httpx.AsyncClient(
                headers=self._headers,
                timeout=timeout,
                trust_env=False,
                verify=True if tls is None else tls,
            )
            for timeout in (SHORT, LONG)
        )
        return talk, bulk

    async def show_certificate(self, tls: ssl.SSLContext) -> None:
        """Use other credentials for every request from now on; those under way may finish."""
        forgotten, self._older = self._older, [self._talk, self._bulk]
        self._talk, self._bulk = self._connections(tls)
        for client in forgotten:
            await client.aclose()

    def show(self, mark: str) -> None:
        """Show this mark of the store with every request from now on."""
        self._headers[MARK_HEADER] = mark
        for client in (self._talk, self._bulk):
            client.headers[MARK_HEADER] = mark

    async def __aenter__(self) -> Self:
        """Open nothing yet: connections are made as needed."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close every connection."""
        for client in (self._talk, self._bulk, *self._older):
            await client.aclose()

    async def authorities(self) -> Authorities:
        """Fetch what signs here; nothing of it is true before it was compared with a pin."""
        return _read(_authorities, await self._call("GET", "/authority"))

    async def enrol(self, message: Enrol) -> Identity | Awaited:
        """Ask for the first certificate; the same token and key again are harmless."""
        answer = await self._post("/enrolments", message)
        if answer.status_code == HTTPStatus.ACCEPTED:
            return _read(_awaited, answer)
        return _read(_identity, answer)

    async def renew_identity(self, message: Renewal) -> Identity:
        """Ask for the next certificate; the same key again is harmless."""
        return _read(_identity, await self._post("/identity:renew", message))

    async def register(self, message: Register) -> Registered:
        """Open a session."""
        return _read(_registered, await self._post("/sessions", message))

    async def heartbeat(self, session_id: SessionId, message: Heartbeat) -> HeartbeatAnswer:
        """Say that the session lives."""
        answer = await self._post(f"/sessions/{session_id}/heartbeat", message)
        return _read(_heartbeat_answer, answer)

    async def poll(self, session_id: SessionId, *, wait_ms: int) -> Assignments:
        """Wait for offers and cancellations, for at most `wait_ms`."""
        answer = await self._call(
            "POST",
            f"/sessions/{session_id}/poll",
            params={"wait_ms": wait_ms},
            patience=httpx.Timeout(wait_ms / 1000 + 15.0, connect=5.0),
        )
        return _read(_assignments, answer)

    async def warmup_plan(self, session_id: SessionId) -> WarmUpPlan:
        """Ask what a new machine is to have at hand.

        Raises:
            Conflict: its runner is not admitted yet.
        """
        return _read(_warmup_plan, await self._call("GET", f"/sessions/{session_id}/warmup"))

    def fetch_warm(self, session_id: SessionId, digest: Digest) -> AsyncIterator[bytes]:
        """Receive one archive of it, piece by piece; nobody has verified it yet."""
        return self._stream(f"/sessions/{session_id}/warmup/{digest}", {})

    async def warmed_up(self, session_id: SessionId, message: WarmUpOutcome) -> None:
        """Say how far that has come; saying it again is harmless."""
        await self._post(f"/sessions/{session_id}/warmup", message)

    async def close(self, session_id: SessionId) -> None:
        """End the session."""
        await self._call("DELETE", f"/sessions/{session_id}")

    async def accept(self, lease_id: LeaseId, holder: Holder) -> Accepted:
        """Take an offer; asking again is harmless."""
        return _read(_accepted, await self._post(f"/leases/{lease_id}/accept", holder))

    async def reject(self, lease_id: LeaseId, message: Reject) -> None:
        """Turn an offer down."""
        await self._post(f"/leases/{lease_id}/reject", message)

    async def progress(self, lease_id: LeaseId, message: Progress) -> None:
        """Report the next phase of an attempt."""
        await self._post(f"/leases/{lease_id}/progress", message)

    async def renew(self, message: Renew) -> RenewAnswer:
        """Keep leases alive."""
        return _read(_renew_answer, await self._post("/renewals", message))

    async def complete(self, lease_id: LeaseId, message: Complete) -> CompletionAnswer:
        """Report the end of an attempt; asking again is harmless."""
        return _read(_completion_answer, await self._post(f"/leases/{lease_id}/complete", message))

    async def log(
        self, lease_id: LeaseId, holder: Holder, *, sequence: int, step: str, data: bytes
    ) -> None:
        """Send one chunk of an attempt's log; the same sequence number again is harmless."""
        await self._call(
            "POST",
            f"/leases/{lease_id}/logs",
            params={**_holder(holder), "sequence": sequence, "step": step},
            content=data,
            bulk=True,
        )

    async def upload(
        self,
        lease_id: LeaseId,
        holder: Holder,
        *,
        name: str,
        digest: Digest,
        size: int,
        source: Path,
    ) -> None:
        """Send one output archive; the same digest again is harmless."""
        path = f"/leases/{lease_id}/outputs/{name}"
        await self._put(path, holder, digest=digest, size=size, source=source)

    async def upload_cache(
        self,
        lease_id: LeaseId,
        holder: Holder,
        *,
        name: str,
        key: Digest,
        digest: Digest,
        size: int,
        source: Path,
    ) -> None:
        """Send the archive of a cache; under one key the first one stays."""
        path = f"/leases/{lease_id}/caches/{name}/{key}"
        await self._put(path, holder, digest=digest, size=size, source=source)

    async def _put(
        self, path: str, holder: Holder, *, digest: Digest, size: int, source: Path
    ) -> None:
        with await asyncio.to_thread(source.open, "rb") as file:
            await self._call(
                "PUT",
                path,
                params={**_holder(holder), "digest": digest},
                headers={"Content-Length": str(size)},
                content=_pieces(file),
                bulk=True,
            )

    def fetch(self, lease_id: LeaseId, holder: Holder, *, digest: Digest) -> AsyncIterator[bytes]:
        """Receive one input archive, piece by piece; nobody has verified it yet."""
        return self._stream(f"/leases/{lease_id}/inputs/{digest}", _holder(holder))

    async def find_cache(
        self, lease_id: LeaseId, holder: Holder, *, name: str, key: Digest
    ) -> Digest:
        """Ask for the digest of the archive that is cached under a key.

        Raises:
            NotFound: there is none.
        """
        path = f"/leases/{lease_id}/caches/{name}/{key}"
        answer = await self._call("HEAD", path, params=_holder(holder))
        return Digest(answer.headers.get("etag", "").strip('"'))

    def fetch_cache(
        self, lease_id: LeaseId, holder: Holder, *, name: str, key: Digest
    ) -> AsyncIterator[bytes]:
        """Receive the archive of a cache, piece by piece; nobody has verified it yet."""
        return self._stream(f"/leases/{lease_id}/caches/{name}/{key}", _holder(holder))

    async def _stream(self, path: str, params: Mapping[str, str | int]) -> AsyncIterator[bytes]:
        address = self._addresses.current
        try:
            request = self._bulk.stream("GET", address + ROOT + path, params=dict(params))
            async with request as answer:
                if answer.is_error:
                    await answer.aread()
                    raise self._error(answer, address)
                async for piece in answer.aiter_bytes(PIECE):
                    yield piece
        except httpx.HTTPError as error:
            self._addresses.failed(address)
            raise _unreachable(error) from error

    async def _post(self, path: str, message: object) -> httpx.Response:
        content = _writer(cast("Hashable", type(message))).dump_json(message)
        return await self._call(
            "POST", path, content=content, headers={"Content-Type": "application/json"}
        )

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str | int] | None = None,
        headers: dict[str, str] | None = None,
        content: bytes | AsyncIterator[bytes] | None = None,
        patience: httpx.Timeout = SHORT,
        bulk: bool = False,
    ) -> httpx.Response:
        client, address = self._bulk if bulk else self._talk, self._addresses.current
        try:
            answer = await client.request(
                method,
                address + ROOT + path,
                params=params,
                headers=headers,
                content=content,
                timeout=LONG if bulk else patience,
            )
        except httpx.HTTPError as error:
            self._addresses.failed(address)
            raise _unreachable(error) from error
        if not answer.is_success:
            raise self._error(answer, address)
        self._heard()
        return answer

    def _error(self, answer: httpx.Response, address: str) -> ForgeyardError:
        """Read what went wrong; who is about to end, or cannot serve now, is not asked again."""
        error = _error(answer)
        if isinstance(error, StoreHeld):
            self._heard()
        if isinstance(error, Unavailable):
            self._addresses.failed(address)
        return error


@cache
def _writer(kind: Hashable) -> TypeAdapter[object]:
    """Build the writer of a message once: that takes longer than the request."""
    return TypeAdapter(cast("type[object]", kind))


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, PIECE):
        yield piece


def _holder(holder: Holder) -> dict[str, str | int]:
    return {"session_id": holder.session_id, "epoch": holder.epoch}


def _read(shape: TypeAdapter[T], answer: httpx.Response) -> T:
    """Decode an answer; what is not the agent API's may be a proxy's, so try again later."""
    try:
        return shape.validate_json(answer.content)
    except ValidationError as error:
        raise Unavailable(f"{answer.url}: not an answer of the agent API") from error


def _unreachable(error: httpx.HTTPError) -> Unavailable:
    return Unavailable(f"the agent API does not answer: {error or type(error).__name__}")


def _error(answer: httpx.Response) -> ForgeyardError:
    """Turn a problem+json answer back into the error that the server raised."""
    code, detail = _problem(answer)
    kind = _BY_CODE.get(code) or _BY_STATUS.get(answer.status_code)
    if kind is None:
        retryable = answer.status_code >= 500 or answer.status_code in (408, 429)
        kind = Unavailable if retryable else Rejected
    return kind(detail)


def _problem(answer: httpx.Response) -> tuple[str, str]:
    fallback = f"{answer.status_code} {answer.reason_phrase}"
    try:
        problem = _problem_shape.validate_json(answer.content)
    except ValidationError:
        return "", fallback
    return str(problem.get("code", "")), str(problem.get("detail", fallback))
