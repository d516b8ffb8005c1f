"""Where the other jobs of a run are, kept up to date while a cycle places more of them.

Counts for each domain, raised by one for every placement: what a shard costs does not grow with
how many there are (SP-085).
"""

from collections.abc import Mapping
from dataclasses import replace

from forgeyard.model.wishes import Distinct, Domain, Spread
from forgeyard.scheduler.bounds import Bound, BoundKind, place_in
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot

SPREAD_OVER = (Domain.HOST, Domain.SITE, Domain.REGION)
"""What shards are soft spread over, from near to far."""
Counts = dict[str, int]


class Kin:
    """Knows the runner of every job that another is bound to, and the shards in every domain."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._runners = {runner.runner_id: runner for runner in snapshot.runners}
        self._named = snapshot.named
        self._placed: dict[str, str] = {}
        self._shards = snapshot.shards
        self._counts: dict[str, dict[Domain, Counts]] = {}

    def bind(self, job: SchedulingJob) -> SchedulingJob:
        """Tell a job where those are that it must be apart from, or beside."""
        wishes = job.wishes
        if wishes.beside is None and not wishes.distinct and wishes.spread is None:
            return job
        bounds = [self._apart(job, distinct) for distinct in wishes.distinct]
        if wishes.beside is not None:
            bounds.append(self._beside(job, wishes.beside))
        if wishes.spread is not None and wishes.spread.required:
            bounds.append(self._spread(job, wishes.spread))
        return replace(job, bounds=tuple(bounds))

    def place(self, job: SchedulingJob, runner_id: str) -> None:
        """Note where a job goes."""
        self._placed[name_of(job.run_id, job.name)] = runner_id
        group = group_of(job)
        if group is not None:
            _count(self.counts(group), self._runners[runner_id], 1)

    def counts(self, group: str) -> Mapping[Domain, Counts]:
        """Count the shards of a group in every place that has any."""
        if group not in self._counts:
            counts: dict[Domain, Counts] = {domain: {} for domain in Domain}
            for runner_id, shards in self._shards.get(group, {}).items():
                if runner_id in self._runners:
                    _count(counts, self._runners[runner_id], shards)
            self._counts[group] = counts
        return self._counts[group]

    def _apart(self, job: SchedulingJob, distinct: Distinct) -> Bound:
        names = [name_of(job.run_id, name) for name in distinct.jobs]
        where = (self._placed.get(name) or self._named.get(name, "") for name in names)
        runners = [self._runners[runner_id] for runner_id in where if runner_id in self._runners]
        places = (place_in(distinct.by, runner) for runner in runners)
        return Bound(
            kind=BoundKind.APART,
            domain=distinct.by,
            of=f"job {' and '.join(distinct.jobs)}",
            taken={place: 1 for place in places if place is not None},
        )

    def _beside(self, job: SchedulingJob, name: str) -> Bound:
        """Bind to a host, or where that is not known to the very runner.

        A job that this cycle places may still go elsewhere when it is committed, so it is no
        company yet.
        """
        runner = self._runners.get(self._named.get(name_of(job.run_id, name), ""))
        host = None if runner is None else runner.location.host
        domain = Domain.RUNNER if host is None else Domain.HOST
        place = None if runner is None else place_in(domain, runner)
        taken = {} if place is None else {place: 1}
        return Bound(kind=BoundKind.BESIDE, domain=domain, of=f"job {name}", taken=taken)

    def _spread(self, job: SchedulingJob, spread: Spread) -> Bound:
        return Bound(
            kind=BoundKind.SPREAD,
            domain=spread.over,
            of=f"the other shards of {spread.group}",
            taken=self.counts(group_of(job) or "")[spread.over],
        )


def name_of(run_id: str, job: str) -> str:
    """Name a job by its run and its name there."""
    return f"{run_id}/{job}"


def group_of(job: SchedulingJob) -> str | None:
    """Name the group of shards that a job is one of."""
    spread = job.wishes.spread
    return None if spread is None else name_of(job.run_id, spread.group)


def _count(counts: Mapping[Domain, Counts], runner: SchedulingRunner, shards: int) -> None:
    for domain, places in counts.items():
        place = place_in(domain, runner)
        if place is not None:
            places[place] = places.get(place, 0) + shards
