"""An agent is frozen until its leases have lapsed, and goes on as if nothing had happened."""

from random import Random

import pytest

from forgeyard.model.policy import SchedulingPolicy
from tests.chaos.plant import Plant, Process, a_job, lives, until, waits_for
from tests.chaos.proxy import Proxy
from tests.chaos.rounds import Rounds
from tests.chaos.test_agent_killed import SHORT

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Let a lease lapse after about five seconds of silence."""
    return SHORT


def proxied(plant: Plant) -> tuple[Proxy, Process]:
    """Start an agent that only a proxy joins to the API."""
    proxy = Proxy(target=plant.agent_port)
    agent = plant.start_agent(url=proxy.url)
    plant.until_online(agent)
    return proxy, agent


def test_a_result_that_comes_after_the_lease_lapsed_is_refused_and_audited(
    plant: Plant, rounds: Rounds
) -> None:
    """The agent has sent a success that is still on its way when somebody else takes the job."""
    for rng in rounds.of(
        "a success arrived after its lease had lapsed and the job was leased anew"
    ):
        demand_late_result_refused(plant, rounds, rng)


def demand_late_result_refused(plant: Plant, rounds: Rounds, rng: Random) -> None:
    mark = f"{rng.random()}"
    gate, never, pids = (plant.file(f"{name}-{mark}") for name in ("gate", "never", "pids"))
    again = "[ $FORGEYARD_ATTEMPT -ge 2 ] && exit 0\n"
    proxy, frozen = proxied(plant)
    run_id = plant.submit(
        late=a_job(again + waits_for(gate)),
        long=a_job(again + waits_for(never, say=f"echo $$ >> {pids}")),
    )
    plant.until_running(run_id, "late", "long")
    until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    proxy.keep_requests("/complete")
    gate.touch()
    assert proxy.held.wait(20)
    frozen.freeze()
    plant.until_online(plant.start_agent())
    plant.until_state(run_id, "succeeded")
    for job in ("late", "long"):
        assert plant.states(run_id, job)[0] == "lost"
    assert lives(int(pids.read_text()))
    lease_id = lease_of(plant, run_id, "late")
    proxy.clear()
    until(lambda: plant.audited("attempt.late_result_rejected", lease_id))
    rounds.hit()
    frozen.thaw()
    until(lambda: not lives(int(pids.read_text())), or_say=plant.tails)
    plant.demand_rest()
    plant.end_agents()
    proxy.close()


def lease_of(plant: Plant, run_id: str, job: str) -> str:
    """Name the lease of a job's first attempt."""
    first = next(row for row in plant.attempts(run_id) if row["job"] == job)
    (lease_id,) = (
        lease["lease_id"]
        for lease in plant.leases(run_id)
        if lease["attempt_id"] == first["attempt_id"]
    )
    return str(lease_id)


def test_an_agent_frozen_between_accepting_and_starting_starts_nothing_afterwards(
    plant: Plant, rounds: Rounds
) -> None:
    """Every answer that it waited for says yes; only its own clock tells it that time is up."""
    for rng in rounds.of("frozen with the job accepted and no process started, until it lapsed"):
        demand_nothing_started(plant, rounds, rng)


def demand_nothing_started(plant: Plant, rounds: Rounds, rng: Random) -> None:
    mark = f"{rng.random()}"
    ran = plant.file(f"ran-{mark}")
    proxy, frozen = proxied(plant)
    proxy.keep_answers("/progress")
    run_id = plant.submit(job=a_job(f"echo $FORGEYARD_ATTEMPT >> {ran}"))
    assert proxy.held.wait(30), plant.tails()
    frozen.freeze()
    if plant.states(run_id, "job") == ["running"] and not ran.exists():
        rounds.hit()
    plant.until_online(plant.start_agent())
    plant.until_state(run_id, "succeeded")
    assert plant.states(run_id, "job")[0] == "lost"
    proxy.clear()
    frozen.thaw()
    until(lambda: "lease lost" in frozen.log.read_text(), or_say=plant.tails)
    attempts = ran.read_text().split()
    assert attempts
    assert "1" not in attempts
    plant.demand_rest()
    plant.end_agents()
    proxy.close()
