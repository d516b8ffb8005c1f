"""The scheduler loop: awake when something changed, quiet otherwise, never dead."""

import asyncio

import pytest
import sqlalchemy as sa
from temporalio.client import WorkflowExecutionStatus, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from activities import contracts, starts
from forgeyard.store import runners, tables
from forgeyard.store.engine import database_now, write
from tests.builders import a_job_spec, jobs_of, register_runner, some_resources
from tests.integration.replay.cases import Stubs
from tests.integration.temporal.house import Cost, Driver, House, until
from workflows.scheduler_loop import SchedulerLoop

pytestmark = pytest.mark.integration
TIMER = "timer_started_event_attributes"


async def start_loop(house: House, **state: object) -> None:
    """Start a loop with a state of the test's choice."""
    await house.client.start_workflow(
        contracts.SCHEDULER_LOOP,
        contracts.LoopState(partition=house.partition, **state),
        id=contracts.loop_workflow_id(house.partition),
        task_queue=house.queue,
        search_attributes=contracts.attributes(contracts.KIND_LOOP),
    )


async def loop_cost(house: House) -> Cost:
    """Count the history of the loop's newest run."""
    return Cost.of(await house.history(contracts.loop_workflow_id(house.partition)))


async def cycles(house: House) -> int:
    """Count the cycles that the loop's newest run began."""
    return (await loop_cost(house)).kinds["START_CHILD_WORKFLOW_EXECUTION_INITIATED"]


async def until_quiet(house: House, *, timers: int = 1) -> None:
    """Wait until the loop waits."""

    async def quiet() -> bool:
        return (await loop_cost(house)).kinds["TIMER_STARTED"] >= timers

    await until(quiet, or_say=lambda: "the loop does not wait")


def timers_of(history: list) -> list[float]:
    """Read how long each wait of a history was meant to be, in seconds."""
    return [
        event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta().total_seconds()
        for event in history
        if event.HasField("timer_started_event_attributes")
    ]


async def test_a_loop_with_nothing_to_place_starts_no_cycle_and_rests_a_minute(
    house: House,
) -> None:
    async with house.bare_worker():
        await start_loop(house)
        await until_quiet(house)
        history = await house.history(contracts.loop_workflow_id(house.partition))
        assert await cycles(house) == 0
    assert timers_of(history) == [60.0]


@pytest.mark.requirement("FAR-035", "FAR-037", "RCN-018", "INV-009", "INV-028", "RCN-003")
async def test_a_fresh_loop_finds_a_job_whose_wake_was_lost(house: House) -> None:
    run_id = house.submit_silently()
    async with house.bare_worker(), Driver(house=house).running():
        await start_loop(house)
        await house.until_run(run_id, "succeeded")


async def test_the_same_wake_twice_makes_one_cycle(house: House) -> None:
    async with house.bare_worker():
        await start_loop(house)
        await until_quiet(house)
        wake = contracts.Wake(generation=7, reason="a test")
        await starts.wake_loop(house.client, house.partition, wake, task_queue=house.queue)
        await until_quiet(house, timers=2)
        await starts.wake_loop(house.client, house.partition, wake, task_queue=house.queue)
        newer = contracts.Wake(generation=8, reason="a test")
        await starts.wake_loop(house.client, house.partition, newer, task_queue=house.queue)

        async def both() -> bool:
            return await cycles(house) == 2

        await until(both)
        await until_quiet(house, timers=3)
        assert await cycles(house) == 2


def drain_big(house: House) -> None:
    """Register a large runner that takes no work, so that large jobs are possible but not now."""
    with write(house.engine) as connection:
        total = some_resources(cpu=1_000_000, memory=2**40, disk=2**40, slots=9)
        register_runner(connection, "big", total=total)
        runners.drain(connection, "big", reason="a test", actor="ann", channel="test")


@pytest.mark.requirement("FAR-032", "FAR-034")
async def test_waiting_in_vain_backs_off_and_a_wake_ends_it_at_once(house: House) -> None:
    huge = a_job_spec("huge", resources=some_resources(cpu=1_000_000))
    drain_big(house)
    async with house.bare_worker(), Driver(house=house).running():
        await house.submit(huge)
        await until_quiet(house, timers=2)
        history = await house.history(contracts.loop_workflow_id(house.partition))
        assert timers_of(history)[:2] == [1.0, 2.0]
        started = asyncio.get_running_loop().time()
        small = await house.submit(a_job_spec("small"))
        await house.until_run(small, "succeeded")
        assert asyncio.get_running_loop().time() - started < 10


@pytest.mark.requirement("FAR-032")
async def test_jobs_that_no_runner_can_ever_take_let_the_loop_rest(house: House) -> None:
    huge = a_job_spec("huge", resources=some_resources(cpu=1_000_000))
    async with house.bare_worker(), Driver(house=house).running():
        await house.submit(huge)
        await until_quiet(house, timers=2)
        history = await house.history(contracts.loop_workflow_id(house.partition))
        assert timers_of(history)[:2] == [1.0, 60.0]
        small = await house.submit(a_job_spec("small"))
        await house.until_run(small, "succeeded")


@pytest.mark.requirement("FAR-032", "FAR-033")
async def test_the_loop_looks_again_when_a_refusal_ends_and_not_later(house: House) -> None:
    """Nobody wakes it for that, and its own pause is long by then."""
    run_id = house.submit_silently()
    with write(house.engine) as connection:
        runner_id = register_runner(connection).runner_id
        job_id = jobs_of(connection, run_id)["build"]["job_id"]
        until = database_now(connection) + 5_000
        refusal = {"job_id": job_id, "runner_id": runner_id, "reason": "shy", "until_at": until}
        connection.execute(sa.insert(tables.refusals).values(refusal))
    async with house.bare_worker():
        await start_loop(house, fruitless=9)
        await until_quiet(house)
        history = await house.history(contracts.loop_workflow_id(house.partition))
    (wait,) = timers_of(history)
    assert 0 < wait <= 5.0


