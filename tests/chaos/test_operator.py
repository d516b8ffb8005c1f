"""An operator terminates or resets workflows in mid-run; no job is lost or done twice."""

import signal
from random import Random

import pytest

from activities import contracts
from tests.chaos.plant import Plant, a_job, until, waits_for
from tests.chaos.rounds import Rounds
from tests.chaos.standin import AFTER_COMMIT, AFTER_PLAN

pytestmark = pytest.mark.integration
LOOP = contracts.loop_workflow_id("default")
UPKEEP = contracts.upkeep_workflow_id("default")


def test_loop_upkeep_and_attempts_ended_or_reset_in_mid_run_lose_no_job(
    plant: Plant, rounds: Rounds
) -> None:
    plant.until_online(plant.start_agent())
    for rng in rounds.of("loop, upkeep and two attempts were in mid-run"):
        demand_no_job_lost(plant, rounds, rng)


def demand_no_job_lost(plant: Plant, rounds: Rounds, rng: Random) -> None:
    gate = plant.file(f"gate-{rng.random()}")
    run_id = plant.submit(
        one=a_job(waits_for(gate)),
        two=a_job(waits_for(gate)),
        after=a_job("true", needs=["one", "two"]),
    )
    plant.until_running(run_id, "one", "two")
    until(lambda: not plant.undelivered(run_id), or_say=plant.tails)
    attempts = [
        contracts.attempt_workflow_id(row["job_id"], row["number"])
        for row in plant.attempts(run_id)
    ]
    until(lambda: all(map(plant.timer_of, attempts)), every_s=0.3, or_say=plant.tails)
    rng.shuffle(attempts)
    waiting = [LOOP, UPKEEP]
    rng.shuffle(waiting)
    met = [plant.workflow_status(each) == "RUNNING" for each in (*attempts, *waiting)]
    for ended, again in (attempts, waiting):
        plant.terminate(ended)
        plant.reset(again)
    if all(met):
        rounds.hit()
    gate.touch()
    plant.until_state(run_id, "succeeded")
    plant.demand_rest()
    assert {row["number"] for row in plant.attempts(run_id)} == {1}
    for workflow_id in (LOOP, UPKEEP):
        plant.until_workflow(workflow_id, "RUNNING")


@pytest.mark.parametrize("moment", [AFTER_PLAN, AFTER_COMMIT])
def test_a_cycle_ended_or_reset_in_mid_run_loses_no_job(
    plant: Plant, rounds: Rounds, moment: str
) -> None:
    """Its worker dies at that moment, so that the cycle stands still for the operator."""
    plant.until_online(plant.start_agent())
    for rng in rounds.of(f"the cycle stood {moment.replace('_', ' ')}"):
        demand_placed_all_the_same(plant, rounds, rng, moment)


def demand_placed_all_the_same(plant: Plant, rounds: Rounds, rng: Random, moment: str) -> None:
    plant.processes["worker"].end(signal.SIGKILL)
    deadly = plant.start_worker(fault=moment)
    run_id = plant.submit(**{f"job_{n}": a_job("true") for n in range(rng.randint(1, 3))})
    until(lambda: not deadly.is_running, every_s=0.01, or_say=plant.tails)
    cycle = plant.newest_cycle()
    stood = plant.workflow_status(cycle) == "RUNNING"
    rng.choice((plant.terminate, plant.reset))(cycle)
    plant.start_worker()
    if stood:
        rounds.hit()
    plant.until_state(run_id, "succeeded")
    plant.demand_rest()
    assert {row["number"] for row in plant.attempts(run_id)} == {1}
