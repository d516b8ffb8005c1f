"""Fleets on a plant: what is wanted of them, what their rows say, and what is really there."""

import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import sqlalchemy as sa

from forgeyard.model.fleet import CapacityClass, FleetSpec, Offering, ScaleDown, ScaleUp, Scaling
from forgeyard.model.policy import SchedulingPolicy, SweepPolicy
from forgeyard.model.units import MIB, Millis
from forgeyard.store import fleet_tables, fleets, tables
from forgeyard.store.engine import write
from forgeyard.store.shares import Intent
from providers.local import WORK_DIR
from tests.builders import some_resources
from tests.chaos.plant import Plant, until

CHAOS: Final = Intent(actor="chaos", channel="cli", reason="a test wants it")
MOST: Final = 4
"""Machines of one fleet."""
EVERY_S: Final = 0.2
PROMPT: Final = SchedulingPolicy(sweep=SweepPolicy(period=Millis(200)))
"""Upkeep starts the reconciler of a new fleet at every tenth of its looks."""
SETTINGS: Final[Mapping[str, str]] = {
    "FORGEYARD_FLEETS__LOOK_S": "0.5",
    "FORGEYARD_FLEETS__OBSERVE_S": "2",
    # What a frozen worker has locked is free again soon.
    "FORGEYARD_STORE__IDLE_TIMEOUT_MS": "3000",
    # So that small agents come up on this host.
    "FORGEYARD_AGENT__HEADROOM_MEMORY": "0",
    "FORGEYARD_AGENT__HEADROOM_DISK": "0",
}
"""Look at fleets often."""


def a_fleet(
    plant: Plant,
    rng: random.Random,
    *,
    provider: str = "local",
    offering: Offering | None = None,
) -> str:
    """Make a fleet without any machine yet, wait until it is looked after; return its name."""
    size = some_resources(cpu=100, memory=64 * MIB, disk=16 * MIB, slots=1)
    scaling = Scaling(
        max=MOST,
        up=ScaleUp(per_minute=1_000, burst=1_000),
        down=ScaleDown(idle_grace=0, window=0),
    )
    name = f"{provider}-{rng.getrandbits(40):010x}"
    spec = FleetSpec(
        name=name,
        provider=provider,
        capacity=CapacityClass(resources=size),
        offerings=(offering or Offering(name="default"),),
        scaling=scaling,
    )
    with write(plant.engine) as connection:
        fleets.apply(connection, spec, CHAOS, expected_version=None, rng=rng)
    until(lambda: _tended_at(plant, name), within_s=90, every_s=EVERY_S, or_say=plant.tails)
    return name


def _tended_at(plant: Plant, fleet: str) -> int:
    known = fleet_tables.fleets
    return int(plant.rows(sa.select(known).where(known.c.name == fleet))[0]["tended_at"])


def scale(plant: Plant, fleet: str, count: int, rng: random.Random) -> None:
    """Ask for so many machines."""
    with write(plant.engine) as connection:
        fleets.scale(connection, fleet, count, CHAOS, for_ms=None, rng=rng)


def machines(plant: Plant, fleet: str) -> list[dict]:
    """Read the rows of a fleet's machines, oldest first."""
    rows, known = fleet_tables.capacity_instances, fleet_tables.fleets
    query = sa.select(rows).join(known, known.c.fleet_id == rows.c.fleet_id)
    return plant.rows(query.where(known.c.name == fleet).order_by(rows.c.number))


def states(plant: Plant, fleet: str) -> list[str]:
    """Read how the machines of a fleet stand."""
    return [row["state"] for row in machines(plant, fleet)]


def life_of(plant: Plant, instance_id: str) -> list[str]:
    """Read every state that a machine was ever in."""
    history = tables.history
    query = sa.select(history.c.after).where(history.c.entity_id == instance_id)
    return [row["after"] for row in plant.rows(query.order_by(history.c.history_id))]


def until_states(plant: Plant, fleet: str, *wanted: str, within_s: float = 120) -> None:
    """Wait until the machines of a fleet stand so."""
    until(
        lambda: states(plant, fleet) == list(wanted),
        within_s=within_s,
        every_s=EVERY_S,
        or_say=lambda: f"{machines(plant, fleet)}\n{plant.story()}\n{plant.tails()}",
    )


def let_go(plant: Plant, fleet: str) -> None:
    """Delete a fleet, and wait until every machine of it has ended."""
    with write(plant.engine) as connection:
        fleets.delete(connection, fleet, CHAOS)
    until(
        lambda: set(states(plant, fleet)) <= {"terminated"},
        within_s=120,
        every_s=EVERY_S,
        or_say=lambda: f"{machines(plant, fleet)}\n{plant.story()}\n{plant.tails()}",
    )


def place_of(plant: Plant) -> Path:
    """Tell where local machines have their directories."""
    return plant.folder / "data" / "fleet" / "local"


def agents(plant: Plant) -> dict[int, str]:
    """Find the agents on this host that are machines of this plant, whatever any record says.

    Each is named as its provider does.
    """
    below = str(place_of(plant))
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, FileNotFoundError):
            where = process.environ().get(WORK_DIR, "")
            is_agent = process.pid == _group_of(process.pid)
            if where.startswith(below) and is_agent and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = Path(where).parent.name
    return found


def _group_of(pid: int) -> int:
    """Tell which process leads the group of one: an agent leads its own."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[2])
