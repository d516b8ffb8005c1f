"""Heartbeats of many agents at once, as long as their hosts do as they did.

A batch waits for nobody: it takes the runners that no other transaction holds. A heartbeat that
says anything new changes what may be placed, and one that names other leases than its session has
is to be looked into; both are for `runners.heartbeat`, as is whatever is left.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache

import sqlalchemy as sa

from forgeyard.model.enrolment import Admission
from forgeyard.model.protocol import Heartbeat, HeartbeatAnswer
from forgeyard.model.transitions import LIVE_LEASE_STATES, LeaseState, SessionState
from forgeyard.store import bulk, tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import now_ms
from forgeyard.store.runners import state_told

Beat = tuple[str, Heartbeat]
"""A session, and what it says."""
_runners, _sessions, _leases = tables.runners, tables.sessions, tables.leases


def hear_together(
    connection: sa.Connection, beats: Sequence[Beat]
) -> tuple[HeartbeatAnswer | None, ...]:
    """Keep alive the sessions that say nothing new; what has no answer was not taken in."""
    locked = _lock(connection, sorted({name for name, message in beats if _is_brief(message)}))
    known = {
        name: message
        for name, message in beats
        if _is_brief(message) and name in locked and _is_known(locked[name], message)
    }
    agreed = _agreed(connection, known)
    _touch(connection, {name: locked[name] for name in agreed})
    return tuple(
        HeartbeatAnswer(drain=bool(locked[name]["drain_requested"]))
        if name in agreed and known[name] == message
        else None
        for name, message in beats
    )


def _is_brief(message: Heartbeat) -> bool:
    return message.report is None and message.holdings is None


def _is_known(runner: Row, message: Heartbeat) -> bool:
    """Tell whether a runner is what its heartbeat says already; one that waits for it is not."""
    is_settled = not runner["suspect"] and runner["admission"] != Admission.PENDING
    return is_settled and (
        runner["state"],
        runner["pressure"],
        runner["health"],
        runner["health_reason"],
    ) == (
        state_told(runner, message),
        message.pressure,
        message.health,
        message.health_reason or None,
    )


def _lock(connection: sa.Connection, session_ids: Sequence[str]) -> dict[str, Row]:
    """Lock the runners of these open sessions that are free."""
    if not session_ids:
        return {}
    rows = connection.execute(_free(connection.dialect.name), {"asked": session_ids}).mappings()
    return {row["session_id"]: dict(row) for row in rows}


def _touch(connection: sa.Connection, quiet: Mapping[str, Row]) -> None:
    """Note when they were heard of; a runner that is known to do well is not changed otherwise."""
    if quiet:
        runner_ids = [row["runner_id"] for row in quiet.values()]
        of_runners, of_sessions = _touches(connection.dialect.name)
        connection.execute(of_runners, {"locked": runner_ids})
        connection.execute(of_sessions, {"locked": sorted(quiet)})


def _agreed(connection: sa.Connection, known: Mapping[str, Heartbeat]) -> frozenset[str]:
    """Pick the sessions that work for leases of their own alone, and name every active one."""
    if not known:
        return frozenset()
    rows = connection.execute(_living(connection.dialect.name), {"asked": sorted(known)})
    alive: dict[str, set[str]] = defaultdict(set)
    missed = set[str]()
    for session_id, lease_id, is_active, is_noted in rows:
        alive[session_id].add(lease_id)
        if is_active and (is_noted or lease_id not in known[session_id].held):
            missed.add(session_id)
    own = (name for name, message in known.items() if alive[name].issuperset(message.held))
    return frozenset(own) - missed


@cache
def _free(dialect: str) -> sa.Select[*tuple[object, ...]]:
    columns = (
        _runners.c.runner_id,
        _runners.c.session_id,
        _runners.c.state,
        _runners.c.suspect,
        _runners.c.pressure,
        _runners.c.health,
        _runners.c.health_reason,
        _runners.c.drain_requested,
        _runners.c.declared_unhealthy,
        _runners.c.admission,
    )
    return (
        sa.select(*columns)
        .join(_sessions, _sessions.c.session_id == _runners.c.session_id)
        .where(
            bulk.among_given(dialect, _sessions.c.session_id, "asked"),
            _sessions.c.state == SessionState.OPEN.value,
        )
        .with_for_update(of=(_runners, _sessions), skip_locked=True)
    )


@cache
def _touches(dialect: str) -> tuple[sa.Update, sa.Update]:
    return (
        sa.update(_runners)
        .where(bulk.among_given(dialect, _runners.c.runner_id, "locked"))
        .values(last_seen_at=now_ms()),
        sa.update(_sessions)
        .where(bulk.among_given(dialect, _sessions.c.session_id, "locked"))
        .values(last_seen_at=now_ms()),
    )


@cache
def _living(dialect: str) -> sa.Select[str, str, bool, bool]:
    is_active = _leases.c.state == LeaseState.ACTIVE.value
    grace = sa.case((is_active, _leases.c.grace_ms), else_=0)
    return sa.select(
        _leases.c.session_id, _leases.c.lease_id, is_active, _leases.c.unreported_since.is_not(None)
    ).where(
        bulk.among_given(dialect, _leases.c.session_id, "asked"),
        _leases.c.state.in_([state.value for state in LIVE_LEASE_STATES]),
        _leases.c.expires_at + grace >= now_ms(),
    )
