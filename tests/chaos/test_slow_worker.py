"""F32: the worker gets a tenth of a CPU, so that tasks wait and snapshots take long."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.model.policy import PressurePolicy, SchedulingPolicy
from forgeyard.model.units import Millis
from forgeyard.scheduler.pressure import Signal
from forgeyard.store import tables
from tests.chaos.conftest import ON_POSTGRESQL
from tests.chaos.plant import Plant, Process, a_job, until, waits_for
from tests.chaos.rounds import Rounds
from tests.scraping import a_free_port, scrape

# Soak, for a tenth of a CPU is nothing at all on a machine that is busy.
pytestmark = [pytest.mark.integration, ON_POSTGRESQL, pytest.mark.soak]
BATCH, QUARTER = 8, 2
PERIOD_S, PRESSED_MS = 0.5, 400
SEEN_S = 0.05
"""A worker that is not reined in takes a task after a few milliseconds, if the machine is free."""
WAITED = "temporal_workflow_task_schedule_to_start_latency"
"""Of workflow tasks, for activities are mostly handed over with the task that asks for them."""


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Call it pressure when the snapshot of a cycle takes longer than a worker is reined in.

    What waits to be sent is no sign of it: the API, which is quick, takes that over.
    """
    return SchedulingPolicy(batch=BATCH, pressure=PressurePolicy(store_latency=Millis(PRESSED_MS)))


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
    for rng in rounds.of("a cycle of the slow worker saw how long the store took for it"):
        demand_smaller_batches(plant, rounds, rng, temporal_port)


def demand_smaller_batches(plant: Plant, rounds: Rounds, rng: Random, temporal_port: int) -> None:
    began = waited(temporal_port)
    usual = plant.submit(**{f"job_{n}": a_job("true") for n in range(BATCH)})
    plant.until_state(usual, "succeeded")
    gate = plant.file(f"gate-{rng.random()}")
    names = [f"job-{n}" for n in range(BATCH)]
    held = plant.submit(**{name: a_job(waits_for(gate, within_s=600)) for name in names})
    plant.until_running(held, *names)
    (before,) = plant.rows(sa.select(sa.func.max(tables.cycles.c.cycle_id).label("id")))
    quick = waited(temporal_port)
    with slowed(plant.processes["worker"], share=rng.uniform(0.08, 0.12)):
        run_id = plant.submit(**{f"job_{n}": a_job("true") for n in range(2 * BATCH)})
        until(lambda: pressed(plant, before["id"]), within_s=120, or_say=plant.tails)
        # The first few are taken at once, by polls that were waiting.
        gate.touch()
        until(
            lambda: mean(quick, waited(temporal_port)) > SEEN_S,
            within_s=120,
            or_say=lambda: (began, quick, waited(temporal_port)),
        )
    fast_at, slow = time.monotonic(), waited(temporal_port)
    found = f"{mean(began, quick):.3f} and {mean(quick, slow):.3f} s"
    rounds.note("a workflow task waited for the quick and for the slow worker", found)
    rounds.hit()
    # A machine that is slow anyway keeps up the pressure: then each cycle takes one or two.
    for each in (held, run_id):
        plant.until_state(each, "succeeded", within_s=240)
    rounds.took("fast again to all jobs done", time.monotonic() - fast_at, goal_s=240)
    assert all(cycle["planned"] <= QUARTER for cycle in pressed(plant, before["id"]))
    plant.demand_rest()


def pressed(plant: Plant, since: int) -> list[dict[str, object]]:
    """Read the cycles that were planned under pressure."""
    cycles = tables.cycles
    found = cycles.c.pressure.contains(Signal.STORAGE.value)
    return plant.rows(sa.select(cycles).where(cycles.c.cycle_id > since, found))


def waited(port: int) -> tuple[float, float]:
    """Read how long workflow tasks have waited for a worker, and how many there were."""
    samples = [
        one
        for family in scrape(port).families.values()
        for one in family.samples
        if one.name.startswith(WAITED)
    ]

    def total(suffix: str) -> float:
        return sum(one.value for one in samples if one.name.endswith(suffix))

    return total("_sum"), total("_count")


def mean(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Tell how long one waited on average between two readings."""
    return (after[0] - before[0]) / max(1.0, after[1] - before[1])


@contextmanager
def slowed(process: Process, *, share: float) -> Iterator[None]:
    """Let a process run for only a share of each period."""
    ended = threading.Event()

    def rein() -> None:
        while not ended.is_set():
            process.freeze()
            ended.wait(PERIOD_S * (1 - share))
            process.thaw()
            ended.wait(PERIOD_S * share)

    thread = threading.Thread(target=rein)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        process.thaw()
