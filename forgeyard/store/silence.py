"""Runners that nobody hears of any more: they get no work, and their sessions end in time."""

import sqlalchemy as sa

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import LeaseState, SessionState
from forgeyard.scheduler.reliability import DISCONNECT
from forgeyard.store import changes, liveness, tables
from forgeyard.store.changes import SESSION
from forgeyard.store.engine import database_now
from forgeyard.store.penalties import penalise
from forgeyard.store.runners import change
from forgeyard.store.sessions import end_session, lock_runner

LOSSES_PER_CALL = 50
_runners, _sessions, _leases = tables.runners, tables.sessions, tables.leases


def lose_silent_sessions(connection: sa.Connection, *, policy: SchedulingPolicy) -> int:
    """Give silent runners no more work, and end those of their sessions that hold no lease.

    A lease lives by its own clock, and an agent may come back in time to go on with it: until then
    its session stays open, however long it is silent.
    """
    now = database_now(connection)
    if liveness.renewals_are_out(connection, now=now, policy=policy):
        return 0
    given = {"limit": now - policy.lease.session_silence, "now": now}
    return sum(
        _lose(connection, runner_id, session_id, now=now, policy=policy)
        for runner_id, session_id in sorted(
            (row.runner_id, row.session_id) for row in connection.execute(_SILENT, given)
        )
    )


def _lose(
    connection: sa.Connection,
    runner_id: str,
    session_id: str,
    *,
    now: int,
    policy: SchedulingPolicy,
) -> int:
    runner = lock_runner(connection, runner_id)
    limit = now - policy.lease.session_silence
    if changes.find(connection, SESSION, session_id, lock=True)["last_seen_at"] >= limit:
        return 0
    reason, lost = "its agent was silent for too long", False
    waits = connection.execute(_WAITS, {"session": session_id, "now": now}).scalar_one()
    if not waits:
        lost = end_session(connection, session_id, SessionState.LOST, reason=reason, now=now)
    if runner["session_id"] == session_id:
        if runner["state"] != RunnerState.OFFLINE:
            penalise(connection, runner_id, points=DISCONNECT, now=now, policy=policy.lease)
        kept = {} if waits else {"session_id": None}
        change(connection, runner, RunnerState.OFFLINE, reason=reason, now=now, **kept)
    return int(lost)


def _holds_lease(session_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Tell whether an accepted lease of a session is alive, so that its agent may yet come back."""
    return sa.exists().where(
        _leases.c.session_id == session_id,
        _leases.c.state == LeaseState.ACTIVE.value,
        _leases.c.expires_at + _leases.c.grace_ms >= sa.bindparam("now", type_=sa.BigInteger()),
    )


_OFFLINE = _runners.c.state == RunnerState.OFFLINE.value
_SILENT = (
    sa.select(_sessions.c.runner_id, _sessions.c.session_id)
    .join(_runners, _runners.c.runner_id == _sessions.c.runner_id)
    .where(
        _sessions.c.state == SessionState.OPEN.value,
        _sessions.c.last_seen_at < sa.bindparam("limit"),
        ~sa.and_(_OFFLINE, _holds_lease(_sessions.c.session_id)),
    )
    .order_by(_sessions.c.last_seen_at)
    .limit(LOSSES_PER_CALL)
)
_WAITS = sa.select(_holds_lease(sa.bindparam("session", type_=sa.Text())))
