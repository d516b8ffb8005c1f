"""Fleets on a real Temporal server: from zero to zero, through everything an operator may do."""

from collections.abc import Awaitable, Callable

import pytest
import sqlalchemy as sa
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from activities import contracts
from forgeyard.model.fleet import ScaleUp
from forgeyard.store import fleet_tables
from tests.builders import a_job_spec
from tests.integration.temporal.house import Cost, House, until
from tests.integration.temporal.test_operator import reset
from tests.integration.temporal.yard import Agents, Yard, eager
from worker.wiring import build_worker

pytestmark = pytest.mark.integration
RUNNING = WorkflowExecutionStatus.RUNNING
EVENTS_OF_A_LIFE = 200
EVENTS_OF_A_RUN = 2_000


@pytest.fixture
def yard(house: House) -> Yard:
    """Build a house with a provider on SQLite."""
    return Yard.over(house)


@pytest.fixture
def any_yard(any_house: House) -> Yard:
    """Build a house with a provider on each database in turn."""
    return Yard.over(any_house)


async def test_a_fleet_goes_from_zero_to_zero_and_what_waited_has_run(
    any_yard: Yard, record_property: Callable[[str, object], None]
) -> None:
    yard = any_yard
    fleet = yard.apply(eager(most=2))
    jobs = [a_job_spec(f"job-{number}") for number in range(6)]
    async with yard.worker(), Agents(yard=yard).running():
        run_id = await yard.submit(*jobs)
        await yard.until_run(run_id, "succeeded", within_s=60)
        await yard.until_empty()
        lives = [
            sum(len(run) for run in await yard.runs_of(workflow_id_of(row)))
            for row in yard.machines()
        ]
        runs = await yard.runs_of(contracts.fleet_workflow_id(fleet.fleet_id))
    assert 1 <= len(lives) <= 2
    record_property("events of the lives of machines", lives)
    record_property("events of the runs of the reconciler", [len(run) for run in runs])
    assert max(lives) <= EVENTS_OF_A_LIFE


