"""The relay: what SQL committed arrives once, and nothing is lost while Temporal is away."""

import asyncio
from dataclasses import replace

import pytest
import sqlalchemy as sa
from temporalio.client import Client, WorkflowExecutionStatus

from activities import contracts, starts
from activities.connection import connect, connect_later
from activities.relay import WAKE_GAP_MS, relay
from forgeyard.config import TemporalConfig
from forgeyard.store import changes, tables
from forgeyard.store.engine import write
from forgeyard.store.settle import settle
from tests.builders import LEASE_POLICY
from tests.integration.temporal.house import Cost, Driver, House, attempt_id_of
from tests.integration.temporal.server import Server
from tests.integration.temporal.stages import grant, leased_silently, start_of
from worker.wiring import register_search_attributes

pytestmark = pytest.mark.integration
RUNNING, COMPLETED = WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED


def wake_row(house: House) -> dict:
    """Read the partition's wake row."""
    wakes = tables.wakes
    return house.rows(sa.select(wakes).where(wakes.c.partition == house.partition))[0]


async def test_while_temporal_is_away_rows_and_wake_stay_for_later(house: House) -> None:
    leased_silently(house, Driver(house=house))
    away = await connect_later(TemporalConfig(address=Server().address))
    assert await relay(away, house.engine, house.partition, task_queue=house.queue) == 0
    (row,) = house.undelivered()
    assert (row["kind"], row["claimed_until"]) == ("lease.granted", 0)
    wake = wake_row(house)
    assert wake["signalled"] < wake["generation"]
    assert await house.relay() == 1
    assert not house.undelivered()
    assert wake_row(house)["signalled"] == wake["generation"]


async def test_a_server_that_dies_under_a_connected_relay_loses_nothing(house: House) -> None:
    server = Server()
    server.start()
    try:
        client = await connect(TemporalConfig(address=server.address))
        await register_search_attributes(client)
    finally:
        server.kill()
    leased_silently(house, Driver(house=house))
    assert await relay(client, house.engine, house.partition, task_queue=house.queue) == 0
    assert [row["claimed_until"] for row in house.undelivered()] == [0]
    assert await house.relay() == 1


async def test_two_relays_at_once_deliver_each_event_once(any_house: House) -> None:
    house = any_house
    run_id, offer, driver = accepted(house)
    driver.complete(offer)
    counts = await asyncio.gather(*(house.relay() for _ in range(4)))
    assert sum(counts) == 2
    history = Cost.of(await house.history(attempt_id_of(house.attempts(run_id)[0])))
    assert history.kinds["WORKFLOW_EXECUTION_SIGNALED"] == 1
    loop = Cost.of(await house.history(contracts.loop_workflow_id(house.partition)))
    assert loop.kinds["WORKFLOW_EXECUTION_SIGNALED"] == 1


def accepted(house: House) -> tuple[str, object, Driver]:
    """Bring one job as far as its running attempt without any workflow."""
    driver = Driver(house=house)
    run_id, offer = leased_silently(house, driver)
    driver.accept(offer)
    return run_id, offer, driver


async def test_an_event_sent_twice_reaches_the_workflow_as_one(house: House) -> None:
    """As if the first relay had crashed after sending, before it recorded that it had."""
    run_id, offer, driver = accepted(house)
    async with house.bare_worker():
        await house.relay()
        driver.complete(offer)
        await house.relay()
        await house.until_status(attempt_id_of(house.attempts(run_id)[0]), COMPLETED)
        house.change(sa.update(tables.outbox).values(delivered_at=None, claimed_until=0))
        assert await house.relay() == 2
    assert not house.undelivered()
    (attempt,) = house.attempts(run_id)
    assert await house.status(attempt_id_of(attempt)) == COMPLETED


async def test_completed_counts_as_delivered_only_when_sql_calls_the_attempt_settled(
    house: House,
) -> None:
    run_id, offer, driver = accepted(house)
    async with house.bare_worker():
        await house.relay()
        driver.complete(offer)
        await house.relay()
        await house.until_status(attempt_id_of(house.attempts(run_id)[0]), COMPLETED)
        house.change(sa.update(tables.outbox).values(delivered_at=None, claimed_until=0))
        house.change(sa.update(tables.attempts).values(settled_at=None))
        assert await house.relay() == 0
        assert len(house.undelivered()) == 2


