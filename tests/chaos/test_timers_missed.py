"""Temporal's server is down when timers of its workflows fall due."""

import time
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from activities import contracts
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy, SweepPolicy
from forgeyard.model.units import Millis
from tests.chaos.plant import Plant, a_job, until
from tests.chaos.rounds import Rounds

pytestmark = pytest.mark.integration
SHORT = {"preparation": "2s", "execution": "12s", "upload": "2s"}


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Bring the backstop of a short attempt near."""
    lease = LeasePolicy(
        offer_ttl=Millis(6_000), settle_within=Millis(1_000), deadline_slack=Millis(500)
    )
    return SchedulingPolicy(lease=lease, sweep=SweepPolicy(period=Millis(500)))


def test_timers_that_fall_due_while_the_server_is_down_hold_nothing_up(
    plant: Plant, rounds: Rounds
) -> None:
    """The loop's back-off and the attempt's backstop; nobody tells the workflows anything."""
    plant.until_online(plant.start_agent())
    for rng in rounds.of("the timers of loop and attempt fell due while the server was down"):
        demand_nothing_held_up(plant, rounds, rng)


def demand_nothing_held_up(plant: Plant, rounds: Rounds, rng: Random) -> None:
    label = f"l{rng.randint(1, 10**9)}"
    run_id = plant.submit(
        hangs=a_job(
            "[ $FORGEYARD_ATTEMPT -ge 2 ] || sleep 60",
            timeouts=SHORT,
            retry={"max-attempts": 4, "on": ["timeout"]},
        ),
        nowhere=a_job("true", requires={"labels": {"chaos": label}}),
    )
    plant.until_running(run_id, "hangs")
    hangs = next(row for row in plant.attempts(run_id))
    attempt = contracts.attempt_workflow_id(hangs["job_id"], hangs["number"])
    dues: list[datetime] = []
    until(lambda: dues.extend(timers_ahead(plant, attempt)) or dues, or_say=plant.tails)
    plant.temporal.kill()
    killed_at = datetime.now(UTC)
    left = (max(dues) - datetime.now(UTC)).total_seconds()
    time.sleep(max(0.0, left) + rng.uniform(0.5, 1.5))
    if killed_at < min(dues) and max(dues) < datetime.now(UTC):
        rounds.hit()
    until(lambda: plant.states(run_id, "hangs") == ["timed_out"], or_say=plant.tails)
    plant.temporal.start()
    plant.until_online(plant.start_agent(labels={"chaos": label}))
    plant.until_state(run_id, "succeeded")
    assert plant.states(run_id, "hangs")[0] == "timed_out"
    assert plant.states(run_id, "nowhere") == ["succeeded"]
    plant.until_workflow(attempt, "COMPLETED")
    plant.demand_rest()


def timers_ahead(plant: Plant, attempt: str) -> list[datetime]:
    """Tell when the timers of an attempt and of the loop fire, if both have a while to go."""
    timers = (plant.timer_of(attempt), plant.timer_of(contracts.loop_workflow_id("default")))
    soon = datetime.now(UTC) + timedelta(seconds=0.5)
    ahead = [at for at in timers if at is not None and at > soon]
    return ahead if len(ahead) == len(timers) else []
