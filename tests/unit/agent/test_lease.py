"""Until when a lease certainly holds, and what takes precedence when it must end."""

import asyncio

import pytest

from forgeyard.agent.lease import Interrupted, StopReason
from forgeyard.model.units import Millis
from tests.unit.agent.deals import Watch, a_held_lease


def test_a_lease_that_was_never_acknowledged_does_not_hold() -> None:
    assert a_held_lease(Watch()).stop_reason() is StopReason.LAPSED


def test_the_deadline_counts_from_when_the_request_was_sent() -> None:
    watch = Watch()
    held = a_held_lease(watch)
    sent_at = watch()
    watch.advance(9.0)  # the answer took so long
    held.acknowledged(sent_at=sent_at, ttl=Millis(60_000), grace=Millis(10_000))
    watch.advance(60.9)
    held.check()
    watch.advance(0.1)
    assert held.stop_reason() is StopReason.LAPSED


def test_a_renewal_moves_the_deadline_and_keeps_the_grace() -> None:
    watch = Watch()
    held = a_held_lease(watch)
    held.acknowledged(sent_at=watch(), ttl=Millis(60_000), grace=Millis(10_000))
    watch.advance(50.0)
    held.acknowledged(sent_at=watch(), ttl=Millis(60_000))
    watch.advance(69.9)
    held.check()
    watch.advance(0.2)
    with pytest.raises(Interrupted):
        held.check()


def test_an_answer_that_overtook_a_newer_one_changes_nothing() -> None:
    watch = Watch()
    held = a_held_lease(watch)
    held.acknowledged(sent_at=watch() + 20, ttl=Millis(60_000))
    held.acknowledged(sent_at=watch() + 10, ttl=Millis(600_000))
    watch.advance(86.0)
    assert held.stop_reason() is StopReason.LAPSED


def test_a_process_frozen_for_longer_than_its_lease_wakes_up_without_it() -> None:
    watch = Watch()
    held = a_held_lease(watch)
    held.acknowledged(sent_at=watch(), ttl=Millis(60_000))
    watch.advance(86_400.0)
    assert held.stop_reason() is StopReason.LAPSED


def test_the_end_of_a_phase_is_a_timeout_only_while_the_lease_holds() -> None:
    watch = Watch()
    held = a_held_lease(watch)
    held.acknowledged(sent_at=watch(), ttl=Millis(60_000))
    until = watch() + 10
    watch.advance(10.0)
    assert held.stop_reason(until=until) is StopReason.TIMED_OUT
    watch.advance(60.0)
    assert held.stop_reason(until=until) is StopReason.LAPSED


def test_a_lost_lease_outweighs_a_cancellation_but_not_the_other_way_round() -> None:
    watch = Watch()
    held = a_held_lease(watch)
    held.acknowledged(sent_at=watch(), ttl=Millis(60_000))
    held.stop(StopReason.CANCELLED)
    held.stop(StopReason.SHUTDOWN)
    assert held.stop_reason() is StopReason.CANCELLED
    assert held.fenced() is None
    held.stop(StopReason.LOST)
    held.stop(StopReason.CANCELLED)
    assert held.stop_reason() is StopReason.LOST
    assert held.fenced() is StopReason.LOST


async def test_watched_work_is_cancelled_and_seen_to_its_end_before_the_interruption() -> None:
    watch = Watch()
    held = a_held_lease(watch)
    held.acknowledged(sent_at=watch(), ttl=Millis(60_000))
    seen: list[str] = []

    async def work() -> None:
        try:
            held.stop(StopReason.CANCELLED)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned up")

    with pytest.raises(Interrupted) as caught:
        await held.watch(work())
    assert caught.value.reason is StopReason.CANCELLED
    assert seen == ["cleaned up"]


async def test_held_work_goes_on_through_a_cancellation_but_not_through_a_loss() -> None:
    watch = Watch()
    held = a_held_lease(watch)
    held.acknowledged(sent_at=watch(), ttl=Millis(60_000))
    held.stop(StopReason.CANCELLED)
    assert await held.hold(asyncio.sleep(0, result="sent")) == "sent"

    async def lose() -> None:
        held.stop(StopReason.LOST)
        await asyncio.Event().wait()

    with pytest.raises(Interrupted) as caught:
        await held.hold(lose())
    assert caught.value.reason is StopReason.LOST


async def test_work_on_a_lapsed_lease_does_not_even_begin() -> None:
    begun: list[bool] = []

    async def work() -> None:
        begun.append(True)

    with pytest.raises(Interrupted):
        await a_held_lease(Watch()).watch(work())
    assert begun == []
