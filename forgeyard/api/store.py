"""The store itself: whether it may be an older one that was put back, and what to do about it."""

from fastapi import APIRouter

from forgeyard.api.callers import StoreManager, needs
from forgeyard.api.dependencies import Deps
from forgeyard.api.intents import Because
from forgeyard.model.permission import Permission
from forgeyard.store import lineage, restore
from forgeyard.store.engine import read

router = APIRouter(prefix="/v1/store", tags=["store"])


@router.get("", dependencies=[needs(Permission.STORE_READ)])
def show_store(deps: Deps) -> restore.StoreView:
    """Tell whether the store is held, by what evidence, and what confirming it would mean."""
    with read(deps.engine) as connection:
        return restore.view(connection)


@router.post("/hold")
def hold_store(message: Because, deps: Deps, who: StoreManager) -> restore.StoreView:
    """Hold the store: nothing is placed, lapses or is deleted until it is confirmed."""
    intent = message.intent
    with deps.change_for(who) as connection:
        lineage.leave_mark(connection, rng=deps.rng)  # what has no identity cannot be held
        lineage.hold(
            connection,
            reason=intent.reason,
            by=intent.actor,
            actor=intent.actor,
            channel=intent.channel,
        )
        return restore.view(connection)


@router.post("/confirm")
def confirm_store(message: Because, deps: Deps, who: StoreManager) -> restore.Confirmed:
    """Take the store for the one that counts from now on, and go on."""
    with deps.change_for(who) as connection:
        policy = deps.policies.in_force(connection).policy
        return restore.confirm(connection, intent=message.intent, policy=policy)
