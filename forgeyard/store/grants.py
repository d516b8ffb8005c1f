"""Writing granted placements: attempts, leases, reservations, their history and their events.

The caller holds the locks of `commit`; every table is written once, whatever the number of grants.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.model.capability import RESTRICTED_TRUST
from forgeyard.model.equipment import DeviceShare
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.transitions import (
    JOB_TRANSITIONS,
    AttemptState,
    JobState,
    LeaseState,
    check,
)
from forgeyard.model.units import Millis, Resources
from forgeyard.model.wishes import CRITICAL_PURPOSES, Purpose
from forgeyard.scheduler.scopes import Charge
from forgeyard.store import bulk, codec, devices, keys, phases, scopes, tables
from forgeyard.store.amounts import DIMENSIONS, resources_of
from forgeyard.store.changes import DeadlineKind, Row

_RESERVED = tuple(f"reserved_{name}" for name in DIMENSIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One placement to write: a locked eligible job, its locked runner, and the ids drawn."""

    job: Row
    runner: Row
    attempt_id: str
    lease_id: str
    score: int
    scopes: tuple[str, ...]
    """Whose job it is, outermost first."""
    keys: tuple[str, ...] = ()
    """The exclusivity keys that it takes."""
    purpose: Purpose = Purpose.BUILD
    offline: Millis | None = None
    """How long it asked to run on without the server."""
    devices: tuple[DeviceShare, ...] = ()
    """The devices of its runner that it takes."""
    era: int = 0
    """Of the store: no epoch of it is as small."""

    @property
    def resources(self) -> Resources:
        """Tell what the job holds."""
        return resources_of(self.job)

    @property
    def is_critical(self) -> bool:
        """Tell whether the placement must be accounted for (POL-006)."""
        return self.purpose in CRITICAL_PURPOSES or self.runner["trust"] in RESTRICTED_TRUST

    @property
    def number(self) -> int:
        """Count the attempts of the job, this one included."""
        return int(self.job["attempts_made"]) + 1

    @property
    def epoch(self) -> int:
        """Fence off every earlier grant of the job, those that a restore has lost included."""
        return max(int(self.job["epoch"]), self.era) + 1


def write(
    connection: sa.Connection,
    grants: Sequence[Grant],
    charges: Sequence[tuple[Charge, ...]],
    *,
    cycle: Row,
    now: int,
    policy: LeasePolicy,
) -> None:
    """Write every grant of one cycle, and with it what its scopes were charged."""
    if not grants:
        return
    names = _run_names(connection, grants)
    _take_jobs(connection, grants, now=now)
    attempts = [_attempt(grant, cycle, now) for grant in grants]
    bulk.insert(connection, tables.attempts, attempts)
    leases = [
        {**_lease(grant, now, policy), "charged": codec.encode(charged, tuple[Charge, ...])}
        for grant, charged in zip(grants, charges, strict=True)
    ]
    bulk.insert(connection, tables.leases, leases)
    reservations = [_reservation(grant, now, policy) for grant in grants]
    bulk.insert(connection, tables.reservations, reservations)
    _reserve(connection, grants, now)
    taken = [(key, one.lease_id, one.job["job_id"]) for one in grants for key in one.keys]
    keys.take(connection, taken)
    shared = [(one.lease_id, one.runner["runner_id"], one.devices) for one in grants]
    devices.take(connection, shared)
    reason = f"granted by cycle {cycle['cycle_id']}"
    history = [line for one in grants for line in _history(one, reason + _with(one), now)]
    bulk.insert(connection, tables.history, history)
    events = [_event(grant, names[grant.job["run_id"]], now, policy) for grant in grants]
    bulk.insert(connection, tables.outbox, events)
    audited = [_audit(grant, cycle, now) for grant in grants if grant.is_critical]
    bulk.insert(connection, tables.audit, audited)


def _run_names(connection: sa.Connection, grants: Sequence[Grant]) -> dict[str, str]:
    runs = tables.runs
    run_ids = {grant.job["run_id"] for grant in grants}
    named = bulk.among(connection, runs.c.run_id, run_ids)
    query = sa.select(runs.c.run_id, runs.c.name).where(named)
    return {run_id: name for run_id, name in connection.execute(query)}


def _take_jobs(connection: sa.Connection, grants: Sequence[Grant], *, now: int) -> None:
    for grant in grants:
        check(JOB_TRANSITIONS, JobState(grant.job["state"]), JobState.LEASED)
    jobs, deadlines = tables.jobs, tables.deadlines
    job_ids = [grant.job["job_id"] for grant in grants]
    connection.execute(
        sa.update(jobs)
        .where(bulk.among(connection, jobs.c.job_id, job_ids))
        .values(
            state=JobState.LEASED.value,
            version=jobs.c.version + 1,
            epoch=_fenced(jobs.c.epoch, grants[0].era) + 1,
            attempts_made=jobs.c.attempts_made + 1,
            leased_at=now,
            diagnosis=None,
        )
    )
    connection.execute(
        sa.delete(deadlines).where(
            deadlines.c.kind == DeadlineKind.QUEUE.value,
            bulk.among(connection, deadlines.c.entity_id, job_ids),
        )
    )


