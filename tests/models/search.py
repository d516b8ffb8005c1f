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
    return _explore({}, starts, after, is_bad, most=most)


def _explore(
    came: dict[State, tuple[str, State] | None],
    starts: Iterable[State],
    after: Callable[[State], Iterable[Step[State]]],
    is_bad: Callable[[State], bool],
    *,
    most: int,
) -> Outcome[State]:
    came.update(dict.fromkeys(starts))
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


def explore_to_ends(
    starts: Iterable[State],
    after: Callable[[State], Iterable[Step[State]]],
    is_bad: Callable[[State], bool],
    *,
    is_end: Callable[[State], bool],
    is_sure: Callable[[str], bool],
    most: int = 500_000,
) -> Outcome[State]:
    """Do the same, and then find a state from which no way leads to an end by sure steps alone."""
    leads: dict[State, list[State]] = {}

    def noted(state: State) -> Iterable[Step[State]]:
        for what, following in after(state):
            if is_sure(what):
                leads.setdefault(following, []).append(state)
            yield what, following

    came: dict[State, tuple[str, State] | None] = {}
    outcome = _explore(came, starts, noted, is_bad, most=most)
    if outcome.trace is not None:
        return outcome
    line = [state for state in came if is_end(state)]
    saved = set(line)
    for state in line:
        for before in leads.get(state, ()):
            if before not in saved:
                saved.add(before)
                line.append(before)
    lost = next((state for state in came if state not in saved), None)
    return Outcome(states=len(came), trace=None if lost is None else _way(came, lost))


def _way(came: dict[State, tuple[str, State] | None], end: State) -> tuple[Step[State], ...]:
    steps: list[Step[State]] = []
    while (before := came[end]) is not None:
        what, previous = before
        steps.append((what, end))
        end = previous
    return tuple(reversed(steps))
