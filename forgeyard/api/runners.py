"""Runners, for those who look after them."""

from typing import Annotated

from fastapi import APIRouter, Path

from forgeyard.api.dependencies import Deps
from forgeyard.api.runs import CHANNEL, UNSAID, Reason
from forgeyard.store import overview, runners
from forgeyard.store.engine import read

router = APIRouter(prefix="/v1/runners", tags=["runners"])
RunnerPath = Annotated[str, Path(max_length=100)]
"""A runner's name or its id."""


@router.get("")
def list_runners(deps: Deps) -> tuple[overview.RunnerView, ...]:
    """List every registered runner."""
    with read(deps.engine) as connection:
        return overview.runners(connection)


@router.post("/{name}:drain", status_code=204)
def drain_runner(name: RunnerPath, deps: Deps, message: Reason = UNSAID) -> None:
    """Let a runner finish what it has and take nothing more."""
    with deps.change() as connection:
        runners.drain(
            connection,
            name,
            reason=message.reason or "drained by request",
            actor=message.actor,
            channel=CHANNEL,
        )


@router.post("/{name}:undrain", status_code=204)
def undrain_runner(name: RunnerPath, deps: Deps, message: Reason = UNSAID) -> None:
    """Let a runner take work again."""
    with deps.change() as connection:
        runners.undrain(
            connection,
            name,
            reason=message.reason or "undrained by request",
            actor=message.actor,
            channel=CHANNEL,
        )