def _fenced(epoch: sa.Column[int], era: int) -> sa.ColumnElement[int]:
    """Let the next epoch be beyond every one before this era."""
    return sa.case((epoch < era, era), else_=epoch)


def _attempt(grant: Grant, cycle: Row, now: int) -> Row:
    return {
        "attempt_id": grant.attempt_id,
        "job_id": grant.job["job_id"],
        "run_id": grant.job["run_id"],
        "partition": grant.job["partition"],
        "number": grant.number,
        "state": AttemptState.LEASED.value,
        "version": 1,
        "runner_id": grant.runner["runner_id"],
        "session_id": grant.runner["session_id"],
        "capability_digest": grant.runner["capability_digest"],
        "trust": grant.runner["trust"],
        "policy_digest": cycle["policy_digest"],
        "pool_id": grant.runner["pool_id"],
        "score": grant.score,
        "created_at": now,
    }


def _lease(grant: Grant, now: int, policy: LeasePolicy) -> Row:
    return {
        "lease_id": grant.lease_id,
        "attempt_id": grant.attempt_id,
        "job_id": grant.job["job_id"],
        "runner_id": grant.runner["runner_id"],
        "session_id": grant.runner["session_id"],
        "epoch": grant.epoch,
        "state": LeaseState.OFFERED.value,
        "version": 1,
        "grace_ms": policy.grace_of(grant.offline),
        "offered_at": now,
        "expires_at": now + policy.offer_ttl,
    }


def _reservation(grant: Grant, now: int, policy: LeasePolicy) -> Row:
    amounts = {name: grant.job[name] for name in DIMENSIONS}
    whose = dict(zip(scopes.PATH, grant.scopes, strict=True))
    return {
        "lease_id": grant.lease_id,
        "runner_id": grant.runner["runner_id"],
        "pool_id": grant.runner["pool_id"],
        "ends_by": now + phases.at_most(grant.job, policy),
        **whose,
        **amounts,
    }


def _reserve(connection: sa.Connection, grants: Sequence[Grant], now: int) -> None:
    """Raise each runner's sums once, from the values under its lock."""
    sums: dict[str, list[int]] = {}
    for grant in grants:
        before = sums.get(grant.runner["runner_id"], [grant.runner[name] for name in _RESERVED])
        taken = [grant.job[name] for name in DIMENSIONS]
        sums[grant.runner["runner_id"]] = [a + b for a, b in zip(before, taken, strict=True)]
    rows = [
        {"runner_id": runner_id, "changed_at": now, **dict(zip(_RESERVED, amounts, strict=True))}
        for runner_id, amounts in sums.items()
    ]
    bulk.update(connection, tables.runners, rows, keys=("runner_id",))


def _history(grant: Grant, reason: str, now: int) -> tuple[Row, ...]:
    run_id, version = grant.job["run_id"], grant.job["version"] + 1
    entries = (
        ("job", grant.job["job_id"], grant.job["state"], JobState.LEASED.value, version),
        ("attempt", grant.attempt_id, None, AttemptState.LEASED.value, 1),
        ("lease", grant.lease_id, None, LeaseState.OFFERED.value, 1),
    )
    return tuple(
        {
            "kind": kind,
            "entity_id": entity_id,
            "run_id": run_id,
            "before": before,
            "after": after,
            "version": version,
            "reason": reason,
            "at": now,
        }
        for kind, entity_id, before, after, version in entries
    )


def _with(grant: Grant) -> str:
    """Name its devices, which nobody else could tell once they are given back."""
    names = [one.device_id for one in grant.devices]
    return f" with {', '.join(names)}" if names else ""


def _event(grant: Grant, run_name: str, now: int, policy: LeasePolicy) -> Row:
    """Announce an attempt to its workflow; nothing else ever starts one."""
    payload = {
        "run_id": grant.job["run_id"],
        "job_id": grant.job["job_id"],
        "number": grant.number,
        "attempt_id": grant.attempt_id,
        "job_name": grant.job["name"],
        "run_name": run_name,
        "runner_name": grant.runner["name"],
        "backstop_ms": phases.longest(grant.job, policy),
    }
    return {
        "event_id": f"evt_{grant.attempt_id}_1",
        "stream": grant.attempt_id,
        "sequence": 1,
        "kind": "lease.granted",
        "payload": json.dumps(payload, separators=(",", ":")),
        "created_at": now,
    }


def _audit(grant: Grant, cycle: Row, now: int) -> Row:
    """Account for where a job was put that could do harm (POL-006, POL-007)."""
    detail = {
        "attempt": grant.attempt_id,
        "purpose": grant.purpose.value,
        "runner": grant.runner["name"],
        "runner_id": grant.runner["runner_id"],
        "pool_id": grant.runner["pool_id"],
        "trust": grant.runner["trust"],
        "capability_digest": grant.runner["capability_digest"],
        "policy_digest": cycle["policy_digest"],
    }
    return {
        "at": now,
        "actor": "scheduler",
        "channel": "cycle",
        "action": "job.placed",
        "target": grant.job["job_id"],
        "detail": json.dumps(detail, separators=(",", ":")),
    }
