"""Upkeep: what happens because time passes, whoever else is dead."""

from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa
from temporalio.client import WorkflowExecutionStatus, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from activities import contracts, starts
from forgeyard.model.protocol import Outcome
from forgeyard.model.units import Millis
from forgeyard.store import policies, tables
from forgeyard.store.engine import write
from tests.integration.temporal.house import QUICK, Cost, Driver, House, attempt_id_of, until
from tests.integration.temporal.stages import leased_silently
from workflows.upkeep import Upkeep

pytestmark = pytest.mark.integration


async def start(house: House, **state: object) -> str:
    """Start upkeep with a state of the test's choice; return its workflow's id."""
    workflow_id = contracts.upkeep_workflow_id(house.partition)
    await house.client.start_workflow(
        contracts.UPKEEP,
        contracts.UpkeepState(partition=house.partition, period_ms=100, **state),
        id=workflow_id,
        task_queue=house.queue,
    )
    return workflow_id


async def test_a_silent_runner_loses_its_lease_and_the_job_runs_elsewhere(house: House) -> None:
    silent = Driver(house=house)
    run_id, offer = leased_silently(house, silent)
    silent.accept(offer)
    leases = tables.leases
    house.change(sa.update(leases).values(expires_at=leases.c.expires_at - 600_000))
    async with house.worker(), Driver(house=house, name="runner-2").running():
        await house.until_run(run_id, "succeeded")
    assert [row["state"] for row in house.attempts(run_id)] == ["lost", "succeeded"]


async def test_an_attempt_that_nobody_settled_is_settled_by_its_deadline(house: House) -> None:
    driver = Driver(house=house, outcome=lambda _offer: Outcome.FAILED)
    run_id, offer = leased_silently(house, driver)
    driver.accept(offer)
    driver.complete(offer)
    house.change(sa.update(tables.outbox).values(delivered_at=1))
    async with house.bare_worker():
        await start(house)
        await until(lambda: house.attempts(run_id)[0]["settled_at"] is not None)
    assert house.job_states(run_id)["build"] != "running"


@pytest.mark.requirement("RCN-019", "DSP-001")
async def test_stragglers_of_the_outbox_are_sent(house: House) -> None:
    run_id, _ = leased_silently(house, Driver(house=house))
    outbox = tables.outbox
    house.change(sa.update(outbox).values(created_at=outbox.c.created_at - 60_000))
    async with house.bare_worker():
        await start(house)
        await until(lambda: not house.undelivered())
        attempt_id = attempt_id_of(house.attempts(run_id)[0])
        assert await house.status(attempt_id) == WorkflowExecutionStatus.RUNNING


async def test_upkeep_follows_the_period_of_the_policy_that_was_set(house: House) -> None:
    slower = replace(QUICK, sweep=replace(QUICK.sweep, period=Millis(400)))
    async with house.bare_worker():
        workflow_id = await start(house)
        with write(house.engine) as connection:
            policies.set_policy(
                connection,
                slower,
                expected_version=0,
                actor="ann",
                channel="test",
                reason="a test",
                built_in=QUICK,
            )

        async def is_slower() -> bool:
            return timedelta(milliseconds=400) in [
                event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
                for event in await house.history(workflow_id)
                if event.HasField("timer_started_event_attributes")
            ]

        await until(is_slower, or_say=lambda: "upkeep keeps its old period")


async def test_a_sweep_that_fails_does_not_end_upkeep(house: House) -> None:
    """A table that is gone for a while stands for whatever may break a sweep."""
    async with house.bare_worker():
        house.change(sa.text("ALTER TABLE deadlines RENAME TO hidden"))
        workflow_id = await start(house)

        async def told() -> bool:
            return "the sweep failed" in await house.details(workflow_id)

        await until(told)
        house.change(sa.text("ALTER TABLE hidden RENAME TO deadlines"))

        async def recovered() -> bool:
            return "deadlines enforced" in await house.details(workflow_id)

        await until(recovered)
        assert await house.status(workflow_id) == WorkflowExecutionStatus.RUNNING


