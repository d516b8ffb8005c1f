"""Scopes and the order of jobs in them: what operators declare, pause and push ahead."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field, model_validator

from forgeyard.api.callers import Reprioritiser, ScopeManager, ScopeReader
from forgeyard.api.dependencies import Deps
from forgeyard.api.intents import Because
from forgeyard.api.runs import RunPath
from forgeyard.model.caller import Caller
from forgeyard.model.job import Priority
from forgeyard.model.permission import Permission
from forgeyard.model.policy import PriorityPolicy
from forgeyard.model.units import LARGEST
from forgeyard.scheduler.elevation import is_elevated
from forgeyard.store import reordering, shares
from forgeyard.store.engine import read
from forgeyard.store.naming import demand_job, run_id_of
from forgeyard.store.reordering import MOST_ADJUSTMENT, Reordered, Reordering
from forgeyard.store.shares import ScopeView, Shares

router = APIRouter(prefix="/v1/scopes", tags=["scopes"])
order_router = APIRouter(prefix="/v1", tags=["order"])

MOST_WEIGHT = 1_000
MOST_BURST = 1_000
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
ScopePath = Annotated[str, Path(pattern=rf"^(pool:{_NAME}|{_NAME}(/{_NAME}){{0,3}})$")]
"""`everything`, `TENANT`, `TENANT/ORGANIZATION/PROJECT/QUEUE`, or `pool:NAME`."""
Limit = Annotated[int, Field(ge=0, le=LARGEST)] | None


class PutScope(Because):
    """The shares of a scope; a limit that is not given is none."""

    weight: Annotated[int, Field(ge=1, le=MOST_WEIGHT)] = 1
    max_jobs: Limit = None
    max_cpu_milli: Limit = None
    max_memory_bytes: Limit = None
    burst_percent: Annotated[int, Field(ge=0, le=MOST_BURST)] = 0
    expected_version: Annotated[int, Field(ge=0, lt=2**53)]
    """The version that the caller has seen; 0 declares a scope that does not exist yet."""
    parents: bool = False
    """Whether to declare the scopes around it as well where they are missing."""

    @property
    def shares(self) -> Shares:
        """Read what is to be set."""
        return Shares(**{name: getattr(self, name) for name in Shares.__slots__})


class Pause(Because):
    """Why a scope is paused; the note is shown to those who wait."""

    note: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")] = ""


class Reprioritise(Because):
    """The place that a job is to have in its queue; what is left out stays."""

    priority: Priority | None = None
    adjustment: Annotated[int, Field(ge=-MOST_ADJUSTMENT, le=MOST_ADJUSTMENT)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "Reprioritise":
        if self.priority is None and self.adjustment is None:
            raise ValueError("priority or adjustment must be given")
        return self

    def check(self, who: Caller, policy: PriorityPolicy) -> None:
        """Whoever asks for more than everybody may has to be allowed to ask (FAR-007)."""
        if self.priority is not None and is_elevated(self.priority, None, policy):
            who.demand(Permission.PRIORITY_ELEVATE)

    @property
    def wanted(self) -> Reordering:
        """Say it as the store takes it."""
        return Reordering(priority=self.priority, adjustment=self.adjustment)


@router.get("")
def list_scopes(deps: Deps, who: ScopeReader) -> tuple[ScopeView, ...]:
    """List every scope with its shares, its limits and what its jobs hold; a tenant's, its own."""
    with read(deps.engine) as connection:
        return shares.list_scopes(connection, tenant=who.tenant_name)


@router.get("/{path:path}")
def show_scope(path: ScopePath, deps: Deps, who: ScopeReader) -> ScopeView:
    """Show one scope."""
    who.demand_seen(path)
    with read(deps.engine) as connection:
        return shares.show(connection, path)


@router.put("/{path:path}")
def put_scope(path: ScopePath, message: PutScope, deps: Deps, who: ScopeManager) -> ScopeView:
    """Declare a scope, or set its shares if it is still as the caller has seen it."""
    who.demand_ruled(path)
    declare = shares.create_with_parents if message.parents else shares.create
    wish = message.intent
    with deps.change_for(who) as connection:
        if message.expected_version == 0:
            declare(connection, path, message.shares, intent=wish, rng=deps.rng)
        else:
            seen = message.expected_version
            shares.change(connection, path, message.shares, expected_version=seen, intent=wish)
        return shares.show(connection, path)


@router.post("/{path:path}:pause")
def pause_scope(path: ScopePath, message: Pause, deps: Deps, who: ScopeManager) -> ScopeView:
    """Let no job of a scope start until it is resumed; what runs goes on."""
    who.demand_ruled(path)
    with deps.change_for(who) as connection:
        shares.pause(connection, path, note=message.note, intent=message.intent)
        return shares.show(connection, path)


@router.post("/{path:path}:resume")
def resume_scope(path: ScopePath, message: Because, deps: Deps, who: ScopeManager) -> ScopeView:
    """Let the jobs of a scope start again."""
    who.demand_ruled(path)
    with deps.change_for(who) as connection:
        shares.resume(connection, path, intent=message.intent)
        return shares.show(connection, path)


@order_router.post("/jobs/{job_id}:reprioritise")
def reprioritise_job(
    job_id: Annotated[str, Path(max_length=64)],
    message: Reprioritise,
    deps: Deps,
    who: Reprioritiser,
) -> Reordered:
    """Change the priority of a job, or what is added to it."""
    with deps.change_for(who) as connection:
        policy = deps.policy(connection).priorities
        message.check(who, policy)
        demand_job(connection, job_id, tenant_id=who.tenant_id)
        return reordering.reprioritise_job(
            connection, job_id, message.wanted, policy=policy, intent=message.intent
        )


@order_router.post("/runs/{run_id}:reprioritise")
def reprioritise_run(
    run_id: RunPath, message: Reprioritise, deps: Deps, who: Reprioritiser
) -> tuple[Reordered, ...]:
    """Change the priority of every job of a run that has not ended."""
    with deps.change_for(who) as connection:
        policy = deps.policy(connection).priorities
        message.check(who, policy)
        return reordering.reprioritise_run(
            connection,
            run_id_of(connection, run_id, tenant_id=who.tenant_id),
            message.wanted,
            policy=policy,
            intent=message.intent,
        )
