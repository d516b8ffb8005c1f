"""Fleets on a real Temporal server: from zero to zero, through everything an operator may do."""

from collections.abc import Callable

import pytest

from activities import contracts
from tests.builders import a_job_spec
from tests.integration.temporal.house import House
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


def workflow_id_of(row: dict) -> str:
    """Name the workflow of a machine."""
    return contracts.instance_workflow_id(row["instance_id"])
