"""How long to wait before asking a server again that did not answer."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from forgeyard.errors import StoreHeld, Unavailable

T = TypeVar("T")
FIRST_S = 0.2

_log = structlog.get_logger(__name__)


class BackOff:
    """Waits that double up to a longest one, each shortened by chance so that agents spread."""

    def __init__(self, *, longest: float, rng: random.Random) -> None:
        self._longest = longest
        self._rng = rng
        self.tries = 0

    def reset(self) -> None:
        """Begin again after a success."""
        self.tries = 0

    def delay(self) -> float:
        """Tell how many seconds to wait after one more failure."""
        full = min(self._longest, FIRST_S * (1 << min(self.tries, 30)))
        self.tries += 1
        return full * self._rng.uniform(0.5, 1.0)


async def persist(
    call: Callable[[], Awaitable[T]],
    *,
    back_off: BackOff,
    tries: int | None = None,
    what: str,
) -> T:
    """Repeat a call while its server is unavailable; the caller bounds it in time.

    A server that waits for an operator to confirm its store is asked again however often it takes.

    Raises:
        Unavailable: after `tries` failures, if given.
    """
    while True:
        try:
            return await call()
        except Unavailable as error:
            delay = back_off.delay()
            waits = isinstance(error, StoreHeld)
            if tries is not None and back_off.tries >= tries and not waits:
                raise
            _log.info("server unavailable", what=what, error=error.message, wait_s=round(delay, 2))
            await asyncio.sleep(delay)
