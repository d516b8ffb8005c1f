"""One cycle's plan: which eligible job goes to which runner, and why the others wait.

Greedy in queue order: each job takes the best runner that still has room, and what it takes is
gone for the jobs behind it. The same code plans and explains.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.scheduler.board import Board
from forgeyard.scheduler.census import Census
from forgeyard.scheduler.diagnose import Diagnosis, gated
from forgeyard.scheduler.eligibility import OF_THE_JOB
from forgeyard.scheduler.gates import Gate, GateCode, Gates
from forgeyard.scheduler.queue import FairQueue
from forgeyard.scheduler.snapshot import SchedulingJob, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A job and the runners that may take it with their scores, best first."""

    job_id: str
    candidates: tuple[tuple[str, int], ...]
    """The winner, then at most `policy.candidates` that the commit may fall back on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything one cycle decided; a pure function of its snapshot and policy."""

    decisions: tuple[Decision, ...]
    diagnoses: tuple[Diagnosis, ...]
    """One for each job that was looked at in vain; those behind a full batch have none."""
    eligible: int
    """Jobs that were waiting."""
    runners: int
    """Runners that were looked at."""
    capabilities: Mapping[str, str] = field(default_factory=dict[str, str])
    """The capability digest by which each runner was judged; another one voids the judgement."""
    hopeless: Mapping[str, str] = field(default_factory=dict[str, str])
    """Jobs that no registered runner can ever take for what their class wants, each with it."""
    possible: frozenset[str] = frozenset()
    """The classes of the other jobs that were looked at."""
    generation: int = 0
    """Of the fleet that was seen; another one voids what it found hopeless."""
    wake_at: int | None = None
    """When the first of the reasons ends that pass by themselves, if any does."""


def plan(snapshot: Snapshot, policy: SchedulingPolicy) -> Plan:
    """Place as many of the first jobs as fit, at most `policy.batch`."""
    cycle = Cycle(snapshot, policy)
    for job in cycle.queue:
        if cycle.is_full:
            break
        cycle.consider(job)
    cycle.lend()
    blocked = _diagnoses(cycle.blocked, cycle.board)
    hopeless = _hopeless(cycle.blocked, blocked)
    able = (job for job in (*cycle.placed, *cycle.blocked) if job.job_id not in hopeless)
    return Plan(
        decisions=tuple(cycle.decisions),
        diagnoses=(*blocked, *(gated(job, gate) for job, gate in cycle.held)),
        hopeless=hopeless,
        possible=frozenset(job.requirement_class for job in able),
        generation=snapshot.generation,
        wake_at=_next_end(cycle.blocked, snapshot.passing),
        eligible=snapshot.waiting,
        runners=len(snapshot.runners),
        capabilities=dict(
            sorted((runner.runner_id, runner.capability_digest) for runner in snapshot.runners)
        ),
    )


class Cycle:
    """What one cycle has decided so far, job by job; explanations replay it."""

    def __init__(self, snapshot: Snapshot, policy: SchedulingPolicy) -> None:
        self.board = Board(snapshot.runners, policy)
        self.queue = FairQueue(snapshot, policy)
        self.gates = Gates(snapshot.scopes, snapshot.keys)
        self.decisions: list[Decision] = []
        self.placed: list[SchedulingJob] = []
        self.blocked: list[SchedulingJob] = []
        self.held: list[tuple[SchedulingJob, Gate]] = []
        self._batch = policy.batch

    @property
    def is_full(self) -> bool:
        """Tell whether the batch is complete."""
        return len(self.decisions) >= self._batch

    def consider(self, job: SchedulingJob) -> None:
        """Place a job whose turn it is, or note what keeps it."""
        gate = self.gates.against(job)
        if gate is None:
            self._place(job)
        else:
            self.held.append((job, gate))

    def lend(self) -> None:
        """Let jobs beyond their quota have what nobody else could use, as far as they may burst."""
        held, self.held = self.held, []
        for job, gate in held:
            over = gate.code is GateCode.QUOTA_BLOCKED and not self.is_full
            if over and self.gates.against_bursting(job) is None:
                self._place(job)
            else:
                self.held.append((job, gate))

    def _place(self, job: SchedulingJob) -> None:
        candidates = self.board.place(job)
        if not candidates:
            self.blocked.append(job)
            return
        self.decisions.append(Decision(job_id=job.job_id, candidates=candidates))
        self.placed.append(job)
        self.queue.charge(job)
        self.gates.admit(job)


def _hopeless(blocked: Iterable[SchedulingJob], diagnoses: Iterable[Diagnosis]) -> dict[str, str]:
    """Pick the jobs whose whole class waits in vain; one reason of a job's own lets it be."""
    return {
        job.job_id: job.requirement_class
        for job, diagnosis in zip(blocked, diagnoses, strict=True)
        if diagnosis.permanent
        and job.requirement_class
        and OF_THE_JOB.isdisjoint(tally.code for tally in diagnosis.rejections)
    }


def _next_end(blocked: Iterable[SchedulingJob], passing: Mapping[str, int]) -> int | None:
    ends = (passing[job.job_id] for job in blocked if job.job_id in passing)
    return min(ends, default=None)


def _diagnoses(blocked: Iterable[SchedulingJob], board: Board) -> tuple[Diagnosis, ...]:
    """Diagnose each kind of blocked job once, as things stand at the end of the cycle."""
    known: dict[object, Diagnosis] = {}
    found: list[Diagnosis] = []
    census = Census(board.columns)
    for job in blocked:
        key = (board.kind_of(job), tuple(sorted(job.refused_by.items())))
        if key not in known:
            known[key] = census.diagnose(job)
        found.append(known[key].about(job.job_id))
    return tuple(found)
