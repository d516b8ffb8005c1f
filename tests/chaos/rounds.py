"""Rounds of one fault: each draws its moments from the seed, and tells whether it was on time."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Rounds:
    """How often a fault is to be repeated, and how often its window was hit."""

    seed: int
    count: int
    test: str
    record: Callable[[str, object], None]
    number: int = 0
    hits: int = 0
    _seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def of(self, window: str) -> Iterator[random.Random]:
        """Give each round its own randomness; fail at the end if the window was never hit."""
        while self.number < self.count:
            self.number += 1
            yield random.Random(f"{self.seed}/{self.test}/{self.number}")
        self.record("window hit", f"{self.hits} of {self.count}: {window} (seed {self.seed})")
        for what, seconds in self._seconds.items():
            self.record(what, f"{min(seconds):.1f} to {max(seconds):.1f} s")
        assert self.hits > 0, f"no round met its moment: {window}"

    def hit(self) -> None:
        """Say that this round met its moment."""
        self.hits += 1

    def took(self, what: str, seconds: float, *, goal_s: float) -> None:
        """Note a recovery time to be printed, and insist on its goal."""
        self._seconds[f"{what}, goal {goal_s:g} s"].append(seconds)
        assert seconds <= goal_s, f"{what}: {seconds:.1f} s, goal {goal_s:g} s"

    def note(self, what: str, value: object) -> None:
        """Have something printed that was measured."""
        self.record(what, str(value))

    def row(self) -> dict[str, object]:
        """Sum up for the table at the end of the session, also of a test that has failed."""
        seconds = [each for all_of_one in self._seconds.values() for each in all_of_one]
        return {"runs": self.number, "hits": self.hits, "seconds": seconds}

    def replay(self) -> str:
        """Tell how to have this very round again."""
        return f"--chaos-seed {self.seed} --chaos-rounds {self.number}: it was the last of these"
