"""Turning a stored plan into leases: the only place where capacity is given away (LSE-004).

One transaction locks the scopes, then the jobs (those that another scheduler holds are skipped),
then every runner that is a candidate; judges all placements at once on the locked rows; and writes
what was granted in a handful of statements, whatever the size of the batch. Verdicts are stored
with the grants, so committing again returns them and writes nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from forgeyard.model.equipment import NO_EQUIPMENT, Equipment, EquipmentRequirement
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import JobState
from forgeyard.scheduler.devices import ALL_FREE, Held
from forgeyard.scheduler.gates import Gates
from forgeyard.scheduler.grant import (
    Granted,
    GrantRequest,
    JobStanding,
    RunnerStanding,
    Verdict,
    grant,
    refuse_all,
)
from forgeyard.scheduler.holds import BackfillWish, Holds
from forgeyard.scheduler.room import allocatable
from forgeyard.scheduler.scopes import SchedulingScope
from forgeyard.scheduler.standing import fingerprint, pool_of
from forgeyard.store import (
    bulk,
    devices,
    grants,
    holds,
    locked,
    phases,
    policies,
    scopes,
    tables,
)
from forgeyard.store.amounts import resources_of
from forgeyard.store.changes import Row
from forgeyard.store.codec import decode
from forgeyard.store.grants import Grant
from forgeyard.store.locked import Seen
from forgeyard.store.plans import PlanSaved, save_plan

__all__ = ["CommitOutcome", "PlanSaved", "commit_cycle", "save_plan"]

_placements, _runners = tables.placements, tables.runners
NOTHING = Equipment()
_LACKING = (Verdict.NO_CAPACITY, Verdict.RUNNER_UNAVAILABLE)
"""Verdicts that another candidate could change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A placement that this commit granted, for whoever counts or traces."""

    run_id: str
    job_id: str
    attempt_id: str
    runner_id: str
    priority: str
    waited_ms: int
    score: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOutcome:
    """How many placements became leases, and the verdict on each, in the plan's order."""

    granted: int
    refused: int
    verdicts: tuple[tuple[str, Verdict], ...]
    placed: tuple[Placed, ...] = field(default=(), compare=False)
    """Only from the commit that granted them; a repeated one tells none."""
    repeated: bool = field(default=False, compare=False)


def commit_cycle(
    connection: sa.Connection, cycle_id: int, *, built_in: SchedulingPolicy
) -> CommitOutcome:
    """Grant as many placements of a plan as fit now; a second time, only tell what was granted.

    A plan that was made under another policy than the one in force is void, and so is every plan
    while the store is held.

    Raises:
        NotFound: there is no such cycle.
    """
    cycle, planned = locked.plan(connection, cycle_id)
    if cycle["committed_at"] is not None:
        return _known(connection, cycle_id)
    named = {row[name] for row in planned for name in scopes.PATH}
    rows = scopes.lock(connection, named | _pools(connection, planned))
    seen = locked.look(connection, planned, limited=int(scopes.are_limited(rows)))
    in_force = policies.in_force(connection, seen.policy, built_in)
    scoped = scopes.seen(rows, seen.used)
    void = _why_void(cycle, in_force.digest)
    if void is None:
        seen, answers = _judged(connection, planned, seen, scoped, policy=in_force.policy)
    else:
        answers = refuse_all([row["job_id"] for row in planned], void)
    granted = _grants(planned, answers, seen)
    decided = _decided(planned, answers, granted, scoped)
    grants.write(connection, decided, cycle=cycle, now=seen.now, policy=in_force.policy.lease)
    _keep_room(connection, cycle, {one.job["job_id"] for one in granted}, seen)
    outcome = _outcome([(answer.job_id, answer.verdict) for answer in answers])
    return replace(outcome, placed=tuple(_placed(one, seen.now) for one in granted))


