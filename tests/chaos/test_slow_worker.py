"""F32: the worker gets a tenth of a CPU, so that activities wait and events are not sent."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.model.policy import PressurePolicy, SchedulingPolicy
from forgeyard.model.units import Millis
from forgeyard.store import tables
from tests.chaos.conftest import ON_POSTGRESQL
from tests.chaos.plant import Plant, Process, a_job, until
from tests.chaos.rounds import Rounds
from tests.scraping import a_free_port, scrape

pytestmark = [pytest.mark.integration, ON_POSTGRESQL, pytest.mark.soak]
BATCH, QUARTER = 8, 2
WAITED = "temporal_activity_schedule_to_start_latency"


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Call it pressure when an event waits for half a second."""
    return SchedulingPolicy(batch=BATCH, pressure=PressurePolicy(outbox_lag=Millis(500)))


@pytest.fixture(scope="module")
def temporal_port() -> int:
    """Tell where the worker publishes what Temporal's SDK counts."""
    return a_free_port()


@pytest.fixture(scope="module")
def settings(temporal_port: int) -> Mapping[str, str]:
    """Let the worker publish it."""
    return {"FORGEYARD_METRICS__TEMPORAL_PORT": str(temporal_port)}


@pytest.mark.requirement("BKP-005", "BKP-006")
def test_a_slow_worker_is_seen_and_gets_smaller_batches_until_it_is_fast_again(
    plant: Plant, rounds: Rounds, temporal_port: int
) -> None:
    plant.until_online(plant.start_agent(jobs=16), plant.start_agent(jobs=16))
    for rng in rounds.of("a cycle of the slow worker saw that events wait"):
        demand_smaller_batches(plant, rounds, rng, temporal_port)


def demand_smaller_batches(plant: Plant, rounds: Rounds, rng: Random, temporal_port: int) -> None:
    usual = plant.submit(**{f"job_{n}": a_job("true") for n in range(BATCH)})
    plant.until_state(usual, "succeeded")
    (before,) = plant.rows(sa.select(sa.func.max(tables.cycles.c.cycle_id).label("id")))
    quick = waited(temporal_port)
    with slowed(plant.processes["worker"], share=rng.uniform(0.08, 0.12)):
        run_id = plant.submit(**{f"job_{n}": a_job("true") for n in range(4 * BATCH)})
        until(lambda: pressed(plant, before["id"]), within_s=120, or_say=plant.tails)
    fast_at = time.monotonic()
    rounds.hit()
    plant.until_state(run_id, "succeeded", within_s=120)
    rounds.took("fast again to all jobs done", time.monotonic() - fast_at, goal_s=90)
    assert all(cycle["planned"] <= QUARTER for cycle in pressed(plant, before["id"]))
    sums, counts = waited(temporal_port)
    assert (sums - quick[0]) / (counts - quick[1]) > quick[0] / quick[1]
    plant.demand_rest()


def pressed(plant: Plant, since: int) -> list[dict[str, object]]:
    """Read the cycles that were planned under pressure from Temporal's side."""
    cycles = tables.cycles
    found = cycles.c.pressure.like("%control_plane_pressure%")
    return plant.rows(sa.select(cycles).where(cycles.c.cycle_id > since, found))


def waited(port: int) -> tuple[float, float]:
    """Read how long activities have waited for a worker, and how many there were."""
    samples = [
        one
        for family in scrape(port).families.values()
        for one in family.samples
        if one.name.startswith(WAITED)
    ]

    def total(suffix: str) -> float:
        return sum(one.value for one in samples if one.name.endswith(suffix))

    return total("_sum"), total("_count")


@contextmanager
def slowed(process: Process, *, share: float) -> Iterator[None]:
    """Let a process run for only a share of each half second."""
    ended = threading.Event()

    def rein() -> None:
        while not ended.is_set():
            process.freeze()
            ended.wait(0.5 * (1 - share))
            process.thaw()
            ended.wait(0.5 * share)

    thread = threading.Thread(target=rein)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        process.thaw()
