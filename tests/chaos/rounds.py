"""Rounds of one fault: each draws its moments from the seed, and tells whether it was on time."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(kw_only=True)
class Rounds:
    """How often a fault is to be repeated, and how often its window was hit."""

    seed: int
    count: int
    test: str
    record: Callable[[str, object], None]
    hits: int = 0

    def of(self, window: str) -> Iterator[random.Random]:
        """Give each round its own randomness; fail at the end if the window was never hit."""
        self.record("seed", f"{self.seed} (--chaos-seed {self.seed})")
        for number in range(1, self.count + 1):
            yield random.Random(f"{self.seed}/{self.test}/{number}")
        self.record("window hit", f"{self.hits} of {self.count}: {window}")
        assert self.hits > 0, f"no round met its moment: {window}"

    def hit(self) -> None:
        """Say that this round met its moment."""
        self.hits += 1

    def took(self, what: str, seconds: float, *, goal_s: float) -> None:
        """Print a recovery time, and insist on its goal."""
        self.record(what, f"{seconds:.1f} s (goal {goal_s:g} s)")
        assert seconds <= goal_s, f"{what}: {seconds:.1f} s, goal {goal_s:g} s"
