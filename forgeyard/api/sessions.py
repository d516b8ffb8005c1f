"""An agent's session: opened, kept alive, asked for work, closed."""

from typing import Annotated

from annotated_types import MaxLen
from fastapi import APIRouter, Query

from forgeyard.api.amounts import HeartbeatBody, RegisterBody
from forgeyard.api.callers import Caller
from forgeyard.api.dependencies import Deps
from forgeyard.api.withholding import ShownMark
from forgeyard.model.protocol import (
    Assignments,
    HeartbeatAnswer,
    Registered,
)
from forgeyard.store import lineage, runners
from forgeyard.store.entrance import Entry

router = APIRouter(prefix="/agent/v1/sessions", tags=["sessions"])
SessionPath = Annotated[str, MaxLen(64)]


@router.post("", status_code=201)
def register(
    message: RegisterBody, deps: Deps, caller: Caller, store_mark: ShownMark = ""
) -> Registered:
    """Open a session; the runner's session before it is fenced in the same transaction."""
    with deps.change() as connection:
        lineage.heed(connection, store_mark, witness=f"the agent of {message.runner_name}")
        return runners.register(
            connection,
            message,
            policy=deps.policy(connection).lease,
            rng=deps.rng,
            entry=Entry(runner_id=caller.runner_id, agent_versions=deps.config.api.agent_versions),
        )


@router.post("/{session_id}/heartbeat")
async def heartbeat(
    session_id: SessionPath,
    message: HeartbeatBody,
    deps: Deps,
    caller: Caller,
    store_mark: ShownMark = "",
) -> HeartbeatAnswer:
    """Keep a session alive and report pressure; learn which leases are gone."""
    await caller.demand_soon(session_id)
    return await deps.keepalive.hear(session_id, message, store_mark=store_mark)


@router.post("/{session_id}/poll")
async def poll(
    session_id: SessionPath,
    deps: Deps,
    caller: Caller,
    wait_ms: Annotated[int, Query(ge=0, le=600_000)] = 20_000,
) -> Assignments:
    """Wait for offers, cancellations or a drain; the server may answer sooner than asked."""
    await caller.demand_soon(session_id)
    longest = deps.config.api.long_poll_s
    return await deps.assignments.wait(session_id, seconds=min(wait_ms / 1000, longest))


@router.delete("/{session_id}", status_code=204)
def close(session_id: SessionPath, deps: Deps, caller: Caller) -> None:
    """Close a session after a drain; leases that still live are fenced."""
    caller.demand(session_id)
    with deps.change() as connection:
        runners.close(connection, session_id, policy=deps.policy(connection).lease)
