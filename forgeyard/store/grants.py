"""Writing what a commit decided: leases with all that belongs to them, verdicts, and fairness.

The caller holds the locks of `commit`; all of it is one batch, whatever the number of grants. What
stands in the locked rows of jobs and runners is copied by the database.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

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
from forgeyard.model.wishes import CRITICAL_PURPOSES, Purpose
from forgeyard.scheduler.scopes import Charge
from forgeyard.store import batch, phases, scopes, tables
from forgeyard.store.amounts import DIMENSIONS
from forgeyard.store.changes import DeadlineKind, Row

_JOBS = ("run_id", "partition", "state", "version", *scopes.PATH, *DIMENSIONS)
_RUNNERS = ("session_id", "capability_digest", "trust", "pool_id")
Values: TypeAlias = Mapping[str, sa.ColumnElement[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One placement to write: its row in the plan, a locked eligible job and its locked runner."""

    placement: Row
    job: Row
    runner: Row
    score: int
    purpose: Purpose = Purpose.BUILD
    devices: tuple[DeviceShare, ...] = ()
    """The devices of its runner that it takes."""

    @property
    def is_critical(self) -> bool:
        """Tell whether the placement must be accounted for (POL-006)."""
        return self.purpose in CRITICAL_PURPOSES or self.runner["trust"] in RESTRICTED_TRUST


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """All that one commit writes."""

    grants: Sequence[Grant]
    charges: Sequence[tuple[Charge, ...]]
    """What the scopes of each grant were charged."""
    tags: Sequence[Row]
    """The scopes whose service has changed by that."""
    verdicts: Sequence[Row]
    """The verdict on each placement, by its position in the plan."""


def write(
    connection: sa.Connection, decided: Decided, *, cycle: Row, now: int, policy: LeasePolicy
) -> None:
    """Write what was decided about one cycle, and that it is committed."""
    check(JOB_TRANSITIONS, JobState.ELIGIBLE, JobState.LEASED)
    grants = decided.grants
    rows = {
        "grants": [
            _grant(grant, charged, now, policy)
            for grant, charged in zip(grants, decided.charges, strict=True)
        ],
        "taken_keys": [row for grant in grants for row in _keys(grant)],
        "taken_devices": [row for grant in grants for row in _devices(grant)],
        "audits": [_audit(grant, cycle) for grant in grants if grant.is_critical],
        "tags": decided.tags,
        "verdicts": decided.verdicts,
    }
    constants = {
        "cycle": cycle["cycle_id"],
        "granted": len(grants),
        "digest": cycle["policy_digest"],
        "reason": f"granted by cycle {cycle['cycle_id']}",
        "expiry": now + policy.offer_ttl,
        "moment": now,
    }
    texts = {name: batch.rows_text(each) for name, each in rows.items()}
    batch.change(connection, _changes(connection.dialect), {**texts, **constants})


def _grant(grant: Grant, charged: tuple[Charge, ...], now: int, policy: LeasePolicy) -> Row:
    placement = grant.placement
    at_most = phases.at_most(placement, policy)
    return {
        "job_id": placement["job_id"],
        "runner_id": grant.runner["runner_id"],
        "attempt_id": placement["attempt_id"],
        "lease_id": placement["lease_id"],
        "note": _with(grant.devices) if grant.devices else "",
        "score": grant.score,
        "ends_by": now + at_most,
        "grace_ms": policy.grace_of(placement["wishes"].offline),
        "charged": [
            {"price": one.price, "start": one.start, "before": one.before} for one in charged
        ],
        "payload": {
            "run_id": grant.job["run_id"],
            "job_id": placement["job_id"],
            "number": grant.job["attempts_made"] + 1,
            "attempt_id": placement["attempt_id"],
            "job_name": placement["name"],
            "run_name": grant.job["run_name"],
            "runner_name": grant.runner["name"],
            "backstop_ms": at_most + policy.settle_within,
        },
    }


def _with(devices: Sequence[DeviceShare]) -> str:
    """Name devices, which nobody else could tell once they are given back."""
    return f" with {', '.join(one.device_id for one in devices)}"


def _keys(grant: Grant) -> list[Row]:
    lease = {"lease_id": grant.placement["lease_id"], "job_id": grant.placement["job_id"]}
    return [{"key_name": key, **lease} for key in grant.placement["wishes"].keys]


def _devices(grant: Grant) -> list[Row]:
    whose = {"lease_id": grant.placement["lease_id"], "runner_id": grant.runner["runner_id"]}
    return [{"device_id": one.device_id, "share": one.share, **whose} for one in grant.devices]


