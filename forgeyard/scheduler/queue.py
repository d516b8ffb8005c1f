"""Whose turn it is: fair shares among scopes, level by level, and the order of `order` in a queue.

From the root down, the scope whose next job would start earliest is chosen (`scopes`); in the queue
at the end of the path the job of the highest effective priority. A job that finds no runner costs
its scopes nothing, and the next one of its queue has its turn. Emergencies come before all others.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from itertools import chain

from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.scheduler.order import served
from forgeyard.scheduler.scopes import ROOT, Tags, service
from forgeyard.scheduler.snapshot import SchedulingJob, Snapshot

Waiting = Iterator[SchedulingJob]


class FairQueue:
    """Hands out the jobs of a snapshot one by one; whoever asks tells which of them were placed."""

    def __init__(self, snapshot: Snapshot, policy: SchedulingPolicy) -> None:
        self._tags = Tags(snapshot.scopes)
        urgent, others = _parted(snapshot.jobs)
        bands = (
            _Band(jobs, self._tags, policy=policy, now=snapshot.taken_at)
            for jobs in (urgent, others)
        )
        self._jobs = chain.from_iterable(bands)

    def __iter__(self) -> Waiting:
        return self._jobs

    def charge(self, job: SchedulingJob) -> None:
        """Count the job that was handed out last, or one handed out before, to its scopes."""
        self._tags.charge(job.scopes, service(job.resources))


def in_turn(snapshot: Snapshot, policy: SchedulingPolicy) -> list[SchedulingJob]:
    """List all jobs as a cycle serves them that finds room for each."""
    queue = FairQueue(snapshot, policy)
    line: list[SchedulingJob] = []
    for job in queue:
        line.append(job)
        queue.charge(job)
    return line


def _parted(jobs: Iterable[SchedulingJob]) -> tuple[list[SchedulingJob], list[SchedulingJob]]:
    urgent: list[SchedulingJob] = []
    others: list[SchedulingJob] = []
    for job in jobs:
        (urgent if job.priority is Priority.EMERGENCY else others).append(job)
    return urgent, others


class _Band:
    """A tree of scopes with jobs at its leaves, walked anew for every turn.

    Among scopes the smallest finish tag starts earliest, whatever their parent's clock, so a heap
    of tags is all that a level needs. Only the path served last can have moved meanwhile.
    """

    def __init__(
        self, jobs: Iterable[SchedulingJob], tags: Tags, *, policy: SchedulingPolicy, now: int
    ) -> None:
        self._tags = tags
        self._children: dict[str, list[tuple[int, str]]] = {}
        self._waiting = {
            queue: _Line(served(members, policy, now))
            for queue, members in self._grow(jobs).items()
        }

    def _grow(self, jobs: Iterable[SchedulingJob]) -> Mapping[str, list[SchedulingJob]]:
        """Sort jobs by queue and build the tree above them."""
        queues: dict[str, list[SchedulingJob]] = {}
        for job in jobs:
            members = queues.setdefault(job.queue_id, [])
            members.append(job)
        below: dict[str, set[str]] = {}
        for members in queues.values():
            path = members[0].scopes
            for parent, scope_id in zip((ROOT, *path), path, strict=False):
                below.setdefault(parent, set()).add(scope_id)
        for parent, scopes in below.items():
            heap = [(self._tags.finish.get(scope_id, 0), scope_id) for scope_id in scopes]
            heapify(heap)
            self._children[parent] = heap
        return queues

    def __iter__(self) -> Waiting:
        while self._children.get(ROOT):
            path = self._path()
            job = self._waiting[path[-1]].take()
            if job is not None:
                yield job
            self._mend(path)

    def _path(self) -> list[str]:
        """Follow the earliest start from the root to a queue."""
        path = [ROOT]
        while path[-1] in self._children:
            path.append(self._children[path[-1]][0][1])
        return path

    def _mend(self, path: list[str]) -> None:
        """Put the scopes of a path where their tags belong now; drop those that ran dry."""
        dry = self._waiting[path[-1]].is_empty
        for parent, scope_id in zip(path[-2::-1], path[:0:-1], strict=True):
            heap = self._children[parent]
            if dry:
                heappop(heap)
            else:
                heapreplace(heap, (self._tags.finish.get(scope_id, 0), scope_id))
            dry = not heap


class _Line:
    """The jobs of one queue, with the next one at hand."""

    def __init__(self, jobs: Waiting) -> None:
        self._jobs = jobs
        self._next = next(jobs, None)

    @property
    def is_empty(self) -> bool:
        """Tell whether nobody waits any more."""
        return self._next is None

    def take(self) -> SchedulingJob | None:
        """Take the next job."""
        job, self._next = self._next, next(self._jobs, None)
        return job
