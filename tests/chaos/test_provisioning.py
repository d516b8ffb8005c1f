"""Workers die and freeze around a call that makes a machine; the machines are real agents."""

import random
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from forgeyard.model.fleet import CapacityClass, FleetSpec, ScaleDown, ScaleUp, Scaling
from forgeyard.model.units import MIB
from forgeyard.store import fleet_tables, fleets
from forgeyard.store.engine import write
from forgeyard.store.shares import Intent
from providers.local import WORK_DIR
from tests.builders import some_resources
from tests.chaos.conftest import ON_POSTGRESQL
from tests.chaos.plant import Plant, until
from tests.chaos.process import Process
from tests.chaos.rounds import Rounds
from tests.chaos.standin import (
    FROZEN_AFTER_MAKING,
    FROZEN_BEFORE_MAKING,
    KILLED_AFTER_MAKING,
)

# Soak: not seen green yet.
pytestmark = [pytest.mark.integration, pytest.mark.soak, ON_POSTGRESQL]
CHAOS = Intent(actor="chaos", channel="cli", reason="a test wants it")
KILLS = 3
"""One for each machine of a round."""


@pytest.fixture(scope="module")
def settings() -> Mapping[str, str]:
    """Look at fleets often, and let small agents come up on this host."""
    return {
        "FORGEYARD_FLEETS__LOOK_S": "0.5",
        "FORGEYARD_FLEETS__OBSERVE_S": "2",
        "FORGEYARD_AGENT__HEADROOM_MEMORY": "0",
        "FORGEYARD_AGENT__HEADROOM_DISK": "0",
    }


def a_fleet(plant: Plant, rng: random.Random) -> str:
    """Make a fleet of local machines, without any yet; return its name."""
    size = some_resources(cpu=100, memory=64 * MIB, disk=16 * MIB, slots=1)
    scaling = Scaling(
        max=KILLS,
        up=ScaleUp(per_minute=1_000, burst=1_000),
        down=ScaleDown(idle_grace=0, window=0),
    )
    name = f"local-{rng.getrandbits(40):010x}"
    spec = FleetSpec(name=name, capacity=CapacityClass(resources=size), scaling=scaling)
    with write(plant.engine) as connection:
        fleets.apply(connection, spec, CHAOS, expected_version=None, rng=rng)
    return name


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


def agents(plant: Plant) -> dict[int, str]:
    """Find the agents on this host that are machines of this plant, whatever any record says."""
    below = str(plant.folder / "data" / "fleet")
    found: dict[int, str] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            where = process.environ().get(WORK_DIR, "")
            is_agent = process.pid == process_group(process.pid)
            if where.startswith(below) and is_agent and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = Path(where).parent.name
    return found


def process_group(pid: int) -> int:
    """Tell which process leads the group of one: an agent leads its own."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[2])


def until_states(plant: Plant, fleet: str, *wanted: str) -> None:
    """Wait until the machines of a fleet stand so."""
    until(
        lambda: states(plant, fleet) == list(wanted),
        within_s=240,
        or_say=lambda: f"{states(plant, fleet)}\n{plant.story()}\n{plant.tails()}",
    )


def until_nothing_is_left(plant: Plant, fleet: str, rng: random.Random) -> None:
    """Let every machine go, and wait until it has."""
    scale(plant, fleet, 0, rng)
    until(
        lambda: set(states(plant, fleet)) <= {"terminated"} and not agents(plant),
        within_s=240,
        or_say=lambda: f"{states(plant, fleet)} {agents(plant)}\n{plant.tails()}",
    )


def test_a_worker_killed_between_a_machine_and_its_record_makes_no_second_one(
    plant: Plant, rounds: Rounds
) -> None:
    """F2."""
    for rng in rounds.of("agent started, its worker killed before it was written down"):
        fleet = a_fleet(plant, rng)
        plant.processes["worker"].end(signal.SIGKILL)
        scale(plant, fleet, KILLS, rng)
        made = [killed_after_making(plant, rounds, fleet) for _ in range(KILLS)]
        began = time.monotonic()
        plant.start_worker(heartbeat_s=1.0)
        until_states(plant, fleet, *["healthy"] * KILLS)
        rounds.took("last kill to all machines healthy", time.monotonic() - began, goal_s=240)
        assert agents(plant).keys() == set().union(*made)
        assert sorted(agents(plant).values()) == sorted(
            row["provider_ref"] for row in machines(plant, fleet)
        )
        until_nothing_is_left(plant, fleet, rng)


def killed_after_making(plant: Plant, rounds: Rounds, fleet: str) -> set[int]:
    """Start a worker that is killed as soon as it has made a machine; return who is there then."""
    before = agents(plant)
    deadly = plant.start_worker(fault=KILLED_AFTER_MAKING, heartbeat_s=1.0)
    until(lambda: not deadly.is_running, within_s=240, or_say=plant.tails)
    assert deadly.popen.returncode == -signal.SIGKILL
    after = agents(plant)
    recorded = {row["provider_ref"] for row in machines(plant, fleet)}
    (new,) = after.keys() - before.keys()
    if after[new] not in recorded:
        rounds.hit()
    return set(after)


@pytest.mark.parametrize("moment", [FROZEN_BEFORE_MAKING, FROZEN_AFTER_MAKING])
def test_what_a_worker_says_that_froze_while_it_made_a_machine_changes_nothing(
    plant: Plant, rounds: Rounds, moment: str
) -> None:
    """F12: when it wakes, the machine has long been made by another, and is gone again."""
    for rng in rounds.of("machine made and gone while the first worker was frozen"):
        plant.processes["worker"].end(signal.SIGKILL)
        fleet = a_fleet(plant, rng)
        other = plant.start_worker(name="worker-other", standby=True)
        sleepy = plant.start_worker(name="worker-sleepy", fault=moment, heartbeat_s=1.0)
        scale(plant, fleet, 1, rng)
        until_frozen(plant, sleepy)
        other.popen.send_signal(signal.SIGUSR1)
        until_states(plant, fleet, "healthy")
        assert len(agents(plant)) == 1
        until_nothing_is_left(plant, fleet, rng)
        (ended,) = machines(plant, fleet)
        if psutil.Process(sleepy.pid).status() == psutil.STATUS_STOPPED:
            rounds.hit()
        sleepy.thaw()
        time.sleep(3)  # nothing tells when it has said what nobody hears
        assert machines(plant, fleet) == [ended]
        assert not agents(plant)
        for worker in (sleepy, other):
            worker.end()


def until_frozen(plant: Plant, worker: Process) -> None:
    """Wait until a worker has frozen."""
    frozen = psutil.Process(worker.pid)
    until(lambda: frozen.status() == psutil.STATUS_STOPPED, within_s=240, or_say=plant.tails)
