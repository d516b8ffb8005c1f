"""What waits for room that is not there: a level, taken anew from every snapshot (DEM-007).

The very rules of a cycle find it: what they cannot place on the runners that are there is left.
Whom a gate holds back is none of it, and of the rest only as many as their quotas let run, for a
machine would change nothing for the others (DEM-018).
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain

from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Resources
from forgeyard.scheduler.bounds import BoundKind
from forgeyard.scheduler.order import BASE
from forgeyard.scheduler.place import Cycle
from forgeyard.scheduler.snapshot import SchedulingJob, Snapshot
from forgeyard.scheduler.standing import is_sensitive


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandClass:
    """Jobs for which the same machines would do, and for which there is no room now (DEM-014)."""

    requirement_class: str
    """Its name, as `class_of` makes it."""
    example: SchedulingJob
    """One of them: what it can run on, they all can."""
    count: int
    """No more than their quotas let run (DEM-018)."""
    oldest_wait: int
    """Milliseconds."""
    priority: Priority
    """The highest among them."""
    excluded: int = 0
    """As many more wait, for whom a machine would change nothing."""

    @property
    def requested(self) -> Resources:
        """Add up what its jobs ask for (DEM-003)."""
        return self.example.resources.times(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """All unmet demand of a partition at one instant (DEM-009)."""

    demand_id: str
    """Digest of what it says."""
    taken_at: int
    classes: tuple[DemandClass, ...]
    placing: frozenset[str] = frozenset()
    """Runners that get a job as soon as the next plan is committed: not idle, whatever they say."""


def unmet(snapshot: Snapshot, policy: SchedulingPolicy) -> Demand:
    """Find the jobs that no runner has room for, by class; no batch limits them."""
    cycle = Cycle(snapshot, replace(policy, batch=100 * (1 + len(snapshot.jobs))))
    for job in cycle.queue:
        cycle.consider(job)
    cycle.lend()
    counted: list[SchedulingJob] = []
    excluded = [job for job, _ in cycle.held]
    for job in cycle.blocked:
        if _needs_company(job) or cycle.gates.against(job) is not None:
            excluded.append(job)
        else:
            cycle.gates.admit(job)
            counted.append(job)
    classes = _grouped(counted, excluded, snapshot.taken_at)
    placing = frozenset(decision.candidates[0][0] for decision in cycle.decisions)
    return Demand(
        demand_id=_digest(snapshot, classes, placing),
        taken_at=snapshot.taken_at,
        classes=classes,
        placing=placing,
    )


def class_with(job: SchedulingJob, *, now: int) -> DemandClass:
    """Describe a single job as demand, whatever room there is."""
    return _class(class_of(job), [job], [], now=now)


def class_of(job: SchedulingJob) -> str:
    """Name the class of a job: what it wants of a machine, and what else decides who serves it."""
    return _class_of(job.requirement_class, job.scopes, job.spot, is_sensitive(job))


@lru_cache(maxsize=2**16)
def _class_of(
    requirement_class: str, scopes: tuple[str, ...], spot: str, is_sensitive: object
) -> str:
    words = json.dumps([requirement_class, scopes, spot, is_sensitive], separators=(",", ":"))
    return f"dem_{hashlib.sha256(words.encode()).hexdigest()[:32]}"


def _needs_company(job: SchedulingJob) -> bool:
    """Tell whether a job must be where another one is, which a new machine never is."""
    return any(bound.kind is BoundKind.BESIDE for bound in job.bounds)


def _grouped(
    counted: list[SchedulingJob], excluded: list[SchedulingJob], now: int
) -> tuple[DemandClass, ...]:
    """Group jobs by class, the most urgent class first, then the one that waits longest."""
    members = _by_class(counted)
    left_out = _by_class(excluded)
    names = dict.fromkeys(chain(members, left_out))
    classes = [
        _class(name, members.get(name, []), left_out.get(name, []), now=now) for name in names
    ]
    return tuple(
        sorted(
            classes,
            key=lambda it: (-BASE[it.priority], -it.oldest_wait, it.requirement_class),
        )
    )


def _by_class(jobs: Iterable[SchedulingJob]) -> dict[str, list[SchedulingJob]]:
    members: dict[str, list[SchedulingJob]] = {}
    for job in jobs:
        members.setdefault(class_of(job), []).append(job)
    return members


def _class(
    name: str, counted: list[SchedulingJob], excluded: list[SchedulingJob], *, now: int
) -> DemandClass:
    jobs = counted or excluded
    oldest = min(jobs, key=lambda job: (job.eligible_at, job.job_id))
    return DemandClass(
        requirement_class=name,
        # Where its kin are, and who turned it down, says nothing of a machine yet to be made.
        example=replace(oldest, bounds=(), refused_by={}),
        count=len(counted),
        oldest_wait=max(0, now - oldest.eligible_at),
        priority=max((job.priority for job in jobs), key=BASE.__getitem__),
        excluded=len(excluded),
    )


def _digest(snapshot: Snapshot, classes: tuple[DemandClass, ...], placing: frozenset[str]) -> str:
    content = [
        snapshot.partition,
        snapshot.taken_at,
        [
            [it.requirement_class, it.count, it.oldest_wait, it.priority, it.excluded]
            for it in classes
        ],
        sorted(placing),
    ]
    canonical = json.dumps(content, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"
