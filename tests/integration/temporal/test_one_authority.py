"""Loops that roll over under fire, grow long, or run twice: nothing is lost, nothing is doubled."""

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import sqlalchemy as sa
from temporalio.api.history.v1 import HistoryEvent

from activities import contracts, starts
from forgeyard.store import tables
from tests.builders import a_job_spec
from tests.integration.temporal.house import Driver, House, until

pytestmark = [
    pytest.mark.integration,
    # The SDK drops handlers of a run that has continued as new while signals came in.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SIGNALS = 200
BUDGET = 2_000
"""Events that no history of ours may reach."""


async def start_loop(house: House, workflow_id: str = "", **state: object) -> None:
    """Start a loop with a state of the test's choice, under its own id or another one."""
    await house.client.start_workflow(
        contracts.SCHEDULER_LOOP,
        contracts.LoopState(partition=house.partition, **state),
        id=workflow_id or contracts.loop_workflow_id(house.partition),
        task_queue=house.queue,
    )


async def runs_of(house: House, workflow_id: str) -> list[list[HistoryEvent]]:
    """Read the histories of all runs of a workflow, oldest first."""
    handle = house.client.get_workflow_handle(workflow_id)
    run_id = (await handle.describe()).raw_description.workflow_execution_info.first_run_id
    found = []
    while run_id:
        handle = house.client.get_workflow_handle(workflow_id, run_id=run_id)
        events = list((await handle.fetch_history()).events)
        found.append(events)
        end = events[-1].workflow_execution_continued_as_new_event_attributes
        run_id = end.new_execution_run_id
    return found


def wakes_in(events: list[HistoryEvent]) -> list[int]:
    """Read the generations of the wakes that a history took in."""
    return [
        json.loads(event.workflow_execution_signaled_event_attributes.input.payloads[0].data)[
            "generation"
        ]
        for event in events
        if event.HasField("workflow_execution_signaled_event_attributes")
    ]


async def send_wakes(house: House, count: int, rng: random.Random, *, over_s: float) -> None:
    """Send so many different wakes, each at a moment of its own."""

    loop = house.client.get_workflow_handle(contracts.loop_workflow_id(house.partition))
    at_once = asyncio.Semaphore(20)

    async def send(generation: int) -> None:
        await asyncio.sleep(rng.uniform(0, over_s))
        async with at_once:
            await loop.signal(contracts.WAKE, contracts.Wake(generation=generation))

    await asyncio.gather(*(send(generation) for generation in range(1, count + 1)))


async def test_no_wake_is_lost_or_taken_twice_while_the_loop_continues_as_new(
    house: House, record_property: Callable[[str, object], None]
) -> None:
    """F17."""
    loop_id = contracts.loop_workflow_id(house.partition)
    async with house.bare_worker():
        await start_loop(house, rounds_per_run=2)
        await send_wakes(house, SIGNALS, random.Random(17), over_s=8.0)

        async def is_acted_on() -> bool:
            events = (await runs_of(house, loop_id))[-1]
            return not wakes_in(events) and "wake" in await house.details(loop_id)

        await until(is_acted_on, within_s=120)
        histories = await runs_of(house, loop_id)
    taken = Counter(generation for events in histories for generation in wakes_in(events))
    assert taken == Counter(range(1, SIGNALS + 1))
    under_fire = sum(1 for events in histories if wakes_in(events)) - 1
    record_property("rolled over with signals in flight", f"{under_fire} times")
    assert under_fire >= 2


@pytest.mark.parametrize("signals", [0, 1_200])
async def test_a_loop_s_history_stays_far_below_the_limits_whatever_wakes_it(
    house: House, record_property: Callable[[str, object], None], signals: int
) -> None:
    """F19: also when many wakes came while no worker lived."""
    loop_id = contracts.loop_workflow_id(house.partition)
    await start_loop(house, rounds_per_run=1_000_000)
    await send_wakes(house, signals, random.Random(19), over_s=1.0)
    async with house.bare_worker():
        generation = signals
        while len(histories := await runs_of(house, loop_id)) == 1 or not signals:
            if not signals and len(histories[0]) > 60:
                break
            generation += 1
            wake = contracts.Wake(generation=generation)
            await starts.wake_loop(house.client, house.partition, wake, task_queue=house.queue)
    longest = max(len(events) for events in histories)
    record_property("events of the longest run", longest)
    assert longest < BUDGET
    assert len(histories) == (2 if signals else 1)


async def test_upkeep_s_run_stays_far_below_the_limits(
    house: House, record_property: Callable[[str, object], None]
) -> None:
    """F19: a tenth of its rounds, and everything that it does in between."""
    usual = contracts.UpkeepState(partition=house.partition)
    state = replace(usual, period_ms=1, rounds_per_run=usual.rounds_per_run // 10)
    workflow_id = contracts.upkeep_workflow_id(house.partition)
    async with house.bare_worker():
        await house.client.start_workflow(
            contracts.UPKEEP, state, id=workflow_id, task_queue=house.queue
        )

        async def has_rolled_over() -> bool:
            return len(await runs_of(house, workflow_id)) > 1

        await until(has_rolled_over, within_s=90)
        first, *_ = await runs_of(house, workflow_id)
    record_property("events of a tenth of a run of upkeep", len(first))
    assert 10 * len(first) < BUDGET


@pytest.mark.requirement("RCN-006", "INV-038")
async def test_two_loops_with_memories_of_their_own_lease_every_job_once(
    any_house: House, record_property: Callable[[str, object], None]
) -> None:
    """F27: a second loop under another name, on a worker that remembers other runners."""
    house = any_house
    other = house.at(partition=house.partition, queue=f"{house.queue}-other")
    drivers = [Driver(house=house, name=f"runner-{number}") for number in range(3)]
    async with house.bare_worker(), other.bare_worker():
        await start_loop(house)
        await start_loop(other, f"{contracts.loop_workflow_id(house.partition)}/again")
        async with drivers[0].running(), drivers[1].running(), drivers[2].running():
            runs = [
                house.submit_silently(*(a_job_spec(name=f"job-{n}") for n in range(5)))
                for _ in range(8)
            ]
            generations = itertools.count(1)

            async def are_done() -> bool:
                await wake_both(house, other, next(generations))
                await asyncio.sleep(0.2)
                return all(house.run_state(run) == "succeeded" for run in runs)

            await until(
                are_done, within_s=150, or_say=lambda: str(house.rows(sa.select(tables.jobs)))
            )
    cycles, leases = tables.cycles, tables.leases
    attempts = [row for run in runs for row in house.attempts(run)]
    assert len(attempts) == len({row["job_id"] for row in attempts}) == 40
    assert len(house.rows(sa.select(leases.c.lease_id))) == 40
    rivals = house.rows(sa.select(cycles).where(cycles.c.granted < cycles.c.planned))
    record_property("cycles that another one beat to a job", len(rivals))


async def test_a_wake_that_nobody_can_read_is_dropped_and_the_next_one_is_heard(
    house: House,
) -> None:
    loop_id = contracts.loop_workflow_id(house.partition)
    loop = house.client.get_workflow_handle(loop_id)
    async with house.bare_worker():
        await start_loop(house)
        await loop.signal(contracts.WAKE, "what?")
        await loop.signal(contracts.WAKE, contracts.Wake(generation=7))

        async def is_heard() -> bool:
            return "wake 7" in await house.details(loop_id)

        await until(is_heard, within_s=90)


async def wake_both(house: House, other: House, generation: int) -> None:
    """Wake both loops at once, so that they plan the same jobs."""
    wake = contracts.Wake(generation=generation)
    loop_id = contracts.loop_workflow_id(house.partition)
    for name in (loop_id, f"{loop_id}/again"):
        await other.client.get_workflow_handle(name).signal(contracts.WAKE, wake)
