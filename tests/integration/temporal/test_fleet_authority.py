"""Workflows of fleets that are reset or run twice: no machine is made twice, and none is lost.

The provider here has no memory of keys: what is asked for twice is there twice.
"""

from dataclasses import replace

import pytest
import sqlalchemy as sa
from temporalio.client import WorkflowExecutionStatus

from activities import contracts
from forgeyard.model.fleet import ScaleUp
from forgeyard.store import fleet_tables
from tests.integration.temporal.house import House, until
from tests.integration.temporal.yard import Agents, Yard, eager, soon

pytestmark = [
    pytest.mark.integration,
    # What a run that was reset away had begun: the SDK hears of its end after its answer.
    pytest.mark.filterwarnings("ignore:Cannot find activity to cancel:UserWarning"),
]
COMPLETED = WorkflowExecutionStatus.COMPLETED
FAST = ScaleUp(per_minute=1_000, burst=1_000)


SLOW = replace(soon(), dedupes=False, start_ms=1_000)


@pytest.fixture
def yard(house: House) -> Yard:
    """Build a house on SQLite."""
    return Yard.over(house, SLOW)


@pytest.fixture
def any_yard(any_house: House) -> Yard:
    """Build a house on each database in turn."""
    return Yard.over(any_house, SLOW)


async def reset(yard: Yard, workflow_id: str) -> None:
    """Reset a workflow, and wait until another run goes on."""
    before = await yard.this_run(workflow_id)
    await yard.reset(workflow_id)

    async def is_another() -> bool:
        return (await yard.this_run(workflow_id)).run_id != before.run_id

    await until(is_another)


async def until_living(yard: Yard, *wanted: str) -> None:
    """Wait until all machines that have not ended stand so."""
    await until(
        lambda: [state for state in yard.states() if state != "terminated"] == list(wanted),
        within_s=90,
        or_say=yard.told,
    )


def demand_made(yard: Yard, count: int) -> None:
    """Insist that so many machines were ever made, and that each is the one its row speaks of."""
    assert yard.provider.calls["provision"] == count
    refs = [row["provider_ref"] for row in yard.machines()]
    assert len(set(refs)) == len(refs) == count
    assert set(yard.provider.existing()) <= set(refs)


@pytest.mark.parametrize("moment", ["provisioning", "healthy"])
async def test_a_machine_whose_workflow_is_reset_is_neither_made_again_nor_lost(
    yard: Yard, moment: str
) -> None:
    fleet = yard.apply(eager())
    yard.scale(fleet, 1)
    async with yard.both_workers(), Agents(yard=yard).running():
        await yard.reconcile(fleet)
        await until(lambda: yard.provider.calls["provision"] == 1, within_s=60)
        await yard.until_states(moment)
        workflow_id = contracts.instance_workflow_id(yard.machines()[0]["instance_id"])
        await reset(yard, workflow_id)
        await yard.until_states("healthy")
        demand_made(yard, 1)
        yard.scale(fleet, 0)
        await yard.until_empty()
        await yard.until_status(workflow_id, COMPLETED)
        await reset(yard, workflow_id)
        await yard.until_status(workflow_id, COMPLETED)
    demand_made(yard, 1)


async def test_a_reconciler_that_is_reset_makes_nothing_twice_and_loses_nothing(
    yard: Yard,
) -> None:
    fleet = yard.apply(eager(most=2, up=FAST))
    yard.scale(fleet, 2)
    workflow_id = contracts.fleet_workflow_id(fleet.fleet_id)
    async with yard.both_workers(), Agents(yard=yard).running():
        await yard.reconcile(fleet)
        await until(lambda: yard.provider.calls["provision"] == 2, within_s=60)
        await reset(yard, workflow_id)
        await yard.until_states("healthy", "healthy")
        await reset(yard, workflow_id)
        demand_made(yard, 2)
        yard.scale(fleet, 1)
        await until_living(yard, "healthy")
        yard.scale(fleet, 0)
        await yard.until_empty()
    demand_made(yard, 2)


@pytest.mark.requirement("TST-033")
async def test_two_reconcilers_of_one_fleet_are_one_authority(any_yard: Yard) -> None:
    """F27: up, down and up again, each on workers of its own that remember what they have seen."""
    yard = any_yard
    fleet = yard.apply(eager(most=3, up=FAST))
    other = yard.at(partition=yard.partition, queue=f"{yard.queue}-other")
    assert isinstance(other, Yard)
    async with yard.both_workers(), other.both_workers(), Agents(yard=yard).running():
        await yard.reconcile(fleet)
        await other.reconcile(fleet, f"{contracts.fleet_workflow_id(fleet.fleet_id)}/again")
        for count, made in ((3, 3), (1, 3), (2, 4)):
            yard.scale(fleet, count)
            await until_living(yard, *["healthy"] * count)
            since = yard.tended_at(fleet)
            await until(lambda since=since: yard.tended_at(fleet) > since + 1_000)
            await until_living(yard, *["healthy"] * count)
            demand_made(yard, made)
        yard.scale(fleet, 0)
        await yard.until_empty()
    demand_made(yard, 4)
    decisions = fleet_tables.fleet_decisions
    numbers = [row["number"] for row in yard.rows(sa.select(decisions.c.number))]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
