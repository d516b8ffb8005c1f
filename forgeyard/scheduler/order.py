"""Who comes first in a queue: priority raised by waiting, then who waits longest (FAR-023).

Whose turn it is among queues is `queue`'s business. Waiting lifts every job towards one common
limit and no further. Among jobs at the limit the oldest wins, so whoever became eligible later
cannot overtake for ever: that is the starvation bound. Only priorities whose base lies above the
limit (emergency) stay ahead of it.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType

from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Millis
from forgeyard.model.wishes import SchedulingClass
from forgeyard.scheduler.snapshot import SchedulingJob

BASE = MappingProxyType(
    {
        Priority.LOW: 0,
        Priority.NORMAL: 100,
        Priority.HIGH: 200,
        Priority.RELEASE_CRITICAL: 300,
        Priority.EMERGENCY: 400,
    }
)
_SINCE, _ID = attrgetter("eligible_at"), attrgetter("job_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePriority:
    """What a job's place in the queue is made of (FAR-024)."""

    base: int
    adjustment: int
    aging: int
    waited: Millis

    @property
    def total(self) -> int:
        """Add it up."""
        return self.base + self.adjustment + self.aging


def effective_priority(job: SchedulingJob, policy: SchedulingPolicy, now: int) -> EffectivePriority:
    """Raise a job's base by one point per `aging_step` waited, up to the common limit."""
    base, adjustment = BASE[job.priority], _adjustment(job, policy)
    waited = max(0, now - job.eligible_at)
    room = max(0, policy.aging_limit - base - adjustment)
    return EffectivePriority(
        base=base,
        adjustment=adjustment,
        aging=min(room, waited // policy.aging_step),
        waited=Millis(waited),
    )


def _adjustment(job: SchedulingJob, policy: SchedulingPolicy) -> int:
    """Hold what is added to a priority between nothing and the limit; an emergency is as it is."""
    base = BASE[job.priority]
    if base >= policy.aging_limit:
        return 0
    wanted = job.adjustment + class_adjustment(job.scheduling_class, policy)
    return max(-base, min(wanted, policy.aging_limit - base))


def class_adjustment(scheduling_class: SchedulingClass, policy: SchedulingPolicy) -> int:
    """Tell what the policy adds to the priority of a class."""
    classes = policy.classes
    return {
        SchedulingClass.INTERACTIVE: classes.interactive,
        SchedulingClass.NORMAL: classes.normal,
        SchedulingClass.BATCH: classes.batch,
        SchedulingClass.RELEASE: classes.release,
        SchedulingClass.EMERGENCY: classes.emergency,
    }[scheduling_class]


def starvation_bound(
    priority: Priority, policy: SchedulingPolicy, *, adjustment: int = 0
) -> Millis:
    """Tell after what wait no job that becomes eligible later can overtake, emergencies aside.

    What is taken off a priority makes its way to the limit longer.
    """
    base = max(0, BASE[priority] + adjustment)
    return Millis(max(0, policy.aging_limit - base) * policy.aging_step)


def sort_key(job: SchedulingJob, policy: SchedulingPolicy, now: int) -> tuple[int, int, str]:
    """Order jobs for placement; a smaller key is placed earlier."""
    return (-effective_priority(job, policy, now).total, job.eligible_at, job.job_id)


def served(
    jobs: Iterable[SchedulingJob], policy: SchedulingPolicy, now: int
) -> Iterator[SchedulingJob]:
    """Hand out jobs as a cycle serves them, whatever order they come in.

    Within a priority nobody who became eligible later is ahead, so only the heads are compared.
    """
    by_priority: dict[tuple[object, ...], list[SchedulingJob]] = {}
    for job in jobs:
        alike = (job.priority, job.adjustment, job.wishes.scheduling_class)
        by_priority.setdefault(alike, []).append(job)
    queues = map(_oldest_first, by_priority.values())
    return heapq.merge(*queues, key=lambda job: sort_key(job, policy, now))


def _oldest_first(jobs: list[SchedulingJob]) -> Iterator[SchedulingJob]:
    """Sort by age, and those of one age by id only when it is their turn."""
    jobs.sort(key=_SINCE)
    for _, alike in groupby(jobs, key=_SINCE):
        yield from sorted(alike, key=_ID)


def in_order(
    jobs: Iterable[SchedulingJob], policy: SchedulingPolicy, now: int
) -> list[SchedulingJob]:
    """Sort jobs as a cycle serves them."""
    return list(served(jobs, policy, now))
