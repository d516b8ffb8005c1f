"""Where a job would go in the next cycle, or why nowhere: the whole reasoning, sentence first.

It replays the plan up to the job's turn with the planner's own code, so an explanation never
disagrees with what the cycle does (DIA-002, DIA-004).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.runner import RunnerState
from forgeyard.model.units import Millis, Resources, Rounding
from forgeyard.model.wishes import SchedulingClass
from forgeyard.scheduler.avoidance import avoided_text, nearness_to_losses
from forgeyard.scheduler.board import Board
from forgeyard.scheduler.diagnose import (
    Diagnosis,
    DiagnosticCode,
    NearMiss,
    Pairing,
    Tally,
    diagnose,
    gated,
    pairings,
    tallies,
)
from forgeyard.scheduler.estimate import Estimate, estimate
from forgeyard.scheduler.gates import Gate
from forgeyard.scheduler.order import effective_priority
from forgeyard.scheduler.place import Cycle, pool_gate
from forgeyard.scheduler.rejection import RejectionCode
from forgeyard.scheduler.scene import Scene
from forgeyard.scheduler.score import PlacementScore, score
from forgeyard.scheduler.snapshot import Parking, SchedulingJob, Snapshot
from forgeyard.scheduler.words import DIMENSIONS, amount_of, wanted_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityParts:
    """What a job's place in the queue is made of."""

    priority: Priority
    base: int
    adjustment: int
    aging: int
    effective: int
    waited_ms: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One rejection, ready to print: `linux-1` `needs 16 GiB of memory, has 12 GiB`."""

    code: RejectionCode
    permanent: bool
    wanted: str
    offered: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerVerdict:
    """What the rules say of one runner: a rank and a score, or every reason against it."""

    runner_id: str
    name: str
    state: RunnerState
    rank: int | None
    score: PlacementScore | None
    avoided: str | None
    """Why it comes after all others whatever its score."""
    rejections: tuple[Reason, ...]
    pool_gate: str | None
    """What shuts its pool to the job, if anything does; then it has no rank."""
    free: Resources
    """What jobs placed earlier in the cycle leave."""
    allocatable: Resources
    cpu_percent: int
    """How much of its CPU the policy lets jobs hold."""
    free_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that decides about one job now; the same snapshot gives the same bytes."""

    job_id: str
    job_name: str
    run_id: str
    sentence: str
    code: DiagnosticCode | None
    """Set exactly when no runner can take it now."""
    permanent: bool
    priority: PriorityParts
    queue: tuple[str, ...]
    """The names of its tenant, organization, project and queue."""
    scheduling_class: SchedulingClass
    position: int
    """Place in the queue, from 1."""
    waiting: int
    requirements: tuple[str, ...]
    winner: str | None
    eligible_runners: int
    runners: tuple[RunnerVerdict, ...]
    """Ranked ones first, best first, then the others by name."""
    rejections: tuple[Tally, ...]
    """How many runners each reason rules out, most frequent first."""
    near_misses: tuple[NearMiss, ...]
    policy_digest: str
    snapshot_digest: str
    taken_at: int
    gate: Gate | None = None
    """What holds it back whatever runners there are."""
    parked: Parking | None = None
    """Since when nobody looks at jobs that want the same, for no runner can ever take one."""
    policy_version: int | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """What is known of a job beside the snapshot, and decides nothing."""

    parked: Parking | None = None
    policy_version: int | None = None
    recent_waits: tuple[int, ...] = ()
    """How long the last jobs of its queue waited that want the same, in milliseconds."""


NOTHING_ELSE = Background()


def explain(
    job: SchedulingJob,
    snapshot: Snapshot,
    policy: SchedulingPolicy,
    *,
    background: Background = NOTHING_ELSE,
) -> Explanation:
    """Replay the next cycle up to this job's turn and tell how it is judged."""
    others = [other for other in snapshot.jobs if other.job_id != job.job_id]
    cycle = Cycle(replace(snapshot, jobs=(*others, job)), policy)
    ahead = _replay(cycle, job)
    job = cycle.board.scene.kin.bind(job)
    gate = cycle.gate(job)
    free, held = cycle.board.free_for(job), cycle.board.held()
    pairs = pairings(job, snapshot.runners, free, held=held)
    shut = cycle.gates.pools_against(job)
    verdicts = _verdicts(job, pairs, cycle.board, shut=shut)
    eligible = [verdict for verdict in verdicts if verdict.rank is not None]
    diagnosis = None if eligible else diagnose(job, snapshot.runners, free, held=held)
    if gate is None and not eligible:
        gate = pool_gate(cycle.board, job, shut)
    if gate is not None:
        diagnosis = gated(job, gate)
    return Explanation(
        job_id=job.job_id,
        job_name=job.name,
        run_id=job.run_id,
        sentence=_sentence(diagnosis, eligible, policy, is_full=cycle.is_full),
        code=diagnosis.code if diagnosis else None,
        permanent=diagnosis is not None and diagnosis.permanent,
        priority=_priority(job, policy, snapshot.taken_at),
        queue=tuple(
            snapshot.scopes[name].name if name in snapshot.scopes else name for name in job.scopes
        ),
        scheduling_class=job.scheduling_class,
        position=ahead + 1,
        waiting=max(snapshot.waiting, len(others) + 1),
        requirements=wanted_texts(job),
        winner=eligible[0].name if eligible and gate is None and not cycle.is_full else None,
        eligible_runners=len(eligible),
        runners=verdicts,
        rejections=tallies(pairs),
        near_misses=diagnosis.near_misses if diagnosis else (),
        policy_digest=policy.digest(),
        snapshot_digest=snapshot.digest(),
        taken_at=snapshot.taken_at,
        gate=gate,
        parked=background.parked,
        policy_version=background.policy_version,
        estimate=estimate(background.recent_waits, waited=snapshot.taken_at - job.eligible_at),
    )


