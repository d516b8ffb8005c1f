"""The one place where an attempt ends and its lease lets go of the runner.

Completion, rejection, expiry, fencing, timeouts and cancellation all pass here, so that the lease,
the reservation, the runner's sum and the attempt can only change together. Callers hold the locks
of `lock_lease`; what becomes of the job afterwards is theirs or `settle`'s to decide.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import sqlalchemy as sa

from forgeyard.errors import NotFound
from forgeyard.model.job import FailureClass
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import LIVE_LEASE_STATES, AttemptState, LeaseState
from forgeyard.store import changes, devices, keys, scopes, tables
from forgeyard.store.amounts import DIMENSIONS
from forgeyard.store.changes import ATTEMPT, LEASE, DeadlineKind, Row

JOBS_DONE = "it has served its jobs"
ATTEMPT_DEADLINES = (DeadlineKind.PREPARATION, DeadlineKind.EXECUTION, DeadlineKind.UPLOAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A lease with everything that changes along with it, locked in the agreed order."""

    run: Row
    job: Row
    attempt: Row
    lease: Row


def lock_lease(connection: sa.Connection, lease_id: str) -> Held:
    """Lock a lease's run, job, lease and attempt.

    Raises:
        NotFound: there is no such lease.
    """
    job_id = changes.part_of(connection, LEASE, lease_id, "job_id")
    run, job = changes.lock_run_and_job(connection, job_id)
    lease = _lock_live(connection, lease_id)
    attempt = changes.find(connection, ATTEMPT, lease["attempt_id"], lock=True)
    # The run's id is not a column of a lease, but its history is told with the run's.
    return Held(run=run, job=job, attempt=attempt, lease={**lease, "run_id": run["run_id"]})


def _lock_live(connection: sa.Connection, lease_id: str) -> Row:
    """Lock a lease that lives; one that has ended stays as it is, and is only read.

    Settling a cell that failed takes the leases of cells before it: were its own locked by then,
    whoever takes several in order, as the bridging of a gap does, could wait for it in a circle.
    """
    row = connection.execute(_LIVE, {"own_key": lease_id}).mappings().one_or_none()
    return changes.find(connection, LEASE, lease_id) if row is None else dict(row)


_LIVE = (
    sa.select(tables.leases)
    .where(
        tables.leases.c.lease_id == sa.bindparam("own_key"),
        tables.leases.c.state.in_([state.value for state in LIVE_LEASE_STATES]),
    )
    .with_for_update()
)


def lock_attempt(connection: sa.Connection, attempt_id: str) -> Held:
    """Lock the same rows, found by the attempt.

    Raises:
        NotFound: there is no such attempt.
    """
    leases = tables.leases
    query = sa.select(leases.c.lease_id).where(leases.c.attempt_id == attempt_id)
    lease_id = connection.execute(query).scalar_one_or_none()
    if lease_id is None:
        raise NotFound(f"no attempt {attempt_id}", field="attempt_id", value=attempt_id)
    return lock_lease(connection, lease_id)


def lock_scopes_of_offers(connection: sa.Connection, held: Iterable[Held]) -> None:
    """Lock what the end of these offers will refund; whoever locks a runner before does this."""
    offered = [one.job for one in held if one.lease["state"] == LeaseState.OFFERED]
    scopes.lock_for_refunds(connection, offered)


def release(connection: sa.Connection, lease: Row, *, to: LeaseState, reason: str, now: int) -> Row:
    """End a lease and free what it holds on its runner; do nothing if it has ended already."""
    if lease["state"] not in LIVE_LEASE_STATES:
        return lease
    moved = changes.move(connection, LEASE, lease, to, reason=reason, now=now, ended_at=now)
    freed = connection.execute(_FREE, {"lease": lease["lease_id"]}).one_or_none()
    keys.give_back(connection, lease["lease_id"])
    devices.give_back(connection, lease["lease_id"])
    if freed is not None:
        amounts = dict(zip(DIMENSIONS, freed, strict=True))
        # An offer that nobody took has left nothing behind on the machine.
        counts = int(lease["accepted_at"] is not None)
        given = {"runner": lease["runner_id"], "now": now, "counts": counts}
        connection.execute(_TAKE_OFF, {**given, **amounts})
    return moved


