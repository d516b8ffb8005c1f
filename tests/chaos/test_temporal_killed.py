"""Temporal's server is killed while attempts run, and comes back on its file."""

import time
from random import Random

import pytest

from tests.chaos.plant import Plant, a_job, until, waits_for
from tests.chaos.rounds import Rounds

pytestmark = pytest.mark.integration


@pytest.mark.requirement("RCN-002")
def test_a_killed_temporal_server_comes_back_on_its_file_and_everything_goes_on(
    plant: Plant, rounds: Rounds
) -> None:
    plant.until_online(plant.start_agent())
    for rng in rounds.of("attempts ran when the server was killed"):
        demand_progress(plant, rounds, rng)


def demand_progress(plant: Plant, rounds: Rounds, rng: Random) -> None:
    gates = [plant.file(f"gate-{rng.random()}") for _ in range(2)]
    run_id = plant.submit(
        early=a_job(waits_for(gates[0])),
        late=a_job(waits_for(gates[1])),
        after=a_job("true", needs=["early", "late"]),
    )
    plant.until_running(run_id, "early", "late")
    time.sleep(rng.uniform(0, 1))
    plant.temporal.kill()
    if plant.states(run_id, "early") == plant.states(run_id, "late") == ["running"]:
        rounds.hit()
    gates[0].touch()
    meanwhile = plant.submit(meanwhile=a_job("true"))
    until(lambda: plant.states(run_id, "early") == ["succeeded"], or_say=plant.tails)
    time.sleep(rng.uniform(0, 2))
    assert not plant.attempts(meanwhile)
    restarted_at = time.monotonic()
    plant.temporal.start()
    until(lambda: plant.attempts(meanwhile), within_s=60, or_say=plant.tails)
    took = time.monotonic() - restarted_at
    rounds.took("restarted server to next lease granted", took, goal_s=20)
    gates[1].touch()
    plant.until_state(run_id, "succeeded")
    plant.until_state(meanwhile, "succeeded")
    assert {row["number"] for row in plant.attempts(run_id)} == {1}
    plant.demand_rest()
