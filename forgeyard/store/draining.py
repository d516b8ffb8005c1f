"""Draining a runner at once: what it works on is cancelled, as people cancel jobs (RUN-003)."""

import sqlalchemy as sa

from forgeyard.model.policy import LeasePolicy
from forgeyard.store import changes, runners, runs
from forgeyard.store.changes import JOB, RUN
from forgeyard.store.sessions import lock_with_leases


def drain_now(
    connection: sa.Connection,
    name_or_id: str,
    *,
    reason: str,
    actor: str,
    channel: str,
    policy: LeasePolicy,
) -> int:
    """Drain a runner and cancel the jobs it has leases for; return how many.

    Raises:
        NotFound: no runner has this name or id.
        StoreUnavailable: it was given work again and again meanwhile.
    """
    cancelled = cancel_work(
        connection, name_or_id, reason=reason, actor=actor, channel=channel, policy=policy
    )
    runners.drain(connection, name_or_id, reason=reason, actor=actor, channel=channel)
    return cancelled


def cancel_work(
    connection: sa.Connection,
    name_or_id: str,
    *,
    reason: str,
    actor: str,
    channel: str,
    policy: LeasePolicy,
) -> int:
    """Cancel the jobs that a runner has leases for; return how many.

    What nobody has accepted ends at once, the rest when the agent has stopped it. Jobs that were
    being cancelled already do not count.

    Raises:
        NotFound: no runner has this name or id.
        StoreUnavailable: it was given work again and again meanwhile.
    """
    _, held = lock_with_leases(connection, runners.id_of(connection, name_or_id))
    cancelled, partitions = 0, set[str]()
    for one in held:
        # The end of one job may have changed the run of the next.
        run = changes.find(connection, RUN, one.run["run_id"])
        job = changes.find(connection, JOB, one.job["job_id"])
        if job["cancel_reason"] is None:
            runs.cancel_locked(
                connection, run, job, reason=reason, actor=actor, channel=channel, policy=policy
            )
            cancelled += 1
            partitions.add(run["partition"])
    for partition in sorted(partitions):
        changes.wake_if_waiting(connection, partition, reason="jobs were cancelled")
    return cancelled
