"""Calls written together: who comes alone goes at once, and nobody pays for anybody else."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from forgeyard.api.batches import Batches, Work
from forgeyard.errors import InvalidRequest, Overloaded, StoreUnavailable


class Store:
    """Writes numbers, doubled; negative ones only alone, and 13 never. Can be held up."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.alone: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.lane = threading.Event()
        self.lane.set()
        self.is_down = False

    def together(self, calls: Sequence[int]) -> Sequence[int | None]:
        self.batches.append(list(calls))
        assert self.gate.wait(10)
        if self.is_down:
            raise StoreUnavailable("the database is away")
        if 13 in calls:
            raise ValueError("unstorable")
        return [None if call < 0 else 2 * call for call in calls]

    def one(self, call: int) -> int:
        self.alone.append(call)
        assert self.lane.wait(10)
        if call == 13:
            raise InvalidRequest("thirteen")
        return 2 * call

    def batched(self, **changed: float) -> Batches[int, int]:
        work = Work(name="numbers", together=self.together, alone=self.one, weigh=abs)
        return Batches(work, **{"pace_s": 0.0, **changed})


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("never happened")


async def all_of(batches: Batches[int, int], *calls: int) -> list[int | BaseException]:
    return await asyncio.gather(*(batches.ask(call) for call in calls), return_exceptions=True)


async def test_a_call_that_comes_alone_is_written_at_once() -> None:
    store = Store()
    batches = store.batched(pace_s=60.0)
    assert await asyncio.wait_for(batches.ask(4), 10) == 8
    assert store.batches == [[4]]


async def test_what_comes_while_a_batch_is_written_forms_the_next() -> None:
    store = Store()
    store.gate.clear()
    batches = store.batched()
    first = asyncio.create_task(batches.ask(1))
    await until(lambda: store.batches == [[1]])
    others = asyncio.create_task(all_of(batches, 2, 3, 4))
    await asyncio.sleep(0.01)
    assert store.batches == [[1]]
    store.gate.set()
    assert [await first, *await others] == [2, 4, 6, 8]
    assert store.batches == [[1], [2, 3, 4]]


async def test_batches_keep_their_pace_under_load() -> None:
    store = Store()
    batches = store.batched(pace_s=0.05)
    began = time.monotonic()
    for round_ in range(4):
        await all_of(batches, round_, round_)
    assert time.monotonic() - began >= 3 * 0.05
    assert len(store.batches) == 4


async def test_one_that_cannot_be_stored_fails_alone() -> None:
    store = Store()
    four, thirteen, five = await all_of(store.batched(), 4, 13, 5)
    assert (four, five) == (8, 10)
    assert isinstance(thirteen, InvalidRequest)
    assert store.alone == [4, 13, 5]


async def test_a_database_that_is_away_is_not_asked_once_more_for_each_caller() -> None:
    store = Store()
    store.is_down = True
    batches = store.batched()
    answers = await all_of(batches, 1, 2, 3)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    assert store.alone == []
    store.is_down = False
    assert await batches.ask(1) == 2


async def test_what_has_to_wait_holds_up_nobody() -> None:
    store = Store()
    store.lane.clear()
    batches = store.batched()
    waiting = [asyncio.create_task(batches.ask(-number)) for number in range(1, 9)]
    await until(lambda: len(store.alone) == 2)
    assert await asyncio.wait_for(all_of(batches, 1, 2), 10) == [2, 4]
    store.lane.set()
    assert await asyncio.gather(*waiting) == [-2 * number for number in range(1, 9)]


async def test_whoever_finds_too_many_waiting_is_told_to_come_again() -> None:
    store = Store()
    store.gate.clear()
    batches = store.batched(room=2)
    first = asyncio.create_task(batches.ask(1))
    await until(lambda: len(store.batches) == 1)
    waiting = [asyncio.create_task(batches.ask(number)) for number in (2, 3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 numbers wait already"):
        await batches.ask(4)
    store.gate.set()
    assert [await first, *await asyncio.gather(*waiting)] == [2, 4, 6]


async def test_too_many_that_go_alone_are_told_to_come_again_and_the_others_are_not() -> None:
    store = Store()
    store.lane.clear()
    batches = store.batched(room_alone=3)
    waiting = [asyncio.create_task(batches.ask(-1)) for _ in range(3)]
    await until(lambda: len(store.alone) == 2)
    with pytest.raises(Overloaded):
        await batches.ask(-1)
    assert await batches.ask(5) == 10
    store.lane.set()
    assert await asyncio.gather(*waiting) == [-2] * 3


async def test_a_transaction_is_bounded_and_serves_first_who_came_first() -> None:
    store = Store()
    store.gate.clear()
    batches = store.batched(most=10)
    first = asyncio.create_task(batches.ask(1))
    await until(lambda: len(store.batches) == 1)
    rest = asyncio.create_task(all_of(batches, 4, 5, 6, 99, 2))
    await asyncio.sleep(0.01)
    store.gate.set()
    await first
    await rest
    assert store.batches == [[1], [4, 5], [6], [99], [2]]


async def test_whoever_has_gone_is_not_written_for() -> None:
    store = Store()
    store.gate.clear()
    batches = store.batched()
    first = asyncio.create_task(batches.ask(1))
    await until(lambda: len(store.batches) == 1)
    gone, stays = asyncio.create_task(batches.ask(2)), asyncio.create_task(batches.ask(3))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    store.gate.set()
    assert await asyncio.gather(first, stays) == [2, 6]
    assert store.batches == [[1], [3]]
