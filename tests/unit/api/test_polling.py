"""Long polls: who is answered when, and what is said twice."""

import asyncio
from collections.abc import Collection, Mapping

import pytest

from forgeyard.api.polling import REMEMBERED_SESSIONS, REPEAT_S, AssignmentReader, _Told
from forgeyard.errors import StaleRejected, StoreUnavailable
from forgeyard.model.ids import AttemptId, JobId, LeaseId, RunId
from forgeyard.model.protocol import Assignments, Offer
from forgeyard.model.units import Millis
from tests.builders import a_job_spec

LONG = 30.0


def an_offer(lease: str) -> Offer:
    return Offer(
        lease_id=LeaseId(lease),
        epoch=1,
        attempt_id=AttemptId("att_1"),
        attempt_number=1,
        job_id=JobId("job_1"),
        run_id=RunId("run_1"),
        run_name="demo",
        spec=a_job_spec(),
        inputs=(),
        ttl=Millis(1_000),
        grace=Millis(0),
    )


class Table:
    """A store that can be changed, a clock that can be moved, and a reader over both."""

    def __init__(self) -> None:
        self.rows: dict[str, Assignments] = {"s": Assignments()}
        self.reads: list[frozenset[str]] = []
        self.time = 100.0
        self.reader = AssignmentReader(self.fetch, period_s=0.001, monotonic=lambda: self.time)

    def fetch(self, session_ids: Collection[str]) -> Mapping[str, Assignments]:
        self.reads.append(frozenset(session_ids))
        return {name: self.rows[name] for name in session_ids if name in self.rows}

    async def poll(self, session: str = "s") -> "asyncio.Task[Assignments]":
        task = asyncio.create_task(self.reader.wait(session, seconds=LONG))
        await asyncio.sleep(0)
        return task


async def test_an_offer_answers_the_poll_that_waits_for_it() -> None:
    table = Table()
    poll = await table.poll()
    await table.reader.read_once()
    assert not poll.done()
    table.rows["s"] = Assignments(offers=(an_offer("lse_1"),))
    await table.reader.read_once()
    assert (await poll).offers[0].lease_id == "lse_1"


async def test_one_read_serves_everybody_who_waits() -> None:
    table = Table()
    table.rows = {name: Assignments(drain=True) for name in "abc"}
    polls = [await table.poll(name) for name in "abc"]
    await table.reader.read_once()
    assert [(await poll).drain for poll in polls] == [True] * 3
    assert table.reads == [frozenset("abc")]


async def test_nobody_waiting_means_no_read() -> None:
    table = Table()
    await table.reader.read_once()
    assert table.reads == []


async def test_the_same_offer_is_repeated_only_after_a_while() -> None:
    table = Table()
    table.rows["s"] = Assignments(offers=(an_offer("lse_1"),))
    first = await table.poll()
    await table.reader.read_once()
    await first
    second = await table.poll()
    await table.reader.read_once()
    assert not second.done()
    table.time += REPEAT_S
    await table.reader.read_once()
    assert (await second).offers[0].lease_id == "lse_1"


async def test_a_second_offer_is_news_beside_the_first() -> None:
    table = Table()
    table.rows["s"] = Assignments(offers=(an_offer("lse_1"),))
    first = await table.poll()
    await table.reader.read_once()
    await first
    second = await table.poll()
    table.rows["s"] = Assignments(offers=(an_offer("lse_1"), an_offer("lse_2")))
    await table.reader.read_once()
    assert [offer.lease_id for offer in (await second).offers] == ["lse_1", "lse_2"]


async def test_a_drain_is_told_once_when_it_begins_and_once_when_it_ends() -> None:
    table = Table()
    for drain in (True, False):
        table.rows["s"] = Assignments(drain=drain)
        news = await table.poll()
        await table.reader.read_once()
        assert (await news).drain is drain
        table.time += 100
        quiet = await table.poll()
        await table.reader.read_once()
        assert not quiet.done()
        quiet.cancel()


async def test_that_a_machine_goes_is_told_at_once_and_again_for_the_answer_may_be_lost() -> None:
    table = Table()
    table.rows["s"] = Assignments(leaving=Millis(120_000))
    news = await table.poll()
    await table.reader.read_once()
    assert (await news).leaving == 120_000
    again = await table.poll()
    await table.reader.read_once()
    assert not again.done()
    table.time += REPEAT_S
    table.rows["s"] = Assignments(leaving=Millis(118_000))
    await table.reader.read_once()
    assert (await again).leaving == 118_000


