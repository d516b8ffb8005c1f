"""Somebody holds a lock for longer than statements wait: the store times out, and then goes on."""

import time
from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.config import StoreConfig
from forgeyard.store import tables
from forgeyard.store.engine import open_engine
from tests.chaos.conftest import ON_POSTGRESQL
from tests.chaos.plant import Plant, a_job, until, waits_for
from tests.chaos.rounds import Rounds

pytestmark = [pytest.mark.integration, ON_POSTGRESQL]
TIMED_OUT = "canceling statement due to"
"""A busy machine may use up the time of the statement before that of the lock."""


@pytest.mark.requirement("TST-005", "RCN-026")
def test_a_commit_that_times_out_grants_nothing_and_is_made_good(
    plant: Plant, rounds: Rounds
) -> None:
    """A maintenance session has locked the runners; what runs goes on, what waits waits."""
    agent = plant.start_agent()
    plant.until_online(agent)
    for rng in rounds.of("the cycle timed out on the lock, and a job was waiting"):
        demand_made_good(plant, rounds, rng)


def demand_made_good(plant: Plant, rounds: Rounds, rng: Random) -> None:
    gate = plant.file(f"gate-{rng.random()}")
    running = plant.submit(job=a_job(waits_for(gate)))
    plant.until_running(running, "job")
    worker = plant.processes["worker"].log
    before = worker.read_text().count(TIMED_OUT)
    # Nor may the holder's own idling end its transaction before the cycle's patience has ended.
    holder = open_engine(plant.url, StoreConfig(statement_timeout_ms=0, idle_timeout_ms=0))
    with holder.begin() as connection:
        connection.execute(sa.select(tables.runners.c.runner_id).with_for_update())
        waiting = plant.submit(job=a_job("true"))
        until(lambda: worker.read_text().count(TIMED_OUT) > before, or_say=plant.tails)
        assert not plant.attempts(waiting)
        assert plant.states(running, "job") == ["running"]
        rounds.hit()
        gate.touch()
        time.sleep(rng.uniform(0, 1))
    holder.dispose()
    freed_at = time.monotonic()
    plant.until_state(waiting, "succeeded")
    rounds.took("lock let go to waiting job done", time.monotonic() - freed_at, goal_s=60)
    plant.until_state(running, "succeeded")
    assert [row["number"] for row in plant.attempts(waiting)] == [1]
    assert plant.states(running, "job") == ["succeeded"]
    plant.demand_rest()
