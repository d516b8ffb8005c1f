"""Turning a stored plan into leases: the only place where capacity is given away (LSE-004).

One transaction locks the scopes, then the jobs (those that another scheduler holds are skipped),
then every runner that is a candidate; judges all placements at once on the locked rows; and writes
what was granted in a handful of statements, whatever the size of the batch. Verdicts are stored
with the grants, so committing again returns them and writes nothing.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from forgeyard.errors import NotFound
from forgeyard.model.equipment import NO_EQUIPMENT, Equipment, EquipmentRequirement
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import JobState
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
from forgeyard.scheduler.standing import fingerprint
from forgeyard.store import (
    bulk,
    devices,
    grants,
    holds,
    keys,
    lineage,
    phases,
    policies,
    pools,
    scopes,
    tables,
    wishes,
)
from forgeyard.store.amounts import DIMENSIONS, resources_of
from forgeyard.store.changes import Row
from forgeyard.store.codec import decode
from forgeyard.store.engine import database_now
from forgeyard.store.grants import Grant
from forgeyard.store.plans import PlanSaved, save_plan

__all__ = ["CommitOutcome", "PlanSaved", "commit_cycle", "save_plan"]

_cycles, _placements = tables.cycles, tables.placements
_jobs, _runners = tables.jobs, tables.runners


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
    cycle = _lock_cycle(connection, cycle_id)
    planned = _planned(connection, cycle_id)
    if cycle["committed_at"] is not None:
        known = [(row["job_id"], Verdict(row["verdict"])) for row in planned]
        return replace(_outcome(known), repeated=True)
    places = _pools(connection, planned)
    named = {row[name] for row in planned for name in scopes.PATH}
    scoped = scopes.lock(connection, named | places)
    # Under the locks of the scopes nobody sets another one.
    in_force = policies.current(connection, built_in)
    jobs = _lock_jobs(connection, planned)
    runners = _lock_runners(connection, planned)
    now = database_now(connection)
    versions = pools.versions(connection, places)
    lease = in_force.policy.lease
    requests = [_request(row, runners, versions=versions, policy=lease) for row in planned]
    void = _why_void(cycle, in_force.digest)
    if void is None:
        gates = Gates(scoped, keys.load(connection))
        answers = grant(
            requests,
            _job_standings(jobs),
            _runner_standings(connection, runners, requests, policy=in_force.policy),
            gates=gates,
            holds=Holds(holds.load(connection, now=now), now),
        )
    else:
        answers = refuse_all(requests, void)
    granted = _grants(planned, answers, jobs=jobs, runners=runners, era=cycle["era"])
    served = ((one.scopes, one.resources) for one in granted)
    charges = scopes.charge(connection, scoped, served)
    grants.write(connection, granted, charges, cycle=cycle, now=now, policy=lease)
    _hold(connection, cycle, {one.job["job_id"] for one in granted}, now=now)
    _save_verdicts(connection, planned, answers)
    closed = {"committed_at": now, "granted": len(granted)}
    connection.execute(sa.update(_cycles).where(_cycles.c.cycle_id == cycle_id).values(closed))
    outcome = _outcome([(answer.job_id, answer.verdict) for answer in answers])
    return replace(outcome, placed=tuple(_placed(one, now) for one in granted))


def _why_void(cycle: Row, digest: str) -> Verdict | None:
    """Say why nothing of a plan may be granted, if so."""
    if cycle["held_at"] is not None:
        return Verdict.STORE_HELD
    return None if cycle["policy_digest"] == digest else Verdict.POLICY_CHANGED


def _grants(
    planned: Sequence[Row],
    answers: Sequence[Granted],
    *,
    jobs: Mapping[str, Row],
    runners: Mapping[str, Row],
    era: int,
) -> list[Grant]:
    return [
        Grant(
            job=jobs[answer.job_id],
            runner=runners[answer.runner_id],
            attempt_id=row["attempt_id"],
            lease_id=row["lease_id"],
            score=answer.score,
            scopes=scopes.path_of(row),
            keys=row["wishes"].keys,
            purpose=row["wishes"].purpose,
            offline=row["wishes"].offline,
            devices=answer.devices,
            era=era,
        )
        for row, answer in zip(planned, answers, strict=True)
        if answer.runner_id is not None
    ]


def _placed(grant: Grant, now: int) -> Placed:
    waited = max(0, now - grant.job["eligible_at"])
    return Placed(
        run_id=grant.job["run_id"],
        job_id=grant.job["job_id"],
        attempt_id=grant.attempt_id,
        runner_id=grant.runner["runner_id"],
        priority=grant.job["priority"],
        waited_ms=waited,
        score=grant.score,
    )


def _hold(connection: sa.Connection, cycle: Row, placed: Collection[str], *, now: int) -> None:
    """End the holds of whoever has a runner now, and keep room for whom the plan says."""
    holds.drop(connection, placed)
    wish = None if cycle["backfill"] is None else decode(BackfillWish, cycle["backfill"])
    needed = wish if wish is not None and wish.job_id not in placed else None
    holds.keep(connection, cycle["partition"], needed, now=now)


def _save_verdicts(
    connection: sa.Connection, planned: Sequence[Row], answers: Sequence[Granted]
) -> None:
    verdicts = [
        {
            "cycle_id": row["cycle_id"],
            "position": row["position"],
            "verdict": answer.verdict.value,
            "runner_id": answer.runner_id,
        }
        for row, answer in zip(planned, answers, strict=True)
    ]
    bulk.update(connection, _placements, verdicts, keys=("cycle_id", "position"))


def _outcome(verdicts: Sequence[tuple[str, Verdict]]) -> CommitOutcome:
    granted = sum(1 for _, verdict in verdicts if verdict is Verdict.GRANTED)
    return CommitOutcome(granted=granted, refused=len(verdicts) - granted, verdicts=tuple(verdicts))


def _lock_cycle(connection: sa.Connection, cycle_id: int) -> Row:
    query = (
        sa.select(_cycles, *lineage.STANDING)
        .where(_cycles.c.cycle_id == cycle_id)
        .with_for_update(of=_cycles)
    )
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFound(f"no cycle {cycle_id}", field="cycle_id", value=cycle_id)
    return dict(row)


def _planned(connection: sa.Connection, cycle_id: int) -> list[Row]:
    """Read the placements in order, with what never changes about their jobs."""
    whose = (
        _jobs.c.name,
        _jobs.c.wishes,
        _jobs.c.lasts_ms,
        *(_jobs.c[name] for name in (*scopes.PATH, *DIMENSIONS)),
    )
    query = (
        sa.select(_placements, *whose)
        .join(_jobs, _jobs.c.job_id == _placements.c.job_id)
        .where(_placements.c.cycle_id == cycle_id)
        .order_by(_placements.c.position)
    )
    rows = connection.execute(query).mappings()
    return [
        {**row, "candidates": json.loads(row["candidates"]), "wishes": wishes.read(row["wishes"])}
        for row in rows
    ]


def _candidates(planned: Sequence[Row]) -> set[str]:
    return {runner_id for row in planned for runner_id, *_ in row["candidates"]}


def _pools(connection: sa.Connection, planned: Sequence[Row]) -> set[str]:
    """Read which pools the candidates belong to; one that moves meanwhile is not asked."""
    among = bulk.among(connection, _runners.c.runner_id, _candidates(planned))
    query = sa.select(_runners.c.pool_id).where(among).distinct()
    return set(connection.execute(query).scalars())


def _lock_jobs(connection: sa.Connection, planned: Sequence[Row]) -> dict[str, Row]:
    columns = (
        _jobs.c.job_id,
        _jobs.c.run_id,
        _jobs.c.name,
        _jobs.c.partition,
        _jobs.c.state,
        _jobs.c.version,
        _jobs.c.epoch,
        _jobs.c.attempts_made,
        _jobs.c.cancel_reason,
        _jobs.c.priority,
        _jobs.c.eligible_at,
        _jobs.c.spec,
        _jobs.c.lasts_ms,
        _jobs.c.cpu_milli,
        _jobs.c.memory_bytes,
        _jobs.c.disk_bytes,
        _jobs.c.slots,
    )
    query = (
        sa.select(*columns)
        .where(bulk.among(connection, _jobs.c.job_id, {row["job_id"] for row in planned}))
        .order_by(_jobs.c.job_id)
        .with_for_update(skip_locked=True)
    )
    return {row["job_id"]: dict(row) for row in connection.execute(query).mappings()}


def _lock_runners(connection: sa.Connection, planned: Sequence[Row]) -> dict[str, Row]:
    """Lock every candidate, so that a full one can be replaced by the next."""
    columns = [column for column in _runners.c if column.name != "capabilities"]
    query = (
        sa.select(*columns)
        .where(bulk.among(connection, _runners.c.runner_id, _candidates(planned)))
        .order_by(_runners.c.runner_id)
        .with_for_update()
    )
    return {row["runner_id"]: dict(row) for row in connection.execute(query).mappings()}


def _request(
    row: Row, runners: Mapping[str, Row], *, versions: Mapping[str, int], policy: LeasePolicy
) -> GrantRequest:
    """Ask for the candidates that are still what they were judged to be.

    One that registered with other capabilities or another trust since, or whose pool is another or
    was changed, may break a requirement.
    """
    candidates = tuple(
        (runner_id, score)
        for runner_id, score, judged in row["candidates"]
        if runner_id in runners and judged in (None, _fingerprint(runners[runner_id], versions))
    )
    return GrantRequest(
        job_id=row["job_id"],
        name=row["name"],
        resources=resources_of(row),
        candidates=candidates,
        scopes=scopes.path_of(row),
        keys=row["wishes"].keys,
        devices=NO_EQUIPMENT
        if row["devices"] is None
        else decode(EquipmentRequirement, row["devices"]),
        lasts=phases.at_most(row, policy),
    )


def _fingerprint(runner: Row, versions: Mapping[str, int]) -> str:
    pool_id = runner["pool_id"]
    return fingerprint(runner["capability_digest"], pool_id, versions.get(pool_id, 0))


def _job_standings(jobs: Mapping[str, Row]) -> dict[str, JobStanding]:
    return {job_id: _job_standing(row) for job_id, row in jobs.items()}


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
    equipment = devices.equipment_of(connection, asked) if asked else {}
    held = devices.held_on(connection, asked) if asked else {}
    percent = policy.overcommit.cpu_percent
    return {
        runner_id: replace(
            _runner_standing(row, cpu_percent=percent),
            equipment=equipment.get(runner_id, Equipment()),
            held=held.get(runner_id, {}),
        )
        for runner_id, row in runners.items()
    }


def _job_standing(row: Row) -> JobStanding:
    if row["cancel_reason"] is not None or row["state"] == JobState.CANCELLED:
        return JobStanding.CANCELLED
    return JobStanding.ELIGIBLE if row["state"] == JobState.ELIGIBLE else JobStanding.GONE


def _runner_standing(row: Row, *, cpu_percent: int) -> RunnerStanding:
    takes_work = row["state"] == RunnerState.ONLINE and row["session_id"] is not None
    total, headroom = resources_of(row, "total_"), resources_of(row, "headroom_")
    room = allocatable(total, headroom, cpu_percent=cpu_percent)
    return RunnerStanding(
        schedulable=takes_work and not row["suspect"],
        free=room.minus(resources_of(row, "reserved_")),
        pool_id=row["pool_id"],
    )
