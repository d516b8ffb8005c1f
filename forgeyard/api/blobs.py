"""Blobs by digest: a run's source goes in here before the run is submitted."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen
from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import run_in_threadpool

from forgeyard.api.callers import RunSubmitter
from forgeyard.api.dependencies import ApiDependencies, Deps
from forgeyard.errors import NotFound
from forgeyard.store import blobs
from forgeyard.store.engine import write

router = APIRouter(prefix="/v1/blobs", tags=["blobs"])
DigestPath = Annotated[str, Path(pattern=r"^sha256:[0-9a-f]{64}$"), MaxLen(71)]
BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
"""Documents a raw body that the route reads in pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A blob that is in the store."""

    digest: str
    size: int


@router.put("/{digest}", status_code=201, openapi_extra=BODY)
async def put_blob(digest: DigestPath, request: Request, deps: Deps, who: RunSubmitter) -> Stored:
    """Store bytes under their digest; storing them again is harmless."""
    size = await request.app.state.uploads.receive(
        request, deps, digest=digest, limit=deps.config.limits.source
    )
    if who.tenant_id is not None:
        await run_in_threadpool(_own, deps, digest, who.tenant_id)
    return Stored(digest=digest, size=size)


def _own(deps: ApiDependencies, digest: str, tenant_id: str) -> None:
    """A tenant may use the bytes that it has shown to have; that they are here tells it nothing."""
    with write(deps.engine) as connection:
        blobs.own(connection, digest, tenant_id)


@router.head("/{digest}", response_class=Response)
def has_blob(digest: DigestPath, deps: Deps, who: RunSubmitter) -> Response:
    """Tell whether a blob is stored, and how large it is; then it stays for at least an hour."""
    # Whoever asks is about to submit a run with it instead of sending it again.
    with write(deps.engine) as connection:
        is_theirs = blobs.is_owned(connection, digest, who.tenant_id)
        size = blobs.touch(connection, digest) if is_theirs else None
    if size is None or not deps.blobs.exists(digest):
        raise NotFound("no such blob", field="digest", value=digest)
    return Response(headers={"Content-Length": str(size), "ETag": f'"{digest}"'})
