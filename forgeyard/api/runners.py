"""Runners, for those who look after them."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path

from forgeyard.api.callers import RunnerManager, needs
from forgeyard.api.dependencies import Deps
from forgeyard.api.runs import CHANNEL, UNSAID, Reason
from forgeyard.model.permission import Permission
from forgeyard.model.runner import RunnerState
from forgeyard.store import draining, overview, runners
from forgeyard.store.engine import read

router = APIRouter(prefix="/v1/runners", tags=["runners"])
RunnerPath = Annotated[str, Path(max_length=100)]
"""A runner's name or its id."""


class Drain(Reason):
    """Why a runner is drained, and whether its jobs are cancelled instead of awaited."""

    cancel_active: bool = False


class Declare(Reason):
    """What an operator takes a runner for, whatever its agent says."""

    state: RunnerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """A runner that takes nothing more, and how many of its jobs were cancelled for that."""

    runner: str
    cancelled: int


GENTLY = Drain()


@router.get("", dependencies=[needs(Permission.RUNNER_READ)])
def list_runners(deps: Deps) -> tuple[overview.RunnerView, ...]:
    """List every registered runner."""
    with read(deps.engine) as connection:
        percent = deps.policy(connection).overcommit.cpu_percent
        return overview.runners(connection, cpu_percent=percent)


@router.post("/{name}:drain")
def drain_runner(
    name: RunnerPath, deps: Deps, who: RunnerManager, message: Drain = GENTLY
) -> Drained:
    """Let a runner take nothing more, and finish what it has or have that cancelled."""
    reason, actor = message.reason or "drained by request", message.actor
    with deps.change_for(who) as connection:
        if not message.cancel_active:
            runners.drain(connection, name, reason=reason, actor=actor, channel=CHANNEL)
            return Drained(runner=name, cancelled=0)
        policy = deps.policy(connection).lease
        cancelled = draining.drain_now(
            connection, name, reason=reason, actor=actor, channel=CHANNEL, policy=policy
        )
    return Drained(runner=name, cancelled=cancelled)


@router.post("/{name}:undrain", status_code=204)
def undrain_runner(
    name: RunnerPath, deps: Deps, who: RunnerManager, message: Reason = UNSAID
) -> None:
    """Let a runner take work again."""
    with deps.change_for(who) as connection:
        runners.undrain(
            connection,
            name,
            reason=message.reason or "undrained by request",
            actor=message.actor,
            channel=CHANNEL,
        )


@router.post("/{name}:set-state", status_code=204)
def declare_runner(name: RunnerPath, deps: Deps, who: RunnerManager, message: Declare) -> None:
    """Take a runner for unhealthy, or for online again; it keeps the jobs that it has."""
    with deps.change_for(who) as connection:
        runners.declare(
            connection,
            name,
            message.state,
            reason=message.reason or "declared by request",
            actor=message.actor,
            channel=CHANNEL,
        )
