"""Shutting a runner out at once, whatever it does, and letting it in again."""

import sqlalchemy as sa

from forgeyard.errors import Conflict, NotFound
from forgeyard.model.enrolment import Admission
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import SessionState
from forgeyard.store import changes, identities, runners
from forgeyard.store.engine import database_now
from forgeyard.store.sessions import end_session, lock_runner, lock_with_leases, revoke_all
from forgeyard.store.shares import Intent


def shut_out(
    connection: sa.Connection, name_or_id: str, intent: Intent, *, policy: LeasePolicy
) -> int:
    """Revoke a runner's certificates, end its session and take its leases; tell how many leases.

    Raises:
        NotFound: no runner has this name or id.
    """
    runner, held = lock_with_leases(connection, runners.id_of(connection, name_or_id))
    now, reason = database_now(connection), f"shut out: {intent.reason}"
    identities.revoke(connection, runner["runner_id"], reason=intent.reason, now=now)
    if runner["session_id"] is not None:
        end_session(
            connection, runner["session_id"], SessionState.SUPERSEDED, reason=reason, now=now
        )
    revoke_all(connection, held, reason=reason, now=now, policy=policy)
    runners.change(
        connection,
        runner,
        RunnerState.OFFLINE,
        reason=reason,
        now=now,
        session_id=None,
        admission=Admission.QUARANTINED.value,
        admission_reason=intent.reason,
    )
    _tell(connection, "runner.revoke", runner["runner_id"], intent, now=now)
    changes.wake_all_waiting(connection, reason=f"runner {runner['name']} was shut out")
    return len(held)


def shut_out_if_known(
    connection: sa.Connection, runner_id: str, intent: Intent, *, policy: LeasePolicy
) -> None:
    """Do the same for a runner that may have a certificate but has never registered."""
    try:
        shut_out(connection, runner_id, intent, policy=policy)
    except NotFound:
        now = database_now(connection)
        identities.revoke(connection, runner_id, reason=intent.reason, now=now)
        _tell(connection, "runner.revoke", runner_id, intent, now=now)


def admit(connection: sa.Connection, name_or_id: str, intent: Intent) -> None:
    """Let a runner that was shut out prove itself anew; its revoked certificates stay revoked.

    Raises:
        NotFound: no runner has this name or id.
        Conflict: it was not shut out.
    """
    runner = lock_runner(connection, runners.id_of(connection, name_or_id))
    now = database_now(connection)
    if runner["admission"] != Admission.QUARANTINED:
        raise Conflict(
            f"runner {runner['name']} is {runner['admission']}",
            field="runner",
            value=name_or_id,
            allowed="one in quarantine",
        )
    pending = {"admission": Admission.PENDING.value, "admission_reason": None}
    runners.change(
        connection,
        runner,
        RunnerState.OFFLINE,
        reason=f"let in again: {intent.reason}",
        now=now,
        **pending,
    )
    _tell(connection, "runner.admit", runner["runner_id"], intent, now=now)


def _tell(
    connection: sa.Connection, action: str, runner_id: str, intent: Intent, *, now: int
) -> None:
    changes.audit(
        connection,
        actor=intent.actor,
        channel=intent.channel,
        action=action,
        target=runner_id,
        detail=intent.reason,
        now=now,
    )