def _why_void(cycle: Row, digest: str) -> Verdict | None:
    """Say why nothing of a plan may be granted, if so."""
    if cycle["held_at"] is not None:
        return Verdict.STORE_HELD
    return None if cycle["policy_digest"] == digest else Verdict.POLICY_CHANGED


def _known(connection: sa.Connection, cycle_id: int) -> CommitOutcome:
    """Tell what was granted before; whoever waited for another commit has read too early."""
    verdicts = (
        sa.select(_placements.c.job_id, _placements.c.verdict)
        .where(_placements.c.cycle_id == cycle_id)
        .order_by(_placements.c.position)
    )
    known = [(job_id, Verdict(verdict)) for job_id, verdict in connection.execute(verdicts)]
    return replace(_outcome(known), repeated=True)


def _pools(connection: sa.Connection, planned: Sequence[Row]) -> set[str]:
    """Tell in which pools the candidates were judged to be; one that moves meanwhile is not asked.

    A plan that does not say so is about runners wherever they are now.
    """
    judged = [one for row in planned for one in row["candidates"]]
    named = {pool_of(each) for each in {one[2] for one in judged} if each is not None}
    unnamed = {runner_id for runner_id, _, fingerprint in judged if fingerprint is None}
    if not unnamed:
        return named
    query = sa.select(_runners.c.pool_id).where(
        bulk.among(connection, _runners.c.runner_id, unnamed)
    )
    return named | set(connection.execute(query.distinct()).scalars())


def _judged(
    connection: sa.Connection,
    planned: Sequence[Row],
    seen: Seen,
    scoped: Mapping[str, SchedulingScope],
    *,
    policy: SchedulingPolicy,
) -> tuple[Seen, Sequence[Granted]]:
    """Judge every placement; where that fails for want of a runner, with the next candidates."""
    answers = _judge(connection, planned, seen, scoped, policy=policy)
    lacking = {
        runner_id
        for row, answer in zip(planned, answers, strict=True)
        if answer.verdict in _LACKING
        for runner_id, *_ in row["candidates"]
        if runner_id not in seen.runners
    }
    more = locked.more_runners(connection, lacking) if lacking else {}
    if not more:
        return seen, answers
    seen = replace(seen, runners={**seen.runners, **more})
    return seen, _judge(connection, planned, seen, scoped, policy=policy)


def _judge(
    connection: sa.Connection,
    planned: Sequence[Row],
    seen: Seen,
    scoped: Mapping[str, SchedulingScope],
    *,
    policy: SchedulingPolicy,
) -> Sequence[Granted]:
    requests = [_request(row, seen.runners, policy=policy.lease) for row in planned]
    return grant(
        requests,
        {job_id: _job_standing(row) for job_id, row in seen.jobs.items()},
        _runner_standings(connection, seen.runners, requests, policy=policy),
        gates=Gates(scoped, seen.keys),
        holds=Holds(holds.counting(seen.rooms), seen.now),
    )


def _decided(
    planned: Sequence[Row],
    answers: Sequence[Granted],
    granted: Sequence[Grant],
    scoped: Mapping[str, SchedulingScope],
) -> grants.Decided:
    places = [one.placement for one in granted]
    served = ((scopes.path_of(row), resources_of(row)) for row in places)
    charges, tags = scopes.charge(scoped, served)
    verdicts = [
        {"position": row["position"], "verdict": it.verdict.value, "runner_id": it.runner_id}
        for row, it in zip(planned, answers, strict=True)
    ]
    return grants.Decided(grants=granted, charges=charges, tags=tags, verdicts=verdicts)


def _grants(planned: Sequence[Row], answers: Sequence[Granted], seen: Seen) -> list[Grant]:
    return [
        Grant(
            placement=row,
            job=seen.jobs[answer.job_id],
            runner=seen.runners[answer.runner_id],
            score=answer.score,
            purpose=row["wishes"].purpose,
            devices=answer.devices,
        )
        for row, answer in zip(planned, answers, strict=True)
        if answer.runner_id is not None
    ]


