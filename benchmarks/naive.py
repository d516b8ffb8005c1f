"""The planner as one would first write it: every job against every runner, from scratch.

The oracle of the tests and the reference of `benchmarks.placement`. It lives here because the
product never runs it, and because tests may import benchmarks while benchmarks import no tests.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Resources
from forgeyard.scheduler.diagnose import Diagnosis, diagnose, gated
from forgeyard.scheduler.eligibility import is_eligible
from forgeyard.scheduler.gates import Gate, GateCode, Gates
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
    held: list[tuple[SchedulingJob, Gate]] = field(default_factory=list[tuple[SchedulingJob, Gate]])
    lent: int = 0
    """Jobs beyond their quota that got what nobody else could use."""
    used_a_hold: int = 0
    """Jobs on runners where room was held, for them or for others."""
    pooled: int = 0
    """Times a job was kept from the only runners that had room, for their pool was shut."""
    ties: int = 0
    """Decisions between runners of one score."""
    stale: int = 0
    """Decisions that scores from the beginning of the cycle would have got wrong."""

    def __post_init__(self) -> None:
        self._runners = {runner.runner_id: runner for runner in self.snapshot.runners}
        self._before = {name: runner.free for name, runner in self._runners.items()}
        self.free = dict(self._before)
        self._holds = list(self.snapshot.held_room)

    def run(self, *, watched: bool = False) -> "NaivePlanner":
        """Place as many of the first jobs as fit; stale scores are counted where it is watched."""
        turns = NaiveTurns(self.snapshot, self.policy)
        gates = Gates(self.snapshot.scopes, self.snapshot.keys)
        for job in turns:
            if len(self.decisions) >= self.policy.batch:
                break
            gate = gates.against(job)
            if gate is not None:
                self.held.append((job, gate))
                continue
            shut = gates.pools_against(job)
            ranked = self._open(sorted(self._rank(job, self.free)), shut)
            if watched and ranked:
                before = self._open(sorted(self._rank(job, self._before)), shut)
                self.stale += before[0] != ranked[0]
            if self._decide(job, ranked, shut):
                turns.charge(job)
                gates.admit(job, self._pool_of(ranked[0][2]))
        self._lend(gates)
        return self

    def _lend(self, gates: Gates) -> None:
        """Give what is left to jobs that may burst."""
        held, self.held = self.held, []
        for job, gate in held:
            may = gate.code is GateCode.QUOTA_BLOCKED and gates.against_bursting(job) is None
            if len(self.decisions) >= self.policy.batch or not may:
                self.held.append((job, gate))
                continue
            shut = gates.pools_against_bursting(job)
            ranked = self._open(sorted(self._rank(job, self.free)), shut)
            if self._decide(job, ranked, shut):
                self.lent += 1
                gates.admit(job, self._pool_of(ranked[0][2]))

    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Judge each blocked job against each runner."""
        return (
            *(diagnose(job, self.snapshot.runners, self._unheld()) for job in self.blocked),
            *(gated(job, gate) for job, gate in self.held),
        )

    def _unheld(self) -> dict[str, Resources]:
        """Tell what is left for a job that may use no held room."""
        free = dict(self.free)
        for hold in self._holds:
            if hold.runner_id in free:
                free[hold.runner_id] = free[hold.runner_id].minus(hold.room)
        return free

    def _rank(self, job: SchedulingJob, free: dict[str, Resources]) -> Ranked:
        return [
            (-self._score(job, runner, left), tie_break(job.job_id, name), name)
            for name, runner in self._runners.items()
            if is_eligible(job, runner, free=(left := self._usable(job, name, free[name])))
        ]

    def _usable(self, job: SchedulingJob, name: str, free: Resources) -> Resources:
        """Leave alone what is held for others, unless the job is over before that is due."""
        for hold in self._holds:
            over_in_time = self.snapshot.taken_at + job.lasts <= hold.deadline
            may = hold.job_id == job.job_id or (hold.kind == "backfill" and over_in_time)
            if hold.runner_id == name and not may:
                free = free.minus(hold.room)
        return free

    def _score(self, job: SchedulingJob, runner: SchedulingRunner, left: Resources) -> int:
        return score(job.resources, runner, left, self.policy.weights).total

    def _pool_of(self, runner_id: str) -> str:
        return self._runners[runner_id].pool_id

    def _open(self, ranked: Ranked, shut: Mapping[str, Gate]) -> Ranked:
        """Keep the runners whose pool is not shut."""
        return [one for one in ranked if self._pool_of(one[2]) not in shut]

    def _decide(self, job: SchedulingJob, ranked: Ranked, shut: Mapping[str, Gate]) -> bool:
        if not ranked:
            behind = sorted(self._rank(job, self.free))
            if behind:
                self.held.append((job, shut[self._pool_of(behind[0][2])]))
                self.pooled += 1
            else:
                self.blocked.append(job)
            return False
        self.ties += len(ranked) > 1 and ranked[0][0] == ranked[1][0]
        best = ranked[: 1 + self.policy.candidates]
        winner = best[0][2]
        self.free[winner] = self.free[winner].minus(job.resources)
        self.used_a_hold += any(hold.runner_id == winner for hold in self._holds)
        self._holds = [hold for hold in self._holds if hold.job_id != job.job_id]
        candidates = tuple((name, -minus) for minus, _, name in best)
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