async def test_a_cancellation_is_news() -> None:
    table = Table()
    poll = await table.poll()
    table.rows["s"] = Assignments(cancel=(LeaseId("lse_1"),))
    await table.reader.read_once()
    assert (await poll).cancel == ("lse_1",)


async def test_a_poll_that_ends_without_news_still_tells_what_holds() -> None:
    table = Table()
    table.rows["s"] = Assignments(drain=True)
    first = await table.poll()
    await table.reader.read_once()
    await first
    waiting = asyncio.create_task(table.reader.wait("s", seconds=0.02))
    await asyncio.sleep(0)
    await table.reader.read_once()
    assert (await waiting).drain


async def test_a_poll_without_patience_is_still_looked_at_once() -> None:
    table = Table()
    table.rows["s"] = Assignments(offers=(an_offer("lse_1"),))
    hasty = asyncio.create_task(table.reader.wait("s", seconds=0))
    await asyncio.sleep(0.01)
    await table.reader.read_once()
    assert (await hasty).offers[0].lease_id == "lse_1"
    unknown = asyncio.create_task(table.reader.wait("unknown", seconds=0))
    await asyncio.sleep(0.01)
    await table.reader.read_once()
    with pytest.raises(StaleRejected):
        await unknown


async def test_a_newer_poll_of_a_session_ends_the_older() -> None:
    table = Table()
    older = await table.poll()
    newer = await table.poll()
    assert await older == Assignments()
    table.rows["s"] = Assignments(offers=(an_offer("lse_1"),))
    await table.reader.read_once()
    assert (await newer).offers


async def test_a_session_that_is_not_open_is_refused() -> None:
    table = Table()
    poll = await table.poll("unknown")
    await table.reader.read_once()
    with pytest.raises(StaleRejected):
        await poll


async def test_the_reader_survives_a_store_that_is_away() -> None:
    table = Table()
    answers = [StoreUnavailable("away"), None]

    def fetch(session_ids: Collection[str]) -> Mapping[str, Assignments]:
        problem = answers.pop(0) if answers else None
        if problem:
            raise problem
        return {name: Assignments(drain=True) for name in session_ids}

    reader = AssignmentReader(fetch, period_s=0.001, monotonic=lambda: table.time)
    stop = asyncio.Event()
    running = asyncio.create_task(reader.run(stop))
    assert (await reader.wait("s", seconds=LONG)).drain
    stop.set()
    await running


async def test_stopping_lets_every_poll_go_and_later_ones_at_once() -> None:
    table = Table()
    stop = asyncio.Event()
    running = asyncio.create_task(table.reader.run(stop))
    poll = await table.poll()
    stop.set()
    await running
    assert await poll == Assignments()
    assert await table.reader.wait("s", seconds=LONG) == Assignments()


async def test_the_reader_rests_while_nobody_waits() -> None:
    table = Table()
    stop = asyncio.Event()
    running = asyncio.create_task(table.reader.run(stop))
    table.rows["s"] = Assignments(drain=True)
    assert (await table.reader.wait("s", seconds=LONG)).drain
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert len(table.reads) == 1
    stop.set()
    await running


async def test_memory_of_what_was_told_is_bounded() -> None:
    table = Table()
    told = table.reader._told
    for number in range(REMEMBERED_SESSIONS):
        told[f"old-{number}"] = _Told()
    poll = await table.poll()
    table.rows["s"] = Assignments(drain=True)
    await table.reader.read_once()
    await poll
    assert len(told) == REMEMBERED_SESSIONS
    assert "old-0" not in told


async def test_a_hint_makes_the_reader_look_long_before_its_period() -> None:
    reads: list[int] = []

    def fetch(session_ids: Collection[str]) -> Mapping[str, Assignments]:
        reads.append(len(reads))
        offers = (an_offer("lse_1"),) if len(reads) > 1 else ()
        return {name: Assignments(offers=offers) for name in session_ids}

    reader = AssignmentReader(fetch, period_s=0.4, changed=lambda: True)
    stop = asyncio.Event()
    running = asyncio.create_task(reader.run(stop))
    started = asyncio.get_running_loop().time()
    assert (await reader.wait("s", seconds=5)).offers
    assert asyncio.get_running_loop().time() - started < 0.35
    stop.set()
    await running
