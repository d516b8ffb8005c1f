"""Keeps asking while something grows, through short outages of the API."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from forgeyard import clock
from forgeyard.errors import Unavailable

Answer = TypeVar("Answer")
PATIENCE_S: Final = 60.0
PAUSE_S: Final = 0.5


class Patience:
    """Repeat a question while the API is away, but not for ever."""

    def __init__(
        self,
        *,
        patience_s: float = PATIENCE_S,
        pause_s: float = PAUSE_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._patience_s = patience_s
        self._pause_s = pause_s
        self._sleep = sleep

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Ask until there is an answer.

        Raises:
            Unavailable: the API stayed away for too long.
        """
        until = clock.monotonic() + self._patience_s
        while True:
            try:
                return question()
            except Unavailable:
                if clock.monotonic() >= until:
                    raise
            self._sleep(self._pause_s)

    def pause(self) -> None:
        """Wait before the next question."""
        self._sleep(self._pause_s)