async def test_a_run_of_the_reconciler_stays_far_below_the_limits(
    yard: Yard, record_property: Callable[[str, object], None]
) -> None:
    """A tenth of its rounds, with nothing to do but to look."""
    fleet = yard.apply(eager())
    usual = contracts.FleetState(fleet=fleet).rounds_per_run
    async with yard.both_workers():
        handle = await yard.reconcile(fleet, rounds_per_run=usual // 10)
        await until_over(handle)
        first, *_ = await yard.runs_of(handle.id)
    record_property("events of a tenth of a run of the reconciler", len(first))
    assert 10 * len(first) < EVENTS_OF_A_RUN


async def test_a_hundred_machines_at_once_are_no_long_run_either(
    yard: Yard, record_property: Callable[[str, object], None]
) -> None:
    """Nobody serves the provider, so that they come and stay; the run rolls over in time."""
    spec = eager(most=100, up=ScaleUp(per_minute=1_000, burst=1_000))
    fleet = yard.apply(spec)
    yard.scale(fleet, 100)
    workflow_id = contracts.fleet_workflow_id(fleet.fleet_id)
    async with build_worker(yard.client, yard.parts):
        await yard.reconcile(fleet)
        runs = yard.runs_of
        await until(lambda: len(yard.machines()) == 100, within_s=60)
        await until_over(await yard.this_run(workflow_id), within_s=120)
        first, *_ = await runs(workflow_id)
    record_property("events of a run that started a hundred machines", len(first))
    assert len(first) < EVENTS_OF_A_RUN
    started = Cost.of(first).kinds["CHILD_WORKFLOW_EXECUTION_STARTED"]
    assert started == 100


End = Callable[[WorkflowHandle], Awaitable[None]]


async def terminate(handle: WorkflowHandle) -> None:
    await handle.terminate("an operator did it")


async def cancel(handle: WorkflowHandle) -> None:
    await handle.cancel()


both_ways = pytest.mark.parametrize("end", [terminate, cancel])


async def ended(yard: Yard, workflow_id: str, end: End) -> WorkflowHandle:
    """End the running workflow, and wait until that run is over."""
    handle = await yard.this_run(workflow_id)
    await end(handle)
    await until_over(handle)
    return handle


async def until_back(yard: Yard, handle: WorkflowHandle) -> None:
    """Wait until another run goes on where this one was ended."""

    async def back() -> bool:
        newest = await yard.this_run(handle.id)
        is_other = newest.run_id != handle.run_id
        return is_other and (await newest.describe()).status == RUNNING

    await until(back, within_s=60, or_say=lambda: f"{handle.id} did not come back")


def later(yard: Yard) -> None:
    """Let so much time pass that a machine's workflow or a reconciler is missed."""
    for table, name in (
        (fleet_tables.capacity_instances, "tended_until"),
        (fleet_tables.fleets, "tended_at"),
    ):
        yard.change(sa.update(table).values({name: table.c[name] - 3_600_000}))


@both_ways
async def test_a_machine_whose_workflow_was_ended_is_looked_after_again(
    yard: Yard, end: End
) -> None:
    fleet = yard.apply(eager())
    yard.scale(fleet, 1)
    async with yard.both_workers(), Agents(yard=yard).running():
        await yard.reconcile(fleet)
        await yard.until_states("healthy")
        (row,) = yard.machines()
        gone = await ended(yard, workflow_id_of(row), end)
        later(yard)
        await until_back(yard, gone)
        yard.scale(fleet, 0)
        await yard.until_empty()
    assert yard.provider.calls["provision"] == 1


@both_ways
async def test_a_machine_goes_although_its_workflow_was_ended(yard: Yard, end: End) -> None:
    """Its fleet has something for it to do, and does not wait until it is missed."""
    fleet = yard.apply(eager())
    yard.scale(fleet, 1)
    async with yard.both_workers(), Agents(yard=yard).running():
        await yard.reconcile(fleet)
        await yard.until_states("healthy")
        await ended(yard, workflow_id_of(yard.machines()[0]), end)
        yard.scale(fleet, 0)
        await yard.until_empty()


@both_ways
async def test_a_reconciler_that_was_ended_comes_back_and_its_machines_never_noticed(
    yard: Yard, end: End
) -> None:
    fleet = yard.apply(eager())
    yard.scale(fleet, 1)
    async with yard.worker(), Agents(yard=yard).running():
        await yard.until_states("healthy")
        (row,) = yard.machines()
        gone = await ended(yard, contracts.fleet_workflow_id(fleet.fleet_id), end)
        assert await yard.status(workflow_id_of(row)) == RUNNING
        later(yard)
        await until_back(yard, gone)
        yard.scale(fleet, 0)
        await yard.until_empty()
    assert yard.provider.calls["provision"] == 1


async def test_resetting_the_workflow_of_a_machine_or_a_fleet_buys_nothing_twice(
    yard: Yard,
) -> None:
    """F1, F2: also with a provider that would make another one for the same key."""
    yard.provider.knobs.dedupes = False
    fleet = yard.apply(eager())
    yard.scale(fleet, 2)
    async with yard.both_workers(), Agents(yard=yard).running():
        reconciler = await yard.reconcile(fleet)
        await until(lambda: bool(yard.provider.existing()))
        for row in yard.machines():
            await reset(yard, workflow_id_of(row))
        await yard.until_states("healthy", "healthy")
        for row in yard.machines():
            await reset(yard, workflow_id_of(row))
        await reset(yard, reconciler.id)
        since = yard.tended_at(fleet)
        await until(lambda: yard.tended_at(fleet) > since)
        assert yard.states() == ["healthy", "healthy"]
        assert len(yard.provider.existing()) == yard.provider.calls["provision"] == 2
        yard.scale(fleet, 0)
        await yard.until_empty()


async def until_over(handle: WorkflowHandle, *, within_s: float = 60) -> None:
    """Wait until a run has ended."""

    async def over() -> bool:
        return (await handle.describe()).status != RUNNING

    await until(over, within_s=within_s, or_say=lambda: f"{handle.id} goes on")


def workflow_id_of(row: dict) -> str:
    """Name the workflow of a machine."""
    return contracts.instance_workflow_id(row["instance_id"])
