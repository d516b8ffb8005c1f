"""F31: one of the two that everything rests on is away, and the API says so and does the rest."""

import time
from collections.abc import Iterator
from random import Random

import httpx
import pytest

from tests.chaos.outage import FrozenServer, own_postgresql
from tests.chaos.plant import Plant, a_job, lives, until, waits_for
from tests.chaos.rounds import Rounds
from tests.conftest import postgresql_database

pytestmark = pytest.mark.integration
WHY = {"reason": "chaos"}


@pytest.fixture(scope="module")
def gone() -> Iterator[tuple[str, FrozenServer]]:
    """Give a database and the way to take it away."""
    with own_postgresql() as (server, url), postgresql_database(url, "degraded") as own_url:
        outage = FrozenServer(server=server)
        yield own_url, outage
        outage.end()


@pytest.fixture(scope="module")
def database(gone: tuple[str, FrozenServer]) -> str:
    """Give the database to the plant."""
    return gone[0]


def test_without_temporal_it_says_degraded_and_an_operator_can_do_everything(
    plant: Plant, rounds: Rounds
) -> None:
    """F31: cancel, drain, pause, submit; what takes Temporal is done once it is back."""
    plant.until_online(plant.start_agent())
    for rng in rounds.of("Temporal did not answer, and everything else did"):
        demand_operable(plant, rounds, rng)


def demand_operable(plant: Plant, rounds: Rounds, rng: Random) -> None:
    pids, never = plant.file(f"pids-{rng.random()}"), plant.file(f"never-{rng.random()}")
    stopped = plant.submit(job=a_job(waits_for(never, say=f"echo $$ >> {pids}")))
    plant.until_running(stopped, "job")
    until(pids.exists)
    time.sleep(rng.uniform(0, 1))
    plant.temporal.kill()
    until(lambda: readiness(plant) == (200, "degraded", True, False), or_say=plant.tails)
    rounds.hit()
    plant.order(f"/v1/runs/{stopped}:cancel", WHY)
    until(lambda: not lives(int(pids.read_text())), or_say=plant.tails)
    until(lambda: plant.states(stopped, "job") == ["cancelled"], or_say=plant.tails)
    (agent,) = plant.agents()
    plant.order(f"/v1/runners/{agent}:drain", WHY)
    assert plant.runner(agent)["state"] == "draining"
    plant.order(f"/v1/runners/{agent}:undrain", WHY)
    plant.order("/v1/scopes/default:pause", WHY)
    meanwhile = plant.submit(job=a_job("true"))
    plant.temporal.start()
    back_at = time.monotonic()
    plant.until_state(stopped, "cancelled")
    rounds.took("Temporal back to cancelled run settled", time.monotonic() - back_at, goal_s=40)
    until(lambda: readiness(plant)[1] == "ready", or_say=plant.tails)
    assert not plant.attempts(meanwhile)
    plant.order("/v1/scopes/default:resume", WHY)
    plant.until_state(meanwhile, "succeeded")
    plant.demand_rest()


def test_without_the_database_it_says_unavailable_in_time_and_loses_nothing(
    plant: Plant, rounds: Rounds, gone: tuple[str, FrozenServer]
) -> None:
    """F31, TST-005: the database keeps its connections and answers nothing."""
    plant.until_online(plant.start_agent())
    for rng in rounds.of("the database answered nothing, and the API did"):
        demand_an_answer(plant, rounds, rng, gone[1])


def demand_an_answer(plant: Plant, rounds: Rounds, rng: Random, outage: FrozenServer) -> None:
    gate = plant.file(f"gate-{rng.random()}")
    run_id = plant.submit(job=a_job(waits_for(gate)))
    plant.until_running(run_id, "job")
    time.sleep(rng.uniform(0, 1))
    outage.begin()
    try:
        for _ in range(3):
            asked_at = time.monotonic()
            assert readiness(plant) == (503, "unavailable", False, True)
            took = time.monotonic() - asked_at
            rounds.took("asked to told that the database is away", took, goal_s=10)
        refused = plant.offer(job=a_job("true"))
    finally:
        outage.end()
    assert refused.status_code == 503
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["retry-after"]) > 0
    rounds.hit()
    until(lambda: readiness(plant)[0] == 200, or_say=plant.tails)
    gate.touch()
    plant.until_state(run_id, "succeeded")
    assert plant.states(run_id, "job") == ["succeeded"]
    plant.demand_rest()


def readiness(plant: Plant) -> tuple[int, str, bool, bool]:
    """Ask the API what works: its status, in one word, the database, Temporal."""
    try:
        answer = plant.http.get("/readyz", timeout=15)
    except httpx.TimeoutException:
        return 0, "no answer", False, False
    said = answer.json()
    return answer.status_code, said["status"], said["database"], said["temporal"]
