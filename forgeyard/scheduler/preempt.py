"""Who is stopped to make room for an urgent job, if policy allows that at all (PRE-001..008).

Off by default. Victims are restartable jobs of clearly lower priority that were not stopped lately;
of all runners the one is taken where stopping costs least. Nothing is stopped that would not help.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forgeyard.model.job import Priority
from forgeyard.model.policy import PreemptionPolicy
from forgeyard.model.units import Resources
from forgeyard.model.wishes import Preemptibility
from forgeyard.scheduler.order import BASE
from forgeyard.scheduler.score import tie_break
from forgeyard.scheduler.snapshot import RunningJob, SchedulingJob

URGENT = frozenset({Priority.RELEASE_CRITICAL, Priority.EMERGENCY})
"""Priorities for which others may be stopped (PRE-003)."""
PER_ATTEMPT = 600
"""A try that is thrown away counts like ten minutes more of work."""
UPLOADING = 3_600
"""Who is bringing its outputs in is nearly done: as if it had worked an hour more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nomination:
    """A job, the runner that is cleared for it, and the leases that end for that."""

    job_id: str
    runner_id: str
    resources: Resources
    victims: tuple[str, ...]
    cost: int


def may_preempt(job: SchedulingJob, policy: PreemptionPolicy) -> bool:
    """Tell whether others may be stopped for this job."""
    return bool(policy.enabled) and job.priority in URGENT


def is_victim(running: RunningJob, job: SchedulingJob, policy: PreemptionPolicy, now: int) -> bool:
    """Tell whether a running job may be stopped for another one."""
    rested = running.preempted_at is None or now - running.preempted_at >= policy.rest
    return (
        running.preemption is Preemptibility.RESTARTABLE
        and not running.is_stopping
        and rested
        and BASE[job.priority] - BASE[running.priority] >= policy.least_gap
    )


def cost(running: RunningJob, job: SchedulingJob, now: int) -> int:
    """Count what stopping a job wastes: seconds of work, tries, and outputs on their way (PRE-007).

    The wider the gap of priorities, the less it counts.
    """
    worked = max(0, now - running.since) // 1_000
    tries = PER_ATTEMPT * max(0, running.attempts_made - 1)
    nearly_done = UPLOADING if running.is_uploading else 0
    gap = BASE[job.priority] - BASE[running.priority]
    return max(1, worked + tries + nearly_done + PER_ATTEMPT - gap)


def nominate(
    job: SchedulingJob,
    *,
    free: Mapping[str, Resources],
    running: Sequence[RunningJob],
    policy: PreemptionPolicy,
    now: int,
) -> Nomination | None:
    """Choose the runner that is cleared for a job at the least cost, or nothing.

    `free` lists the runners that could do the job, with what they have left.
    """
    victims: dict[str, list[RunningJob]] = {}
    for one in running:
        if one.runner_id in free and is_victim(one, job, policy, now):
            victims.setdefault(one.runner_id, []).append(one)
    offers = [
        Nomination(
            job_id=job.job_id,
            runner_id=runner_id,
            resources=job.resources,
            victims=tuple(sorted(one.lease_id for one in chosen)),
            cost=sum(cost(one, job, now) for one in chosen),
        )
        for runner_id, members in victims.items()
        if (chosen := _fewest(job, free[runner_id], members, now)) is not None
        and len(chosen) <= policy.most_victims
    ]
    return min(
        offers,
        key=lambda offer: (offer.cost, len(offer.victims), tie_break(job.job_id, offer.runner_id)),
        default=None,
    )


def _fewest(
    job: SchedulingJob, free: Resources, members: Iterable[RunningJob], now: int
) -> list[RunningJob] | None:
    """Take the cheapest until there is room, then spare whoever turns out not to be needed."""
    chosen: list[RunningJob] = []
    for one in sorted(members, key=lambda one: (cost(one, job, now), one.lease_id)):
        if job.resources.fits_in(free):
            break
        chosen.append(one)
        free = free.plus(one.resources)
    if not job.resources.fits_in(free) or not chosen:
        return None
    for one in sorted(chosen, key=lambda one: (-cost(one, job, now), one.lease_id)):
        without = free.minus(one.resources)
        if job.resources.fits_in(without):
            chosen.remove(one)
            free = without
    return chosen
