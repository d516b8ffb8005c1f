"""Fleets on a real Temporal server: from zero to zero, through everything an operator may do."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import ApplicationError

from activities import contracts, starts
from activities.connection import connect
from activities.fleets import Rhythm
from forgeyard.config import TemporalConfig
from forgeyard.model.fleet import ScaleUp
from tests.builders import a_job_spec
from tests.fleet.fake import Knobs
from tests.integration.temporal.house import Cost, House, until
from tests.integration.temporal.server import Server
from tests.integration.temporal.yard import Agents, Yard, eager, later
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


@pytest.mark.requirement("FRC-002", "FOP-021")
async def test_a_fleet_goes_from_zero_to_zero_and_what_waited_has_run(
    any_yard: Yard, temporal_server: Server, record_property: Callable[[str, object], None]
) -> None:
    """Tended by two workers, which share nothing but SQL and the Temporal server."""
    yard = any_yard
    client = await connect(TemporalConfig(address=temporal_server.address))
    other = replace(yard, client=client)
    fleet = yard.apply(eager(most=2))
    jobs = [a_job_spec(f"job-{number}") for number in range(6)]
    async with yard.worker(), other.worker(), Agents(yard=yard).running():
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


async def test_many_machines_are_begun_together_though_nobody_serves_their_provider(
    yard: Yard, record_property: Callable[[str, object], None]
) -> None:
    """Decisions do not wait for a provider; the machines of one are begun side by side."""
    fleet = yard.apply(eager(most=40, up=ScaleUp(per_minute=1_000, burst=1_000)))
    yard.scale(fleet, 40)
    async with build_worker(yard.client, yard.parts):
        handle = await yard.reconcile(fleet)
        begun = "CHILD_WORKFLOW_EXECUTION_STARTED"
        await until_counted(yard, handle, begun, 40)
        cost = Cost.of(await yard.history(handle.id))
    record_property("events of a reconciler that began forty machines", cost.events)
    assert cost.events < 40 * 5


async def test_the_life_of_a_machine_in_a_slow_cloud_fits_as_well(
    house: House, record_property: Callable[[str, object], None]
) -> None:
    """Five minutes until it runs, ten until its agent comes, two to end; fifty times as fast."""
    slow = Knobs(lag_ms=(0, 0), start_ms=6_000, stop_ms=2_400)
    yard = Yard.over(house, slow)
    fleet = yard.apply(eager())
    yard.scale(fleet, 1)
    async with yard.both_workers(), Agents(yard=yard, boots_s=12.0).running():
        await yard.reconcile(fleet)
        await yard.until_states("healthy")
        yard.scale(fleet, 0)
        await yard.until_empty()
        runs = await yard.runs_of(workflow_id_of(yard.machines()[0]))
    events = sum(map(len, runs))
    record_property("events of the life of a machine in a slow cloud", events)
    assert events <= EVENTS_OF_A_LIFE


async def test_a_reconciler_looks_at_its_provider_when_that_is_due_and_not_each_time(
    yard: Yard,
) -> None:
    rhythm = Rhythm(look=200, observe=3_600_000)
    yard = replace(yard, parts=replace(yard.parts, rhythm=rhythm))
    async with yard.both_workers():
        handle = await yard.reconcile(yard.apply(eager()))
        await until_counted(yard, handle, "TIMER_STARTED", 4)
        asked = Counter(scheduled(await yard.history(handle.id)))
    assert asked["fleet.observe"] == 1
    assert asked["fleet.tick"] >= 4


def scheduled(events: Sequence[HistoryEvent]) -> list[str]:
    """Name the activities that a history has scheduled."""
    names = (each.activity_task_scheduled_event_attributes.activity_type.name for each in events)
    return [name for name in names if name]


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


@pytest.mark.requirement("TST-031")
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


def asks(action: str, **more: object) -> contracts.FleetCommand:
    """Say what somebody types into the Web UI."""
    return contracts.FleetCommand(action=action, reason="the release is near", actor="ann", **more)


@pytest.mark.requirement("FOP-001", "FOP-017")
async def test_a_fleet_does_what_is_asked_of_it_in_the_web_ui_and_it_is_on_record(
    yard: Yard,
) -> None:
    fleet = yard.apply(eager())
    async with yard.both_workers(), Agents(yard=yard).running():
        handle = await yard.reconcile(fleet)

        async def order(action: str, **more: object) -> str:
            return await handle.execute_update(contracts.COMMAND, asks(action, **more))

        assert await order("scale", count=1) == "there shall be 1"
        await yard.until_states("healthy")
        assert await order("freeze") == "it is frozen"
        assert await order("scale", count=0) == "there shall be 0"
        since = yard.tended_at(fleet)
        await until(lambda: yard.tended_at(fleet) > since, within_s=60)
        assert yard.states() == ["healthy"]
        assert await order("scale_up_only") == "it is scale_up_only"
        assert await order("activate") == "it is active"
        await yard.until_empty()
        assert await order("drain") == "it is draining"
        assert "draining" in await until_details(yard, handle.id, "draining")
    told = [(row["action"], row["actor"], row["channel"]) for row in yard.audited(fleet)[1:]]
    states, scaled = ("fleet.state", "ann", "temporal"), ("fleet.override", "ann", "temporal")
    assert told == [scaled, states, scaled, states, states, states]
    assert all("the release is near" in row["detail"] for row in yard.audited(fleet)[1:])


async def test_an_order_that_cannot_be_one_leaves_no_trace(yard: Yard) -> None:
    fleet = yard.apply(eager())
    async with yard.both_workers():
        handle = await yard.reconcile(fleet)
        refused = (
            replace(asks("freeze"), reason=" "),
            asks("explode"),
        )
        for order in refused:
            with pytest.raises(WorkflowUpdateFailedError) as caught:
                await handle.execute_update(contracts.COMMAND, order)
            assert isinstance(caught.value.cause, ApplicationError)
            assert caught.value.cause.type == "request.invalid"
        kinds = Cost.of(await yard.history(handle.id)).kinds
    assert not [kind for kind in kinds if "UPDATE" in kind]
    assert [row["action"] for row in yard.audited(fleet)] == ["fleet.create"]


async def test_an_order_that_the_store_refuses_fails_and_the_reconciler_goes_on(
    yard: Yard,
) -> None:
    fleet = yard.apply(eager(most=2))
    async with yard.both_workers():
        handle = await yard.reconcile(fleet)
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update(contracts.COMMAND, asks("scale", count=1_000_000))
        assert await handle.execute_update(contracts.COMMAND, asks("freeze")) == "it is frozen"


async def test_no_order_and_no_poke_is_lost_while_a_reconciler_continues_as_new(
    yard: Yard, record_property: Callable[[str, object], None]
) -> None:
    fleet = yard.apply(eager(most=50))
    yard.scale(fleet, 0)
    workflow_id = contracts.fleet_workflow_id(fleet.fleet_id)
    async with yard.both_workers():
        await yard.reconcile(fleet, rounds_per_run=1)
        handle = yard.client.get_workflow_handle(workflow_id)
        orders, runs = 0, []
        while len(runs) <= 3:
            assert orders < 80, "its runs do not end"
            for _ in range(8):
                await handle.signal(contracts.POKE)
                order = asks("freeze" if orders % 2 else "activate")
                await handle.execute_update(contracts.COMMAND, order, id=f"order-{orders}")
                orders += 1
            runs = await yard.runs_of(workflow_id)
    record_property("orders and runs that they fell into", f"{orders} in {len(runs)}")
    kinds = [Cost.of(run).kinds for run in runs]
    done = sum(each["WORKFLOW_EXECUTION_UPDATE_COMPLETED"] for each in kinds)
    assert done == orders
    assert sum(each["WORKFLOW_EXECUTION_SIGNALED"] for each in kinds) == orders
    assert [row["action"] for row in yard.audited(fleet)].count("fleet.state") == orders - 1


async def test_a_machine_s_workflow_that_continues_as_new_is_still_heard_and_ends_its_machine(
    yard: Yard,
) -> None:
    fleet = yard.apply(eager())
    yard.scale(fleet, 1)
    async with yard.both_workers(), Agents(yard=yard).running():
        await yard.reconcile(fleet)
        await yard.until_states("healthy")
        (row,) = yard.machines()
        first = await ended(yard, workflow_id_of(row), terminate)
        machine = contracts.Machine(instance_id=row["instance_id"], runner_name=row["runner_name"])
        await yard.client.start_workflow(
            contracts.CAPACITY_INSTANCE,
            contracts.InstanceState(machine=machine, rounds_per_run=2),
            id=first.id,
            task_queue=yard.queue,
        )
        for _ in range(6):
            await yard.client.get_workflow_handle(first.id).signal(contracts.POKE)
            await asyncio.sleep(0.1)
        yard.scale(fleet, 0)
        await yard.until_empty()
        assert len(await yard.runs_of(first.id)) >= 2


@pytest.mark.requirement("TST-033")
@pytest.mark.case("FLT-070", "FLT-091")
async def test_two_reconcilers_of_one_fleet_buy_for_a_job_once(yard: Yard) -> None:
    """F27: under another id, on workers of their own."""
    fleet = yard.apply(eager(most=4))
    other = yard.at(partition=yard.partition, queue=f"{yard.queue}-other")
    assert isinstance(other, Yard)
    yard.submit_silently(a_job_spec("one"))
    async with yard.both_workers(), other.both_workers():
        await yard.reconcile(fleet)
        await other.reconcile(fleet, f"fleet/{fleet.fleet_id}/again")
        await until(lambda: bool(yard.provider.existing()), within_s=120)
        await yard.until_states("bootstrapping")
        since = yard.tended_at(fleet)
        await until(lambda: yard.tended_at(fleet) > since + 2_000, within_s=60)
    assert yard.states() == ["bootstrapping"]
    assert len(yard.provider.existing()) == 1


async def test_an_operator_sees_what_a_fleet_and_its_machines_are(yard: Yard) -> None:
    fleet = yard.apply(eager())
    yard.scale(fleet, 1)
    async with yard.both_workers(), Agents(yard=yard).running():
        await starts.start_fleet(yard.client, fleet, task_queue=yard.queue)
        await yard.until_states("healthy")
        (row,) = yard.machines()
        fleet_id, machine_id = contracts.fleet_workflow_id(fleet.fleet_id), workflow_id_of(row)
        await until_details(yard, machine_id, "healthy")
        await until_details(yard, fleet_id, "wanted 1, there or coming 1")
        shown = await yard.client.get_workflow_handle(machine_id).describe()
        found = shown.typed_search_attributes
        assert found.get(contracts.KIND) == contracts.KIND_INSTANCE
        assert found.get(contracts.RUNNER) == row["runner_name"]
        assert found.get(contracts.STATE) == "healthy"
        assert await shown.static_summary() == row["runner_name"]
        shown = await yard.client.get_workflow_handle(fleet_id).describe()
        assert shown.typed_search_attributes.get(contracts.KIND) == contracts.KIND_FLEET
        assert shown.typed_search_attributes.get(contracts.STATE) == "active/healthy"
        assert await shown.static_summary() == f"fleet {fleet.name}"


async def until_details(yard: Yard, workflow_id: str, part: str) -> str:
    """Wait until the card in the Web UI says something; return all of it."""

    async def said() -> bool:
        return part in await yard.details(workflow_id)

    await until(said, within_s=60, or_say=lambda: f"{workflow_id} never says {part}")
    return await yard.details(workflow_id)


async def until_counted(yard: Yard, handle: WorkflowHandle, kind: str, count: int) -> None:
    """Wait until a workflow's history has so many events of a kind."""

    async def counted() -> bool:
        return Cost.of(await yard.history(handle.id)).kinds[kind] >= count

    await until(counted, within_s=120, or_say=lambda: f"{handle.id} has not {kind} {count} times")


async def until_over(handle: WorkflowHandle, *, within_s: float = 60) -> None:
    """Wait until a run has ended."""

    async def over() -> bool:
        return (await handle.describe()).status != RUNNING

    await until(over, within_s=within_s, or_say=lambda: f"{handle.id} goes on")


def workflow_id_of(row: dict) -> str:
    """Name the workflow of a machine."""
    return contracts.instance_workflow_id(row["instance_id"])
