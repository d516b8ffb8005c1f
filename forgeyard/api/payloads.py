"""The bytes of a lease: logs and outputs come in, inputs go out, and only for its holder."""

from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from forgeyard.api.blobs import BODY, DigestPath
from forgeyard.api.callers import Caller
from forgeyard.api.dependencies import ApiDependencies, Deps
from forgeyard.api.leases import LeasePath
from forgeyard.api.transfers import download, read_away
from forgeyard.errors import Forbidden, ForgeyardError, TooLarge
from forgeyard.model.ids import SessionId
from forgeyard.model.protocol import MAX_LOG_CHUNK, Holder
from forgeyard.store import artifacts, changes, logs, tables
from forgeyard.store.changes import JOB, RUN, Row
from forgeyard.store.engine import read, write
from forgeyard.store.leases import holder_of

router = APIRouter(prefix="/agent/v1/leases/{lease_id}", tags=["payloads"])


async def _holder(
    session_id: Annotated[str, Query(max_length=64)],
    epoch: Annotated[int, Query(ge=1, lt=2**63)],
    caller: Caller,
) -> Holder:
    """Read who holds the lease; who names another runner's session is turned away."""
    await caller.demand_soon(session_id)
    return Holder(session_id=SessionId(session_id), epoch=epoch)


async def _chunk(request: Request) -> bytes:
    """Read a log chunk; the body limit has bounded it already."""
    data = await request.body()
    if len(data) > MAX_LOG_CHUNK:
        raise TooLarge(
            "the log chunk is too large",
            field="body",
            value=len(data),
            allowed=f"at most {MAX_LOG_CHUNK} bytes",
        )
    return data


HolderQuery = Annotated[Holder, Depends(_holder)]
NamePath = Annotated[str, Path(max_length=64)]


@router.post("/logs", status_code=204, openapi_extra=BODY)
def append_log(
    lease_id: LeasePath,
    holder: HolderQuery,
    sequence: Annotated[int, Query(ge=0, lt=2**53)],
    data: Annotated[bytes, Depends(_chunk)],
    deps: Deps,
    step: Annotated[str, Query(max_length=200)] = "",
) -> None:
    """Append one chunk of output; the same sequence number again is harmless."""
    with write(deps.engine) as connection:
        lease = holder_of(connection, lease_id, holder)
        logs.append(
            connection,
            lease["attempt_id"],
            sequence,
            step,
            data,
            limit=deps.config.limits.log_per_attempt,
        )


@router.put("/outputs/{name}", status_code=204, openapi_extra=BODY)
async def put_output(
    lease_id: LeasePath,
    name: NamePath,
    holder: HolderQuery,
    digest: Annotated[str, Query(pattern=r"^sha256:[0-9a-f]{64}$")],
    request: Request,
    deps: Deps,
) -> None:
    """Store the archive of a declared output; the same digest again is harmless."""
    try:
        await run_in_threadpool(_check_output, deps, lease_id, holder, name)
    except ForgeyardError:
        await read_away(request)
        raise
    size = await request.app.state.uploads.receive(
        request, deps, digest=digest, limit=deps.config.limits.output
    )
    await run_in_threadpool(_record_output, deps, lease_id, holder, name, digest, size)


def _check_output(deps: ApiDependencies, lease_id: str, holder: Holder, name: str) -> None:
    """Refuse a stranger and an undeclared name before a byte is stored."""
    with read(deps.engine) as connection:
        lease = holder_of(connection, lease_id, holder)
        artifacts.declared_path(connection, lease, name)


def _record_output(
    deps: ApiDependencies, lease_id: str, holder: Holder, name: str, digest: str, size: int
) -> None:
    with write(deps.engine) as connection:
        lease = holder_of(connection, lease_id, holder)
        path = artifacts.declared_path(connection, lease, name)
        artifacts.record(connection, lease, name, path, digest, size)


@router.get("/inputs/{digest}", response_class=Response)
def get_input(
    lease_id: LeasePath, digest: DigestPath, holder: HolderQuery, request: Request, deps: Deps
) -> Response:
    """Send one of the archives that this lease's job starts from, and no other blob."""
    with read(deps.engine) as connection:
        lease = holder_of(connection, lease_id, holder)
        if not _is_input(connection, lease, digest):
            raise Forbidden("not an input of this lease", field="digest", value=digest)
    file = deps.blobs.open(digest)
    return download(
        request,
        file,
        digest=digest,
        size=deps.blobs.size(digest),
        media_type="application/gzip",
        name="input.tar.gz",
    )


def _is_input(connection: sa.Connection, lease: Row, digest: str) -> bool:
    """Tell whether a blob is the run's source, or an output of a job that this one needs."""
    job = changes.find(connection, JOB, lease["job_id"])
    if changes.find(connection, RUN, job["run_id"])["source_digest"] == digest:
        return True
    needs, jobs, outputs = tables.job_needs, tables.jobs, tables.artifacts
    query = (
        sa.select(outputs.c.digest)
        .join(jobs, outputs.c.job_id == sa.func.coalesce(jobs.c.reused_from, jobs.c.job_id))
        .join(needs, needs.c.need_id == jobs.c.job_id)
        .where(needs.c.job_id == job["job_id"], outputs.c.digest == digest)
    )
    return connection.execute(query.limit(1)).first() is not None
