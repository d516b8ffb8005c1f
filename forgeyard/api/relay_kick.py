"""Relay what this process has just committed, off the path of the request.

Kicks coalesce: however many come while a relay runs, one more follows. Temporal may be down;
the outbox keeps everything, this loop tries again with growing pauses, and Upkeep takes whatever
is left when this process is gone (DESIGN §3).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
TIMEOUT_S: Final = 15.0

_log = logging.getLogger(__name__)


class RelayKick:
    """A relay that runs soon after it is kicked, once for many kicks."""

    def __init__(
        self,
        relay: Callable[[], Awaitable[int]],
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._relay = relay
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._kicked = asyncio.Event()
        self.failures = 0
        """Relays that failed in a row; 0 means the last one worked."""

    def kick(self) -> None:
        """Ask for a relay, from any thread; never blocks and never fails."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._kicked.set)

    async def run(self, stop: asyncio.Event) -> None:
        """Relay after every kick, and again after a failure, until told to stop.

        What was kicked before that is still relayed, unless the last relay failed.
        """
        stopping = asyncio.create_task(stop.wait())
        try:
            while True:
                kicked = asyncio.create_task(self._kicked.wait())
                await asyncio.wait((stopping, kicked), return_when=asyncio.FIRST_COMPLETED)
                kicked.cancel()
                if stop.is_set() and (self.failures or not self._kicked.is_set()):
                    return
                await self._relay_once()
                if self.failures:
                    await asyncio.wait((stopping,), timeout=self._pause_s())
        finally:
            stopping.cancel()

    async def _relay_once(self) -> None:
        self._kicked.clear()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._relay()
        except Exception as error:
            self.failures += 1
            self._kicked.set()
            if self.failures == 1:
                _log.warning("relay failed, going on without Temporal: %r", error)
        else:
            if self.failures:
                _log.info("relay works again after %d failures", self.failures)
            self.failures = 0

    def _pause_s(self) -> float:
        doublings = min(self.failures - 1, 10)
        return min(self._first_pause_s * (1 << doublings), self._longest_pause_s)
