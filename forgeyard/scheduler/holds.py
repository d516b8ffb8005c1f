"""Room that is held for one job, and who may use it all the same.

A *backfill* row keeps a runner for the oldest job that waits for much room: others may use what is
free there only if they must be over before the room is due, so small jobs fill the gap and never
widen it (FAR-026). A *nomination* keeps what victims of a preemption leave, and nobody borrows it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from forgeyard.model.units import Resources


class HoldKind(StrEnum):
    """Why room is held."""

    BACKFILL = "backfill"
    NOMINATION = "nomination"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRoom:
    """Room on one runner for one job; `deadline` is when it is due, or when the hold lapses."""

    job_id: str
    kind: HoldKind
    partition: str
    runner_id: str
    room: Resources
    since: int
    deadline: int


class Borrower(Protocol):
    """A job that would like to use room: its id, and by when it must be over."""

    @property
    def job_id(self) -> str:
        """Tell its id."""
        ...

    @property
    def lasts(self) -> int:
        """Tell how long it may last at most, in milliseconds."""
        ...


def is_withheld(hold: HeldRoom, job: Borrower, now: int) -> bool:
    """Tell whether a job must leave this room alone."""
    if hold.job_id == job.job_id:
        return False
    return hold.kind is HoldKind.NOMINATION or now + job.lasts > hold.deadline


class Holds:
    """The holds of one cycle, by runner; those of a job end when it is placed."""

    def __init__(self, rows: Iterable[HeldRoom] = (), now: int = 0) -> None:
        self._now = now
        self._by_runner: dict[str, list[HeldRoom]] = {}
        for hold in rows:
            self._by_runner.setdefault(hold.runner_id, []).append(hold)

    @property
    def runners(self) -> Collection[str]:
        """List the runners on which room is held."""
        return self._by_runner

    def on(self, runner_id: str) -> Resources:
        """Add up what is held on a runner, for whomever."""
        return _sum(self._by_runner.get(runner_id, ()))

    def withheld(self, job: Borrower, runner_id: str) -> Resources:
        """Add up what a job must leave alone on a runner."""
        holds = self._by_runner.get(runner_id, ())
        return _sum(hold for hold in holds if is_withheld(hold, job, self._now))

    def dissolve(self, job_id: str) -> list[HeldRoom]:
        """End every hold of a job; return them."""
        ended = [hold for holds in self._by_runner.values() for hold in holds]
        ended = [hold for hold in ended if hold.job_id == job_id]
        for hold in ended:
            self._by_runner[hold.runner_id].remove(hold)
        return ended


def _sum(holds: Iterable[HeldRoom]) -> Resources:
    total = Resources()
    for hold in holds:
        total = total.plus(hold.room)
    return total


def when_free(
    wanted: Resources, free: Resources, releases: Iterable[tuple[int, Resources]]
) -> int | None:
    """Tell by when a runner has room for sure, if nothing is added: zero is now, `None` never.

    `releases` are the amounts in use, each with the instant by which it is given back at the
    latest.
    """
    if wanted.fits_in(free):
        return 0
    for instant, amount in sorted(releases, key=lambda release: release[0]):
        free = free.plus(amount)
        if wanted.fits_in(free):
            return instant
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillWish:
    """A job for which a runner should be held, and the runners to choose from."""

    job_id: str
    resources: Resources
    runners: tuple[str, ...]


def earliest(
    wish: BackfillWish,
    free: Mapping[str, Resources],
    releases: Mapping[str, Sequence[tuple[int, Resources]]],
) -> tuple[str, int] | None:
    """Choose the runner that is sure to have room first; among equals the first one listed."""
    sure = (
        (at, place, runner_id)
        for place, runner_id in enumerate(wish.runners)
        if runner_id in free
        and (at := when_free(wish.resources, free[runner_id], releases.get(runner_id, ())))
        is not None
    )
    at, _, runner_id = min(sure, default=(0, 0, ""))
    return (runner_id, at) if runner_id else None
