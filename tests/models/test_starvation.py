"""No job waits for ever: every behaviour of a small queue is tried, whatever comes and goes.

One runner, a job of low priority that waits, rivals of any priority that may arrive at every tick,
and jobs that run as long as they like up to their timeout. Which job is next is asked of the
product's own functions. Each mutant of those is refuted by a trace, which shows that the model can
tell the difference.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest

from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Millis
from forgeyard.scheduler.order import BASE, in_order, starvation_bound
from forgeyard.scheduler.snapshot import SchedulingJob
from tests.models.search import explore
from tests.scheduling import NOW, a_job, a_snapshot
from tests.tree import in_turn

TICK = 100
"""Milliseconds; a tick of waiting is worth one step from priority to priority."""
POLICY = SchedulingPolicy(aging_step=Millis(1), aging_limit=BASE[Priority.HIGH])
LONGEST = 2
"""Ticks that a job may run: its execution timeout."""
BACKLOG, CROWD = 2, 3
"""Rivals that wait already, and the most that wait at once."""
BOUND = starvation_bound(Priority.LOW, POLICY) // TICK + LONGEST - 1 + BACKLOG * LONGEST
"""Once nobody can overtake, what has just begun and all of the backlog may take their longest."""

Order = Callable[[list[SchedulingJob], int], list[SchedulingJob]]


class Rival(NamedTuple):
    """A job beside the watched one."""

    priority: Priority
    age: int


class Queue(NamedTuple):
    """A state: what waits, what the runner still has to do, and how long the watched job waits."""

    rivals: tuple[Rival, ...]
    busy: int
    waited: int
    served: bool = False


def real(waiting: list[SchedulingJob], now: int) -> list[SchedulingJob]:
    """Order them within one queue as the product does."""
    return in_order(waiting, POLICY, now)


def real_turns(waiting: list[SchedulingJob], now: int) -> list[SchedulingJob]:
    """Order them as a whole cycle of the product serves them."""
    return in_turn(a_snapshot(waiting, [], taken_at=now), POLICY)


def without_aging(waiting: list[SchedulingJob], now: int) -> list[SchedulingJob]:
    """Let nobody's priority rise."""
    return in_order(waiting, replace(POLICY, aging_limit=0), now)


def aging_without_limit_for_all(waiting: list[SchedulingJob], now: int) -> list[SchedulingJob]:
    """Let every job rise by as much as it can wait, so that a head start is never caught up."""
    return sorted(
        waiting, key=lambda it: (-BASE[it.priority] - min(1, now - it.eligible_at), it.job_id)
    )


def newest_first(waiting: list[SchedulingJob], now: int) -> list[SchedulingJob]:
    """Let the youngest of the most urgent go first."""
    return sorted(in_order(waiting, POLICY, now), key=lambda it: -it.eligible_at)


def _after(
    queue: Queue, order: Order, priorities: tuple[Priority, ...]
) -> Iterator[tuple[str, Queue]]:
    """Let a tick pass: perhaps somebody arrives, and a free runner takes whoever is next."""
    if queue.served:
        return
    arrivals: list[Priority | None] = [None]
    arrivals += priorities if len(queue.rivals) < CROWD else ()
    for priority in arrivals:
        new = () if priority is None else (Rival(priority, 0),)
        waiting = tuple(sorted((*queue.rivals, *new)))
        said = "" if priority is None else f"{priority} arrives, "
        for what, after in _serve(queue._replace(rivals=waiting), order):
            older = tuple(rival._replace(age=rival.age + 1) for rival in after.rivals)
            busy = max(0, after.busy - 1)
            yield said + what, Queue(older, busy, after.waited + 1, after.served)


def _serve(queue: Queue, order: Order) -> Iterator[tuple[str, Queue]]:
    if queue.busy:
        yield "busy", queue
        return
    chosen = _first(queue.rivals, queue.waited, order)
    if chosen is None:
        yield "served", queue._replace(served=True)
        return
    rest = (*queue.rivals[:chosen], *queue.rivals[chosen + 1 :])
    for takes in range(1, LONGEST + 1):
        what = f"{queue.rivals[chosen].priority} runs for {takes}"
        yield what, queue._replace(rivals=rest, busy=takes)


@cache
def _first(rivals: tuple[Rival, ...], waited: int, order: Order) -> int | None:
    """Ask which rival is next, or whether it is the watched job, whose id is the last of all."""
    now = NOW + 1_000 * TICK
    jobs = [
        a_job(f"{place}", priority=rival.priority, eligible_at=now - rival.age * TICK)
        for place, rival in enumerate(rivals)
    ]
    watched = a_job("watched", priority=Priority.LOW, eligible_at=now - waited * TICK)
    first = order([watched, *jobs], now)[0]
    return None if first is watched else jobs.index(first)


def _search(
    order: Order, *, priorities: tuple[Priority, ...], bound: int = BOUND
) -> tuple[int, int | None]:
    """Tell how many states there are, and after how many steps one breaks the bound."""
    starts = [
        Queue(tuple(sorted(backlog)), busy, 0)
        for backlog in _backlogs(priorities)
        for busy in range(LONGEST)
    ]
    outcome = explore(
        starts,
        lambda queue: _after(queue, order, priorities),
        lambda queue: not queue.served and queue.waited > bound,
    )
    print(f"\n{order.__name__}: {outcome.told()}")
    return outcome.states, outcome.trace and len(outcome.trace)


def _backlogs(priorities: tuple[Priority, ...]) -> Iterator[list[Rival]]:
    kinds = [Rival(priority, age) for priority in priorities for age in range(2)]
    yield []
    for first in kinds:
        yield [first]
        yield from ([first, second] for second in kinds)


ORDINARY = (Priority.LOW, Priority.NORMAL, Priority.HIGH)


@pytest.mark.requirement("FAR-025", "ACC-018", "FAR-022", "FAR-008", "TST-003", "GAT-005")
@pytest.mark.parametrize("order", [real, real_turns])
def test_a_low_job_is_served_within_its_bound_whatever_else_happens(order: Order) -> None:
    states, trace = _search(order, priorities=ORDINARY)
    assert trace is None
    assert states > 1_000


def test_the_bound_is_no_larger_than_it_must_be() -> None:
    _, trace = _search(real, priorities=ORDINARY, bound=BOUND - 1)
    assert trace == BOUND


@pytest.mark.requirement("FAR-025")
@pytest.mark.parametrize("mutant", [without_aging, aging_without_limit_for_all, newest_first])
def test_a_queue_that_ages_wrongly_is_refuted(mutant: Order) -> None:
    _, trace = _search(mutant, priorities=ORDINARY)
    assert trace is not None
    assert trace <= BOUND + 1


def test_only_emergencies_may_hold_a_job_up_for_longer() -> None:
    """The documented exception: they stay above the limit of aging, and are audited instead."""
    _, trace = _search(real, priorities=(Priority.EMERGENCY,))
    assert trace is not None
