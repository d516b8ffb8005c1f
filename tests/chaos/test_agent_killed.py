"""An agent dies with its work: the server tries it elsewhere, its successor ends what was left."""

from random import Random

import pytest

from forgeyard.model.policy import LeasePolicy, SchedulingPolicy, SweepPolicy
from forgeyard.model.units import Millis
from tests.chaos.plant import Plant, a_job, lives, until, waits_for
from tests.chaos.rounds import Rounds

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Let a lease lapse after about five seconds of silence."""
    return SHORT


SHORT = SchedulingPolicy(
    lease=LeasePolicy(
        offer_ttl=Millis(20_000),
        execution_ttl=Millis(4_000),
        renew_every=Millis(500),
        connectivity_grace=Millis(1_000),
        longest_back_off=Millis(500),
        settle_within=Millis(1_000),
        session_silence=Millis(10_000),
        refusal_memory=Millis(1_000),
    ),
    sweep=SweepPolicy(period=Millis(500), outbox_age=Millis(1_000)),
)


@pytest.mark.requirement("RCN-023", "INV-018", "PRI-029")
def test_a_killed_agents_job_is_lost_and_tried_elsewhere_and_its_processes_end(
    plant: Plant, rounds: Rounds
) -> None:
    for rng in rounds.of("the job ran, and its processes outlived their agent"):
        demand_lost_and_tried_elsewhere(plant, rounds, rng)


def demand_lost_and_tried_elsewhere(plant: Plant, rounds: Rounds, rng: Random) -> None:
    mark = f"{rng.random()}"
    pids, never = plant.file(f"pids-{mark}"), plant.file(f"never-{mark}")
    script = f"[ $FORGEYARD_ATTEMPT -ge 2 ] && exit 0\n{waits_for(never, say=f'echo $$ >> {pids}')}"
    victim = plant.start_agent()
    plant.until_online(victim)
    run_id = plant.submit(job=a_job(script))
    until(lambda: pids.exists() and pids.read_text().endswith("\n"), or_say=plant.tails)
    orphan = int(pids.read_text())
    other = plant.start_agent()
    plant.until_online(other)
    victim.kill()
    if lives(orphan) and plant.states(run_id, "job") == ["running"]:
        rounds.hit()
    plant.until_state(run_id, "succeeded")
    first, *_, last = plant.attempts(run_id)
    assert (first["state"], last["state"]) == ("lost", "succeeded")
    assert first["runner_id"] != last["runner_id"]
    plant.start_agent(victim.name)
    until(lambda: not lives(orphan), or_say=lambda: f"it lives\n{plant.tails()}")
    assert len(pids.read_text().split()) == 1
    plant.demand_rest()
    plant.end_agents()