def _audit(grant: Grant, cycle: Row) -> Row:
    """Account for where a job was put that could do harm (POL-006, POL-007)."""
    detail = {
        "attempt": grant.placement["attempt_id"],
        "purpose": grant.purpose.value,
        "runner": grant.runner["name"],
        "runner_id": grant.runner["runner_id"],
        "pool_id": grant.runner["pool_id"],
        "trust": grant.runner["trust"],
        "capability_digest": grant.runner["capability_digest"],
        "policy_digest": cycle["policy_digest"],
    }
    return {"target": grant.placement["job_id"], "detail": detail}


@lru_cache(maxsize=32)
def _changes(dialect: sa.Dialect) -> batch.Batch:
    """Prepare everything; jobs come last, for the others read what they were before."""
    granted = _granted(dialect)
    return batch.changes_of(
        dialect,
        (
            _insert(tables.attempts, _attempts(granted)),
            _insert(tables.leases, _leases(granted)),
            _insert(tables.reservations, _reservations(granted)),
            *_takings(dialect),
            *_history(granted),
            _insert(tables.outbox, _events(granted)),
            _insert(tables.audit, _audits(dialect)),
            _reserve(granted),
            *_endings(granted),
            *_closings(dialect),
            _lease_jobs(granted),
        ),
    )


def _granted(dialect: sa.Dialect) -> sa.CTE:
    """Join the grants with what stands in the rows of their jobs and runners."""
    grants = batch.given(
        dialect,
        "grants",
        texts=("job_id", "runner_id", "attempt_id", "lease_id", "note"),
        numbers=("score", "ends_by", "grace_ms"),
        objects=("charged", "payload"),
    )
    jobs, runners = tables.jobs, tables.runners
    return (
        sa.select(
            grants,
            *(jobs.c[name] for name in _JOBS),
            *(runners.c[name] for name in _RUNNERS),
            (jobs.c.epoch + 1).label("epoch"),
            (jobs.c.attempts_made + 1).label("number"),
        )
        .join_from(grants, jobs, jobs.c.job_id == grants.c.job_id)
        .join(runners, runners.c.runner_id == grants.c.runner_id)
        .cte("granted")
    )


def _copied(granted: sa.CTE, *names: str) -> dict[str, sa.ColumnElement[Any]]:
    return {name: granted.c[name] for name in names}


def _attempts(granted: sa.CTE) -> Values:
    same = ("attempt_id", "job_id", "run_id", "partition", "number", "runner_id", "score")
    return {
        **_copied(granted, *same, *_RUNNERS),
        "state": sa.literal(AttemptState.LEASED.value),
        "version": sa.literal(1),
        "policy_digest": _text("digest"),
        "created_at": _number("moment"),
    }


def _leases(granted: sa.CTE) -> Values:
    same = (
        "lease_id",
        "attempt_id",
        "job_id",
        "runner_id",
        "session_id",
        "epoch",
        "grace_ms",
        "charged",
    )
    return {
        **_copied(granted, *same),
        "state": sa.literal(LeaseState.OFFERED.value),
        "version": sa.literal(1),
        "offered_at": _number("moment"),
        "expires_at": _number("expiry"),
    }


def _reservations(granted: sa.CTE) -> Values:
    same = ("lease_id", "runner_id", "pool_id", "ends_by")
    return _copied(granted, *same, *scopes.PATH, *DIMENSIONS)


def _history(granted: sa.CTE) -> Iterator[sa.Insert]:
    """Write a line for the job, the attempt and the lease."""
    first, none = sa.literal(1), sa.null()
    entries = (
        ("job", granted.c.job_id, granted.c.state, JobState.LEASED, granted.c.version + 1),
        ("attempt", granted.c.attempt_id, none, AttemptState.LEASED, first),
        ("lease", granted.c.lease_id, none, LeaseState.OFFERED, first),
    )
    for kind, entity_id, before, after, version in entries:
        values = {
            "kind": sa.literal(kind),
            "entity_id": entity_id,
            "run_id": granted.c.run_id,
            "before": before,
            "after": sa.literal(after.value),
            "version": version,
            "reason": _text("reason") + granted.c.note,
            "at": _number("moment"),
        }
        yield _insert(tables.history, values)


