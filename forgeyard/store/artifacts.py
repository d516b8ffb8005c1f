"""What jobs leave behind: one archive for each output they declared.

Only the outputs of the attempt that succeeded count. A job that took over an earlier run's success
shows that job's artifacts as its own.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.errors import Conflict, InvalidRequest, NotFound
from forgeyard.model.job import JobSpec, OutputSpec
from forgeyard.model.transitions import AttemptState
from forgeyard.store import blobs, changes, codec, tables
from forgeyard.store.changes import JOB, Row
from forgeyard.store.engine import database_now


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """An output that can be downloaded; `job` and `job_id` are whose it is in this run."""

    job: str
    job_id: str
    attempt_id: str
    name: str
    path: str
    digest: str
    size_bytes: int
    created_at: int


def declared_path(connection: sa.Connection, lease: Row, name: str) -> str:
    """Tell the path that a lease's job declared for an output.

    Raises:
        InvalidRequest: the job declares no such output.
    """
    spec = codec.decode(JobSpec, changes.find(connection, JOB, lease["job_id"])["spec"])
    return _declared(spec.outputs, name).path


def _declared(outputs: Collection[OutputSpec], name: str) -> OutputSpec:
    for output in outputs:
        if output.name == name:
            return output
    raise InvalidRequest(
        f"the job declares no output {name!r}",
        field="name",
        value=name,
        allowed=", ".join(output.name for output in outputs) or "none: the job has no outputs",
    )


def record(
    connection: sa.Connection, lease: Row, name: str, path: str, digest: str, size: int
) -> None:
    """Write down an output whose bytes are stored; the same digest again changes nothing.

    The caller has checked that the lease is live, and named `path` with `declared_path`.

    Raises:
        NotFound: no such blob was recorded.
        Conflict: the attempt has stored something else under this name.
    """
    if blobs.touch(connection, digest) is None:
        raise NotFound(f"no blob {digest}", field="digest", value=digest)
    job = changes.find(connection, JOB, lease["job_id"])
    row = {
        "attempt_id": lease["attempt_id"],
        "name": name,
        "job_id": lease["job_id"],
        "run_id": job["run_id"],
        "path": path,
        "digest": digest,
        "size_bytes": size,
        "created_at": database_now(connection),
    }
    changes.upsert(connection, tables.artifacts, row, changes={})
    table = tables.artifacts
    kept = connection.execute(
        sa.select(table.c.digest).where(
            table.c.attempt_id == lease["attempt_id"], table.c.name == name
        )
    ).scalar_one()
    if kept != digest:
        raise Conflict(
            f"the attempt has stored another {name!r} already",
            field="digest",
            value=digest,
            allowed=str(kept),
        )


def of_run(connection: sa.Connection, run_id: str) -> tuple[Artifact, ...]:
    """List a run's artifacts, by the order of its jobs and then by name."""
    jobs = tables.jobs
    query = sa.select(jobs.c.job_id, jobs.c.name, jobs.c.reused_from).where(jobs.c.run_id == run_id)
    rows = connection.execute(query.order_by(jobs.c.position)).mappings()
    return _of_jobs(connection, [dict(row) for row in rows])


def find(connection: sa.Connection, run_id: str, job: str, name: str) -> Artifact:
    """Find one artifact of a run.

    Raises:
        NotFound: the job has left no such artifact, or retention deleted it.
    """
    for artifact in of_run(connection, run_id):
        if (artifact.job, artifact.name) == (job, name):
            return artifact
    raise NotFound(
        f"run {run_id} has no artifact {name!r} of job {job!r}", field="name", value=name
    )


def _of_jobs(connection: sa.Connection, jobs: Iterable[Row]) -> tuple[Artifact, ...]:
    holders = [(job, job["reused_from"] or job["job_id"]) for job in jobs]
    artifacts, attempts = tables.artifacts, tables.attempts
    query = (
        sa.select(artifacts)
        .join(attempts, attempts.c.attempt_id == artifacts.c.attempt_id)
        .where(
            artifacts.c.job_id.in_([holder for _, holder in holders]),
            attempts.c.state == AttemptState.SUCCEEDED.value,
        )
        .order_by(artifacts.c.name)
    )
    found: dict[str, list[Row]] = {}
    for row in connection.execute(query).mappings():
        found.setdefault(row["job_id"], []).append(dict(row))
    return tuple(_artifact(job, row) for job, holder in holders for row in found.get(holder, []))


def _artifact(job: Row, row: Row) -> Artifact:
    return Artifact(
        job=job["name"],
        job_id=job["job_id"],
        attempt_id=row["attempt_id"],
        name=row["name"],
        path=row["path"],
        digest=row["digest"],
        size_bytes=row["size_bytes"],
        created_at=row["created_at"],
    )
