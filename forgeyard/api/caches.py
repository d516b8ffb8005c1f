"""Dependency caches of a lease: looked up, sent and kept, only for its holder and trust class."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from forgeyard.api.blobs import BODY
from forgeyard.api.dependencies import ApiDependencies, Deps
from forgeyard.api.leases import LeasePath
from forgeyard.api.payloads import HolderQuery, NamePath
from forgeyard.api.transfers import download, read_away
from forgeyard.errors import ForgeyardError, NotFound
from forgeyard.model.protocol import Holder
from forgeyard.store import caches
from forgeyard.store.caches import Entry
from forgeyard.store.engine import read, write
from forgeyard.store.leases import holder_of

router = APIRouter(prefix="/agent/v1/leases/{lease_id}/caches", tags=["caches"])
KeyPath = Annotated[str, Path(pattern=r"^sha256:[0-9a-f]{64}$")]


@router.head("/{name}/{key}", response_class=Response)
def find_cache(
    lease_id: LeasePath, name: NamePath, key: KeyPath, holder: HolderQuery, deps: Deps
) -> Response:
    """Tell what is cached under a key: its ETag is the digest; it stays for at least an hour."""
    digest = _find(deps, lease_id, holder, name, key).digest
    size = str(deps.blobs.size(digest))
    return Response(headers={"Content-Length": size, "ETag": f'"{digest}"'})


@router.get("/{name}/{key}", response_class=Response)
def get_cache(
    lease_id: LeasePath,
    name: NamePath,
    key: KeyPath,
    holder: HolderQuery,
    request: Request,
    deps: Deps,
) -> Response:
    """Send what is cached under a key; what turns out to be damaged is forgotten."""
    entry = _find(deps, lease_id, holder, name, key)
    return download(
        request,
        deps.blobs.open(entry.digest),
        digest=entry.digest,
        size=deps.blobs.size(entry.digest),
        media_type="application/gzip",
        name="cache.tar.gz",
        damaged=lambda: _drop(deps, entry),
    )


@router.put("/{name}/{key}", status_code=204, openapi_extra=BODY)
async def put_cache(
    lease_id: LeasePath,
    name: NamePath,
    key: KeyPath,
    holder: HolderQuery,
    digest: Annotated[str, Query(pattern=r"^sha256:[0-9a-f]{64}$")],
    request: Request,
    deps: Deps,
) -> None:
    """Keep an archive under a key; if there is one already, that one stays and this is as good."""
    try:
        await run_in_threadpool(_check, deps, lease_id, holder, name)
    except ForgeyardError:
        await read_away(request)
        raise
    size = await request.app.state.uploads.receive(
        request, deps, digest=digest, limit=deps.config.limits.output
    )
    await run_in_threadpool(_record, deps, lease_id, holder, name, key, digest, size)


def _find(deps: ApiDependencies, lease_id: str, holder: Holder, name: str, key: str) -> Entry:
    """Find an entry and its bytes; one whose bytes are gone is forgotten.

    Raises:
        NotFound: there is none.
    """
    with write(deps.engine) as connection:
        lease = holder_of(connection, lease_id, holder)
        entry = caches.find(connection, lease, name, key)
    if entry is not None and not deps.blobs.exists(entry.digest):
        _drop(deps, entry)
        entry = None
    if entry is None:
        raise NotFound("nothing is cached under this key", field="key", value=key)
    return entry


def _drop(deps: ApiDependencies, entry: Entry) -> None:
    with write(deps.engine) as connection:
        caches.drop(connection, entry)


def _check(deps: ApiDependencies, lease_id: str, holder: Holder, name: str) -> None:
    """Refuse a stranger and an undeclared name before a byte is stored."""
    with read(deps.engine) as connection:
        caches.check_declared(connection, holder_of(connection, lease_id, holder), name)


def _record(
    deps: ApiDependencies,
    lease_id: str,
    holder: Holder,
    name: str,
    key: str,
    digest: str,
    size: int,
) -> None:
    with write(deps.engine) as connection:
        lease = holder_of(connection, lease_id, holder)
        caches.record(connection, lease, name, key, digest, size)
