"""A large job gets its runner although small ones never cease to come: all ways to try are tried.

One runner with room for two small jobs or for the large one, which has waited for a while. At
every tick a small job may arrive, and those that run may end, at the latest when their timeouts say
so. Who is placed is the real plan's decision; the held room is chosen as the store chooses it.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest

from forgeyard.model.policy import BackfillPolicy, SchedulingPolicy
from forgeyard.model.units import Millis, Resources
from forgeyard.scheduler.holds import HeldRoom, HoldKind, earliest
from forgeyard.scheduler.place import plan
from tests.models.search import explore
from tests.scheduling import NOW, a_job, a_runner, a_snapshot, amounts

TICK = 1_000
POLICY = SchedulingPolicy(backfill=BackfillPolicy(after=Millis(0)))
SMALL, LARGE = amounts(), amounts(cpu=2_000, memory_gib=2, disk_gib=2, slots=2)
TIMEOUTS = (1, 3)
"""Ticks that a small job may last."""
CROWD = 2
BOUND = max(TIMEOUTS)
"""Ticks: what runs when the runner is kept must be over by then, and so must who borrows it."""


class Yard(NamedTuple):
    """A state: the ticks that small jobs may last, waiting and running; the hold; the wait."""

    waiting: tuple[int, ...]
    running: tuple[int, ...]
    due: int | None
    waited: int
    served: bool = False


Keep = Callable[[int | None], int | None]


def as_the_store_does(due: int | None) -> int | None:
    """Write the row that the plan asks for."""
    return due


def no_row(due: int | None) -> int | None:
    """Never write one."""
    return None


def lent_to_everybody(due: int | None) -> int | None:
    """Write one that is due at some time or other, so that anybody is over before."""
    return None if due is None else 1_000


def _after(yard: Yard, keep: Keep) -> Iterator[tuple[str, Yard]]:
    """Plan, let a tick pass, let jobs end, and let somebody arrive."""
    if yard.served:
        return
    placed, served, due = _planned(yard.waiting, yard.running, yard.due)
    waiting = list(yard.waiting)
    for timeout in placed:
        waiting.remove(timeout)
    if served:
        yield "the large job is placed", yard._replace(served=True)
        return
    left = [timeout - 1 for timeout in (*yard.running, *placed)]
    due = keep(due)
    due = due if due is None else max(0, due - 1)
    for ends in product(*((False, True) if timeout else (True,) for timeout in left)):
        running = tuple(sorted(t for t, ended in zip(left, ends, strict=True) if not ended))
        for arrival in (None, *TIMEOUTS) if len(waiting) < CROWD else (None,):
            crowd = waiting if arrival is None else [*waiting, arrival]
            said = f"{len(placed)} placed, {sum(ends)} end, {arrival or 'nobody'} arrives"
            yield said, Yard(tuple(sorted(crowd)), running, due, yard.waited + 1)


@cache
def _planned(
    waiting: tuple[int, ...], running: tuple[int, ...], due: int | None
) -> tuple[list[int], bool, int | None]:
    """Plan one cycle: which small jobs are placed, whether the large one is, when room is due."""
    reserved = Resources()
    for _ in running:
        reserved = reserved.plus(SMALL)
    runner = a_runner(total=LARGE, reserved=reserved)
    large = a_job("large", resources=LARGE, eligible_at=NOW - 60_000, lasts=10 * TICK)
    smalls = {f"job_{place}": timeout for place, timeout in enumerate(waiting)}
    jobs = [
        a_job(name.removeprefix("job_"), resources=SMALL, lasts=timeout * TICK)
        for name, timeout in smalls.items()
    ]
    holds = () if due is None else (_hold(due),)
    made = plan(a_snapshot([large, *jobs], [runner], held_room=holds), POLICY)
    placed = {decision.job_id for decision in made.decisions}
    if large.job_id in placed:
        return [], True, None
    begun = [smalls[name] for name in sorted(placed)]
    if made.backfill is None or due is not None:
        return begun, False, None if made.backfill is None else due
    free, releases = runner.free, [(NOW + timeout * TICK, SMALL) for timeout in running]
    for timeout in begun:
        free = free.minus(SMALL)
        releases.append((NOW + timeout * TICK, SMALL))
    chosen = earliest(made.backfill, {runner.runner_id: free}, {runner.runner_id: releases})
    return begun, False, None if chosen is None else max(0, chosen[1] - NOW) // TICK


def _hold(due: int) -> HeldRoom:
    return HeldRoom(
        job_id="job_large",
        kind=HoldKind.BACKFILL,
        partition="default",
        runner_id="rnr_linux-1",
        room=LARGE,
        since=NOW,
        deadline=NOW + due * TICK,
    )


def _search(keep: Keep, *, bound: int = BOUND) -> tuple[int, int | None]:
    starts = [
        Yard(tuple(sorted(waiting)), running, None, 0)
        for waiting in [(), *((one,) for one in TIMEOUTS), *product(TIMEOUTS, repeat=2)]
        for running in [(one,) for one in TIMEOUTS]
    ]
    outcome = explore(
        starts,
        lambda yard: _after(yard, keep),
        lambda yard: not yard.served and yard.waited > bound,
    )
    print(f"\n{keep.__name__}: {outcome.told()}")
    return outcome.states, outcome.trace and len(outcome.trace)


@pytest.mark.requirement("FAR-025", "FAR-026")
def test_a_large_job_is_placed_as_soon_as_what_ran_before_must_be_over() -> None:
    states, trace = _search(as_the_store_does)
    assert trace is None
    assert states > 50


def test_the_bound_is_no_larger_than_it_must_be() -> None:
    _, trace = _search(as_the_store_does, bound=BOUND - 1)
    assert trace == BOUND


@pytest.mark.requirement("FAR-026")
@pytest.mark.parametrize("mutant", [no_row, lent_to_everybody])
def test_without_room_that_is_really_kept_small_jobs_starve_a_large_one(mutant: Keep) -> None:
    _, trace = _search(mutant)
    assert trace is not None
    assert trace <= BOUND + 1
