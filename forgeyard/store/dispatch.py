"""What waiting agents are to be told: offers, cancellations, drains, and that a machine goes.

Delivery is at least once: an offer is repeated in every answer until it is accepted, rejected or
has lapsed, and the agent recognises it by its lease. Reading changes nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from forgeyard.model.ids import AttemptId, Digest, JobId, LeaseId, RunId
from forgeyard.model.job import JobSpec
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.protocol import Assignments, Input, Offer
from forgeyard.model.transitions import LeaseState, SessionState
from forgeyard.model.units import Millis
from forgeyard.store import bulk, devices, fleet_tables, lineage, specs, tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import now_ms

_leases, _jobs, _runs = tables.leases, tables.jobs, tables.runs
_artifacts, _attempts = tables.artifacts, tables.attempts
_sessions, _runners = tables.sessions, tables.runners
_instances = fleet_tables.capacity_instances

# Built once: these run several times a second, and to build them costs more than to run them.
_WAITING: sa.BindParameter[str] = sa.bindparam("sessions", expanding=True)
_TAKEN_AWAY = sa.and_(
    _instances.c.runner_name == _runners.c.name,
    _instances.c.interrupted_at.is_not(None),
    _instances.c.ended_at.is_(None),
)
_OPEN = (
    sa.select(
        _sessions.c.session_id,
        _runners.c.drain_requested,
        _instances.c.interrupted_at,
        (_instances.c.leaves_at - now_ms()).label("left"),
    )
    .join(_runners, _runners.c.runner_id == _sessions.c.runner_id)
    .outerjoin(_instances, _TAKEN_AWAY)
    .where(_sessions.c.session_id.in_(_WAITING), _sessions.c.state == SessionState.OPEN.value)
)
_OFFERED = (
    sa.select(
        _leases.c.lease_id,
        _leases.c.session_id,
        _leases.c.epoch,
        _leases.c.grace_ms,
        (_leases.c.expires_at - now_ms()).label("left"),
        _attempts.c.attempt_id,
        _attempts.c.number,
        _jobs.c.job_id,
        _jobs.c.spec,
        _runs.c.run_id,
        _runs.c.name.label("run_name"),
        _runs.c.source_digest,
        _runs.c.git,
    )
    .join(_attempts, _attempts.c.attempt_id == _leases.c.attempt_id)
    .join(_jobs, _jobs.c.job_id == _leases.c.job_id)
    .join(_runs, _runs.c.run_id == _jobs.c.run_id)
    .where(
        _leases.c.session_id.in_(_WAITING),
        _leases.c.state == LeaseState.OFFERED.value,
        _leases.c.expires_at > now_ms(),
    )
    .order_by(_leases.c.offered_at, _leases.c.lease_id)
)
_CANCELLED = (
    sa.select(_leases.c.session_id, _leases.c.lease_id)
    .where(
        _leases.c.session_id.in_(_WAITING),
        _leases.c.state == LeaseState.ACTIVE.value,
        _leases.c.cancel_requested == 1,
    )
    .order_by(_leases.c.lease_id)
)


def assignments(
    connection: sa.Connection, session_ids: Collection[str], *, policy: LeasePolicy
) -> dict[str, Assignments]:
    """Answer every waiting session from one set of queries; a session that ended is left out.

    While the store is held nobody is told anything: an offer may be one that was taken long ago.
    """
    if lineage.is_held(connection):
        return {session_id: Assignments() for session_id in session_ids}
    waiting = _open_sessions(connection, session_ids)
    if not waiting:
        return {}
    offered = _offered(connection, waiting)
    cancelled = _cancelled(connection, waiting)
    inputs = inputs_of(connection, offered)
    given = devices.of_leases(connection, [row["lease_id"] for row in offered])
    # An offer that cannot be read must not silence the others: it lapses, and its job is parked.
    readable = [(row, spec) for row in offered if (spec := specs.find(row)) is not None]
    return {
        session_id: Assignments(
            offers=tuple(
                replace(
                    _offer(row, spec, inputs[row["job_id"]], policy),
                    devices=given.get(row["lease_id"], ()),
                )
                for row, spec in readable
                if row["session_id"] == session_id
            ),
            cancel=tuple(cancelled.get(session_id, ())),
            drain=drain,
            leaving=leaving,
        )
        for session_id, (drain, leaving) in waiting.items()
    }


def _open_sessions(
    connection: sa.Connection, session_ids: Collection[str]
) -> dict[str, tuple[bool, Millis | None]]:
    """Map the sessions that are open to whether their runner drains, and how soon it goes."""
    found = connection.execute(_OPEN, {"sessions": list(session_ids)})
    return {
        session_id: (bool(drain), None if told_at is None else Millis(max(0, left or 0)))
        for session_id, drain, told_at, left in found
    }


def _offered(connection: sa.Connection, session_ids: Iterable[str]) -> Sequence[Row]:
    """Read the offers that have not lapsed, oldest first."""
    rows = connection.execute(_OFFERED, {"sessions": list(session_ids)}).mappings()
    return [dict(row) for row in rows]


def _cancelled(
    connection: sa.Connection, session_ids: Iterable[str]
) -> Mapping[str, list[LeaseId]]:
    found: dict[str, list[LeaseId]] = {}
    rows = connection.execute(_CANCELLED, {"sessions": list(session_ids)})
    for session_id, lease_id in rows:
        found.setdefault(session_id, []).append(lease_id)
    return found


def inputs_of(connection: sa.Connection, offered: Sequence[Row]) -> Mapping[str, tuple[Input, ...]]:
    """List what each of some jobs unpacks: the source, then the outputs of its needs in order."""
    if not offered:
        return {}
    sources = _sizes(connection, {row["source_digest"] for row in offered} - {None})
    outputs = _outputs_of_needs(connection, {row["job_id"] for row in offered})
    inputs: dict[str, tuple[Input, ...]] = {}
    for row in offered:
        digest = row["source_digest"]
        source: tuple[Input, ...] = ()
        if digest is not None:
            source = (Input(origin="source", digest=digest, size=sources.get(digest, 0)),)
        inputs[row["job_id"]] = (*source, *outputs.get(row["job_id"], ()))
    return inputs


def _sizes(connection: sa.Connection, digests: Collection[Digest]) -> Mapping[Digest, int]:
    blobs = tables.blobs
    query = sa.select(blobs.c.digest, blobs.c.size_bytes).where(
        bulk.among(connection, blobs.c.digest, digests)
    )
    return {digest: size for digest, size in connection.execute(query)}


def _outputs_of_needs(
    connection: sa.Connection, job_ids: Collection[str]
) -> Mapping[str, list[Input]]:
    """Read the artifacts of the last attempt of every needed job.

    A need that took over the success of an earlier run has its artifacts there.
    """
    found: dict[str, list[Input]] = {}
    rows = connection.execute(_needed(), {"jobs": sorted(job_ids)})
    for job_id, need_name, name, digest, size in rows:
        one = Input(origin=f"{need_name}/{name}", digest=digest, size=size)
        found.setdefault(job_id, []).append(one)
    return found


@lru_cache(maxsize=1)
def _needed() -> sa.Select[*tuple[Any, ...]]:
    """Build the statement once: that takes longer than to run it."""
    needs, need, holder = tables.job_needs, _jobs.alias("need"), _jobs.alias("holder")
    return (
        sa.select(
            needs.c.job_id,
            need.c.name.label("need_name"),
            _artifacts.c.name,
            _artifacts.c.digest,
            _artifacts.c.size_bytes,
        )
        .join(need, need.c.job_id == needs.c.need_id)
        .join(holder, holder.c.job_id == sa.func.coalesce(need.c.reused_from, need.c.job_id))
        .join(
            _attempts,
            sa.and_(
                _attempts.c.job_id == holder.c.job_id,
                _attempts.c.number == holder.c.attempts_made,
            ),
        )
        .join(_artifacts, _artifacts.c.attempt_id == _attempts.c.attempt_id)
        .where(needs.c.job_id.in_(sa.bindparam("jobs", expanding=True)))
        .order_by(needs.c.job_id, needs.c.position, _artifacts.c.name)
    )


def _offer(row: Row, spec: JobSpec, inputs: tuple[Input, ...], policy: LeasePolicy) -> Offer:
    return Offer(
        lease_id=LeaseId(row["lease_id"]),
        epoch=row["epoch"],
        attempt_id=AttemptId(row["attempt_id"]),
        attempt_number=row["number"],
        job_id=JobId(row["job_id"]),
        run_id=RunId(row["run_id"]),
        run_name=row["run_name"],
        spec=spec,
        inputs=inputs,
        ttl=Millis(min(row["left"], policy.offer_ttl)),
        grace=Millis(row["grace_ms"]),
        git=specs.git(row),
    )
