"""Declaring scopes in tests, and reading what they hold."""

from typing import Any

import sqlalchemy as sa

from forgeyard.model.job import JobSpec
from forgeyard.scheduler.scopes import Usage
from forgeyard.store import runs, scopes, shares, tables
from forgeyard.store.engine import read
from forgeyard.store.shares import Intent, Shares
from tests.builders import RNG
from tests.leasing import Desk

WISH = Intent(actor="tester", channel="test", reason="a test")
DEFAULT = shares.DEFAULT_QUEUE


def queue_path(tenant: str) -> str:
    """Name the one queue that a tenant of a test has."""
    return f"{tenant}/org/prj/main"


def declare(desk: Desk, tenant: str, **limits: Any) -> str:
    """Declare a tenant with one queue, which has these shares; return the queue's path."""
    path = queue_path(tenant)
    desk.change(shares.create_with_parents, path, Shares(**limits), intent=WISH, rng=RNG)
    return path


def limit(desk: Desk, path: str, **limits: Any) -> None:
    """Set the shares of a scope, whatever its version."""
    with read(desk.engine) as connection:
        seen = shares.show(connection, path).version
    desk.change(shares.change, path, Shares(**limits), expected_version=seen, intent=WISH)


def used(desk: Desk, path: str) -> Usage:
    """Read what the jobs of a scope hold."""
    with read(desk.engine) as connection:
        return shares.show(connection, path).used


def tags_of(desk: Desk) -> dict[str, tuple[int, int]]:
    """Read the finish tag and the clock of every scope."""
    return {row["scope_id"]: (row["finish_tag"], row["clock"]) for row in desk.rows(tables.scopes)}


def submit_to(desk: Desk, path: str, *jobs: JobSpec, **changed: Any) -> str:
    """Submit a run to a queue."""
    return desk.submit(*jobs, queue=path, **changed)


def summed(desk: Desk) -> dict[str, Usage]:
    """Add up by hand what live leases hold in every scope of their jobs."""
    leases, jobs, runners = tables.leases, tables.jobs, tables.runners
    query = (
        sa.select(jobs, runners.c.pool_id)
        .join(leases, leases.c.job_id == jobs.c.job_id)
        .join(runners, runners.c.runner_id == leases.c.runner_id)
        .where(leases.c.state.in_(("offered", "active")))
    )
    with read(desk.engine) as connection:
        rows = connection.execute(query).mappings().all()
    found: dict[str, Usage] = {}
    for row in rows:
        for scope_id in ("scp_root", *(row[name] for name in scopes.PATH), row["pool_id"]):
            before = found.get(scope_id, Usage())
            found[scope_id] = Usage(
                jobs=before.jobs + 1,
                cpu=before.cpu + row["cpu_milli"],
                memory=before.memory + row["memory_bytes"],
            )
    return found


def cancel(desk: Desk, run_id: str) -> None:
    """Cancel a run, as people do."""
    who = {"reason": "enough", "actor": "tester", "channel": "test"}
    desk.change(runs.cancel_run, run_id, **who, policy=desk.policy.lease)


def rerun(desk: Desk, run_id: str, **changed: Any) -> str:
    """Start again what did not succeed; return the new run."""
    policy = desk.policy.lease
    made = desk.change(runs.rerun_failed, run_id, actor="x", policy=policy, rng=RNG, **changed)
    return made.run_id
