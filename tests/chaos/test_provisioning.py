"""Workers die and freeze around a call that makes a machine; the machines are real agents."""

import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import psutil
import pytest

from forgeyard.model.policy import SchedulingPolicy
from providers.local import LocalProvider, Starter
from tests.chaos.conftest import ON_POSTGRESQL
from tests.chaos.fleet import (
    EVERY_S,
    PROMPT,
    SETTINGS,
    a_fleet,
    agents,
    let_go,
    life_of,
    machines,
    place_of,
    scale,
    until_states,
)
from tests.chaos.plant import Plant, until
from tests.chaos.process import Process
from tests.chaos.proxy import Proxy
from tests.chaos.rounds import Rounds
from tests.chaos.standin import (
    FROZEN_AFTER_MAKING,
    FROZEN_BEFORE_MAKING,
    KILLED_AFTER_MAKING,
    KILLED_WHILE_MAKING,
    WOKEN,
)
from tests.fleet.requests import THEIRS, a_request

pytestmark = [pytest.mark.integration, ON_POSTGRESQL]
KILLS = 3
BEAT_S = 1.0
WAITS = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(900)"
"""What stands in for an agent of somebody else."""


@pytest.fixture(scope="module")
def settings() -> Mapping[str, str]:
    """Look at fleets often."""
    return SETTINGS


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Start what looks at them soon."""
    return PROMPT


@pytest.fixture(autouse=True)
def stranger(plant: Plant) -> Iterator[str]:
    """Let another installation have a machine in the same place; it is there to the last."""
    starter = Starter(command=(sys.executable, "-c", WAITS, "agent"), environment=dict(os.environ))
    provider = LocalProvider(place_of(plant), starter, now=lambda: time.time_ns() // 1_000_000)
    owner = replace(a_request().owner, installation=THEIRS)
    theirs = provider.provision(a_request(owner=owner, operation_key=f"op-{time.time_ns()}")).ref
    yield theirs
    (pid,) = [pid for pid, name in agents(plant).items() if name == theirs]
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def ours(plant: Plant, stranger: str) -> dict[int, str]:
    """Find the agents on this host that are machines of this plant."""
    return {pid: name for pid, name in agents(plant).items() if name != stranger}


def until_empty(plant: Plant, fleet: str, stranger: str) -> None:
    """Let every machine go, and see that nothing is left of any."""
    let_go(plant, fleet)
    assert not ours(plant, stranger)
    assert all(row["may_exist"] == 0 for row in machines(plant, fleet))


@pytest.mark.requirement("FRC-004", "FRC-007", "TST-016", "GAT-013", "ACC-065")
def test_a_worker_killed_between_a_machine_and_its_record_makes_no_second_one(
    plant: Plant, rounds: Rounds, stranger: str
) -> None:
    """F2: a worker after the other, each while it makes the next machine."""
    for rng in rounds.of("agent started, its worker killed before it was written down"):
        fleet = a_fleet(plant, rng)
        plant.processes["worker"].end()
        made = [
            killed_while_making(plant, rounds, rng, fleet, stranger, count)
            for count in range(1, KILLS + 1)
        ]
        began = time.monotonic()
        plant.start_worker(heartbeat_s=BEAT_S)
        until_states(plant, fleet, *["healthy"] * KILLS)
        rounds.took("last kill to all machines healthy", time.monotonic() - began, goal_s=120)
        rows = machines(plant, fleet)
        assert ours(plant, stranger) == dict(made)
        assert sorted(name for _, name in made) == sorted(row["provider_ref"] for row in rows)
        until_empty(plant, fleet, stranger)


def killed_while_making(
    plant: Plant, rounds: Rounds, rng: random.Random, fleet: str, stranger: str, count: int
) -> tuple[int, str]:
    """Want one more, of a worker that is killed as soon as it has made it; return who is new."""
    before = ours(plant, stranger)
    scale(plant, fleet, count, rng)
    fault = rng.choice([KILLED_WHILE_MAKING, KILLED_AFTER_MAKING])
    deadly = plant.start_worker(fault=fault, heartbeat_s=BEAT_S)
    until(lambda: not deadly.is_running, within_s=120, or_say=plant.tails)
    assert deadly.popen.returncode == -signal.SIGKILL
    (new,) = ours(plant, stranger).items() - before.items()
    if new[1] not in {row["provider_ref"] for row in machines(plant, fleet)}:
        rounds.hit()
    return new


@pytest.mark.requirement("FRC-005", "INV-051")
def test_what_a_worker_says_that_froze_while_it_made_a_machine_changes_nothing(
    plant: Plant, rounds: Rounds, stranger: str
) -> None:
    """F12: when it wakes, the machine has long been made by another, and is gone again."""
    with Proxy(target=plant.temporal.port) as network:
        for rng in rounds.of("machine made and gone while the first worker was frozen"):
            demand_unchanged(plant, rounds, rng, network, stranger)


def demand_unchanged(
    plant: Plant, rounds: Rounds, rng: random.Random, network: Proxy, stranger: str
) -> None:
    fleet = a_fleet(plant, rng)
    plant.processes["worker"].end()
    sleepy = plant.start_worker(
        name="worker-sleepy",
        fault=rng.choice([FROZEN_BEFORE_MAKING, FROZEN_AFTER_MAKING]),
        heartbeat_s=BEAT_S,
        settings={"FORGEYARD_TEMPORAL__ADDRESS": f"127.0.0.1:{network.port}"},
    )
    scale(plant, fleet, 1, rng)
    until_frozen(plant, sleepy)
    network.drop()  # else Temporal gives it more to do for as long as its polls stand
    plant.start_worker(heartbeat_s=BEAT_S)
    until_states(plant, fleet, "healthy")
    assert len(ours(plant, stranger)) == 1
    until_empty(plant, fleet, stranger)
    (ended,) = machines(plant, fleet)
    if psutil.Process(sleepy.pid).status() == psutil.STATUS_STOPPED:
        rounds.hit()
    network.clear()
    sleepy.thaw()
    until(lambda: WOKEN in sleepy.log.read_text(), every_s=EVERY_S, or_say=plant.tails)
    assert machines(plant, fleet) == [ended]
    assert life_of(plant, ended["instance_id"]).count("healthy") == 1
    assert not ours(plant, stranger)
    sleepy.end(signal.SIGKILL)
    sleepy.log.unlink()


def until_frozen(plant: Plant, worker: Process) -> None:
    """Wait until a worker has frozen."""
    frozen = psutil.Process(worker.pid)
    until(lambda: frozen.status() == psutil.STATUS_STOPPED, within_s=120, or_say=plant.tails)
