"""Messages that come twice, late or out of order, on their way to workflows and to agents."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from activities import contracts
from tests.chaos.plant import FAILS_ONCE, Plant, a_job, until
from tests.chaos.proxy import Proxy
from tests.chaos.rounds import Rounds
from tests.chaos.standin import SHUFFLED

pytestmark = pytest.mark.integration


@pytest.mark.requirement("DSP-002", "DSP-005", "ACC-028", "INV-017", "INV-042")
def test_an_offer_that_arrives_two_to_five_times_starts_one_process(
    plant: Plant, rounds: Rounds
) -> None:
    proxy = Proxy(target=plant.agent_port)
    plant.until_online(plant.start_agent(url=proxy.url))
    for rng in rounds.of("the same offer arrived two to five times before it was accepted"):
        demand_one_process(plant, rounds, rng, proxy)
    plant.end_agents()
    proxy.close()


def demand_one_process(plant: Plant, rounds: Rounds, rng: Random, proxy: Proxy) -> None:
    ran = plant.file(f"ran-{rng.random()}")
    proxy.keep_requests("/accept")
    proxy.count_answers('"offers":[{')
    run_id = plant.submit(job=a_job(f"echo $$ >> {ran}; sleep 0.3"))
    times = rng.randint(2, 5)
    until(lambda: proxy.counts["counted"] >= times, or_say=lambda: f"{proxy.counts} offers")
    (lease,) = plant.leases(run_id)
    if proxy.held.is_set() and lease["state"] == "offered":
        rounds.hit()
    proxy.clear()
    plant.until_state(run_id, "succeeded")
    assert len(ran.read_text().split()) == 1
    assert len(plant.leases(run_id)) == 1
    plant.demand_rest()


@pytest.mark.requirement("DSP-001", "TST-005", "GAT-006")
def test_offers_that_get_lost_are_made_again_under_the_same_lease(
    plant: Plant, rounds: Rounds
) -> None:
    """F10: the connection breaks with each offer on it, two or three times in a row."""
    with Proxy(target=plant.agent_port) as proxy:
        plant.until_online(plant.start_agent(url=proxy.url))
        for rng in rounds.of("an offer was lost on its way at least twice"):
            demand_offered_again(plant, rounds, rng, proxy)
        plant.end_agents()


def demand_offered_again(plant: Plant, rounds: Rounds, rng: Random, proxy: Proxy) -> None:
    times = proxy.counts["answers lost"] + rng.randint(2, 3)
    proxy.let(loses_answers=b'"offers":[{')
    run_id = plant.submit(job=a_job("true"))
    until(lambda: proxy.counts["answers lost"] >= times, or_say=lambda: f"{proxy.counts}")
    (lost,) = plant.leases(run_id)
    if lost["state"] == "offered":
        rounds.hit()
    proxy.clear()
    plant.until_state(run_id, "succeeded")
    (lease,) = plant.leases(run_id)
    assert (lease["lease_id"], lease["epoch"]) == (lost["lease_id"], lost["epoch"])
    assert lease["accepted_at"] < lost["expires_at"]
    plant.demand_rest()


@pytest.mark.requirement("INV-017")
def test_every_call_about_a_lease_may_arrive_several_times(plant: Plant, rounds: Rounds) -> None:
    """F9: accepted, renewed, reported and completed again, on other connections, at any time."""
    with Proxy(target=plant.agent_port, seed=rounds.seed) as proxy:
        plant.until_online(plant.start_agent(url=proxy.url))
        for rng in rounds.of("each call about three jobs arrived at least twice"):
            demand_done_once(plant, rounds, rng, proxy)
        plant.end_agents()


def demand_done_once(plant: Plant, rounds: Rounds, rng: Random, proxy: Proxy) -> None:
    ran = plant.file(f"ran-{rng.random()}")
    before = proxy.counts["repeated"]
    proxy.let(repeats=b"/agent/v1/leases/", repetitions=rng.randint(1, 4), jitter_s=0.2)
    jobs = {f"job_{n}": a_job(f"echo $FORGEYARD_ATTEMPT >> {ran}; sleep 0.3") for n in range(2)}
    run_id = plant.submit(fails=FAILS_ONCE, **jobs)
    plant.until_state(run_id, "succeeded")
    proxy.clear()
    # Accepted, running and completed: three calls for each of four attempts, and their logs.
    if proxy.counts["repeated"] - before >= 12:
        rounds.hit()
    # Whatever the way did to an offer, what was accepted ran once and counts once.
    assert len(ran.read_text().split()) == 2
    accepted = [lease for lease in plant.leases(run_id) if lease["accepted_at"]]
    assert sorted(lease["state"] for lease in accepted) == ["released"] * 4
    plant.demand_rest()


@pytest.mark.requirement("DSP-003")
def test_a_relay_that_repeats_and_reorders_what_it_sends_changes_nothing(
    plant: Plant, rounds: Rounds
) -> None:
    plant.until_online(plant.start_agent())
    try:
        for rng in rounds.of("events were sent twice, and older ones after newer ones"):
            demand_unmoved(plant, rounds, rng)
    finally:
        for name in ("worker", "api"):
            plant.processes[name].end()


def demand_unmoved(plant: Plant, rounds: Rounds, rng: Random) -> None:
    tally = plant.file(f"tally-{rng.random()}")
    shuffle(plant, tally, rng.randint(1, 10**6))
    plain = {f"job_{n}": a_job("true") for n in range(4)}
    last = a_job("true", needs=["fails", "job-1"])
    run_id = plant.submit(fails=FAILS_ONCE, last=last, **plain)
    plant.until_state(run_id, "succeeded")
    plant.demand_rest()
    until(lambda: not plant.undelivered(run_id), or_say=plant.tails)
    sent = Counter(tally.read_text().splitlines())
    if sent["the same event again"] and sent["an older event after a newer one"]:
        rounds.hit()
    assert plant.states(run_id, "fails") == ["failed", "succeeded"]
    others = [row["state"] for row in plant.attempts(run_id) if row["job"] != "fails"]
    assert others == ["succeeded"] * 5
    for row in plant.attempts(run_id):
        workflow_id = contracts.attempt_workflow_id(row["job_id"], row["number"])
        plant.until_workflow(workflow_id, "COMPLETED")


def shuffle(plant: Plant, tally: Path, seed: int) -> None:
    """Let worker and API relay badly from now on."""
    for name, start in (("worker", plant.start_worker), ("api", plant.start_api)):
        plant.processes[name].end()
        start(fault=SHUFFLED, tally=str(tally), seed=seed)
    plant.until_ready()
