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
from forgeyard.scheduler.scopes import Tags, service
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


def _parted(jobs: Iterable[SchedulingJob]) -> tuple[list[SchedulingJob], list[SchedulingJob]]:
    urgent: list[SchedulingJob] = []
    others: list[SchedulingJob] = []
    for job in jobs:
        (urgent if job.priority is Priority.EMERGENCY else others).append(job)
    return urgent, others


Path = tuple[str, ...]


class _Band:
    """A tree of scopes with jobs at its leaves, walked anew for every turn.

    Among scopes the smallest finish tag starts earliest, whatever their parent's clock, so a heap
    of tags is all that a level needs. A node is a path from the root: should rows disagree about
    the parent of a scope, it stands in two places, and an entry whose tag has grown is mended when
    it comes up.
    """

    def __init__(
        self, jobs: Iterable[SchedulingJob], tags: Tags, *, policy: SchedulingPolicy, now: int
    ) -> None:
        self._tags = tags
        queues: dict[Path, list[SchedulingJob]] = {}
        for job in jobs:
            queues.setdefault(job.scopes, []).append(job)
        self._children = self._grown(queues)
        self._waiting = {
            path: _Line(served(members, policy, now)) for path, members in queues.items()
        }

    def _grown(self, queues: Iterable[Path]) -> Mapping[Path, list[tuple[int, str]]]:
        """Build the tree above the queues."""
        below: dict[Path, set[str]] = {}
        for path in queues:
            for level, scope_id in enumerate(path):
                below.setdefault(path[:level], set()).add(scope_id)
        heaps = {
            parent: [(self._tags.finish.get(scope_id, 0), scope_id) for scope_id in scopes]
            for parent, scopes in below.items()
        }
        for heap in heaps.values():
            heapify(heap)
        return heaps

    def __iter__(self) -> Waiting:
        while self._children.get(()):
            path = self._path()
            job = self._waiting[path].take()
            if job is not None:
                yield job
            self._mend(path)

    def _path(self) -> Path:
        """Follow the earliest start from the root to a queue."""
        path: Path = ()
        while path in self._children:
            heap = self._children[path]
            tag, scope_id = heap[0]
            now = self._tags.finish.get(scope_id, 0)
            if tag == now:
                path = (*path, scope_id)
            else:
                heapreplace(heap, (now, scope_id))
        return path

    def _mend(self, path: Path) -> None:
        """Put the scopes of a path where their tags belong now; drop those that ran dry."""
        dry = self._waiting[path].is_empty
        for level in range(len(path) - 1, -1, -1):
            heap, scope_id = self._children[path[:level]], path[level]
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
