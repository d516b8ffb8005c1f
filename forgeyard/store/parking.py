"""Taking jobs that no cycle can read out of the queue, so that one never stops the others."""

import sqlalchemy as sa

from forgeyard.model.transitions import JobState
from forgeyard.store import changes, jobs
from forgeyard.store.engine import database_now


def park(connection: sa.Connection, job_id: str, *, why: str) -> bool:
    """End a waiting job with an error, and judge its dependents; tell whether it still waited.

    Raises:
        NotFound: there is no such job.
    """
    run, job = changes.lock_run_and_job(connection, job_id)
    if job["state"] != JobState.ELIGIBLE:
        return False
    now = database_now(connection)
    jobs.finish_jobs(connection, run, [jobs.parked(job)], now=now)
    changes.audit(
        connection,
        actor="system",
        channel="store",
        action="job.parked",
        target=job_id,
        detail=why,
        now=now,
    )
    changes.wake_if_waiting(connection, job["partition"], reason=f"job {job['name']} was parked")
    return True
