"""One cycle's plan: which eligible job goes to which runner, and why the others wait.

Greedy in queue order: each job takes the best runner that still has room, and what it takes is
gone for the jobs behind it. The same code plans and explains.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.scheduler.board import Board
from forgeyard.scheduler.census import Census
from forgeyard.scheduler.diagnose import Diagnosis
from forgeyard.scheduler.order import served
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


def plan(snapshot: Snapshot, policy: SchedulingPolicy) -> Plan:
    """Place as many of the first jobs as fit, at most `policy.batch`."""
    board = Board(snapshot.runners, policy)
    decisions: list[Decision] = []
    blocked: list[SchedulingJob] = []
    for job in served(snapshot.jobs, policy, snapshot.taken_at):
        if len(decisions) >= policy.batch:
            break
        candidates = board.place(job)
        if candidates:
            decisions.append(Decision(job_id=job.job_id, candidates=candidates))
        else:
            blocked.append(job)
    return Plan(
        decisions=tuple(decisions),
        diagnoses=_diagnoses(blocked, board),
        eligible=snapshot.waiting,
        runners=len(snapshot.runners),
        capabilities=dict(
            sorted((runner.runner_id, runner.capability_digest) for runner in snapshot.runners)
        ),
    )


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
