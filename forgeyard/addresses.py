"""The addresses of one service: whoever talks to it turns to the next one when one fails."""

from collections.abc import Sequence
from typing import Final

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""What this host is called by itself, and reached by from nowhere else."""


class Addresses:
    """Places where the same service answers; the one in use stays in use until it fails."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = tuple(urls)
        self._at = 0

    @property
    def current(self) -> str:
        """Name the one to ask now."""
        return self._urls[self._at]

    def in_turn(self) -> tuple[str, ...]:
        """List each of them once, the one in use first."""
        return (*self._urls[self._at :], *self._urls[: self._at])

    def failed(self, url: str) -> None:
        """Turn to the next one, unless somebody has turned away from this one already."""
        if url == self.current:
            self._at = (self._at + 1) % len(self._urls)
