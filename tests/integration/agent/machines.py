"""Machines of fleets for tests with real agents: rows that say that an agent runs on one."""

from forgeyard.fleet.ports import Interruption
from forgeyard.fleet.view import Launch
from forgeyard.model.capacity import CapacityInstanceState, ScaleReason
from forgeyard.model.fleet import FleetSpec
from forgeyard.store import fleet_tables, fleets, machines, sightings
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now, write
from forgeyard.store.shares import Intent
from tests.builders import RNG
from tests.integration.agent.control import Control

ANN = Intent(actor="ann", channel="cli", reason="a test")
INSTANCES = fleet_tables.capacity_instances


def a_machine(control: Control, spec: FleetSpec) -> str:
    """Make a fleet and one machine of it, which is up; return the name of its runner."""
    with write(control.engine) as connection:
        made = fleets.apply(connection, spec, ANN, expected_version=None, rng=RNG)
        row = fleets.find(connection, made.fleet_id)
        launch = Launch(offering=spec.offerings[0].name, reason=ScaleReason.MANUAL)
        now = database_now(connection)
        (wanted,) = machines.intend(connection, row, spec, [launch], now=now, rng=RNG)
    state = CapacityInstanceState.HEALTHY.value
    control.change(INSTANCES, {"instance_id": wanted}, state=state, provider_ref=f"ref-{wanted}")
    (row,) = control.rows(INSTANCES, instance_id=wanted)
    return str(row["runner_name"])


def machine_of(control: Control, runner: str) -> Row:
    """Read the machine of a runner."""
    (row,) = control.rows(INSTANCES, runner_name=runner)
    return row


def take_away(control: Control, runner: str, *, within_ms: int) -> None:
    """Let the provider say that it takes the machine of a runner away."""
    row = machine_of(control, runner)
    with write(control.engine) as connection:
        # As its workflow does once its runner has come up.
        machines.lock(connection, row["instance_id"])
        now = database_now(connection)
        word = Interruption(ref=row["provider_ref"], at=now + within_ms)
        assert sightings.interrupted(connection, row["provider"], [word], now=now) == 1