@pytest.mark.requirement("FAR-032")
async def test_the_longest_back_off_is_half_a_minute(house: House) -> None:
    house.submit_silently()
    async with house.bare_worker():
        await start_loop(house, fruitless=9)
        await until_quiet(house)
        history = await house.history(contracts.loop_workflow_id(house.partition))
    assert timers_of(history) == [30.0]


@pytest.mark.requirement("RCN-025", "RCN-026")
async def test_a_cycle_that_lost_every_race_goes_on_at_once_and_never_for_ever_at_once(
    house: House,
) -> None:
    """Three times without a pause, then with pauses that stay within a second, until it wins."""
    stubs = Stubs(granted=0)
    loop_id = contracts.loop_workflow_id(house.partition)
    async with stubs.serving(house):
        await start_loop(house, fruitless=1)
        await until_quiet(house, timers=6)
        stubs.granted = 1

        async def rests() -> bool:
            return 60.0 in timers_of(await house.history(loop_id))

        await until(rests)
        history = await house.history(loop_id)
    assert timers_of(history)[:6] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    first = next(n for n, event in enumerate(history) if event.HasField(TIMER))
    assert Cost.of(history[:first]).kinds["START_CHILD_WORKFLOW_EXECUTION_INITIATED"] == 4


@pytest.mark.requirement("RCN-026")
async def test_a_cycle_that_lost_one_race_of_two_goes_on_at_once(house: House) -> None:
    stubs = Stubs(planned=2, granted=1)
    async with stubs.serving(house):
        await start_loop(house, fruitless=1)

        async def several() -> bool:
            return await cycles(house) >= 4

        await until(several)
        assert timers_of(await house.history(contracts.loop_workflow_id(house.partition))) == []
        stubs.planned = 1
        await until_quiet(house)


async def test_a_number_that_an_orphaned_cycle_still_uses_is_skipped(house: House) -> None:
    orphan = contracts.cycle_workflow_id(house.partition, 1)
    await house.client.start_workflow("Orphan", id=orphan, task_queue=f"{house.queue}-nobody")
    async with house.bare_worker(), Driver(house=house).running():
        run_id = await house.submit()
        await house.until_run(run_id, "succeeded")
    assert await house.status(orphan) == WorkflowExecutionStatus.RUNNING


async def test_a_cycle_that_fails_does_not_end_the_loop(house: House) -> None:
    """Accounting that fires fails the plan at once, until a person has looked at it."""
    run_id = house.submit_silently()
    fires = "BEGIN SELECT RAISE(ABORT, 'reserved_not_negative'); END"
    house.change(sa.text(f"CREATE TRIGGER fires BEFORE INSERT ON cycles {fires}"))
    async with house.bare_worker(), Driver(house=house).running():
        await house.relay()

        async def told() -> bool:
            details = await house.details(contracts.loop_workflow_id(house.partition))
            return "The last cycle failed" in details

        await until(told)
        house.change(sa.text("DROP TRIGGER fires"))
        await house.until_run(run_id, "succeeded")


async def test_continuing_as_new_loses_no_wake_no_number_and_no_attribute(
    house: House,
) -> None:
    loop_id = contracts.loop_workflow_id(house.partition)
    async with house.bare_worker(), Driver(house=house).running():
        await start_loop(house, rounds_per_run=2)
        for _ in range(5):
            await house.until_run(await house.submit(), "succeeded")
        history = await house.history(loop_id)
        described = await house.client.get_workflow_handle(loop_id).describe()
        details = await house.details(loop_id)
        numbers = [
            event.start_child_workflow_execution_initiated_event_attributes.workflow_id
            for event in history
            if event.HasField("start_child_workflow_execution_initiated_event_attributes")
        ]
    assert described.status == WorkflowExecutionStatus.RUNNING
    assert history[0].workflow_execution_started_event_attributes.continued_execution_run_id
    assert contracts.cycle_workflow_id(house.partition, 1) not in numbers
    assert described.typed_search_attributes[contracts.KIND] == "loop"
    assert "4 cycles so far" in details or "5 cycles so far" in details


@pytest.mark.requirement("FAR-012")
async def test_the_loop_s_card_and_attributes_tell_the_last_cycle(house: House) -> None:
    async with house.bare_worker(), Driver(house=house).running():
        run_id = await house.submit()
        await house.until_run(run_id, "succeeded")
        loop_id = contracts.loop_workflow_id(house.partition)

        async def told() -> bool:
            return "**1 of 1** waiting jobs leased" in await house.details(loop_id)

        await until(told)
        described = await house.client.get_workflow_handle(loop_id).describe()
    assert described.typed_search_attributes[contracts.KIND] == "loop"
    assert await described.static_summary() == f"scheduler of {house.partition}"


async def test_the_loop_s_history_replays(house: House) -> None:
    async with house.bare_worker(), Driver(house=house).running():
        run_id = await house.submit()
        await house.until_run(run_id, "succeeded")
        loop_id = contracts.loop_workflow_id(house.partition)
        history = WorkflowHistory(loop_id, await house.history(loop_id))
    replayer = Replayer(workflows=[SchedulerLoop], data_converter=pydantic_data_converter)
    assert (await replayer.replay_workflow(history)).replay_failure is None
