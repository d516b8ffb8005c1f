"""Speaks HTTP with the public API: answers become typed shapes, problems become our own errors.

Of several addresses one is used until it fails. What did not reach it goes to the next at once; so
does a question whose answer broke off, but never a change that may have been made.
"""

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar, cast
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from forgeyard import errors
from forgeyard.addresses import Addresses
from forgeyard.cli.endpoint import Endpoint
from forgeyard.errors import Corrupt, ForgeyardError, InvalidRequest, NotFound, Unavailable

Shape = TypeVar("Shape")
CHUNK: Final = 256 * 2**10
CONNECT_S: Final = 5.0
READ_S: Final = 60.0
"""Longer than the longest poll that the API offers."""
LARGEST_PROBLEM: Final = 64 * 2**10
NOT_FOUND: Final = 404
OUR_FAULT: Final = 500
QUESTIONS: Final = frozenset({"GET", "HEAD"})
AWAY: Final = frozenset({502, 503, 504})
_UNREACHED: Final = (httpx.ConnectError, httpx.ConnectTimeout)
_BROKEN: Final = (httpx.NetworkError, httpx.RemoteProtocolError)

_BY_STATUS: Final[dict[int, type[ForgeyardError]]] = {
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.TooLarge,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}


class Client:
    """One connection to the API; use as a context manager."""

    def __init__(self, endpoint: Endpoint, *, transport: httpx.BaseTransport | None = None) -> None:
        self._addresses = Addresses(endpoint.urls)
        self._http = httpx.Client(
            headers={**endpoint.authorization, "User-Agent": "forgeyard-cli"},
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
            transport=transport,
            # Reading the host's certificates takes longer than most commands; http needs none.
            verify=endpoint.is_encrypted,
            # A proxy for the outside world must not see what goes to this host.
            trust_env=not endpoint.is_local,
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **params: str | int | None) -> object:
        """Read something."""
        given = {name: value for name, value in params.items() if value is not None}
        return self._json("GET", path, params=given)

    def post(
        self, path: str, body: Mapping[str, object], *, idempotency_key: str | None = None
    ) -> object:
        """Ask for a change; with a key it is safe to ask again."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._json("POST", path, content=json.dumps(body), headers=headers)

    def put(self, path: str, body: Mapping[str, object]) -> object:
        """Put something where it may be already."""
        return self._json("PUT", path, content=json.dumps(body))

    def has_blob(self, digest: str) -> bool:
        """Tell whether the server has these bytes already."""
        response = self._send("HEAD", f"/v1/blobs/{digest}")
        if response.status_code == NOT_FOUND:
            return False
        self._check(response)
        return True

    def put_blob(self, digest: str, size: int, content: Iterable[bytes]) -> None:
        """Upload bytes under their digest."""
        response = self._send(
            "PUT",
            f"/v1/blobs/{digest}",
            content=content,
            headers={"Content-Length": str(size), "Content-Type": "application/octet-stream"},
        )
        self._check(response)

    @contextmanager
    def download(self, path: str) -> Generator[tuple[int | None, Iterator[bytes]]]:
        """Stream an answer: its size, if the server says so, and its bytes."""
        address = self._addresses.current
        with self._translated(address), self._http.stream("GET", address + path) as response:
            if response.is_error:
                response.read()
            self._check(response)
            size = response.headers.get("Content-Length", "")
            yield int(size) if size.isdecimal() else None, response.iter_raw(CHUNK)

    def _json(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        content: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> object:
        sent = dict(headers or {})
        if content is not None:
            sent["Content-Type"] = "application/json"
        response = self._send(method, path, params=params, content=content, headers=sent)
        self._check(response)
        if not response.content:
            return None
        try:
            return cast("object", response.json())
        except ValueError:
            said = f"{response.url} does not answer with JSON; is it Forgeyard?"
            raise Corrupt(said) from None

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        content: str | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Ask one address after the other, once each, until one can be reached."""
        *others, last = self._addresses.in_turn()
        for address in (*others, last):
            with self._translated(address):
                try:
                    answer = self._http.request(
                        method, address + path, params=params, content=content, headers=headers
                    )
                except httpx.TransportError as error:
                    self._addresses.failed(address)
                    if address == last or not _may_repeat(method, error):
                        raise
                    continue
            if answer.status_code in AWAY:
                self._addresses.failed(address)
            return answer
        raise AssertionError("the last address answers or raises")

    def _check(self, response: httpx.Response) -> None:
        if not response.is_success:
            raise problem(response.status_code, response.content)

    @contextmanager
    def _translated(self, address: str) -> Generator[None]:
        """Turn the transport's errors into ours."""
        try:
            yield
        except httpx.TimeoutException as error:
            raise Unavailable(f"{address} does not answer in time", field="url") from error
        except httpx.ConnectError as error:
            raise Unavailable(
                f"nothing answers at {address}",
                field="url",
                value=address,
                allowed="start it with `forgeyard up`, or name another with --url",
            ) from error
        except httpx.HTTPError as error:
            raise Unavailable(f"the connection to {address} broke: {error}", field="url") from error


