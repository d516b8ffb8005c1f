"""F13: clocks of processes are minutes, hours and days wrong; only the database's decides."""

import time
from dataclasses import replace
from random import Random

import pytest

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Millis
from tests.chaos.conftest import ON_POSTGRESQL
from tests.chaos.plant import Plant, a_job, waits_for
from tests.chaos.rounds import Rounds
from tests.chaos.test_agent_killed import SHORT

# Left to `make chaos`: it waits for leases to last, and to lapse: half a minute.
pytestmark = [pytest.mark.integration, ON_POSTGRESQL, pytest.mark.soak]
MINUTES, HOURS, DAYS = 60.0, 3_600.0, 86_400.0


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Let a lease lapse after some twelve seconds of silence.

    Each is at work all along: a lease must outlast what a busy machine leaves a process waiting.
    """
    lease = replace(SHORT.lease, execution_ttl=Millis(10_000), connectivity_grace=Millis(2_000))
    return replace(SHORT, lease=lease)


def test_no_clock_but_the_databases_ends_a_lease_or_keeps_one_alive(
    plant: Plant, rounds: Rounds
) -> None:
    """F13: worker two days ahead, API three hours behind, agents ten minutes ahead and behind."""
    for name in ("worker", "api"):
        plant.processes[name].end()
    plant.start_worker(skew_s=2 * DAYS)
    plant.start_api(skew_s=-3 * HOURS)
    plant.until_ready()
    agents = [plant.start_agent(skew_s=sign * 10 * MINUTES, jobs=2) for sign in (1, -1)]
    plant.until_online(*agents)
    for rng in rounds.of("jobs ran for longer than a lease lasts, by clocks that differ"):
        demand_nothing_lapses(plant, rounds, rng)
        demand_what_is_dead_lapses(plant, rounds, rng)


def demand_nothing_lapses(plant: Plant, rounds: Rounds, rng: Random) -> None:
    gate = plant.file(f"gate-{rng.random()}")
    run_id = plant.submit(**{f"job_{n}": a_job(waits_for(gate)) for n in range(4)})
    plant.until_running(run_id, *(f"job-{n}" for n in range(4)))
    lease = plant.policy.lease
    time.sleep((lease.execution_ttl + lease.connectivity_grace) / 1_000 + rng.uniform(1, 2))
    logs = [process.log.read_text() for process in plant.processes.values()]
    if len(logs) == 4 and all("clock reads" in log for log in logs):
        rounds.hit()
    gate.touch()
    plant.until_state(run_id, "succeeded")
    assert [row["state"] for row in plant.attempts(run_id)] == ["succeeded"] * 4
    plant.demand_rest()


def demand_what_is_dead_lapses(plant: Plant, rounds: Rounds, rng: Random) -> None:
    label = {"chaos": f"l{rng.randint(1, 10**9)}"}
    dead = plant.start_agent(skew_s=rng.choice((-1, 1)) * 10 * MINUTES, labels=label)
    once = {"requires": {"labels": label}, "retry": {"max-attempts": 1}}
    run_id = plant.submit(orphan=a_job("sleep 60", **once))
    plant.until_running(run_id, "orphan")
    dead.kill()
    killed_at = time.monotonic()
    plant.until_state(run_id, "failed")
    rounds.took("killed agent to lost attempt", time.monotonic() - killed_at, goal_s=30)
    assert plant.states(run_id, "orphan") == ["lost"]
    del plant.processes[dead.name]
