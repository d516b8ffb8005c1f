"""Pools of runners, for those who look after them."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field

from forgeyard.api.callers import PoolManager, needs
from forgeyard.api.dependencies import Deps
from forgeyard.api.intents import Because
from forgeyard.api.runs import CHANNEL
from forgeyard.model.capability import TrustClass
from forgeyard.model.permission import Permission
from forgeyard.scheduler.standing import Sharing
from forgeyard.store import draining, pool_views, pools
from forgeyard.store.engine import read
from forgeyard.store.pool_views import PoolView, WindowView
from forgeyard.store.pools import PoolRules

router = APIRouter(prefix="/v1/pools", tags=["pools"])
PoolPath = Annotated[str, Path(max_length=100)]
"""A pool's name or its id."""
PoolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Instant = Annotated[int, Field(ge=0, lt=2**53)]


class DrainPool(Because):
    """Why a pool is drained, and whether its jobs are cancelled instead of awaited."""

    cancel_active: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainedPool:
    """A pool that takes nothing more, and how many of its jobs were cancelled for that."""

    pool: str
    cancelled: int


class ChangePool(Because):
    """Whom a pool serves; what is left out is as for a new pool."""

    owner: Annotated[str, Field(max_length=300)] | None = None
    trust: TrustClass | None = None
    sharing: Sharing = Sharing.SHARED
    spillover: bool = False

    def rules(self) -> PoolRules:
        """Say whom the pool serves."""
        return PoolRules(
            owner=self.owner, trust=self.trust, sharing=self.sharing, spillover=self.spillover
        )


class CreatePool(ChangePool):
    """A new pool."""

    name: PoolName


class AssignRunner(Because):
    """A runner, by name or id, to put into a pool."""

    runner: Annotated[str, Field(max_length=100)]


class AddMaintenance(Because):
    """When a pool is closed; instants are epoch milliseconds."""

    starts_at: Instant
    ends_at: Instant


@router.get("", dependencies=[needs(Permission.POOL_READ)])
def list_pools(deps: Deps) -> tuple[PoolView, ...]:
    """List every pool with its runners."""
    with read(deps.engine) as connection:
        return pool_views.pools(connection)


@router.get("/{name}", dependencies=[needs(Permission.POOL_READ)])
def show_pool(name: PoolPath, deps: Deps) -> PoolView:
    """Show a pool, its runners and when it is closed."""
    with read(deps.engine) as connection:
        return pool_views.pool(connection, name)


@router.post("", status_code=201)
def create_pool(message: CreatePool, deps: Deps, who: PoolManager) -> PoolView:
    """Make a pool."""
    with deps.change_for(who) as connection:
        pools.create(connection, message.name, message.rules(), message.intent, rng=deps.rng)
        return pool_views.pool(connection, message.name)


@router.put("/{name}")
def change_pool(name: PoolPath, message: ChangePool, deps: Deps, who: PoolManager) -> PoolView:
    """Say anew whom a pool serves; running jobs go on."""
    with deps.change_for(who) as connection:
        pools.change(connection, name, message.rules(), message.intent)
        return pool_views.pool(connection, name)


@router.post("/{name}:drain")
def drain_pool(name: PoolPath, message: DrainPool, deps: Deps, who: PoolManager) -> DrainedPool:
    """Let the runners of a pool take nothing more, and finish what they have or have it cancelled.

    Jobs are cancelled runner by runner, after nothing can be added; asking again goes on.
    """
    with deps.change_for(who) as connection:
        pools.drain(connection, name, message.intent)
        members = pool_views.pool(connection, name).runners
    cancelled = 0
    for runner in members if message.cancel_active else ():
        with deps.change_for(who) as connection:
            cancelled += draining.cancel_work(
                connection,
                runner,
                reason=message.reason,
                actor=message.actor,
                channel=CHANNEL,
                policy=deps.policy(connection).lease,
            )
    return DrainedPool(pool=name, cancelled=cancelled)


@router.post("/{name}:undrain", status_code=204)
def undrain_pool(name: PoolPath, message: Because, deps: Deps, who: PoolManager) -> None:
    """Let the runners of a pool take work again."""
    with deps.change_for(who) as connection:
        pools.undrain(connection, name, message.intent)


@router.post("/{name}:assign", status_code=204)
def assign_runner(name: PoolPath, message: AssignRunner, deps: Deps, who: PoolManager) -> None:
    """Put a runner into a pool, whatever its agent asks for."""
    with deps.change_for(who) as connection:
        pools.assign(connection, message.runner, name, message.intent)


@router.post("/{name}/maintenance", status_code=201)
def add_maintenance(
    name: PoolPath, message: AddMaintenance, deps: Deps, who: PoolManager
) -> WindowView:
    """Close a pool for a while."""
    with deps.change_for(who) as connection:
        window_id = pools.add_window(
            connection,
            name,
            starts_at=message.starts_at,
            ends_at=message.ends_at,
            intent=message.intent,
            partition=deps.config.partition,
            rng=deps.rng,
        )
        return pool_views.window(connection, window_id)


@router.post("/maintenance/{window_id}:cancel", status_code=204)
def cancel_maintenance(window_id: PoolPath, message: Because, deps: Deps, who: PoolManager) -> None:
    """Open a pool again, or never close it."""
    with deps.change_for(who) as connection:
        pools.cancel_window(connection, window_id, message.intent)
