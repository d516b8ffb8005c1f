"""A partition under a virtual clock: jobs arrive, are placed cycle after cycle, run and end."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from forgeyard.model.units import Resources
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot

Planner = Callable[[Snapshot], Sequence[tuple[str, str]]]
"""Places jobs on runners, by their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job, which comes when it becomes eligible, and how long it will run."""

    job: SchedulingJob
    takes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A job that was placed, where and when."""

    job: SchedulingJob
    runner_id: str
    started: int
    takes: int

    @property
    def ended(self) -> int:
        """Tell when it is over."""
        return self.started + self.takes


class Partition:
    """Runs one cycle at every instant at which something arrives or ends."""

    def __init__(
        self, runners: Iterable[SchedulingRunner], arrivals: Iterable[Arrival], *, since: int
    ) -> None:
        self._now = since
        self._runners = {runner.runner_id: runner for runner in runners}
        self._coming = sorted(
            arrivals, key=lambda it: (it.job.eligible_at, it.job.job_id), reverse=True
        )
        self._takes = {arrival.job.job_id: arrival.takes for arrival in self._coming}
        self._running: list[tuple[int, str, Resources, str]] = []
        self.waiting: dict[str, SchedulingJob] = {}
        self.services: list[Service] = []

    def run(self, planner: Planner, *, until: int | None = None) -> list[Service]:
        """Go on until nothing waits and nothing runs, or until an instant."""
        while (now := self._next()) is not None and (until is None or now < until):
            self._now = now
            self._end(now)
            self._arrive(now)
            for job_id, runner_id in planner(self._snapshot(now)):
                self._start(job_id, runner_id, now)
        return self.services

    def _next(self) -> int | None:
        instants = [self._coming[-1].job.eligible_at] if self._coming else []
        instants += [self._running[0][0]] if self._running else []
        return max(self._now, min(instants)) if instants else None

    def _end(self, now: int) -> None:
        while self._running and self._running[0][0] <= now:
            _, _, amount, runner_id = heapq.heappop(self._running)
            runner = self._runners[runner_id]
            self._runners[runner_id] = replace(runner, reserved=runner.reserved.minus(amount))

    def _arrive(self, now: int) -> None:
        while self._coming and self._coming[-1].job.eligible_at <= now:
            job = self._coming.pop().job
            self.waiting[job.job_id] = job

    def _snapshot(self, now: int) -> Snapshot:
        return Snapshot(
            partition="default",
            taken_at=now,
            jobs=tuple(self.waiting.values()),
            runners=tuple(self._runners.values()),
            waiting=len(self.waiting),
        )

    def _start(self, job_id: str, runner_id: str, now: int) -> None:
        job, runner = self.waiting.pop(job_id), self._runners[runner_id]
        taken = runner.reserved.plus(job.resources)
        assert taken.fits_in(runner.allocatable), f"{runner_id} is given more than it has"
        self._runners[runner_id] = replace(runner, reserved=taken)
        service = Service(job=job, runner_id=runner_id, started=now, takes=self._takes[job_id])
        heapq.heappush(self._running, (service.ended, job_id, job.resources, runner_id))
        self.services.append(service)
