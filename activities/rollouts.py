"""Moving rollouts of images on, and doing what people ask of them."""

import random
from collections.abc import Mapping
from typing import Final

import sqlalchemy as sa
from temporalio import activity

from activities import rollout_contracts as contracts
from forgeyard.errors import InvalidRequest
from forgeyard.store import lineage, rollouts
from forgeyard.store.engine import write
from forgeyard.store.rollouts import ENDS, Advanced
from forgeyard.store.shares import Intent

ACTIONS: Final = ("pause", "resume", "rollback")


class RolloutActivities:
    """Rollouts over one store."""

    def __init__(self, engine: sa.Engine, *, rng: random.Random) -> None:
        self._engine = engine
        self._rng = rng

    @activity.defn(name="rollout.advance")
    def advance_rollout(self, request: contracts.Rollout) -> contracts.RolloutStep:
        """Move a rollout on as far as its machines allow."""
        with write(self._engine) as connection:
            lineage.demand_free(connection)
            return _step(rollouts.advance(connection, request.rollout_id))

    @activity.defn(name="rollout.command")
    def command_rollout(self, request: contracts.RolloutOrder) -> contracts.RolloutStep:
        """Do what a person asks of a rollout; what is so already stays so."""
        rollout, order = request.rollout, request.command
        intent = Intent(actor=order.actor, channel="temporal", reason=order.reason)
        with write(self._engine) as connection:
            # Not moved on before: whoever pauses it does not want it to take one more step.
            if not rollouts.is_over(connection, rollout.rollout_id):
                self._do(connection, rollout.fleet_id, order.action, intent)
            return _step(rollouts.advance(connection, rollout.rollout_id))

    def _do(self, connection: sa.Connection, fleet_id: str, action: str, intent: Intent) -> None:
        if action == "pause":
            rollouts.pause(connection, fleet_id, intent)
        elif action == "resume":
            rollouts.resume(connection, fleet_id, intent)
        elif action == "rollback":
            rollouts.roll_back(connection, fleet_id, intent, rng=self._rng)
        else:
            allowed = ", ".join(ACTIONS)
            raise InvalidRequest(
                "a rollout cannot do that", field="action", value=action, allowed=allowed
            )


def _step(found: Advanced) -> contracts.RolloutStep:
    record = found.record
    return contracts.RolloutStep(
        state=record.state.value,
        ended=record.state in ENDS,
        wait_ms=found.wait,
        line=record.pause_reason if record.paused else found.reason or record.state_reason,
        machines="; ".join(f"{one.image}: {_said(one.states)}" for one in record.machines),
    )


def _said(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items())
