"""What the workflow of a rollout does in each situation worth keeping."""

from temporalio.client import WorkflowHandle

from activities import contracts, rollout_contracts
from forgeyard.model.fleet import Rollout
from forgeyard.store import fleet_tables, rollouts
from tests.builders import RNG
from tests.integration.replay.cases import case, this_run, until_counted, until_over
from tests.integration.store.grounds import ANN, NEW, OLD, a_fleet_of, an_image, healthy
from tests.integration.temporal.house import House
from tests.leasing import Desk


async def start_rollout(house: House, *, soak: int, **state: object) -> WorkflowHandle:
    """Start the rollout of an image whose canary is well already."""
    desk = Desk(house.engine)
    for digest in (OLD, NEW):
        an_image(desk, digest)
    a_fleet_of(desk, OLD, rollout=Rollout(soak=soak))
    found = desk.change(rollouts.start, "builders", NEW, ANN, rng=RNG)
    canary, _ = healthy(desk, image=NEW)
    since = found.created_at if soak else 1
    desk.overwrite(fleet_tables.capacity_instances, canary, healthy_at=since)
    # Fleets are found by name as well, and a name is the same in every recording.
    rollout = rollout_contracts.Rollout(
        rollout_id=found.rollout_id, fleet_id="builders", fleet="builders", image=NEW
    )
    workflow_id = rollout_contracts.rollout_workflow_id(house.partition, NEW)
    await house.client.start_workflow(
        rollout_contracts.IMAGE_ROLLOUT,
        rollout_contracts.RolloutState(rollout=rollout, **state),
        id=workflow_id,
        task_queue=house.queue,
    )
    return await this_run(house, workflow_id)


async def say(handle: WorkflowHandle, action: str) -> None:
    """Ask something of a rollout, as an operator in the Web UI."""
    command = rollout_contracts.RolloutCommand(action=action, reason="a look")
    await handle.execute_update(rollout_contracts.COMMAND, command, result_type=str)


@case(rollout_contracts.IMAGE_ROLLOUT)
async def rollout_done(house: House) -> WorkflowHandle:
    """Its canary has proved itself, and nothing has another image."""
    async with house.bare_worker():
        handle = await start_rollout(house, soak=0)
        await until_counted(house, handle, "TIMER_STARTED", 1)
        await handle.signal(contracts.POKE)
        await until_over(handle)
    return handle


@case(rollout_contracts.IMAGE_ROLLOUT)
async def rollout_taken_back_by_operator(house: House) -> WorkflowHandle:
    """An operator pauses it, and then takes it back."""
    async with house.bare_worker():
        handle = await start_rollout(house, soak=600_000)
        await until_counted(house, handle, "TIMER_STARTED", 1)
        await say(handle, "pause")
        await until_counted(house, handle, "TIMER_STARTED", 2)
        await say(handle, "rollback")
        await until_over(handle)
    return handle


@case(rollout_contracts.IMAGE_ROLLOUT)
async def rollout_continued_as_new(house: House) -> WorkflowHandle:
    """It waits for longer than one run of its workflow lasts."""
    async with house.bare_worker():
        handle = await start_rollout(house, soak=600_000, rounds_per_run=2)
        for timers in (1, 2):
            await until_counted(house, handle, "TIMER_STARTED", timers)
            await handle.signal(contracts.POKE)
        await until_over(handle)
    return handle


@case(rollout_contracts.IMAGE_ROLLOUT)
async def rollout_cancelled_by_operator(house: House) -> WorkflowHandle:
    """An operator cancels it while it rests."""
    async with house.bare_worker():
        handle = await start_rollout(house, soak=600_000)
        await until_counted(house, handle, "TIMER_STARTED", 1)
        await handle.cancel()
        await until_over(handle)
    return handle