def _placed(grant: Grant, now: int) -> Placed:
    waited = max(0, now - grant.job["eligible_at"])
    return Placed(
        run_id=grant.job["run_id"],
        job_id=grant.job["job_id"],
        attempt_id=grant.placement["attempt_id"],
        runner_id=grant.runner["runner_id"],
        priority=grant.job["priority"],
        waited_ms=waited,
        score=grant.score,
    )


def _keep_room(connection: sa.Connection, cycle: Row, placed: Collection[str], seen: Seen) -> None:
    """Keep room for whom the plan says, unless it is placed, and end other holds there were."""
    wish = None if cycle["backfill"] is None else decode(BackfillWish, cycle["backfill"])
    needed = wish if wish is not None and wish.job_id not in placed else None
    partition = cycle["partition"]
    if needed is not None or any(row["partition"] == partition for row in seen.rooms):
        holds.keep(connection, partition, needed, now=seen.now)


def _outcome(verdicts: Sequence[tuple[str, Verdict]]) -> CommitOutcome:
    granted = sum(1 for _, verdict in verdicts if verdict is Verdict.GRANTED)
    return CommitOutcome(granted=granted, refused=len(verdicts) - granted, verdicts=tuple(verdicts))


def _request(row: Row, runners: Mapping[str, Row], *, policy: LeasePolicy) -> GrantRequest:
    """Ask for the candidates that are still what they were judged to be.

    One that registered with other capabilities or another trust since, or whose pool is another or
    was changed, may break a requirement.
    """
    candidates = tuple(
        (runner_id, score)
        for runner_id, score, judged in row["candidates"]
        if runner_id in runners and judged in (None, _fingerprint(runners[runner_id]))
    )
    wanted = row["devices"]
    return GrantRequest(
        job_id=row["job_id"],
        name=row["name"],
        resources=resources_of(row),
        candidates=candidates,
        scopes=scopes.path_of(row),
        keys=row["wishes"].keys,
        devices=NO_EQUIPMENT if wanted is None else decode(EquipmentRequirement, wanted),
        lasts=phases.at_most(row, policy),
    )


def _fingerprint(runner: Row) -> str:
    return fingerprint(runner["capability_digest"], runner["pool_id"], runner["pool_version"] or 0)


def _runner_standings(
    connection: sa.Connection,
    runners: Mapping[str, Row],
    requests: Sequence[GrantRequest],
    *,
    policy: SchedulingPolicy,
) -> dict[str, RunnerStanding]:
    """Tell how locked runners stand; their devices only where somebody wants one."""
    asked = {
        runner_id
        for request in requests
        if request.devices.wants_devices
        for runner_id, _ in request.candidates
    }
    equipment, held = devices.standing(connection, asked) if asked else ({}, {})
    percent = policy.overcommit.cpu_percent
    return {
        runner_id: _runner_standing(
            row,
            cpu_percent=percent,
            equipment=equipment.get(runner_id, NOTHING),
            held=held.get(runner_id, ALL_FREE),
        )
        for runner_id, row in runners.items()
    }


def _job_standing(row: Row) -> JobStanding:
    if row["cancel_reason"] is not None or row["state"] == JobState.CANCELLED:
        return JobStanding.CANCELLED
    return JobStanding.ELIGIBLE if row["state"] == JobState.ELIGIBLE else JobStanding.GONE


def _runner_standing(
    row: Row, *, cpu_percent: int, equipment: Equipment, held: Held
) -> RunnerStanding:
    takes_work = row["state"] == RunnerState.ONLINE and row["session_id"] is not None
    total, headroom = resources_of(row, "total_"), resources_of(row, "headroom_")
    room = allocatable(total, headroom, cpu_percent=cpu_percent)
    return RunnerStanding(
        schedulable=takes_work and not row["suspect"],
        free=room.minus(resources_of(row, "reserved_")),
        pool_id=row["pool_id"],
        equipment=equipment,
        held=held,
    )
