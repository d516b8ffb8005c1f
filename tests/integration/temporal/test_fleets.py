"""Fleets on a real Temporal server: from zero to zero, through everything an operator may do."""

from collections.abc import Callable

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from activities import contracts
from tests.builders import a_job_spec
from tests.integration.temporal.house import House, until
from tests.integration.temporal.yard import Agents, Yard, eager

pytestmark = pytest.mark.integration
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


async def test_the_life_of_a_machine_is_a_short_story(
    yard: Yard, record_property: Callable[[str, object], None]
) -> None:
    """A minute to start, two to boot, one to end: as in a cloud, but fifty times as fast."""
    yard.provider.knobs.start_ms = yard.provider.knobs.stop_ms = 60_000 // 50
    spec = eager(most=1)
    yard.apply(spec)
    async with yard.worker(), Agents(yard=yard, boots_s=120 / 50).running():
        run_id = await yard.submit()
        await yard.until_run(run_id, "succeeded", within_s=60)
        await yard.until_empty()
        (row,) = yard.machines()
        runs = await yard.runs_of(workflow_id_of(row))
    record_property("events of a life", [len(run) for run in runs])
    assert sum(len(run) for run in runs) <= EVENTS_OF_A_LIFE


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


async def until_over(handle: WorkflowHandle) -> None:
    """Wait until a run has ended."""

    async def over() -> bool:
        return (await handle.describe()).status != WorkflowExecutionStatus.RUNNING

    await until(over, within_s=60, or_say=lambda: f"{handle.id} goes on")


def workflow_id_of(row: dict) -> str:
    """Name the workflow of a machine."""
    return contracts.instance_workflow_id(row["instance_id"])
