"""What the workflows of fleets and machines do in each situation worth keeping."""

import random

from temporalio.client import WorkflowHandle

from activities import contracts
from activities.fleets import FleetActivities
from forgeyard.store import fleets
from forgeyard.store.engine import write
from tests.integration.replay.cases import CASES, case, this_run, until_counted, until_over
from tests.integration.temporal.house import House
from tests.integration.temporal.yard import ANN, Agents, Yard, eager, later

__all__ = ["CASES"]


def wanted(yard: Yard) -> contracts.Machine:
    """Have one machine wanted that nobody looks after yet, as a look at its fleet does."""
    fleet = yard.apply(eager())
    yard.scale(fleet, 1)
    parts = yard.parts
    body = FleetActivities(
        yard.engine, parts.policy, parts.providers, parts.rhythm, rng=random.Random(7)
    )
    (machine,) = body.tick_fleet(fleet).untended
    return machine


async def look_after(yard: Yard, machine: contracts.Machine, **state: object) -> WorkflowHandle:
    """Start the workflow of a machine without its fleet's."""
    workflow_id = contracts.instance_workflow_id(machine.instance_id)
    await yard.client.start_workflow(
        contracts.CAPACITY_INSTANCE,
        contracts.InstanceState(machine=machine, **state),
        id=workflow_id,
        task_queue=yard.queue,
    )
    return await this_run(yard, workflow_id)


# Fleets


@case(contracts.FLEET_RECONCILE)
async def fleet_grown(house: House) -> WorkflowHandle:
    """A machine is wanted, and its workflow is started."""
    yard = Yard.over(house)
    fleet = yard.apply(eager())
    yard.scale(fleet, 1)
    async with yard.both_workers():
        handle = await yard.reconcile(fleet)
        await until_counted(yard, handle, "TIMER_STARTED", 2)
    return handle


@case(contracts.FLEET_RECONCILE)
async def fleet_ordered(house: House) -> WorkflowHandle:
    """An order comes in by the Web UI, and is followed at once."""
    yard = Yard.over(house)
    fleet = yard.apply(eager())
    async with yard.both_workers():
        handle = await yard.reconcile(fleet)
        await until_counted(yard, handle, "TIMER_STARTED", 1)
        order = contracts.FleetCommand(action="freeze", reason="a case", actor="ann")
        await handle.execute_update(contracts.COMMAND, order)
        await until_counted(yard, handle, "TIMER_STARTED", 2)
    return handle


@case(contracts.FLEET_RECONCILE)
async def fleet_continued_as_new(house: House) -> WorkflowHandle:
    """The first run ends and hands its state on."""
    yard = Yard.over(house)
    fleet = yard.apply(eager())
    async with yard.both_workers():
        handle = await yard.reconcile(fleet, rounds_per_run=2)
        await until_over(handle)
    return handle


@case(contracts.FLEET_RECONCILE)
async def fleet_told_a_machine_of_its_drain(house: House) -> WorkflowHandle:
    """A machine has its workflow already, so that it is only told to look."""
    yard = Yard.over(house)
    machine = wanted(yard)
    fleet = yard.fleets()[0]
    async with yard.both_workers(), Agents(yard=yard).running():
        await look_after(yard, machine)
        await yard.until_states("bootstrapping")
        later(yard)
        handle = await yard.reconcile(fleet)
        await until_counted(yard, handle, "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED", 1)
        await until_counted(yard, handle, "TIMER_STARTED", 2)
    return handle


@case(contracts.FLEET_RECONCILE)
async def fleet_provider_down(house: House) -> WorkflowHandle:
    """Its provider cannot be looked at, and it decides all the same."""
    yard = Yard.over(house)
    yard.provider.knobs.calls = "down"
    fleet = yard.apply(eager())
    async with yard.both_workers():
        handle = await yard.reconcile(fleet)
        await until_counted(yard, handle, "TIMER_STARTED", 2)
    return handle


@case(contracts.FLEET_RECONCILE)
async def fleet_deleted(house: House) -> WorkflowHandle:
    """Nothing of it is left, so it ends."""
    yard = Yard.over(house)
    fleet = yard.apply(eager())
    with write(yard.engine) as connection:
        fleets.delete(connection, fleet.fleet_id, ANN)
    async with yard.both_workers():
        handle = await yard.reconcile(fleet)
        await until_over(handle)
    return handle


@case(contracts.FLEET_RECONCILE)
async def fleet_cancelled_by_operator(house: House) -> WorkflowHandle:
    """An operator cancels it while it rests."""
    yard = Yard.over(house)
    fleet = yard.apply(eager())
    async with yard.both_workers():
        handle = await yard.reconcile(fleet)
        await until_counted(yard, handle, "TIMER_STARTED", 1)
        await handle.cancel()
        await until_over(handle)
    return handle


# Machines


@case(contracts.CAPACITY_INSTANCE)
async def machine_came_and_went(house: House) -> WorkflowHandle:
    """The usual story, up to the word of its provider that it is gone."""
    yard = Yard.over(house)
    machine = wanted(yard)
    async with yard.both_workers(), Agents(yard=yard).running():
        handle = await look_after(yard, machine)
        await yard.reconcile(yard.fleets()[0])
        await yard.until_states("healthy")
        yard.scale(yard.fleets()[0], 0)
        await until_over(handle)
    return handle


@case(contracts.CAPACITY_INSTANCE)
async def machine_refused(house: House) -> WorkflowHandle:
    """Its provider has no room for it."""
    yard = Yard.over(house)
    yard.provider.knobs.offerings["default"] = "ice"
    machine = wanted(yard)
    async with yard.both_workers():
        handle = await look_after(yard, machine)
        await until_over(handle)
    return handle


@case(contracts.CAPACITY_INSTANCE)
async def machine_answer_lost(house: House) -> WorkflowHandle:
    """It was made, and nobody heard of it: looked for, and found."""
    yard = Yard.over(house)
    yard.provider.knobs.creates.append("lost")
    machine = wanted(yard)
    async with yard.both_workers():
        handle = await look_after(yard, machine)
        await yard.until_states("bootstrapping")
        await until_counted(yard, handle, "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES", 2)
    return handle


@case(contracts.CAPACITY_INSTANCE)
async def machine_continued_as_new(house: House) -> WorkflowHandle:
    """The first run ends and hands its state on."""
    yard = Yard.over(house)
    machine = wanted(yard)
    async with yard.both_workers():
        handle = await look_after(yard, machine, rounds_per_run=2)
        await until_over(handle)
    return handle


@case(contracts.CAPACITY_INSTANCE)
async def machine_cancelled_by_operator(house: House) -> WorkflowHandle:
    """An operator cancels it while it rests."""
    yard = Yard.over(house)
    machine = wanted(yard)
    async with yard.both_workers():
        handle = await look_after(yard, machine)
        await until_counted(yard, handle, "TIMER_STARTED", 1)
        await handle.cancel()
        await until_over(handle)
    return handle
