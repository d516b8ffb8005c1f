"""One cycle's plan: which eligible job goes to which runner, and why the others wait.

Greedy in queue order: each job takes the best runner that still has room, and what it takes is
gone for the jobs behind it. The same code plans and explains.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Resources
from forgeyard.scheduler.diagnose import Diagnosis, diagnose
from forgeyard.scheduler.eligibility import satisfies, takes_work
from forgeyard.scheduler.order import in_order
from forgeyard.scheduler.score import HASHES, hash64, score
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot


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
    for job in in_order(snapshot.jobs, policy, snapshot.taken_at):
        if len(decisions) >= policy.batch:
            break
        decision = board.place(job)
        if decision is None:
            blocked.append(job)
        else:
            decisions.append(decision)
    return Plan(
        decisions=tuple(decisions),
        diagnoses=_diagnoses(blocked, snapshot.runners, board.free),
        eligible=snapshot.waiting,
        runners=len(snapshot.runners),
        capabilities=dict(
            sorted((runner.runner_id, runner.capability_digest) for runner in snapshot.runners)
        ),
    )


class Board:
    """The room that is left while a cycle places its jobs, and the score of every fitting pair.

    Jobs that want the same things share a row of scores. Room only shrinks, so after a placement
    one runner is judged again in each row and nothing else.
    """

    def __init__(self, runners: Iterable[SchedulingRunner], policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._runners = {runner.runner_id: runner for runner in runners}
        self._hashes = {runner_id: hash64(runner_id) for runner_id in self._runners}
        self._free = {runner.runner_id: runner.free for runner in self._runners.values()}
        self._profiles: dict[object, list[SchedulingRunner]] = {}
        self._rows: dict[object, tuple[Resources, dict[str, int]]] = {}
        for runner in self._runners.values():
            if takes_work(runner):
                self._profiles.setdefault(_profile_of(runner), []).append(runner)

    @property
    def free(self) -> Mapping[str, Resources]:
        """Tell what every runner has left."""
        return self._free

    def place(self, job: SchedulingJob) -> Decision | None:
        """Give a job room on the best runner there is; `None` if no runner can take it now."""
        ranked = self.ranking(job, 1 + self._policy.candidates)
        if not ranked:
            return None
        self._take(ranked[0][0], job.resources)
        return Decision(job_id=job.job_id, candidates=tuple(ranked))

    def ranking(self, job: SchedulingJob, length: int) -> list[tuple[str, int]]:
        """List the best runners that could take a job now with their scores, and take nothing."""
        _, row = self._row(job)
        if job.refused_by:
            row = {name: points for name, points in row.items() if name not in job.refused_by}
        least = min(heapq.nlargest(length, row.values()), default=0)
        own = hash64(job.job_id)
        ranked = sorted(
            (-points, (self._hashes[runner_id] - own) % HASHES, runner_id)
            for runner_id, points in row.items()
            if points >= least
        )
        return [(runner_id, -minus) for minus, _, runner_id in ranked[:length]]

    def _row(self, job: SchedulingJob) -> tuple[Resources, dict[str, int]]:
        key = kind_of(job)
        if key not in self._rows:
            wanted = job.resources
            row = {
                runner.runner_id: self._score(wanted, runner)
                for alike in self._profiles.values()
                if satisfies(job.requirements, alike[0].capabilities, alike[0].trust)
                for runner in alike
                if wanted.fits_in(self._free[runner.runner_id])
                and wanted.fits_in(runner.allocatable)
            }
            self._rows[key] = (wanted, row)
        return self._rows[key]

    def _take(self, runner_id: str, wanted: Resources) -> None:
        runner = self._runners[runner_id]
        self._free[runner_id] = self._free[runner_id].minus(wanted)
        for resources, row in self._rows.values():
            if runner_id in row and resources.fits_in(self._free[runner_id]):
                row[runner_id] = self._score(resources, runner)
            else:
                row.pop(runner_id, None)

    def _score(self, wanted: Resources, runner: SchedulingRunner) -> int:
        return score(wanted, runner, self._free[runner.runner_id], self._policy.weights).total


def kind_of(job: SchedulingJob) -> tuple[object, ...]:
    """Group jobs that want the same things; judged by the wants themselves, not by their digest."""
    wanted = job.requirements
    return (
        wanted.platform,
        wanted.os_version,
        wanted.architecture,
        wanted.toolchains,
        tuple(sorted(wanted.labels.items())),
        wanted.trust,
        wanted.agent_version,
        wanted.equipment,
        job.resources,
    )


def _profile_of(runner: SchedulingRunner) -> tuple[object, ...]:
    """Group runners that can do the same things."""
    offered = runner.capabilities
    return (
        offered.platform,
        offered.os_version,
        offered.architecture,
        offered.toolchains,
        tuple(sorted(offered.labels.items())),
        runner.trust,
        offered.agent_version,
        offered.equipment,
    )


def _diagnoses(
    blocked: Iterable[SchedulingJob],
    runners: tuple[SchedulingRunner, ...],
    free: Mapping[str, Resources],
) -> tuple[Diagnosis, ...]:
    """Diagnose each kind of blocked job once, as things stand at the end of the cycle."""
    known: dict[object, Diagnosis] = {}
    found: list[Diagnosis] = []
    for job in blocked:
        key = (kind_of(job), tuple(sorted(job.refused_by.items())))
        if key not in known:
            known[key] = diagnose(job, runners, free)
        found.append(known[key].about(job.job_id))
    return tuple(found)
