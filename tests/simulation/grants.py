"""What must hold at the moment of a grant, judged by a reader who knows no scheduler."""

from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from forgeyard.model.capability import Capabilities
from forgeyard.model.job import JobSpec
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import codec, policies, tables
from forgeyard.store.amounts import DIMENSIONS
from forgeyard.store.changes import Row

jobs, leases, attempts = tables.jobs, tables.leases, tables.attempts
runners, scopes, sessions = tables.runners, tables.scopes, tables.sessions
needs, reservations = tables.job_needs, tables.reservations
_ENDED_BADLY = ("failed", "cancelled", "timed_out")
_ENDED = ("succeeded", "skipped", *_ENDED_BADLY)


def problems(
    connection: sa.Connection, lease_ids: Sequence[str], built_in: SchedulingPolicy
) -> Iterator[str]:
    """Tell what is wrong with leases that were granted just now, if anything is."""
    in_force = policies.current(connection, built_in).digest
    for row in connection.execute(_GRANTED, {"named": list(lease_ids)}).mappings():
        for wrong in (*_of_runner(row), *_of_job(connection, row), *_of_queue(connection, row)):
            yield f"lease {row['lease_id']} of {row['job_name']} on {row['name']}: {wrong}"
        if row["policy_digest"] != in_force:
            yield f"lease {row['lease_id']} was granted under a policy that is not in force"
    for device_id, share in connection.execute(_DEVICES):
        if share > 1_000:
            yield f"device {device_id} is given away {share} thousandths"


_GRANTED = (
    sa.select(
        leases.c.lease_id,
        leases.c.session_id.label("lease_session"),
        jobs.c.name.label("job_name"),
        jobs.c.job_id,
        jobs.c.spec,
        jobs.c.condition,
        jobs.c.queue_id,
        jobs.c.cancel_reason,
        attempts.c.policy_digest,
        sessions.c.state.label("session_state"),
        runners,
    )
    .join(jobs, jobs.c.job_id == leases.c.job_id)
    .join(attempts, attempts.c.attempt_id == leases.c.attempt_id)
    .join(runners, runners.c.runner_id == leases.c.runner_id)
    .join(sessions, sessions.c.session_id == leases.c.session_id)
    .where(leases.c.lease_id.in_(sa.bindparam("named", expanding=True)))
)
_DEVICES = sa.select(
    tables.device_holds.c.device_id, sa.func.sum(tables.device_holds.c.share)
).group_by(tables.device_holds.c.runner_id, tables.device_holds.c.device_id)


def _of_runner(row: Row) -> Iterator[str]:
    """Look whether its runner takes work, and is what the job needs."""
    if (row["state"], row["suspect"], row["drain_requested"]) != ("online", 0, 0):
        drained = row["drain_requested"]
        yield f"it is {row['state']}, suspect {row['suspect']}, drained {drained}"
    if row["session_state"] != "open" or row["lease_session"] != row["session_id"]:
        yield f"its session is {row['session_state']}"
    spec = codec.decode(JobSpec, row["spec"])
    has = codec.decode(Capabilities, row["capabilities"])
    for label, wanted in spec.requires.labels.items():
        if has.labels.get(label) != wanted:
            yield f"{label} must be {wanted} and is {has.labels.get(label)}"
    boards = sum(device.count for device in has.equipment.devices or ())
    if boards < sum(device.count for device in spec.requires.equipment.devices):
        yield "it has no such device"
    for name in DIMENSIONS:
        if row[f"reserved_{name}"] > row[f"total_{name}"]:
            yield f"it gives more {name} than it has"


def _of_job(connection: sa.Connection, row: Row) -> Iterator[str]:
    """Look whether the job may run by now."""
    if row["cancel_reason"] is not None:
        yield "it was cancelled before"
    ends = [
        (state, bool(forgiven))
        for state, forgiven in connection.execute(_NEEDS, {"job": row["job_id"]})
    ]
    if any(state not in _ENDED for state, _ in ends):
        yield "a job that it needs has not ended"
    elif row["condition"] == "success":
        if not all(s == "succeeded" or (s in _ENDED_BADLY and forgiven) for s, forgiven in ends):
            yield "a job that it needs did not succeed"
    elif row["condition"] == "failure" and not any(s in _ENDED_BADLY for s, _ in ends):
        yield "no job that it needs failed"
    if connection.execute(_RIVALS, {"job": row["job_id"]}).first() is not None:
        yield "a job with one of its keys runs"


_NEEDS = (
    sa.select(jobs.c.state, jobs.c.continue_on_error)
    .join(needs, needs.c.need_id == jobs.c.job_id)
    .where(needs.c.job_id == sa.bindparam("job"))
)
_mine, _others = tables.key_holds.alias("mine"), tables.key_holds.alias("others")
_RIVALS = sa.select(_others.c.job_id).where(
    _mine.c.job_id == sa.bindparam("job"),
    _others.c.key_name == _mine.c.key_name,
    _others.c.lease_id != _mine.c.lease_id,
)


def _of_queue(connection: sa.Connection, row: Row) -> Iterator[str]:
    """Look whether its queue may have more."""
    queue = connection.execute(_QUEUE, {"queue": row["queue_id"]}).mappings().one()
    if queue["paused"]:
        yield "its queue is paused"
    for limit, used in (("max_jobs", "jobs"), ("max_cpu_milli", "cpu")):
        if queue[limit] is not None and queue[used] > queue[limit]:
            yield f"its queue has {queue[used]} of {limit} {queue[limit]}"


def _sum_of(amount: sa.ColumnElement[int]) -> sa.ScalarSelect[int]:
    mine = reservations.c.queue_id == scopes.c.scope_id
    return sa.select(sa.func.coalesce(amount, 0)).where(mine).scalar_subquery()


_QUEUE = sa.select(
    scopes,
    _sum_of(sa.func.count(reservations.c.lease_id)).label("jobs"),
    _sum_of(sa.func.sum(reservations.c.cpu_milli)).label("cpu"),
).where(scopes.c.scope_id == sa.bindparam("queue"))
