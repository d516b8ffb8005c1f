"""The relay after a commit: kicks coalesce, failures are survived."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from forgeyard.api.relay_kick import RelayKick


class Relay:
    """A relay that counts, and fails or hangs on demand."""

    def __init__(self) -> None:
        self.runs = 0
        self.failing = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.began = asyncio.Event()

    async def __call__(self) -> int:
        self.runs += 1
        self.began.set()
        await self.gate.wait()
        if self.failing:
            raise ConnectionError("down")
        return 1


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("never happened")


def _start(relay: Relay, **pauses: float) -> tuple[RelayKick, asyncio.Event, asyncio.Task[None]]:
    kick = RelayKick(relay, **pauses)
    stop = asyncio.Event()
    return kick, stop, asyncio.create_task(kick.run(stop))


async def test_nothing_is_relayed_without_a_kick() -> None:
    relay = Relay()
    _, stop, task = _start(relay)
    await asyncio.sleep(0.01)
    stop.set()
    await task
    assert relay.runs == 0


async def test_kicks_during_a_relay_become_one_more() -> None:
    relay = Relay()
    relay.gate.clear()
    kick, stop, task = _start(relay)
    kick.kick()
    await relay.began.wait()
    for _ in range(50):
        kick.kick()
    await asyncio.sleep(0)
    relay.gate.set()
    await _until(lambda: relay.runs == 2)
    await asyncio.sleep(0.01)
    assert relay.runs == 2
    stop.set()
    await task


async def test_a_kick_may_come_from_any_thread() -> None:
    relay = Relay()
    kick, stop, task = _start(relay)
    thread = threading.Thread(target=kick.kick)
    thread.start()
    await _until(lambda: relay.runs == 1)
    thread.join()
    stop.set()
    await task


async def test_a_failed_relay_is_tried_again_until_it_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    relay = Relay()
    relay.failing = True
    kick, stop, task = _start(relay, first_pause_s=0.001, longest_pause_s=0.002)
    kick.kick()
    await _until(lambda: relay.runs >= 3)
    assert kick.failures >= 2
    relay.failing = False
    await _until(lambda: kick.failures == 0)
    stop.set()
    await task
    assert caplog.text.count("going on without Temporal") == 1


async def test_a_relay_that_hangs_is_given_up() -> None:
    relay = Relay()
    relay.gate.clear()
    kick, stop, task = _start(relay, timeout_s=0.01, first_pause_s=0.001)
    kick.kick()
    await _until(lambda: kick.failures >= 1)
    stop.set()
    await task


async def test_stopping_does_not_wait_for_a_pause() -> None:
    relay = Relay()
    relay.failing = True
    kick, stop, task = _start(relay, first_pause_s=60)
    kick.kick()
    await _until(lambda: kick.failures == 1)
    stop.set()
    await asyncio.wait_for(task, 1)


async def test_what_was_kicked_just_before_the_end_is_still_relayed() -> None:
    relay = Relay()
    relay.gate.clear()
    kick, stop, task = _start(relay)
    kick.kick()
    await relay.began.wait()
    kick.kick()
    stop.set()
    relay.gate.set()
    await task
    assert relay.runs == 2


async def test_an_end_does_not_wait_for_a_relay_that_fails() -> None:
    relay = Relay()
    relay.failing = True
    kick, stop, task = _start(relay, first_pause_s=10)
    kick.kick()
    await _until(lambda: kick.failures == 1)
    stop.set()
    await asyncio.wait_for(task, 5)
    assert relay.runs == 1
