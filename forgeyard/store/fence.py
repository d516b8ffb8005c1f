"""The fence around a lease: who may act on it, under which epoch, and until when.

A lease belongs to one session and one grant of its job. Whoever comes with another session is
refused outright; whoever comes too late changes nothing, and that it came is audited.
"""

import sqlalchemy as sa

from forgeyard.errors import Forbidden
from forgeyard.model.protocol import Holder
from forgeyard.model.transitions import LIVE_LEASE_STATES, LeaseState, SessionState
from forgeyard.store import changes
from forgeyard.store.changes import SESSION, Row
from forgeyard.store.engine import database_now
from forgeyard.store.release import Held, lock_lease


def ends_at(lease: Row) -> int:
    """Tell when a live lease lapses: an offer at once, an active one after its grace."""
    grace = lease["grace_ms"] if lease["state"] == LeaseState.ACTIVE else 0
    return int(lease["expires_at"] + grace)


def claim(connection: sa.Connection, lease_id: str, holder: Holder) -> tuple[Held, int]:
    """Lock a lease for its session, and read the clock once the locks are held.

    Raises:
        NotFound: there is no such lease.
        Forbidden: it belongs to another session.
    """
    held = lock_lease(connection, lease_id)
    check_session(held.lease, holder)
    return held, database_now(connection)


def check_session(lease: Row, holder: Holder) -> None:
    """Refuse whoever is not the session that the lease was offered to.

    Raises:
        Forbidden: it belongs to another session.
    """
    if lease["session_id"] != holder.session_id:
        raise Forbidden("not your lease", field="session_id", value=holder.session_id)


def staleness(lease: Row, holder: Holder, now: int, *states: LeaseState) -> str | None:
    """Say why the holder has no say over its lease any more, if so."""
    if lease["epoch"] != holder.epoch:
        return f"epoch {holder.epoch} is not this lease's"
    if lease["state"] not in states:
        return f"the lease is {lease['state']}"
    return "the lease has lapsed" if has_lapsed(lease, now) else None


def has_lapsed(lease: Row, now: int) -> bool:
    """Tell whether a lease is live in name only: its time has passed, and nobody ended it yet."""
    return lease["state"] in LIVE_LEASE_STATES and ends_at(lease) < now


def closure(connection: sa.Connection, holder: Holder) -> str | None:
    """Say that a session has ended, if so: it starts nothing new."""
    state = changes.find(connection, SESSION, holder.session_id)["state"]
    return None if state == SessionState.OPEN else f"the session is {state}"


def record_refusal(
    connection: sa.Connection, held: Held, holder: Holder, action: str, reason: str, *, now: int
) -> None:
    """Write into the audit trail that a call came too late."""
    changes.audit(
        connection,
        actor=holder.session_id,
        channel="agent",
        action=action,
        target=held.lease["lease_id"],
        detail=reason,
        now=now,
    )
