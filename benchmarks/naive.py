"""The planner as one would first write it: every job against every runner, from scratch.

The oracle of the tests and the reference of `benchmarks.placement`. It lives here because the
product never runs it, and because tests may import benchmarks while benchmarks import no tests.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Resources
from forgeyard.scheduler.avoidance import nearness_to_losses
from forgeyard.scheduler.diagnose import Diagnosis, diagnose, gated
from forgeyard.scheduler.eligibility import is_eligible
from forgeyard.scheduler.gates import Gate, GateCode, Gates
from forgeyard.scheduler.order import sort_key
from forgeyard.scheduler.place import Decision
from forgeyard.scheduler.scene import Scene
from forgeyard.scheduler.score import TERMS, PlacementScore, score, tie_break
from forgeyard.scheduler.snapshot import SchedulingJob, Snapshot

Ranked = list[tuple[int, int, int, str, PlacementScore]]
"""Nearness to losses, score below zero, tie break, runner id: the best comes first."""


@dataclass(kw_only=True)
class NaivePlanner:
    """Plans one cycle, and counts what makes a faster planner hard to get right."""

    snapshot: Snapshot
    policy: SchedulingPolicy
    decisions: list[Decision] = field(default_factory=list[Decision])
    blocked: list[SchedulingJob] = field(default_factory=list[SchedulingJob])
    held: list[tuple[SchedulingJob, Gate]] = field(default_factory=list[tuple[SchedulingJob, Gate]])
    lent: int = 0
    """Jobs beyond their quota that got what nobody else could use."""
    ties: int = 0
    """Decisions between runners of one score."""
    stale: int = 0
    """Decisions that scores from the beginning of the cycle would have got wrong."""
    avoided: int = 0
    """Decisions that losses turned away from the best score."""
    forced: int = 0
    """Decisions for a runner near to a loss, for want of another."""
    passed_over: int = 0
    """Decisions in which a better runner was not compared."""
    decided: Counter[str] = field(default_factory=Counter[str])
    """Decisions that would have been others without a term of the score."""

    def __post_init__(self) -> None:
        self._runners = {runner.runner_id: runner for runner in self.snapshot.runners}
        self._before = {name: runner.free for name, runner in self._runners.items()}
        self.free = dict(self._before)
        self.scene = Scene(self.snapshot, self.policy)

    def run(self, *, watched: bool = False) -> "NaivePlanner":
        """Place as many of the first jobs as fit; stale scores are counted where it is watched."""
        turns = NaiveTurns(self.snapshot, self.policy)
        gates = Gates(self.snapshot.scopes, self.snapshot.keys)
        for job in turns:
            if len(self.decisions) >= self.policy.batch:
                break
            job = self.scene.kin.bind(job)
            gate = gates.against(job)
            if gate is not None:
                self.held.append((job, gate))
                continue
            ranked = self._rank(job, self.free)
            if watched and ranked:
                self._watch(job, ranked)
            if self._decide(job, ranked):
                turns.charge(job)
                gates.admit(job)
        self._lend(gates)
        return self

    def _lend(self, gates: Gates) -> None:
        """Give what is left to jobs that may burst."""
        held, self.held = self.held, []
        for job, gate in held:
            may = gate.code is GateCode.QUOTA_BLOCKED and gates.against_bursting(job) is None
            if len(self.decisions) >= self.policy.batch or not may:
                self.held.append((job, gate))
            elif self._decide(job, self._rank(job, self.free)):
                self.lent += 1
                gates.admit(job)

    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Judge each blocked job against each runner."""
        return (
            *(diagnose(job, self.snapshot.runners, self.free) for job in self.blocked),
            *(gated(job, gate) for job, gate in self.held),
        )

    def _rank(self, job: SchedulingJob, free: dict[str, Resources]) -> Ranked:
        ranked: Ranked = []
        for name, runner in self._runners.items():
            left = free[name]
            if is_eligible(job, runner, free=left):
                judged = score(job, runner, left, self.scene)
                near = nearness_to_losses(job, runner, self.scene)
                ranked.append((near, -judged.weighed, tie_break(job.job_id, name), name, judged))
        ranked.sort(key=lambda one: one[:3])
        return self._compared(ranked)

    def _compared(self, ranked: Ranked) -> Ranked:
        """Keep those of the group of the first that are compared at all."""
        group = [one for one in ranked if one[0] == ranked[0][0]]
        most = self.policy.score_at_most or len(group)
        seen = sorted(group, key=lambda one: one[2])[:most]
        self.passed_over += bool(seen) and group[0] not in seen
        return sorted(seen, key=lambda one: one[:3])

    def _watch(self, job: SchedulingJob, ranked: Ranked) -> None:
        """Count what decided."""
        before = self._rank(job, self._before)
        self.stale += bool(before) and before[0][3] != ranked[0][3]
        every = [
            name
            for name in self._runners
            if is_eligible(job, self._runners[name], free=self.free[name])
        ]
        self.forced += ranked[0][0] > 0
        self.avoided += ranked[0][0] == 0 and any(
            nearness_to_losses(job, self._runners[name], self.scene) for name in every
        )
        weights = self.scene.weights(job)
        for name in TERMS:
            weight = getattr(weights, name)
            without = min(ranked, key=lambda one: (one[1] + weight * getattr(one[4], name), one[2]))
            self.decided[name] += without[3] != ranked[0][3]

    def _decide(self, job: SchedulingJob, ranked: Ranked) -> bool:
        if not ranked:
            self.blocked.append(job)
            return False
        self.ties += len(ranked) > 1 and ranked[0][1] == ranked[1][1]
        best = ranked[: 1 if job.bounds else 1 + self.policy.candidates]
        winner = best[0][3]
        self.scene.kin.place(job, winner)
        self.free[winner] = self.free[winner].minus(job.resources)
        candidates = tuple((name, judged.total) for *_, name, judged in best)
        self.decisions.append(Decision(job_id=job.job_id, candidates=candidates))
        return True


class NaiveTurns:
    """Whose turn it is, looked up among all scopes that still have a job, each time anew."""

    def __init__(self, snapshot: Snapshot, policy: SchedulingPolicy) -> None:
        self._scopes = snapshot.scopes
        self._finish = {name: scope.finish_tag for name, scope in snapshot.scopes.items()}
        self._clock = {name: scope.clock for name, scope in snapshot.scopes.items()}
        now = snapshot.taken_at
        line = sorted(snapshot.jobs, key=lambda job: sort_key(job, policy, now), reverse=True)
        self._urgent = [job for job in line if job.priority == "emergency"]
        self._others = [job for job in line if job.priority != "emergency"]

    def __iter__(self) -> Iterator[SchedulingJob]:
        for line in (self._urgent, self._others):
            queues: dict[tuple[str, ...], list[SchedulingJob]] = {}
            for job in line:
                queues.setdefault(job.scopes, []).append(job)
            while queues:
                path = min(queues, key=lambda path: [(self._finish.get(x, 0), x) for x in path])
                yield queues[path].pop()
                if not queues[path]:
                    del queues[path]

    def charge(self, job: SchedulingJob) -> None:
        """Count a job to its scopes, from the description of start-time fair queueing."""
        amount = max(job.resources.cpu, job.resources.memory // (4 * 2**20), 100)
        for parent, name in zip(("scp_root", *job.scopes), job.scopes, strict=False):
            weight = self._scopes[name].weight if name in self._scopes else 1
            start = max(self._finish.get(name, 0), self._clock.get(parent, 0))
            self._clock[parent] = start
            self._finish[name] = start + amount * 1_000 // weight