_reservations, _runners = tables.reservations, tables.runners
_FREE = (
    sa.delete(_reservations)
    .where(_reservations.c.lease_id == sa.bindparam("lease"))
    .returning(*(_reservations.c[name] for name in DIMENSIONS))
)
_LEFT = _runners.c.jobs_left - sa.bindparam("counts", type_=sa.BigInteger())
_HAS_SERVED = _LEFT <= 0  # unknown, and so not true, where jobs are not counted
_ROOM = _runners.c.headroom_slots + sa.case((_HAS_SERVED, 0), else_=_LEFT)
_TAKES = _runners.c.state.in_([RunnerState.ONLINE.value, RunnerState.SATURATED.value])
_TAKE_OFF = (
    sa.update(_runners)
    .where(_runners.c.runner_id == sa.bindparam("runner"))
    .values(
        {
            **{
                f"reserved_{name}": _runners.c[f"reserved_{name}"] - sa.bindparam(name)
                for name in DIMENSIONS
            },
            "changed_at": sa.bindparam("now"),
            "freed_at": sa.bindparam("now"),
            "jobs_left": sa.case((_HAS_SERVED, 0), else_=_LEFT),
            "total_slots": sa.case(
                (_runners.c.total_slots > _ROOM, _ROOM), else_=_runners.c.total_slots
            ),
            "drain_requested": sa.case((_HAS_SERVED, 1), else_=_runners.c.drain_requested),
            "drain_reason": sa.case((_HAS_SERVED, JOBS_DONE), else_=_runners.c.drain_reason),
            "state": sa.case(
                (sa.and_(_HAS_SERVED, _TAKES), RunnerState.DRAINING.value),
                else_=_runners.c.state,
            ),
        }
    )
)
"""Frees what a lease held. A runner whose jobs are counted takes none after its last (FOP-008), and
has no more slots than jobs left, whatever its agent said: that is one statement with the release,
so that nothing can be leased to it in between."""


def end_attempt(
    connection: sa.Connection,
    held: Held,
    state: AttemptState,
    *,
    lease: LeaseState,
    reason: str,
    now: int,
    policy: LeasePolicy,
    **values: object,
) -> Held:
    """End an accepted attempt; `settle` decides what follows, at the latest when its time is up."""
    ended = _end(connection, held, state, lease=lease, reason=reason, now=now, **values)
    changes.set_deadline(
        connection,
        DeadlineKind.SETTLE,
        ended.attempt["attempt_id"],
        partition=ended.attempt["partition"],
        due_at=now + policy.settle_within,
    )
    return ended


def end_offer(
    connection: sa.Connection,
    held: Held,
    state: AttemptState,
    *,
    lease: LeaseState,
    reason: str,
    now: int,
    **values: object,
) -> Held:
    """End an attempt that nobody accepted; it is settled at once, for nothing is left to decide.

    What its scopes were charged is theirs again.
    """
    scopes.refund(connection, held.job, held.lease)
    return _end(
        connection, held, state, lease=lease, reason=reason, now=now, settled_at=now, **values
    )


def _end(
    connection: sa.Connection,
    held: Held,
    state: AttemptState,
    *,
    lease: LeaseState,
    reason: str,
    now: int,
    **values: object,
) -> Held:
    freed = release(connection, held.lease, to=lease, reason=reason, now=now)
    if held.lease["preempted_for"] is not None and state is not AttemptState.SUCCEEDED:
        # Whatever the agent calls it: it ended because we asked.
        values["failure_class"] = FailureClass.PREEMPTED.value
    attempt = changes.move(
        connection,
        ATTEMPT,
        held.attempt,
        state,
        reason=reason,
        now=now,
        **{"finished_at": now, "message": reason, **values},
    )
    changes.clear_deadlines(connection, attempt["attempt_id"], *ATTEMPT_DEADLINES)
    ended = replace(held, lease=freed, attempt=attempt)
    _announce(connection, ended, now=now)
    return ended


def _announce(connection: sa.Connection, held: Held, *, now: int) -> None:
    """Tell the attempt's workflow, which may not even have started."""
    runners = tables.runners
    name = sa.select(runners.c.name).where(runners.c.runner_id == held.lease["runner_id"])
    attempt = held.attempt
    payload = {
        "run_id": held.run["run_id"],
        "job_id": attempt["job_id"],
        "number": attempt["number"],
        "attempt_id": attempt["attempt_id"],
        "job_name": held.job["name"],
        "run_name": held.run["name"],
        "runner_name": connection.execute(name).scalar_one(),
        "state": attempt["state"],
    }
    changes.emit(
        connection, stream=attempt["attempt_id"], kind="attempt.finished", payload=payload, now=now
    )
