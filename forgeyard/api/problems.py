"""Every answer that is not a success, in one shape: problem+json (RFC 9457).

The framework's own errors take the same shape as ours. An unexpected exception is logged with the
request's id and answered without its text.
"""

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Final, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import TypeAdapter
from sqlalchemy import exc
from starlette.exceptions import HTTPException

from forgeyard.errors import ForgeyardError, InvalidRequest, Unavailable, shortened
from forgeyard.redaction import redacted

MEDIA_TYPE: Final = "application/problem+json"
REQUEST_ID: Final = "X-Request-Id"

UNSTORABLE: Final = (exc.DataError, UnicodeEncodeError, OverflowError)
"""What the databases raise for NUL characters, lone surrogates and numbers beyond 64 bits."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What went wrong; `code` is stable, `field`, `value` and `allowed` say how to mend it."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    value: str | None = None
    allowed: str | None = None
    request_id: str | None = None


DOCUMENTED: Final[dict[int | str, dict[str, object]]] = {
    "default": {
        "description": "Any error, as problem+json.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
"""The error answer of every route, for the OpenAPI document."""


def problem_schema() -> dict[str, object]:
    """Describe a problem, for the OpenAPI document."""
    return TypeAdapter(Problem).json_schema()


def install(app: FastAPI) -> None:
    """Answer every error of this application as a problem."""
    app.add_exception_handler(ForgeyardError, _on_ours)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    for kind in UNSTORABLE:
        app.add_exception_handler(kind, _on_unstorable)
    app.add_exception_handler(Exception, _on_unexpected)


def refusal(error: ForgeyardError, request_id: str | None) -> Response:
    """Answer one of our own errors."""
    kind = type(error)
    headers: dict[str, str] = {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = "1"
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return _answer(
        _problem(
            code=error.code,
            title=_title(kind),
            status=error.status,
            detail=error.message,
            field=error.field,
            value=error.value,
            allowed=error.allowed,
            request_id=request_id,
        ),
        headers,
    )


def request_id(request: Request) -> str | None:
    """Read the id that the outermost layer gave to this request."""
    value: object = request.scope.get("state", {}).get("request_id")
    return value if isinstance(value, str) else None


def _title(kind: type[ForgeyardError]) -> str:
    promise = inspect.getdoc(kind) or kind.code
    return promise.split(".")[0].split(";")[0]


def _problem(
    *,
    code: str,
    title: str,
    status: int,
    detail: str,
    field: str | None = None,
    value: str | None = None,
    allowed: str | None = None,
    request_id: str | None,
) -> Problem:
    return Problem(
        type=f"urn:forgeyard:problem:{code}",
        title=title,
        status=status,
        detail=redacted(detail),
        code=code,
        field=field,
        value=value,
        allowed=allowed,
        request_id=request_id,
    )


def _answer(problem: Problem, headers: Mapping[str, str]) -> Response:
    with_id = {REQUEST_ID: problem.request_id} if problem.request_id else {}
    # What was given may hold lone surrogates, which no answer can carry.
    said = {
        name: value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
        for name, value in asdict(problem).items()
    }
    return JSONResponse(
        said,
        status_code=problem.status,
        media_type=MEDIA_TYPE,
        headers={**headers, **with_id},
    )


async def _on_ours(request: Request, error: Exception) -> Response:
    if not isinstance(error, ForgeyardError):
        return await _on_unexpected(request, error)
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("%s %s: %s", request_id(request), error.code, error.message)
    return refusal(error, request_id(request))


async def _on_invalid(request: Request, error: Exception) -> Response:
    """Name the first field that does not have the promised shape."""
    first = _first_fault(error)
    parts = [str(part) for part in cast("Sequence[object]", first.get("loc") or ())]
    field = ".".join(parts[1:] if parts[:1] == ["body"] else parts)
    message = str(first.get("msg", "the request does not have the promised shape"))
    return _answer(
        _problem(
            code="request.invalid",
            title="A request does not have the promised shape",
            status=HTTPStatus.UNPROCESSABLE_ENTITY,
            detail=f"{field}: {message}" if field else message,
            field=field or None,
            value=_scalar(first.get("input")),
            request_id=request_id(request),
        ),
        {},
    )


def _first_fault(error: Exception) -> Mapping[str, object]:
    faults: Sequence[Mapping[str, object]] = (
        error.errors() if isinstance(error, RequestValidationError) else ()
    )
    return faults[0] if faults else dict[str, object]()


def _scalar(value: object) -> str | None:
    """Print a value only where that cannot recurse."""
    return shortened(value) if isinstance(value, str | int | float | bool) else None


async def _on_http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return await _on_unexpected(request, error)
    code = {
        HTTPStatus.NOT_FOUND: "route.not_found",
        HTTPStatus.METHOD_NOT_ALLOWED: "route.method_not_allowed",
        HTTPStatus.BAD_REQUEST: "request.malformed",
    }.get(HTTPStatus(error.status_code), f"http.{error.status_code}")
    return _answer(
        _problem(
            code=code,
            title=HTTPStatus(error.status_code).phrase,
            status=error.status_code,
            detail=str(error.detail),
            request_id=request_id(request),
        ),
        error.headers or {},
    )


async def _on_unstorable(request: Request, error: Exception) -> Response:
    _log.warning("%s %s: %r", request_id(request), request.url.path, error)
    refused = InvalidRequest(
        "a value in this request cannot be stored",
        allowed="text without NUL characters and lone surrogates, numbers of 64 bits",
    )
    return refusal(refused, request_id(request))


async def _on_unexpected(request: Request, error: Exception) -> Response:
    _log.error(
        "%s %s %s failed", request_id(request), request.method, request.url.path, exc_info=error
    )
    return _answer(
        _problem(
            code="forgeyard.internal",
            title="A bug of ours",
            status=HTTPStatus.INTERNAL_SERVER_ERROR,
            detail="an unexpected error; the server's log names it under this request id",
            request_id=request_id(request),
        ),
        {},
    )