@pytest.mark.parametrize("end", ["terminate", "cancel"])
async def test_the_end_of_an_attempt_brings_back_its_ended_workflow(house: House, end: str) -> None:
    run_id, offer, driver = accepted(house)
    workflow_id = attempt_id_of(house.attempts(run_id)[0])
    async with house.bare_worker():
        await house.relay()
        handle = house.client.get_workflow_handle(workflow_id)
        await getattr(handle, end)()
        ended = (
            WorkflowExecutionStatus.TERMINATED
            if end == "terminate"
            else WorkflowExecutionStatus.CANCELED
        )
        await house.until_status(workflow_id, ended)
        driver.complete(offer)
        assert await house.relay() == 1
        await house.until_status(workflow_id, COMPLETED)


@pytest.mark.requirement("FAR-036")
async def test_wakes_are_coalesced_however_many_there_are(house: House) -> None:
    async def change(number: int) -> None:
        with write(house.engine) as connection:
            changes.wake(connection, house.partition, reason=f"change {number}")
        await house.relay()

    started = asyncio.get_running_loop().time()
    for number in range(4):
        await asyncio.gather(*(change(number) for _ in range(10)))
    took = asyncio.get_running_loop().time() - started
    loop = Cost.of(await house.history(contracts.loop_workflow_id(house.partition)))
    assert loop.kinds["WORKFLOW_EXECUTION_SIGNALED"] <= took * 1_000 / WAKE_GAP_MS + 1
    wake = wake_row(house)
    assert wake["signalled"] == wake["generation"] == 40


async def test_a_wake_right_after_another_is_sent_late_but_sent(house: House) -> None:
    for _ in range(2):
        with write(house.engine) as connection:
            changes.wake(connection, house.partition, reason="a change")
        await house.relay()
    assert wake_row(house)["signalled"] == 2


async def test_an_event_temporal_refuses_does_not_hold_up_the_others(house: House) -> None:
    driver = Driver(house=house)
    driver.register()
    house.submit_silently()
    house.submit_silently()
    assert grant(house) == 2
    outbox = tables.outbox
    first = min(row["event_id"] for row in house.undelivered())
    spoilt = sa.func.replace(outbox.c.payload, '"runner-1"', '"' + "r" * 10_000 + '"')
    house.change(sa.update(outbox).where(outbox.c.event_id == first).values(payload=spoilt))
    assert await house.relay() == 1
    assert [row["event_id"] for row in house.undelivered()] == [first]


async def test_upkeep_leaves_young_rows_to_whoever_committed_them(house: House) -> None:
    leased_silently(house, Driver(house=house))
    late = await relay(
        house.client, house.engine, house.partition, older_than_ms=60_000, task_queue=house.queue
    )
    assert late == 0
    assert len(house.undelivered()) == 1


async def test_names_from_outside_cannot_break_the_list(house: House, client: Client) -> None:
    run_id, _, _ = accepted(house)
    start = replace(
        start_of(house.attempts(run_id)[0]), job_name="a\n# b `c`" + "ä" * 500, run_name="[x](y)"
    )
    await starts.start_attempt(client, start, None, task_queue=house.queue)
    described = await client.get_workflow_handle(
        contracts.attempt_workflow_id(start.job_id, start.number)
    ).describe()
    summary = await described.static_summary()
    assert summary is not None
    assert "\n" not in summary
    assert len(summary.encode()) <= 400
    assert described.status == RUNNING


async def test_an_event_that_cannot_be_read_holds_up_no_other(house: House) -> None:
    """It goes once the sweep has settled its attempt, which needs no workflow."""
    run_id, offer, driver = accepted(house)
    broken = sa.update(tables.outbox).values(payload="{")
    with write(house.engine) as connection:
        connection.execute(broken)
    house.submit_silently()
    assert grant(house) == 1
    assert await house.relay() == 1
    (row,) = house.undelivered()
    assert row["stream"] == house.attempts(run_id)[0]["attempt_id"]
    driver.complete(offer)
    attempt = house.attempts(run_id)[0]
    with write(house.engine) as connection:
        connection.execute(broken.where(tables.outbox.c.stream == attempt["attempt_id"]))
        settle(connection, attempt["attempt_id"], policy=LEASE_POLICY)
    assert await house.relay() == 2
    assert not house.undelivered()
