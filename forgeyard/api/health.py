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
    UNAVAILABLE = "unavailable"
    LEAVING = "leaving"
    """Still serves, and is about to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What this process depends on, and whether it answers."""

    status: Readiness
    database: bool
    temporal: bool


async def _database_answers(deps: Deps) -> bool:
    """Ask the database, for a short while: one that says nothing is as good as none."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.to_thread(_ask, deps.engine)
    except (ForgeyardError, TimeoutError):
        return False
    return True


def _ask(engine: sa.Engine) -> None:
    with database.read(engine) as connection:
        connection.execute(sa.select(1))


@router.get("/healthz")
async def healthz() -> Alive:
    """Say that the process lives."""
    return Alive()


@router.get("/readyz")
async def readyz(
    response: Response, deps: Deps, database_ok: Annotated[bool, Depends(_database_answers)]
) -> Ready:
    """Say what answers; 503 without the database or before the end, for most needs no Temporal."""
    temporal_ok = await deps.temporal_answers()
    if not database_ok:
        status = Readiness.UNAVAILABLE
    elif deps.leaving.is_set():
        status = Readiness.LEAVING
    else:
        status = Readiness.READY if temporal_ok else Readiness.DEGRADED
    if status in (Readiness.UNAVAILABLE, Readiness.LEAVING):
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    return Ready(status=status, database=database_ok, temporal=temporal_ok)