def _may_repeat(method: str, error: httpx.TransportError) -> bool:
    """Tell whether asking somebody else can do no harm."""
    return isinstance(error, _UNREACHED) or (method in QUESTIONS and isinstance(error, _BROKEN))


def path_of(*parts: str) -> str:
    """Build a path out of names that may have been typed by anybody.

    Raises:
        InvalidRequest: a name is empty or would be taken for another path.
    """
    for part in parts:
        if part.strip() in ("", ".", ".."):
            raise InvalidRequest(f"{part!r} is no name", field="name", value=part)
    return "/" + "/".join(quote(part, safe="") for part in parts)


def shaped(kind: type[Shape], answer: object) -> Shape:
    """Read an answer into a shape; what the shape does not name is ignored.

    Raises:
        Corrupt: the server speaks another version of the API.
    """
    try:
        return TypeAdapter(kind).validate_python(answer)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Corrupt(
            f"the server's answer has another shape than expected: {where}: {first['msg']}",
            field=where,
            allowed="a server of the same version",
        ) from error


def problem(status: int, body: bytes) -> ForgeyardError:
    """Make the typed error that a problem+json body stands for, by its code."""
    said = _read_problem(body)
    code = said.get("code", "")
    kind = _kinds().get(code) or _BY_STATUS.get(status) or _by_class(status)
    message = said.get("detail") or said.get("title") or f"the server answered {status}"
    error = kind(
        message, field=said.get("field"), value=said.get("value"), allowed=said.get("allowed")
    )
    if said.get("request_id"):
        error.add_note(f"request {said['request_id']}")
    return error


def _by_class(status: int) -> type[ForgeyardError]:
    return errors.Corrupt if status >= OUR_FAULT else errors.Rejected


def _read_problem(body: bytes) -> dict[str, str]:
    try:
        found: object = json.loads(body[:LARGEST_PROBLEM])
    except (ValueError, RecursionError):
        return {}
    entries = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    return {name: value for name, value in entries.items() if isinstance(value, str)}


def _kinds() -> dict[str, type[ForgeyardError]]:
    """Index our errors by code."""
    found: dict[str, type[ForgeyardError]] = {}
    waiting: list[type[ForgeyardError]] = [ForgeyardError]
    while waiting:
        kind = waiting.pop()
        found.setdefault(kind.code, kind)
        waiting.extend(kind.__subclasses__())
    return found


def missing(what: str, value: str, known: Iterable[str]) -> NotFound:
    """Say that something named does not exist, and what does."""
    return NotFound(
        f"there is no {what} {value!r}",
        field=what,
        value=value,
        allowed=", ".join(known) or "none exists",
    )
