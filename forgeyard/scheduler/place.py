"""One cycle's plan: which eligible job goes to which runner, and why the others wait.

Greedy in queue order: each job takes the best runner that still has room, and what it takes is
gone for the jobs behind it. The same code plans and explains.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from forgeyard.model.equipment import NO_EQUIPMENT, EquipmentRequirement
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.scheduler.board import Board
from forgeyard.scheduler.census import Census
from forgeyard.scheduler.diagnose import Diagnosis, gated
from forgeyard.scheduler.gates import Gate, GateCode, Gates
from forgeyard.scheduler.holds import BackfillWish, HoldKind
from forgeyard.scheduler.lending import idle_pools
from forgeyard.scheduler.order import BASE
from forgeyard.scheduler.preempt import Nomination, may_preempt, nominate
from forgeyard.scheduler.pressure import Pressure, judge
from forgeyard.scheduler.queue import FairQueue
from forgeyard.scheduler.rejection import OF_THE_JOB
from forgeyard.scheduler.snapshot import SchedulingJob, Snapshot
from forgeyard.scheduler.standing import NOBODY

BACKFILL_CHOICE = 8
"""How many of the emptiest runners are compared for who will have room first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A job and the runners that may take it with their scores, best first."""

    job_id: str
    candidates: tuple[tuple[str, int], ...]
    """The winner, then at most `policy.candidates` that the commit may fall back on."""
    equipment: EquipmentRequirement = NO_EQUIPMENT
    """The devices that it wants, so that the commit can choose them on whichever runner it gets."""


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
    backfill: BackfillWish | None = None
    """The job for which a runner is to be kept from now on, or still."""
    nominations: tuple[Nomination, ...] = ()
    """Runners to clear for urgent jobs."""
    pressure: Pressure = field(default_factory=Pressure)
    capabilities: Mapping[str, str] = field(default_factory=dict[str, str])
    """The capabilities and the pool by which each runner was judged; others void the judgement."""
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
        wake_at=_next_end(cycle.blocked, snapshot),
        eligible=snapshot.waiting,
        runners=len(snapshot.runners),
        backfill=_backfill(cycle, snapshot, policy),
        nominations=_nominations(cycle, snapshot, policy),
        pressure=cycle.pressure,
        capabilities=dict(
            sorted((runner.runner_id, runner.fingerprint) for runner in snapshot.runners)
        ),
    )


class Cycle:
    """What one cycle has decided so far, job by job; explanations replay it."""

    def __init__(self, snapshot: Snapshot, policy: SchedulingPolicy) -> None:
        self.board = Board(snapshot, policy)
        self.queue = FairQueue(snapshot, policy)
        self.gates = Gates(snapshot.scopes, snapshot.keys)
        self.pressure = judge(snapshot.readings, policy.pressure)
        self.decisions: list[Decision] = []
        self.placed: list[SchedulingJob] = []
        self.blocked: list[SchedulingJob] = []
        self.held: list[tuple[SchedulingJob, Gate]] = []
        self._batch = max(1, policy.batch * self.pressure.batch_percent // 100)

    @property
    def is_full(self) -> bool:
        """Tell whether the batch is complete."""
        return len(self.decisions) >= self._batch

    def consider(self, job: SchedulingJob) -> None:
        """Place a job whose turn it is, or note what keeps it."""
        job = self.board.scene.kin.bind(job)
        gate = self.gate(job)
        if gate is None:
            self._place(job, self.gates.pools_against(job))
        else:
            self.held.append((job, gate))

    def gate(self, job: SchedulingJob) -> Gate | None:
        """Find what holds a job back whatever runners there are, or nothing."""
        return self._pressed(job) or self.gates.against(job)

    def _pressed(self, job: SchedulingJob) -> Gate | None:
        """Hold back what would make a bad state worse (BKP-006)."""
        if job.has_inputs and self.pressure.no_inputs:
            text = f"inputs cannot be fetched now: {self.pressure.no_inputs}"
        elif BASE[job.priority] < self.pressure.least_priority:
            causes = " and ".join(signal.replace("_", " ") for signal in self.pressure.signals)
            text = f"jobs of low priority are held back while there is {causes}"
        else:
            return None
        return Gate(code=GateCode.BACKPRESSURE, subject="pressure", text=text)

    def lend(self) -> None:
        """Let jobs beyond their quota have what nobody else could use, as far as they may burst."""
        held, self.held = self.held, []
        for waiting, gate in held:
            job = self.board.scene.kin.bind(waiting)
            over = gate.code is GateCode.QUOTA_BLOCKED and not self.is_full
            if over and self.gates.against_bursting(job) is None:
                self._place(job, self.gates.pools_against_bursting(job))
            else:
                self.held.append((job, gate))
        self._spill()

    def _spill(self) -> None:
        """Let jobs that found nothing have what the owners of reserved pools leave idle."""
        lent = idle_pools(self.board.columns, self.blocked)
        if not lent:
            return
        blocked, self.blocked = self.blocked, []
        for waiting in blocked:
            job = self.board.scene.kin.bind(waiting)
            if self.is_full or self.gates.against_bursting(job) is not None:
                self.blocked.append(job)
            else:
                self._place(job, self.gates.pools_against_bursting(job), lent=lent)

    def _place(
        self, job: SchedulingJob, shut: Mapping[str, Gate], *, lent: frozenset[str] = NOBODY
    ) -> None:
        candidates = self.board.place(job, outside=shut, lent=lent)
        if candidates:
            wanted = job.requirements.equipment.device_part
            decision = Decision(job_id=job.job_id, candidates=candidates, equipment=wanted)
            self.decisions.append(decision)
            self.placed.append(job)
            self.queue.charge(job)
            self.gates.admit(job, self.board.pool_of(candidates[0][0]))
        elif (gate := pool_gate(self.board, job, shut, lent=lent)) is not None:
            self.held.append((job, gate))
        else:
            self.blocked.append(job)


def pool_gate(
    board: Board,
    job: SchedulingJob,
    shut: Mapping[str, Gate],
    *,
    lent: frozenset[str] = NOBODY,
) -> Gate | None:
    """Find the gate of the pool whose runner a job would get if the pool were not shut to it."""
    ranking = board.ranking(job, 1, lent=lent) if shut else ()
    return shut.get(board.pool_of(ranking[0][0])) if ranking else None


def _backfill(cycle: Cycle, snapshot: Snapshot, policy: SchedulingPolicy) -> BackfillWish | None:
    """Keep the runner of whoever has one, while it serves; else choose the oldest in need.

    A holder that is placed now keeps it too, until its lease is committed.

    Only jobs that wait for nothing but room are asked about: not those at a gate.
    """
    kept = {
        hold.job_id: hold.runner_id
        for hold in snapshot.held_room
        if hold.kind is HoldKind.BACKFILL and hold.partition == snapshot.partition
    }
    gated_now = {job.job_id for job, _ in cycle.held}
    for job in snapshot.jobs:
        if job.job_id in kept and job.job_id not in gated_now:
            bound = cycle.board.scene.kin.bind(job)
            if cycle.board.could_serve(bound, kept[job.job_id]):
                return _wish(job, (kept[job.job_id],))
    since = snapshot.taken_at - policy.backfill.after
    oldest_first = sorted(cycle.blocked, key=lambda job: (job.eligible_at, job.job_id))
    in_vain: set[int] = set()
    for job in oldest_first:
        if job.eligible_at > since:
            break
        kind = cycle.board.kind_of(job)
        runners = () if kind in in_vain else cycle.board.nearest(job, BACKFILL_CHOICE)
        if runners:
            return _wish(job, runners)
        if not job.bounds and not job.refused_by:
            in_vain.add(kind)
    return None


def _wish(job: SchedulingJob, runners: tuple[str, ...]) -> BackfillWish:
    return BackfillWish(job_id=job.job_id, resources=job.resources, runners=runners)


def _nominations(
    cycle: Cycle, snapshot: Snapshot, policy: SchedulingPolicy
) -> tuple[Nomination, ...]:
    """Clear runners for the first urgent jobs that wait for room and have none cleared yet."""
    rule, made = policy.preemption, list[Nomination]()
    waiting = {hold.job_id for hold in snapshot.held_room if hold.kind is HoldKind.NOMINATION}
    gone: set[str] = set()
    for job in cycle.blocked:
        if len(made) >= rule.per_cycle:
            break
        if not may_preempt(job, rule) or job.job_id in waiting:
            continue
        able = cycle.board.nearest(job, len(snapshot.runners))
        found = nominate(
            job,
            left=cycle.board.left_for(job, able),
            running=[one for one in snapshot.running if one.lease_id not in gone],
            policy=rule,
            now=snapshot.taken_at,
        )
        if found is not None:
            made.append(found)
            gone.update(found.victims)
    return tuple(made)


def _hopeless(blocked: Iterable[SchedulingJob], diagnoses: Iterable[Diagnosis]) -> dict[str, str]:
    """Pick the jobs whose whole class waits in vain; one reason of a job's own lets it be."""
    return {
        job.job_id: job.requirement_class
        for job, diagnosis in zip(blocked, diagnoses, strict=True)
        if diagnosis.permanent
        and job.requirement_class
        and OF_THE_JOB.isdisjoint(tally.code for tally in diagnosis.rejections)
    }


def _next_end(blocked: Sequence[SchedulingJob], snapshot: Snapshot) -> int | None:
    """Find when a job that waits in vain might be placed although nothing happens till then."""
    passing = snapshot.passing
    ends = [passing[job.job_id] for job in blocked if job.job_id in passing]
    ends += [hold.deadline for hold in snapshot.held_room if blocked]
    return min((end for end in ends if end > snapshot.taken_at), default=None)


def _diagnoses(blocked: Iterable[SchedulingJob], board: Board) -> tuple[Diagnosis, ...]:
    """Diagnose each kind of blocked job once, as things stand at the end of the cycle."""
    known: dict[object, Diagnosis] = {}
    found: list[Diagnosis] = []
    census = Census(board.columns, board.stock)
    for job in blocked:
        own = job.job_id if job.bounds else ""
        weight = job.priority if board.columns.has_unwell else None
        refusals, asked = tuple(sorted(job.refused_by.items())), job.requirements.origins
        origins = tuple(sorted(asked.items(), key=itemgetter(0)))
        key = (board.kind_of(job), refusals, weight, origins, own)
        if key not in known:
            known[key] = census.diagnose(job)
        found.append(known[key].about(job.job_id))
    return tuple(found)
