"""An operator ends workflows in the Temporal Web UI; no job is lost."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from activities import contracts
from forgeyard.model.protocol import Offer, Outcome
from tests.builders import a_job_spec
from tests.integration.temporal.house import Driver, House, attempt_id_of, until

pytestmark = pytest.mark.integration
RUNNING = WorkflowExecutionStatus.RUNNING


async def terminate(handle: WorkflowHandle) -> None:
    await handle.terminate("an operator did it")


async def cancel(handle: WorkflowHandle) -> None:
    await handle.cancel()


End = Callable[[WorkflowHandle], Awaitable[None]]
both_ways = pytest.mark.parametrize("end", [terminate, cancel])


async def end_it(house: House, workflow_id: str, end: End) -> str:
    """End the running workflow and wait until that run is over; return the run's id."""
    described = await house.client.get_workflow_handle(workflow_id).describe()
    assert described.status == RUNNING
    handle = house.client.get_workflow_handle(workflow_id, run_id=described.run_id)
    await end(handle)

    async def over() -> bool:
        return (await handle.describe()).status != RUNNING

    await until(over, or_say=lambda: f"{workflow_id} goes on")
    return str(described.run_id)


async def until_back(house: House, workflow_id: str, ended_run: str) -> None:
    """Wait until a workflow runs that is not the one that was ended."""

    async def back() -> bool:
        described = await house.client.get_workflow_handle(workflow_id).describe()
        return described.status == RUNNING and described.run_id != ended_run

    await until(back, or_say=lambda: f"{workflow_id} did not come back")


def held() -> tuple[asyncio.Event, asyncio.Event, Callable[[Offer], Awaitable[None]]]:
    """Make a hold that tells when a job runs, and lets it go when told."""
    runs, go = asyncio.Event(), asyncio.Event()

    async def hold(_offer: Offer) -> None:
        runs.set()
        await go.wait()

    return runs, go, hold


@both_ways
async def test_everything_is_ended_in_the_middle_and_the_run_still_finishes(
    any_house: House, end: End
) -> None:
    house = any_house
    runs, go, hold = held()
    chain = (a_job_spec("first"), a_job_spec("second", needs=("first",)))
    async with house.worker(), Driver(house=house, hold=hold).running():
        run_id = await house.submit(*chain)
        await runs.wait()
        await until(lambda: not house.undelivered())
        for workflow_id in (
            contracts.upkeep_workflow_id(house.partition),
            contracts.loop_workflow_id(house.partition),
            attempt_id_of(house.attempts(run_id)[0]),
        ):
            await end_it(house, workflow_id, end)
        go.set()
        await house.until_run(run_id, "succeeded")
        await until(lambda: all(row["settled_at"] for row in house.attempts(run_id)))


@both_ways
async def test_a_failed_attempt_without_its_workflow_is_settled_and_tried_again(
    house: House, end: End
) -> None:
    """The attempt's end is told to nobody, so upkeep finds it: by its settle deadline."""
    runs, go, hold = held()
    outcomes = iter([Outcome.FAILED, Outcome.SUCCEEDED])
    driver = Driver(house=house, hold=hold, outcome=lambda _offer: next(outcomes))
    async with house.worker(), driver.running():
        run_id = await house.submit()
        await runs.wait()
        await until(lambda: not house.undelivered())
        await end_it(house, attempt_id_of(house.attempts(run_id)[0]), end)
        go.set()
        await house.until_run(run_id, "succeeded")
    assert [row["state"] for row in house.attempts(run_id)] == ["failed", "succeeded"]


@both_ways
async def test_a_loop_that_was_ended_comes_back_without_any_wake(house: House, end: End) -> None:
    async with house.worker():
        loop_id = contracts.loop_workflow_id(house.partition)
        await until(lambda: loop_exists(house))
        ended = await end_it(house, loop_id, end)
        await until_back(house, loop_id, ended)
        async with Driver(house=house).running():
            await house.until_run(await house.submit(), "succeeded")


async def loop_exists(house: House) -> bool:
    """Tell whether the loop was ever started."""
    loop_id = contracts.loop_workflow_id(house.partition)
    found = house.client.list_workflows(f"WorkflowId = '{loop_id}'")
    return bool([row async for row in found])


@both_ways
async def test_upkeep_that_was_ended_is_started_again_by_the_worker(house: House, end: End) -> None:
    async with house.worker():
        upkeep_id = contracts.upkeep_workflow_id(house.partition)
        await until(lambda: loop_exists(house))
        ended = await end_it(house, upkeep_id, end)
        await until_back(house, upkeep_id, ended)


async def test_a_cycle_that_was_ended_is_only_a_failed_cycle(house: House) -> None:
    """Nobody serves activities, so the cycle stands still until it is terminated."""
    runs = house.client.get_workflow_handle(contracts.loop_workflow_id(house.partition))
    cycle_id = contracts.cycle_workflow_id(house.partition, 1)
    async with house.worker_without_activities():
        await house.submit()

        async def stands() -> bool:
            return bool([row async for row in house.client.list_workflows(query)])

        query = f"WorkflowId = '{cycle_id}'"
        await until(stands)
        await end_it(house, cycle_id, terminate)

        async def told() -> bool:
            details = await house.details(contracts.loop_workflow_id(house.partition))
            return "The last cycle failed" in details

        await until(told)
        assert (await runs.describe()).status == RUNNING


async def test_resetting_a_loop_or_an_attempt_does_nothing_twice(house: House) -> None:
    async with house.bare_worker(), Driver(house=house).running():
        run_id = await house.submit()
        await house.until_run(run_id, "succeeded")
        attempt_id = attempt_id_of(house.attempts(run_id)[0])
        await house.until_status(attempt_id, WorkflowExecutionStatus.COMPLETED)
        for workflow_id in (attempt_id, contracts.loop_workflow_id(house.partition)):
            await house.reset(workflow_id)
        await house.until_status(attempt_id, WorkflowExecutionStatus.COMPLETED)
        again = await house.submit()
        await house.until_run(again, "succeeded")
    assert len(house.attempts(run_id)) == len(house.attempts(again)) == 1
