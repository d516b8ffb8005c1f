"""Rollouts of images to fleets: begun, watched, paused, taken back."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from forgeyard.api.callers import FleetImageManager, needs
from forgeyard.api.dependencies import Deps
from forgeyard.api.fleets import FleetPath
from forgeyard.api.intents import Because
from forgeyard.model.permission import Permission
from forgeyard.store import rollouts
from forgeyard.store.engine import read
from forgeyard.store.rollouts import RolloutRecord

router = APIRouter(prefix="/v1/fleets/{name}/rollout", tags=["fleets"])


class StartRollout(Because):
    """The image that a fleet is to have: a digest or an alias."""

    image: Annotated[str, Field(max_length=100)]


@router.get("", dependencies=[needs(Permission.FLEET_READ)])
def show_rollout(name: FleetPath, deps: Deps) -> RolloutRecord:
    """Show the rollout that is under way on a fleet, or the last one."""
    with read(deps.engine) as connection:
        return rollouts.status(connection, name)


@router.post("", status_code=201)
def start_rollout(
    name: FleetPath, message: StartRollout, deps: Deps, who: FleetImageManager
) -> RolloutRecord:
    """Begin to bring an image to a fleet, canaries first."""
    with deps.change_for(who) as connection:
        return rollouts.start(
            connection,
            name,
            message.image,
            message.intent,
            rng=deps.rng,
            keys=deps.trust.image_keys,
        )


@router.post(":pause")
def pause_rollout(
    name: FleetPath, message: Because, deps: Deps, who: FleetImageManager
) -> RolloutRecord:
    """Replace nothing more until told otherwise."""
    with deps.change_for(who) as connection:
        return rollouts.pause(connection, name, message.intent)


@router.post(":resume")
def resume_rollout(
    name: FleetPath, message: Because, deps: Deps, who: FleetImageManager
) -> RolloutRecord:
    """Go on with a rollout that was paused."""
    with deps.change_for(who) as connection:
        return rollouts.resume(connection, name, message.intent)


@router.post(":rollback")
def roll_back(
    name: FleetPath, message: Because, deps: Deps, who: FleetImageManager
) -> RolloutRecord:
    """Give a fleet back the image that it had before."""
    with deps.change_for(who) as connection:
        return rollouts.roll_back(
            connection, name, message.intent, rng=deps.rng, keys=deps.trust.image_keys
        )
