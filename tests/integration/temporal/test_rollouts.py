"""Rollouts of images on a real Temporal server, over a provider that is always late."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import sqlalchemy as sa
from temporalio.client import WorkflowExecutionStatus, WorkflowUpdateFailedError

from activities import contracts, rollout_contracts
from forgeyard.model.fleet import FleetSpec, PhaseDeadlines, Rollout
from forgeyard.model.image import ImageSeverity, RunnerImage
from forgeyard.store import fleets, image_tables, images, rollouts
from forgeyard.store.engine import read, write
from tests.builders import RNG
from tests.integration.store.grounds import MADE, NEW, OLD
from tests.integration.temporal.house import House, until
from tests.integration.temporal.yard import ANN, Agents, Yard, eager

pytestmark = pytest.mark.integration
DONE = WorkflowExecutionStatus.COMPLETED


def rolling(most: int = 3, **rules: object) -> FleetSpec:
    """Describe a fleet of two machines of the old image."""
    spec = eager(most=most, min=2)
    rule = Rollout(**{"canaries": 1, "soak": 300, "failures": 1, **rules})
    deadlines = PhaseDeadlines(bootstrap=1_500, enrol=3_000)
    capacity = replace(spec.capacity, image=OLD)
    return replace(spec, rollout=rule, deadlines=deadlines, capacity=capacity)


class Discerning(Agents):
    """Agents that come up on the old image alone."""

    async def _live(self, name: str) -> None:
        (row,) = (row for row in self.yard.machines() if row["runner_name"] == name)
        if row["image"] == OLD:
            await super()._live(name)


@asynccontextmanager
async def a_fleet(
    house: House, spec: FleetSpec, agents: type[Agents] = Agents
) -> AsyncIterator[tuple[Yard, contracts.Fleet]]:
    """Let a fleet come up whose images are registered."""
    yard = Yard.over(house)
    with write(yard.engine) as connection:
        for digest in (OLD, NEW):
            images.add(connection, RunnerImage(digest=digest, provenance=MADE), ANN)
    fleet = yard.apply(spec)
    async with yard.worker(), agents(yard=yard).running():
        await yard.until_states("healthy", "healthy")
        yield yard, fleet


def start(yard: Yard, fleet: contracts.Fleet) -> str:
    """Start a rollout as `fleet rollout start` does; return the id of its workflow."""
    with write(yard.engine) as connection:
        rollouts.start(connection, fleet.fleet_id, NEW, ANN, rng=RNG)
    return rollout_contracts.rollout_workflow_id(fleet.fleet_id, NEW)


def alive(yard: Yard) -> list[str]:
    """Tell the images of the machines that work, or will."""
    states = {"requested", "provisioning", "bootstrapping", "enrolling", "healthy"}
    return sorted(row["image"] for row in yard.machines() if row["state"] in states)


def state_of(yard: Yard, fleet: contracts.Fleet) -> str:
    with read(yard.engine) as connection:
        return rollouts.status(connection, fleet.fleet_id).state.value


async def until_state(yard: Yard, fleet: contracts.Fleet, *states: str) -> None:
    await until(
        lambda: state_of(yard, fleet) in states,
        within_s=60,
        or_say=lambda: f"{state_of(yard, fleet)} {yard.told()}",
    )


async def say(yard: Yard, workflow_id: str, action: str) -> str:
    handle = yard.client.get_workflow_handle(workflow_id)
    command = rollout_contracts.RolloutCommand(action=action, reason="a look")
    return await handle.execute_update(rollout_contracts.COMMAND, command, result_type=str)


@pytest.mark.case("FLT-064")
@pytest.mark.requirement("IMG-008", "IMG-009")
@pytest.mark.requirement("PRI-064", "PHA-018")
async def test_a_new_image_replaces_the_old_one_machine_by_machine(any_house: House) -> None:
    async with a_fleet(any_house, rolling()) as (yard, fleet):
        workflow_id = start(yard, fleet)
        await until_state(yard, fleet, "done")
        await until(lambda: alive(yard) == [NEW, NEW], within_s=60, or_say=yard.told)
        await yard.until_status(workflow_id, DONE)
        with read(yard.engine) as connection:
            assert fleets.find(connection, fleet.fleet_id)["version"] == 2
        assert {row["image"] for row in yard.machines() if row["failure"]} == set()
        assert [row["action"] for row in yard.audited(fleet)][-3:] == [
            "rollout.start",
            "fleet.set",
            "rollout.done",
        ]


@pytest.mark.requirement("IMG-017")
async def test_canaries_that_never_come_up_take_the_image_back(house: House) -> None:
    async with a_fleet(house, rolling(), Discerning) as (yard, fleet):
        workflow_id = start(yard, fleet)
        await until_state(yard, fleet, "rolled_back")
        await yard.until_status(workflow_id, DONE)
        await until(lambda: alive(yard) == [OLD, OLD], within_s=60, or_say=yard.told)
        old = [row for row in yard.machines() if row["image"] == OLD]
        assert [row["state"] for row in old] == ["healthy", "healthy"], "nobody was replaced"


async def test_an_operator_pauses_and_takes_back_in_the_web_ui(house: House) -> None:
    async with a_fleet(house, rolling(soak=600_000)) as (yard, fleet):
        workflow_id = start(yard, fleet)
        await until(lambda: alive(yard) == sorted([NEW, OLD, OLD]), or_say=yard.told)
        await until(lambda: yard.states().count("healthy") == 3, or_say=yard.told)
        with pytest.raises(WorkflowUpdateFailedError):
            await say(yard, workflow_id, "explode")
        assert await say(yard, workflow_id, "pause") == "canary: a look"
        assert await say(yard, workflow_id, "resume") == (
            "canary: its canaries are well; one job, or time, is to prove them"
        )
        assert await say(yard, workflow_id, "rollback") == "rolled_back: a look"
        await yard.until_status(workflow_id, DONE)
        await until(lambda: alive(yard) == [OLD, OLD], within_s=60, or_say=yard.told)


async def test_a_rollout_that_was_terminated_in_the_ui_comes_back(house: House) -> None:
    async with a_fleet(house, rolling(soak=600_000)) as (yard, fleet):
        workflow_id = start(yard, fleet)
        await until(lambda: yard.states().count("healthy") == 3, or_say=yard.told)
        await yard.client.get_workflow_handle(workflow_id).terminate("an accident")
        yard.change(sa.update(image_tables.fleet_rollouts).values(tended_at=0))
        await yard.until_status(workflow_id, WorkflowExecutionStatus.RUNNING)
        assert state_of(yard, fleet) == "canary"


@pytest.mark.requirement("IMG-018", "IMG-020")
async def test_an_image_that_is_struck_out_is_gone_soon_and_its_rollout_with_it(
    house: House,
) -> None:
    async with a_fleet(house, rolling(soak=600_000)) as (yard, fleet):
        start(yard, fleet)
        await until(lambda: yard.states().count("healthy") == 3, or_say=yard.told)
        with write(yard.engine) as connection:
            images.compromise(connection, NEW, ImageSeverity.CRITICAL, ANN)
        await until_state(yard, fleet, "rolled_back")
        await until(lambda: "quarantined" in yard.states(), or_say=yard.told)
        await until(lambda: alive(yard) == [OLD, OLD], within_s=60, or_say=yard.told)
