"""Whether this process is alive and ready; open to anybody, so it says no more than that."""

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Final

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Response

from forgeyard.api.dependencies import Deps
from forgeyard.errors import ForgeyardError
from forgeyard.store import engine as database
from forgeyard.store import lineage

PATIENCE_S: Final = 3.0
router = APIRouter(tags=["health"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """The process answers."""

    status: str = "ok"


class Readiness(StrEnum):
    """What can be expected of this process now."""

    READY = "ready"
    DEGRADED = "degraded"
    """Everything but prompt scheduling works: Temporal does not answer."""
    HELD = "held"
    """Agents are served, nothing is placed: the store may be an older one that was put back."""
    UNAVAILABLE = "unavailable"
    LEAVING = "leaving"
    """Still serves, and is about to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What this process depends on, and whether it answers."""

    status: Readiness
    database: bool
    temporal: bool
    held: bool = False
    """Whether an operator has to confirm the store."""


async def _store_held(deps: Deps) -> bool | None:
    """Tell whether the store is held; None if it says nothing for a short while."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.to_thread(_ask, deps.engine)
    except (ForgeyardError, TimeoutError):
        return None


def _ask(engine: sa.Engine) -> bool:
    with database.read(engine) as connection:
        return lineage.is_held(connection)


@router.get("/healthz")
async def healthz() -> Alive:
    """Say that the process lives."""
    return Alive()


@router.get("/readyz")
async def readyz(
    response: Response, deps: Deps, held: Annotated[bool | None, Depends(_store_held)]
) -> Ready:
    """Say what answers; 503 without the database or before the end, for most needs no Temporal."""
    temporal_ok = await deps.temporal_answers()
    if held is None:
        status = Readiness.UNAVAILABLE
    elif deps.leaving.is_set():
        status = Readiness.LEAVING
    elif held:
        # Agents have to reach us all the same, or their leases would lapse by their own clocks.
        status = Readiness.HELD
    else:
        status = Readiness.READY if temporal_ok else Readiness.DEGRADED
    if status in (Readiness.UNAVAILABLE, Readiness.LEAVING):
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    return Ready(status=status, database=held is not None, temporal=temporal_ok, held=bool(held))
