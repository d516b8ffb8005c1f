"""Visits every state of a small model, breadth first, so that a trace found is a shortest one."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)
Step = tuple[str, State]
"""What happens, and the state after it."""


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[State]):
    """What a search found: how much there is, and the way to a bad state if there is any."""

    states: int
    trace: tuple[Step[State], ...] | None

    def told(self) -> str:
        """Describe it for the output of a test."""
        if self.trace is None:
            return f"{self.states} states, none of them bad"
        steps = " / ".join(what for what, _ in self.trace)
        return f"{self.states} states, refuted in {len(self.trace)} steps: {steps}"


def explore(
    starts: Iterable[State],
    after: Callable[[State], Iterable[Step[State]]],
    is_bad: Callable[[State], bool],
    *,
    most: int = 500_000,
) -> Outcome[State]:
    """Follow every step from every start until a state is bad or all have been seen.

    More than `most` states is an error: a search that stops early has proved nothing.
    """
    came: dict[State, tuple[str, State] | None] = dict.fromkeys(starts)
    line = list(came)
    for state in line:
        if is_bad(state):
            return Outcome(states=len(came), trace=_way(came, state))
        for what, following in after(state):
            if following not in came:
                came[following] = (what, state)
                line.append(following)
        assert len(came) <= most, "too many states to visit them all"
    return Outcome(states=len(came), trace=None)


def _way(came: dict[State, tuple[str, State] | None], end: State) -> tuple[Step[State], ...]:
    steps: list[Step[State]] = []
    while (before := came[end]) is not None:
        what, previous = before
        steps.append((what, end))
        end = previous
    return tuple(reversed(steps))