async def test_continuing_as_new_goes_on_where_it_was(house: House) -> None:
    async with house.bare_worker():
        workflow_id = await start(house, rounds_per_run=3)

        async def third_run() -> bool:
            details = await house.details(workflow_id)
            return any(f"Sweep {number}:" in details for number in range(6, 30))

        await until(third_run)
        handle = house.client.get_workflow_handle(workflow_id)
        assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
        assert (await house.history(workflow_id))[
            0
        ].workflow_execution_started_event_attributes.continued_execution_run_id


async def test_retention_runs_at_once_and_then_not_again_for_an_hour(house: House) -> None:
    async with house.bare_worker():
        workflow_id = await start(house)

        async def swept() -> bool:
            return (await activities(house, workflow_id)).count("upkeep.sweep") >= 5

        await until(swept)
        assert (await activities(house, workflow_id)).count("upkeep.forget") == 1


async def test_upkeep_reconciles_at_once_and_then_not_again_for_a_minute(house: House) -> None:
    """A job that counts a need too many would wait for ever, for no deadline is of that."""
    run_id = house.submit_silently()
    jobs = tables.jobs
    house.change(sa.update(jobs).values(state="pending", waiting_needs=1))
    house.change(sa.delete(tables.deadlines).where(tables.deadlines.c.kind == "queue"))
    async with house.bare_worker():
        workflow_id = await start(house)
        await until(lambda: house.job_states(run_id)["build"] != "pending")

        async def told() -> bool:
            return "Last reconciliation: 1 repaired" in await house.details(workflow_id)

        await until(told)
        assert "needs_count of job_" in await house.details(workflow_id)
        names = await activities(house, workflow_id)
        assert names.count("upkeep.reconcile") == 1
        assert names.count("upkeep.sweep") >= 2


async def test_a_reconciliation_that_fails_does_not_end_upkeep(house: House) -> None:
    async with house.bare_worker():
        house.change(sa.text("ALTER TABLE key_holds RENAME TO hidden"))
        workflow_id = await start(house, reconcile_every_ms=200)

        async def told() -> bool:
            return "the reconciliation failed" in await house.details(workflow_id)

        await until(told)
        house.change(sa.text("ALTER TABLE hidden RENAME TO key_holds"))

        async def recovered() -> bool:
            return "Last reconciliation: 0 repaired" in await house.details(workflow_id)

        await until(recovered)
        assert await house.status(workflow_id) == WorkflowExecutionStatus.RUNNING


async def activities(house: House, workflow_id: str) -> list[str]:
    """Name the activities that a workflow asked for, in order."""
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in await house.history(workflow_id)
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


async def test_the_list_shows_what_upkeep_is(house: House) -> None:
    period_ms = timedelta(seconds=2) // timedelta(milliseconds=1)
    options = {"period_ms": period_ms, "task_queue": house.queue}
    assert await starts.start_upkeep(house.client, house.partition, **options)
    assert not await starts.start_upkeep(house.client, house.partition, **options)
    workflow_id = contracts.upkeep_workflow_id(house.partition)
    described = await house.client.get_workflow_handle(workflow_id).describe()
    assert described.typed_search_attributes[contracts.KIND] == "upkeep"
    assert await described.static_summary() == f"upkeep of {house.partition}"


async def test_upkeep_s_history_replays(house: House) -> None:
    async with house.bare_worker():
        workflow_id = await start(house)

        async def long_enough() -> bool:
            return Cost.of(await house.history(workflow_id)).events > 40

        await until(long_enough)
        history = WorkflowHistory(workflow_id, await house.history(workflow_id))
    replayer = Replayer(workflows=[Upkeep], data_converter=pydantic_data_converter)
    assert (await replayer.replay_workflow(history)).replay_failure is None