def _events(granted: sa.CTE) -> Values:
    """Announce each attempt to its workflow; nothing else ever starts one."""
    return {
        "event_id": sa.literal("evt_") + granted.c.attempt_id + sa.literal("_1"),
        "stream": granted.c.attempt_id,
        "sequence": sa.literal(1),
        "kind": sa.literal("lease.granted"),
        "payload": granted.c.payload,
        "created_at": _number("moment"),
    }


def _audits(dialect: sa.Dialect) -> Values:
    audits = batch.given(dialect, "audits", texts=("target",), objects=("detail",))
    return {
        **_copied(audits, "target", "detail"),
        "at": _number("moment"),
        "actor": sa.literal("scheduler"),
        "channel": sa.literal("cycle"),
        "action": sa.literal("job.placed"),
    }


def _takings(dialect: sa.Dialect) -> Iterator[sa.Insert]:
    """Give keys and devices to the leases; by the locks and the judgement they are free."""
    names = ("key_name", "lease_id", "job_id")
    yield _insert(
        tables.key_holds, _copied(batch.given(dialect, "taken_keys", texts=names), *names)
    )
    texts, numbers = ("lease_id", "runner_id", "device_id"), ("share",)
    taken = batch.given(dialect, "taken_devices", texts=texts, numbers=numbers)
    yield _insert(tables.device_holds, _copied(taken, *texts, *numbers))


def _insert(table: sa.Table, values: Values) -> sa.Insert:
    chosen = sa.select(*(value.label(name) for name, value in values.items()))
    return sa.insert(table).from_select(list(values), chosen, include_defaults=False)


def _reserve(granted: sa.CTE) -> sa.Update:
    """Raise each runner's sums once, from the values under its lock."""
    runners = tables.runners
    sums = (
        sa.select(
            granted.c.runner_id,
            *(_sum(granted.c[name]).label(name) for name in DIMENSIONS),
        )
        .group_by(granted.c.runner_id)
        .subquery()
    )
    raised = {
        f"reserved_{name}": runners.c[f"reserved_{name}"] + sums.c[name] for name in DIMENSIONS
    }
    return (
        sa.update(runners)
        .where(runners.c.runner_id == sums.c.runner_id)
        .values(changed_at=_number("moment"), **raised)
    )


def _sum(amount: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return sa.cast(sa.func.sum(amount), sa.BigInteger)


def _endings(granted: sa.CTE) -> Iterator[sa.Delete]:
    """Stop what counted while the jobs waited: their queue timeouts, and room held for them."""
    deadlines, held = tables.deadlines, tables.held_room
    job_ids = sa.select(granted.c.job_id)
    waiting = deadlines.c.kind == DeadlineKind.QUEUE.value
    yield sa.delete(deadlines).where(waiting, deadlines.c.entity_id.in_(job_ids))
    yield sa.delete(held).where(held.c.job_id.in_(job_ids))


def _closings(dialect: sa.Dialect) -> Iterator[sa.Update]:
    """Store what the scopes were charged, the verdicts, and that the cycle is committed."""
    known, placements, cycles = tables.scopes, tables.placements, tables.cycles
    tags = batch.given(dialect, "tags", texts=("scope_id",), numbers=("finish_tag", "clock"))
    yield (
        sa.update(known)
        .where(known.c.scope_id == tags.c.scope_id)
        .values(_copied(tags, "finish_tag", "clock"))
    )
    names = ("verdict", "runner_id")
    verdicts = batch.given(dialect, "verdicts", texts=names, numbers=("position",))
    mine = placements.c.cycle_id == _number("cycle")
    yield (
        sa.update(placements)
        .where(mine, placements.c.position == verdicts.c.position)
        .values(_copied(verdicts, *names))
    )
    closed = {"committed_at": _number("moment"), "granted": _number("granted")}
    yield sa.update(cycles).where(cycles.c.cycle_id == _number("cycle")).values(closed)


def _lease_jobs(granted: sa.CTE) -> sa.Update:
    jobs = tables.jobs
    return (
        sa.update(jobs)
        .where(jobs.c.job_id == granted.c.job_id)
        .values(
            state=JobState.LEASED.value,
            version=jobs.c.version + 1,
            epoch=granted.c.epoch,
            attempts_made=granted.c.number,
            leased_at=_number("moment"),
            diagnosis=None,
        )
    )


def _text(name: str) -> sa.BindParameter[str]:
    return sa.bindparam(name, type_=sa.Text())


def _number(name: str) -> sa.BindParameter[int]:
    return sa.bindparam(name, type_=sa.BigInteger())
