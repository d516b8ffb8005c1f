"""An agent dies with its work: the server tries it elsewhere, its successor ends what was left."""

from collections.abc import Sequence
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


# Soak, for three agents die and are started again one after the other.
@pytest.mark.soak
def test_a_job_that_kills_whatever_runs_it_fails_and_leaves_the_runners_well(
    plant: Plant, rounds: Rounds
) -> None:
    """F29: three runners, each of which is started again by its supervisor."""
    agents = [plant.start_agent() for _ in range(3)]
    plant.until_online(*agents)
    for rng in rounds.of("the job killed an agent with each of its attempts"):
        demand_poison_contained(plant, rounds, rng, [agent.name for agent in agents])


def demand_poison_contained(
    plant: Plant, rounds: Rounds, rng: Random, names: Sequence[str]
) -> None:
    bystander = plant.file(f"gate-{rng.random()}")
    once = {"retry": {"max-attempts": 3}}
    run_id = plant.submit(
        poison=a_job("kill -9 $PPID; sleep 60", **once), other=a_job(waits_for(bystander))
    )
    killed = 0

    def is_over() -> bool:
        nonlocal killed
        for name in names:
            if not plant.processes[name].is_running:
                killed += 1
                plant.start_agent(name)
        return plant.job_state(run_id, "poison") == "failed"

    until(is_over, within_s=90, or_say=plant.tails)
    if killed >= 3:
        rounds.hit()
    states = plant.states(run_id, "poison")
    assert states == ["lost"] * 3, states
    bystander.touch()
    plant.until_online(*(plant.processes[name] for name in names))
    # The agent that was killed last is believed again once its successor is heard.
    until(lambda: not any(plant.runner(name)["suspect"] for name in names), or_say=plant.tails)
    until(lambda: plant.states(run_id, "other")[-1:] == ["succeeded"], or_say=plant.tails)
    plant.until_state(plant.submit(after=a_job("true")), "succeeded")
    plant.demand_rest()
