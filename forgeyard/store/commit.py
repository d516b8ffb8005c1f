"""Turning a stored plan into leases: the only place where capacity is given away (LSE-004).

One transaction locks the scopes, then the jobs (those that another scheduler holds are skipped),
then every runner that is a candidate; judges all placements at once on the locked rows; and writes
what was granted in a handful of statements, whatever the size of the batch. Verdicts are stored
with the grants, so committing again returns them and writes nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from forgeyard.errors import NotFound
from forgeyard.model.equipment import NO_EQUIPMENT, Equipment, EquipmentRequirement
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import JobState
from forgeyard.model.units import Bytes, MilliCpu, Resources
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
from forgeyard.scheduler.room import allocatable
from forgeyard.store import bulk, codec, devices, grants, keys, policies, scopes, tables, wishes
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now
from forgeyard.store.grants import Grant
from forgeyard.store.plans import PlanSaved, save_plan

__all__ = ["CommitOutcome", "PlanSaved", "commit_cycle", "save_plan"]

_cycles, _placements = tables.cycles, tables.placements
_jobs, _runners = tables.jobs, tables.runners


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOutcome:
    """How many placements became leases, and the verdict on each, in the plan's order."""

    granted: int
    refused: int
    verdicts: tuple[tuple[str, Verdict], ...]


def commit_cycle(
    connection: sa.Connection, cycle_id: int, *, built_in: SchedulingPolicy
) -> CommitOutcome:
    """Grant as many placements of a plan as fit now; a second time, only tell what was granted.

    A plan that was made under another policy than the one in force is void.

    Raises:
        NotFound: there is no such cycle.
    """
    cycle = _lock_cycle(connection, cycle_id)
    planned = _planned(connection, cycle_id)
    if cycle["committed_at"] is not None:
        return _outcome([(row["job_id"], Verdict(row["verdict"])) for row in planned])
    scoped = scopes.lock(connection, {row[name] for row in planned for name in scopes.PATH})
    # Under the locks of the scopes nobody sets another one.
    in_force = policies.current(connection, built_in)
    jobs = _lock_jobs(connection, planned)
    runners = _lock_runners(connection, planned)
    now = database_now(connection)
    requests = [_request(row, runners) for row in planned]
    if cycle["policy_digest"] == in_force.digest:
        gates = Gates(scoped, keys.load(connection))
        standings = _runner_standings(connection, runners, requests, policy=in_force.policy)
        answers = grant(requests, _job_standings(jobs), standings, gates=gates)
    else:
        answers = refuse_all(requests, Verdict.POLICY_CHANGED)
    granted = [
        Grant(
            job=jobs[answer.job_id],
            runner=runners[answer.runner_id],
            attempt_id=row["attempt_id"],
            lease_id=row["lease_id"],
            score=answer.score,
            scopes=_path(row),
            keys=row["wishes"].keys,
            devices=answer.devices,
        )
        for row, answer in zip(planned, answers, strict=True)
        if answer.runner_id is not None
    ]
    grants.write(connection, granted, cycle=cycle, now=now, policy=in_force.policy.lease)
    scopes.charge(connection, scoped, ((one.scopes, one.resources) for one in granted))
    _save_verdicts(connection, planned, answers)
    closed = {"committed_at": now, "granted": len(granted)}
    connection.execute(sa.update(_cycles).where(_cycles.c.cycle_id == cycle_id).values(closed))
    return _outcome([(answer.job_id, answer.verdict) for answer in answers])


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
    query = sa.select(_cycles).where(_cycles.c.cycle_id == cycle_id).with_for_update()
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFound(f"no cycle {cycle_id}", field="cycle_id", value=cycle_id)
    return dict(row)


def _planned(connection: sa.Connection, cycle_id: int) -> list[Row]:
    """Read the placements in order, with what never changes about their jobs."""
    amounts = (_jobs.c.cpu_milli, _jobs.c.memory_bytes, _jobs.c.disk_bytes, _jobs.c.slots)
    whose = (_jobs.c.name, _jobs.c.wishes, *(_jobs.c[name] for name in scopes.PATH))
    query = (
        sa.select(_placements, *whose, *amounts)
        .join(_jobs, _jobs.c.job_id == _placements.c.job_id)
        .where(_placements.c.cycle_id == cycle_id)
        .order_by(_placements.c.position)
    )
    rows = connection.execute(query).mappings()
    return [
        {**row, "candidates": json.loads(row["candidates"]), "wishes": wishes.read(row["wishes"])}
        for row in rows
    ]


def _path(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in scopes.PATH)


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
        _jobs.c.spec,
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
    candidates = {runner_id for row in planned for runner_id, *_ in row["candidates"]}
    columns = [column for column in _runners.c if column.name != "capabilities"]
    query = (
        sa.select(*columns)
        .where(bulk.among(connection, _runners.c.runner_id, candidates))
        .order_by(_runners.c.runner_id)
        .with_for_update()
    )
    return {row["runner_id"]: dict(row) for row in connection.execute(query).mappings()}


def _request(row: Row, runners: Mapping[str, Row]) -> GrantRequest:
    """Ask for the candidates that are still what they were judged to be.

    One that registered with other capabilities or another trust since may break a requirement.
    """
    candidates = tuple(
        (runner_id, score)
        for runner_id, score, judged in row["candidates"]
        if runner_id in runners and judged in (None, runners[runner_id]["capability_digest"])
    )
    return GrantRequest(
        job_id=row["job_id"],
        name=row["name"],
        resources=_resources(row),
        candidates=candidates,
        scopes=_path(row),
        keys=row["wishes"].keys,
        devices=NO_EQUIPMENT
        if row["devices"] is None
        else codec.decode(EquipmentRequirement, row["devices"]),
    )


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
    total, headroom = _resources(row, "total_"), _resources(row, "headroom_")
    room = allocatable(total, headroom, cpu_percent=cpu_percent)
    return RunnerStanding(
        schedulable=takes_work and not row["suspect"],
        free=room.minus(_resources(row, "reserved_")),
    )


def _resources(row: Row, prefix: str = "") -> Resources:
    return Resources(
        cpu=MilliCpu(row[f"{prefix}cpu_milli"]),
        memory=Bytes(row[f"{prefix}memory_bytes"]),
        disk=Bytes(row[f"{prefix}disk_bytes"]),
        slots=row[f"{prefix}slots"],
    )
