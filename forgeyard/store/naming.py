"""What people name, found: runs by the beginning of their id, and only those that they may see."""

import sqlalchemy as sa

from forgeyard.errors import AmbiguousName, NotFound
from forgeyard.store import tables

_PREFIX = "run_"
_CANDIDATES = 5


def demand_job(connection: sa.Connection, job_id: str, *, tenant_id: str | None) -> None:
    """Insist that there is a job and, where a tenant is given, that it is that tenant's.

    Raises:
        NotFound: there is no such job, or it is somebody else's.
    """
    jobs = tables.jobs
    query = sa.select(jobs.c.job_id).where(jobs.c.job_id == job_id, is_of(jobs, tenant_id))
    if connection.execute(query).first() is None:
        raise NotFound(f"no job {job_id!a}", field="job_id", value=ascii(job_id))


def is_of(table: sa.Table, tenant_id: str | None) -> sa.ColumnElement[bool]:
    return sa.true() if tenant_id is None else table.c.tenant_id == tenant_id


def run_id_of(connection: sa.Connection, typed: str, *, tenant_id: str | None = None) -> str:
    """Complete a run's id, written whole or as a beginning, with `run_` or without.

    Where a tenant is given, the runs of the others are as if there were none.

    Raises:
        NotFound: no run's id begins so.
        AmbiguousName: several do; `allowed` names the newest of them.
    """
    body = typed.removeprefix(_PREFIX).upper()
    if not body.isascii() or not body.isalnum():
        raise _no_run(typed)
    begins = _PREFIX + body
    runs = tables.runs
    theirs = is_of(runs, tenant_id)
    whole = sa.select(runs.c.run_id).where(runs.c.run_id == begins, theirs)
    if connection.execute(whole).first() is not None:
        return begins
    query = (
        sa.select(runs.c.run_id, runs.c.name)
        .where(runs.c.run_id.startswith(begins, autoescape=True), theirs)
        .order_by(runs.c.run_id.desc())
        .limit(_CANDIDATES + 1)
    )
    found = {run_id: name for run_id, name in connection.execute(query)}
    if len(found) == 1:
        return str(next(iter(found)))
    if not found:
        raise _no_run(typed)
    shown = [f"{run_id} ({name})" for run_id, name in found.items()][:_CANDIDATES]
    raise AmbiguousName(
        f"the ids of several runs begin with {typed}",
        field="run_id",
        value=typed,
        allowed=", ".join([*shown, "…"] if len(found) > _CANDIDATES else shown),
    )


def _no_run(run_id: str) -> NotFound:
    return NotFound(f"no run {run_id!a}", field="run_id", value=ascii(run_id))
