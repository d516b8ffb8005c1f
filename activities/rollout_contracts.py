"""Names and shapes that workflow and activities agree on for rollouts of images."""

from dataclasses import dataclass
from typing import Final

from temporalio import activity

IMAGE_ROLLOUT: Final = "ImageRollout"
KIND_ROLLOUT: Final = "rollout"
COMMAND: Final = "command"


def rollout_workflow_id(fleet_id: str, image: str) -> str:
    """Name the workflow of the rollout of an image to a fleet."""
    return f"fleet/{fleet_id}/rollout/{image}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A rollout to look after; where it stands is in SQL."""

    rollout_id: str
    fleet_id: str
    fleet: str
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """What the workflow of a rollout carries from one run to the next."""

    rollout: Rollout
    rounds_per_run: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """Where a rollout stands, and how long nothing is to be done about it."""

    state: str
    ended: bool
    wait_ms: int
    line: str = ""
    machines: str = ""
    """How many have which image, as people read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCommand:
    """What a person asks of a rollout; the actor is what he says he is."""

    action: str
    """`pause`, `resume` or `rollback`."""
    reason: str
    actor: str = "temporal"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOrder:
    """A command for the rollout of one fleet; carried out once, however often it comes."""

    rollout: Rollout
    command: RolloutCommand


@activity.defn(name="rollout.advance")
def advance_rollout(request: Rollout) -> RolloutStep:
    """Move a rollout on as far as its machines allow."""
    raise NotImplementedError(request)


@activity.defn(name="rollout.command")
def command_rollout(request: RolloutOrder) -> RolloutStep:
    """Carry out what a person asks of a rollout."""
    raise NotImplementedError(request)