def _replay(cycle: Cycle, job: SchedulingJob) -> int:
    """Let the jobs ahead have their turn, as far as the batch goes; count them."""
    ahead = 0
    for other in cycle.queue:
        if other.job_id == job.job_id:
            break
        ahead += 1
        if not cycle.is_full:
            cycle.consider(other)
    return ahead


def _sentence(
    diagnosis: Diagnosis | None,
    eligible: Sequence[RunnerVerdict],
    policy: SchedulingPolicy,
    *,
    is_full: bool,
) -> str:
    """Say the outcome in one sentence."""
    if diagnosis is not None:
        return diagnosis.sentence
    if is_full:
        return f"Waits its turn: the next cycle is full with {policy.batch} jobs ahead of it."
    goes = f"Goes to {eligible[0].name} in the next cycle"
    if len(eligible) == 1:
        return f"{goes}: no other runner can take it now."
    if eligible[0].avoided:
        return f"{goes}, although it is {eligible[0].avoided}: no other runner can take it now."
    rivals = [verdict for verdict in eligible if not verdict.avoided]
    passed_by = len(eligible) - len(rivals)
    after = f"; {passed_by} more avoided" if passed_by else ""
    compared = min(len(rivals), policy.score_at_most or len(rivals))
    best, *others = (verdict.score for verdict in rivals if verdict.score)
    if others and best.weighed == others[0].weighed:
        tied = f"it scores {best.total}, like {rivals[1].name}"
        return f"{goes}: {tied}, and wins the stable tie-break{after}."
    now = "that can take it now" if compared == len(rivals) else "that were compared"
    return f"{goes}: it scores {best.total}, the best of {compared} runners {now}{after}."


def _verdicts(
    job: SchedulingJob,
    pairs: Sequence[Pairing],
    board: Board,
    *,
    shut: Mapping[str, Gate],
) -> tuple[RunnerVerdict, ...]:
    free = board.free_for(job)
    ranking = board.ranking(job, len(pairs), outside=shut)
    ranks = {runner_id: rank for rank, (runner_id, _) in enumerate(ranking, start=1)}
    verdicts = (
        _verdict(
            job,
            pair,
            free[name],
            rank=ranks.get(name),
            scene=board.scene,
            gate=shut.get(pair.runner.pool_id),
        )
        for pair in pairs
        for name in (pair.runner.runner_id,)
    )
    return tuple(
        sorted(verdicts, key=lambda it: (it.rank is None, it.rank or 0, it.name, it.runner_id))
    )


def _verdict(
    job: SchedulingJob,
    pair: Pairing,
    free: Resources,
    *,
    rank: int | None,
    scene: Scene,
    gate: Gate | None,
) -> RunnerVerdict:
    runner = pair.runner
    fits = rank is not None
    return RunnerVerdict(
        runner_id=runner.runner_id,
        name=runner.name,
        state=runner.state,
        rank=rank,
        score=score(job, runner, free, scene) if fits else None,
        avoided=avoided_text(nearness_to_losses(job, runner, scene)),
        rejections=tuple(
            Reason(
                code=rejection.code,
                permanent=rejection.permanent,
                wanted=rejection.wanted,
                offered=rejection.offered,
                text=rejection.text,
            )
            for rejection in pair.rejections
        ),
        pool_gate=None if gate is None else gate.text,
        free=free,
        allocatable=runner.allocatable,
        cpu_percent=runner.cpu_percent,
        free_text=", ".join(
            amount_of(name, free, rounding=Rounding.CAPACITY) for name in DIMENSIONS
        ),
    )


def _priority(job: SchedulingJob, policy: SchedulingPolicy, now: int) -> PriorityParts:
    parts = effective_priority(job, policy, now)
    return PriorityParts(
        priority=job.priority,
        base=parts.base,
        adjustment=parts.adjustment,
        aging=parts.aging,
        effective=parts.total,
        waited_ms=parts.waited,
    )
