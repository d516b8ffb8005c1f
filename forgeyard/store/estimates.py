"""What recent jobs waited and used: a few rows each, found by an index (POL-001, POL-003).

Placements themselves are forgotten after a while; what jobs and attempts keep suffices (POL-005).
"""

from collections.abc import Sequence

import sqlalchemy as sa

from forgeyard.model.transitions import AttemptState, JobState
from forgeyard.scheduler.estimate import RECENT, estimate
from forgeyard.scheduler.suggest import Measured
from forgeyard.scheduler.telling import estimate_text
from forgeyard.store import tables
from forgeyard.store.changes import Row

MOST_KINDS = 5
LOOKED_AT = 500
"""Among so many jobs of a name its attempts are sought."""
_jobs, _attempts = tables.jobs, tables.attempts


def recent_waits(connection: sa.Connection, job: Row) -> tuple[int, ...]:
    """Tell how long the last jobs waited that a runner took, of a job's queue and class."""
    query = (
        sa.select(_jobs.c.leased_at - _jobs.c.eligible_at)
        .where(
            _jobs.c.requirement_class == job["requirement_class"],
            _jobs.c.queue_id == job["queue_id"],
            _jobs.c.leased_at.is_not(None),
            _jobs.c.leased_at >= _jobs.c.eligible_at,
        )
        .order_by(_jobs.c.leased_at.desc())
        .limit(RECENT)
    )
    return tuple(connection.execute(query).scalars())


def starts(connection: sa.Connection, jobs: Sequence[Row], *, now: int) -> dict[str, str]:
    """Say of jobs that wait for a runner when each may start, as far as there is an estimate.

    Only the first few kinds are looked up: a run of many kinds is not worth as many queries.
    """
    waiting = [job for job in jobs if job["state"] == JobState.ELIGIBLE]
    kinds = {(job["requirement_class"], job["queue_id"]): job for job in waiting}
    known = {kind: recent_waits(connection, job) for kind, job in list(kinds.items())[:MOST_KINDS]}
    found: dict[str, str] = {}
    for job in waiting:
        waits = known.get((job["requirement_class"], job["queue_id"]), ())
        expected = estimate(waits, waited=now - job["eligible_at"])
        if expected is not None:
            found[job["job_id"]] = estimate_text(expected)
    return found


def recent_usage(connection: sa.Connection, job: Row, *, most: int) -> tuple[Measured, ...]:
    """Read what the last attempts used that succeeded, of jobs of this name and queue."""
    alike = (
        sa.select(_jobs.c.job_id)
        .where(_jobs.c.queue_id == job["queue_id"], _jobs.c.name == job["name"])
        .order_by(_jobs.c.job_id.desc())
        .limit(LOOKED_AT)
        .subquery()
    )
    query = (
        sa.select(_attempts.c.wall_ms, _attempts.c.cpu_ms, _attempts.c.peak_memory_bytes)
        .join(alike, alike.c.job_id == _attempts.c.job_id)
        .where(_attempts.c.state == AttemptState.SUCCEEDED.value)
        .order_by(_attempts.c.finished_at.desc(), _attempts.c.attempt_id)
        .limit(most)
    )
    return tuple(Measured(**row) for row in connection.execute(query).mappings())
