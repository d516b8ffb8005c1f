"""What jobs waited and used lately, as a guess for those that come."""

import pytest
import sqlalchemy as sa

from forgeyard.model.protocol import Outcome
from forgeyard.store import estimates, tables, views
from forgeyard.store.engine import read
from tests.builders import a_job_spec, some_resources
from tests.leasing import Desk

pytestmark = pytest.mark.integration
MINUTE = 60_000


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def starts(desk: Desk, run_id: str) -> dict[str, str | None]:
    with read(desk.engine) as connection:
        return {job.name: job.starts for job in views.run(connection, run_id).jobs}


def placed_before(desk: Desk, minutes: int, **changed: object) -> None:
    """Let a job have waited so long before it was placed and done."""
    lease = desk.active(a_job_spec("build", **changed))
    desk.complete(lease)
    row = desk.row(tables.jobs, lease.job_id)
    desk.overwrite(tables.jobs, lease.job_id, eligible_at=row["leased_at"] - minutes * MINUTE)


@pytest.mark.requirement("POL-003", "POL-004")
def test_a_waiting_job_may_start_when_jobs_like_it_did(desk: Desk) -> None:
    for minutes in (1, 10, 3):
        placed_before(desk, minutes)
    placed_before(desk, 90, resources=some_resources(cpu=700))
    desk.overwrite(tables.runners, desk.rows(tables.runners)[0]["runner_id"], state="draining")
    run_id = desk.submit(a_job_spec("build"), a_job_spec("odd", resources=some_resources(slots=2)))
    found = starts(desk, run_id)
    assert found["odd"] is None
    assert found["build"] is not None
    assert found["build"].startswith("in about 2m 5")
    assert found["build"].endswith("an estimate, from 3 recent jobs")


def test_no_more_than_the_newest_count(desk: Desk) -> None:
    placed_before(desk, 1)
    (row,) = desk.rows(tables.jobs)
    with desk.engine.begin() as connection:
        for number in range(30):
            old = {**row, "job_id": f"job_{number}", "name": f"n{number}", "leased_at": 60 + number}
            connection.execute(sa.insert(tables.jobs).values({**old, "eligible_at": 0}))
        waits = estimates.recent_waits(connection, row)
    assert len(waits) == 20
    assert waits[0] == MINUTE
    assert min(waits) == 60 + 30 - 19


@pytest.mark.requirement("POL-001", "RES-008")
def test_only_attempts_that_succeeded_tell_what_a_job_uses(desk: Desk) -> None:
    for peak, outcome in ((3, Outcome.SUCCEEDED), (9, Outcome.FAILED), (5, Outcome.SUCCEEDED)):
        lease = desk.active(a_job_spec("build"))
        desk.complete(lease, outcome)
        measured = {"peak_memory_bytes": peak, "cpu_ms": peak, "wall_ms": 10}
        desk.overwrite(tables.attempts, lease.attempt_id, **measured)
    lease = desk.active(a_job_spec("other"))
    desk.complete(lease)
    job = next(row for row in desk.rows(tables.jobs) if row["name"] == "build")
    with read(desk.engine) as connection:
        found = estimates.recent_usage(connection, job, most=20)
        assert sorted(one.peak_memory_bytes or 0 for one in found) == [3, 5]
        assert len(estimates.recent_usage(connection, job, most=1)) == 1
