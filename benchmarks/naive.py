"""The planner as one would first write it: every job against every runner, from scratch.

The oracle of the tests and the reference of `benchmarks.placement`. It lives here because the
product never runs it, and because tests may import benchmarks while benchmarks import no tests.
"""

from dataclasses import dataclass, field

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Resources
from forgeyard.scheduler.diagnose import Diagnosis, diagnose
from forgeyard.scheduler.eligibility import is_eligible
from forgeyard.scheduler.order import sort_key
from forgeyard.scheduler.place import Decision
from forgeyard.scheduler.score import score, tie_break
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot

Ranked = list[tuple[int, int, str]]
"""Score below zero, tie break, runner id: the best comes first."""


@dataclass(kw_only=True)
class NaivePlanner:
    """Plans one cycle, and counts what makes a faster planner hard to get right."""

    snapshot: Snapshot
    policy: SchedulingPolicy
    decisions: list[Decision] = field(default_factory=list[Decision])
    blocked: list[SchedulingJob] = field(default_factory=list[SchedulingJob])
    ties: int = 0
    """Decisions between runners of one score."""
    stale: int = 0
    """Decisions that scores from the beginning of the cycle would have got wrong."""

    def __post_init__(self) -> None:
        self._runners = {runner.runner_id: runner for runner in self.snapshot.runners}
        self._before = {name: runner.free for name, runner in self._runners.items()}
        self.free = dict(self._before)

    def run(self, *, watched: bool = False) -> "NaivePlanner":
        """Place as many of the first jobs as fit; stale scores are counted where it is watched."""
        now = self.snapshot.taken_at
        for job in sorted(self.snapshot.jobs, key=lambda job: sort_key(job, self.policy, now)):
            if len(self.decisions) >= self.policy.batch:
                break
            ranked = sorted(self._rank(job, self.free))
            if watched and ranked and sorted(self._rank(job, self._before))[0] != ranked[0]:
                self.stale += 1
            self._decide(job, ranked)
        return self

    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Judge each blocked job against each runner."""
        return tuple(diagnose(job, self.snapshot.runners, self.free) for job in self.blocked)

    def _rank(self, job: SchedulingJob, free: dict[str, Resources]) -> Ranked:
        return [
            (-self._score(job, runner, left), tie_break(job.job_id, name), name)
            for name, runner in self._runners.items()
            if is_eligible(job, runner, free=(left := free[name]))
        ]

    def _score(self, job: SchedulingJob, runner: SchedulingRunner, left: Resources) -> int:
        return score(job.resources, runner, left, self.policy.weights).total

    def _decide(self, job: SchedulingJob, ranked: Ranked) -> None:
        if not ranked:
            self.blocked.append(job)
            return
        self.ties += len(ranked) > 1 and ranked[0][0] == ranked[1][0]
        best = ranked[: 1 + self.policy.candidates]
        winner = best[0][2]
        self.free[winner] = self.free[winner].minus(job.resources)
        candidates = tuple((name, -minus) for minus, _, name in best)
        self.decisions.append(Decision(job_id=job.job_id, candidates=candidates))
