"""Waiting longer and longer, never longer than agreed."""

import random

import pytest

from forgeyard.agent.backoff import BackOff, persist
from forgeyard.errors import InvalidRequest, StoreHeld, Unavailable


def test_waits_grow_to_the_longest_and_begin_again_after_a_success() -> None:
    back_off = BackOff(longest=15.0, rng=random.Random(1))
    delays = [back_off.delay() for _ in range(50)]
    assert delays[0] <= 0.2
    assert max(delays) <= 15.0
    assert min(delays[10:]) >= 7.5
    back_off.reset()
    assert back_off.delay() <= 0.2


async def test_a_call_is_repeated_until_the_server_is_back() -> None:
    answers = iter([Unavailable("away"), Unavailable("away"), None])

    async def call() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "here"

    back_off = BackOff(longest=0.01, rng=random.Random(1))
    assert await persist(call, back_off=back_off, what="test") == "here"


async def test_a_bounded_number_of_tries_ends_with_the_error() -> None:
    made: list[int] = []

    async def call() -> None:
        made.append(1)
        raise Unavailable("away")

    with pytest.raises(Unavailable):
        await persist(
            call, back_off=BackOff(longest=0.01, rng=random.Random(1)), tries=3, what="test"
        )
    assert len(made) == 3


async def test_a_store_that_is_held_is_asked_however_often_it_takes() -> None:
    answers = iter([*[StoreHeld("held")] * 9, None])

    async def call() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "here"

    back_off = BackOff(longest=0.001, rng=random.Random(1))
    assert await persist(call, back_off=back_off, tries=3, what="test") == "here"


async def test_a_refusal_is_not_repeated() -> None:
    made: list[int] = []

    async def call() -> None:
        made.append(1)
        raise InvalidRequest("no")

    with pytest.raises(InvalidRequest):
        await persist(call, back_off=BackOff(longest=0.01, rng=random.Random(1)), what="test")
    assert len(made) == 1
