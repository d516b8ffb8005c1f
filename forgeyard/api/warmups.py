"""What new machines of fleets fetch beside their first jobs, and what they say of it."""

import logging
from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from forgeyard import telemetry
from forgeyard.api.agent_callers import Caller
from forgeyard.api.blobs import DigestPath
from forgeyard.api.dependencies import Deps
from forgeyard.api.sessions import SessionPath
from forgeyard.api.transfers import download
from forgeyard.errors import NotFound
from forgeyard.model.protocol import WarmUpOutcome, WarmUpPlan
from forgeyard.store import warmups
from forgeyard.store.engine import read, write

router = APIRouter(prefix="/agent/v1/sessions/{session_id}/warmup", tags=["sessions"])
_log = logging.getLogger(__name__)


@router.get("")
def plan(session_id: SessionPath, deps: Deps, caller: Caller) -> WarmUpPlan:
    """Tell what the machine is to have at hand; 409 until its runner is admitted."""
    caller.demand(session_id)
    with read(deps.engine) as connection:
        return warmups.plan(connection, session_id)


@router.get("/{digest}", response_class=Response)
def archive(
    session_id: SessionPath, digest: DigestPath, request: Request, deps: Deps, caller: Caller
) -> Response:
    """Send one archive of it."""
    caller.demand(session_id)
    with write(deps.engine) as connection:
        warmups.demand_planned(connection, session_id, digest)
    if not deps.blobs.exists(digest):
        raise NotFound("no archive of this warm-up", field="digest", value=digest)
    return download(
        request,
        deps.blobs.open(digest),
        digest=digest,
        size=deps.blobs.size(digest),
        media_type="application/gzip",
        name="cache.tar.gz",
    )


@router.post("", status_code=204)
def outcome(
    session_id: SessionPath, message: Annotated[WarmUpOutcome, Body()], deps: Deps, caller: Caller
) -> None:
    """Write down how it went, once."""
    caller.demand(session_id)
    with write(deps.engine) as connection:
        news = warmups.record(connection, session_id, message)
    if news is None:
        return
    fleet, how = news
    telemetry.FLEET_WARMUPS.labels(fleet, how).inc()
    if message.problem:
        _log.warning("a machine of fleet %s stays colder: %s", fleet, message.problem)
