"""What Prometheus finds at a worker: cycles, placements, conflicts, and what the SDK counts."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from temporalio.client import Client

from activities import contracts
from activities.scheduling import SchedulingActivities
from forgeyard import telemetry
from forgeyard.config import Config, MetricsConfig, StoreConfig, TemporalConfig
from forgeyard.errors import PortTaken
from forgeyard.model.job import Priority
from forgeyard.model.policy import PreemptionPolicy, SchedulingPolicy
from forgeyard.model.units import GIB
from forgeyard.model.wishes import Preemptibility, Wishes
from tests.builders import PARTITION, POLICY, RNG, a_job_spec, some_resources
from tests.integration.temporal.conftest import build_house
from tests.integration.temporal.house import Driver
from tests.integration.temporal.server import Server
from tests.leasing import Desk
from tests.scraping import Scrape, a_free_port, growth, scrape, scrape_here
from worker.main import run_worker
from worker.wiring import own_runtime

pytestmark = pytest.mark.integration
HUGE = a_job_spec("huge", resources=some_resources(memory=64 * GIB))


async def _relayed(port: int, before: Scrape) -> Scrape:
    """Scrape until a relay is counted, which ends after the job may have."""
    deadline = time.monotonic() + 60
    while True:
        found = await asyncio.to_thread(scrape, port)
        done = growth(before, found)
        if done("forgeyard_scheduler_cycle_latency_seconds_count", step="relay") >= 1:
            return found
        assert time.monotonic() < deadline, "no relay was counted"
        await asyncio.sleep(0.1)


@pytest.mark.requirement("MET-001", "MET-002", "MET-003", "MET-006")
async def test_a_worker_publishes_what_its_cycles_did_and_what_the_sdk_counts(
    client: Client,
    temporal_server: Server,
    sqlite_url: str,
    sqlite_engine: sa.Engine,
    tmp_path: Path,
) -> None:
    house = build_house(client, sqlite_engine, tmp_path).at(
        partition="metered", queue=contracts.TASK_QUEUE
    )
    ports = MetricsConfig(worker_port=a_free_port(), temporal_port=a_free_port())
    assert ports.worker_port is not None
    config = Config(
        data_dir=tmp_path,
        partition="metered",
        temporal=TemporalConfig(address=temporal_server.address),
        store=StoreConfig(url=sqlite_url),
        metrics=ports,
    )
    before = scrape_here()
    stop = asyncio.Event()
    serving = asyncio.create_task(run_worker(config, stop))
    run_id = house.submit_silently(a_job_spec("small"), HUGE)
    try:
        async with Driver(house=house).running():
            await house.until_job(run_id, "small", "succeeded")
            found = await _relayed(ports.worker_port, before)
            sdk = await asyncio.to_thread(_text, ports.temporal_port)
    finally:
        stop.set()
        await asyncio.wait_for(serving, 40)
    grown = growth(before, found)
    assert grown("forgeyard_scheduler_placements_total") == 1
    assert grown("forgeyard_scheduler_jobs_considered_total") >= 2
    for step in ("plan", "commit", "relay"):
        assert grown("forgeyard_scheduler_cycle_latency_seconds_count", step=step) >= 1, step
    assert grown("forgeyard_scheduler_queue_wait_seconds_count", priority="normal") == 1
    assert grown("forgeyard_scheduler_placement_score_count") == 1
    assert grown("forgeyard_scheduler_rejections_total", code="insufficient_memory") >= 1
    assert grown("forgeyard_outbox_relayed_total", result="delivered") >= 1
    assert "temporal_activity_execution_latency_seconds" in sdk
    with pytest.raises(httpx.ConnectError):
        await asyncio.to_thread(scrape, ports.worker_port)


def _text(port: int | None) -> str:
    return httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text


@pytest.mark.requirement("MET-004")
def test_a_placement_that_another_commit_beat_is_counted_once_as_a_conflict(
    engine: sa.Engine,
) -> None:
    desk = Desk(engine)
    desk.register()
    desk.submit(a_job_spec("one"), a_job_spec("two"))
    cycles = SchedulingActivities(engine, POLICY, rng=RNG)
    partition = contracts.Partition(partition=PARTITION)
    first, second = (cycles.plan_cycle(partition).cycle_id for _ in range(2))
    before = scrape_here()
    for cycle_id in (first, second, second, first):
        cycles.commit_cycle(contracts.Cycle(cycle_id=cycle_id, partition=PARTITION))
    grown = growth(before, scrape_here())
    assert grown("forgeyard_scheduler_placements_total") == 2
    conflicts = "forgeyard_scheduler_placement_conflicts_total"
    assert grown(conflicts, verdict="job_gone") == 2
    assert grown(conflicts, verdict="granted") == 0
    assert grown("forgeyard_scheduler_queue_wait_seconds_count", priority="normal") == 2


@pytest.mark.requirement("MET-009")
def test_the_jobs_that_a_cycle_stops_for_an_urgent_one_are_counted(engine: sa.Engine) -> None:
    policy = SchedulingPolicy(preemption=PreemptionPolicy(enabled=1))
    desk = Desk(engine, policy)
    room = some_resources(cpu=1_000, memory=8 * GIB, disk=8 * GIB, slots=2)
    desk.register(total=room)
    stoppable = Wishes(preemption=Preemptibility.RESTARTABLE)
    for name in ("one", "two"):
        desk.submit(a_job_spec(name, wishes=stoppable))
    assert desk.cycle().granted == 2
    wide = some_resources(cpu=1_000)
    urgent = a_job_spec("hotfix", priority=Priority.EMERGENCY, resources=wide)
    desk.submit(urgent, elevation="production is down")
    cycles = SchedulingActivities(engine, policy, rng=RNG)
    before = scrape_here()
    for _ in range(2):
        cycles.plan_cycle(contracts.Partition(partition=PARTITION))
    assert growth(before, scrape_here())("forgeyard_scheduler_preemptions_total") == 2


def test_a_port_that_is_taken_is_named_with_its_setting() -> None:
    port = a_free_port()
    with telemetry.listening("127.0.0.1", port):
        with pytest.raises(PortTaken) as caught, telemetry.listening("127.0.0.1", port):
            pass
        assert caught.value.field == "metrics"
        with pytest.raises(PortTaken) as caught:
            own_runtime(MetricsConfig(temporal_port=port))
        assert caught.value.field == "metrics.temporal_port"
        assert scrape(port).value("forgeyard_scheduler_placements_total") >= 0
    with telemetry.listening("127.0.0.1", None):
        pass
