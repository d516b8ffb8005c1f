"""Ending an agent's session, and taking what it held away from it.

A session changes only under its runner's lock, and a runner is locked after the jobs of its leases.
"""

import sqlalchemy as sa

from forgeyard.errors import NotFound, StoreUnavailable
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.transitions import LIVE_LEASE_STATES, SessionState
from forgeyard.store import changes, lapse, tables
from forgeyard.store.changes import SESSION, Row
from forgeyard.store.release import Held, lock_lease, lock_scopes_of_offers

TRIES = 5


def lock_runner(connection: sa.Connection, runner_id: str) -> Row:
    """Lock a runner by itself.

    Raises:
        NotFound: there is no such runner.
    """
    row = connection.execute(_LOCK, {"own": runner_id}).mappings().one_or_none()
    if row is None:
        raise NotFound(f"no runner {runner_id}", field="runner_id", value=runner_id)
    return dict(row)


_runners = tables.runners
_LOCK = sa.select(_runners).where(_runners.c.runner_id == sa.bindparam("own")).with_for_update()


def lock_with_leases(connection: sa.Connection, runner_id: str) -> tuple[Row, list[Held]]:
    """Lock a runner together with its live leases, none of which can be added afterwards.

    A lease granted between the two looks means letting go and starting over, for its job must be
    locked before the runner.

    Raises:
        NotFound: there is no such runner.
        StoreUnavailable: it was given work again and again meanwhile.
    """
    for _ in range(TRIES):
        attempt = connection.begin_nested()
        held = [lock_lease(connection, lease_id) for lease_id in _live(connection, runner_id)]
        lock_scopes_of_offers(connection, held)
        runner = lock_runner(connection, runner_id)
        if set(_live(connection, runner_id)) <= {one.lease["lease_id"] for one in held}:
            attempt.commit()
            return runner, held
        attempt.rollback()
    raise StoreUnavailable(f"runner {runner_id} is being given work; try again")


def _live(connection: sa.Connection, runner_id: str) -> list[str]:
    """List a runner's live leases in the order in which their runs and jobs are locked."""
    leases, jobs = tables.leases, tables.jobs
    query = (
        sa.select(leases.c.lease_id)
        .join(jobs, jobs.c.job_id == leases.c.job_id)
        .where(
            leases.c.runner_id == runner_id,
            leases.c.state.in_([state.value for state in LIVE_LEASE_STATES]),
        )
        .order_by(jobs.c.run_id, jobs.c.job_id)
    )
    return list(connection.execute(query).scalars())


def end_session(
    connection: sa.Connection, session_id: str, to: SessionState, *, reason: str, now: int
) -> bool:
    """End a session under its runner's lock; tell whether it was open."""
    session = changes.find(connection, SESSION, session_id, lock=True)
    if session["state"] != SessionState.OPEN:
        return False
    changes.move(connection, SESSION, session, to, reason=reason, now=now, ended_at=now)
    return True


def revoke_all(
    connection: sa.Connection, held: list[Held], *, reason: str, now: int, policy: LeasePolicy
) -> None:
    """Take these leases from a session that has ended; the caller wakes."""
    for one in held:
        lapse.revoke(connection, one, reason=reason, now=now, policy=policy)
