"""How long the server has not answered, for an agent whose machine is worth nothing without it."""

import asyncio
from typing import Final

from forgeyard import clock
from forgeyard.agent.lease import Clock

GAVE_UP: Final = 75
"""The exit code of an agent that nobody has answered for too long: its machine may go."""


class Contact:
    """Knows when the server answered last; a machine that sleeps does not grow silent by it."""

    def __init__(self, give_up_s: float, *, monotonic: Clock = clock.monotonic) -> None:
        self._give_up_s = give_up_s
        self._clock = monotonic
        self._heard_at = monotonic()
        self.is_lost = False

    def heard(self) -> None:
        """Note that the server has answered."""
        self._heard_at = self._clock()

    async def lost(self) -> None:
        """Return when nobody has answered for too long; never where that is not minded."""
        if not self._give_up_s:
            await asyncio.Event().wait()
        left = self._left()
        while left > 0:
            await asyncio.sleep(left)
            left = self._left()
        self.is_lost = True

    def _left(self) -> float:
        return self._heard_at + self._give_up_s - self._clock()
