"""A real agent whose host breaks says that it is not well, and gets less until it is again."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.model.job import JobSpec, Priority, RetryPolicy
from forgeyard.store import overview, tables
from forgeyard.store.engine import read
from tests.builders import a_job_spec
from tests.integration.agent.control import Control, a_control
from tests.integration.agent.scripts import eventually
from tests.integration.agent.test_agent_end_to_end import an_agent
from tests.integration.agent.test_location import seen

pytestmark = pytest.mark.integration


@pytest.fixture
async def control(sqlite_engine: sa.Engine, tmp_path: Path) -> AsyncIterator[Control]:
    """Serve the agent API."""
    async with a_control(sqlite_engine, tmp_path) as made, made.listening():
        yield made


def a_job(priority: Priority = Priority.NORMAL) -> JobSpec:
    """Describe a job that is tried once."""
    return a_job_spec("build", run="true", priority=priority, retry=RetryPolicy(max_attempts=1))


@pytest.mark.requirement("RUN-012", "RUN-013", "SCO-014")
async def test_a_host_that_cannot_prepare_anything_is_degraded_until_it_can(
    control: Control,
) -> None:
    async with an_agent(control):
        jobs = control.folder / "runner-1" / "jobs"
        jobs.rmdir()
        jobs.write_text("in the way")
        for _ in range(2):
            run_id = control.submit(a_job())
            assert (await control.follow(run_id))["state"] == "failed"
            (attempt,) = control.attempts(run_id)
            assert attempt["failure_class"] == "sandbox_setup"
        await eventually(lambda: seen(control).degraded)
        assert seen(control).penalty > 1_000, "the server counts it, too"
        with read(control.engine) as connection:
            (shown,) = overview.runners(connection)
        assert shown.health_reason == (
            "2 attempts in a row failed here, the last one by sandbox setup"
        )
        urgent = control.submit(a_job(Priority.HIGH))
        assert control.schedule() == 0
        (job,) = control.rows(tables.jobs, run_id=urgent)
        assert "but it is not well" in str(job["diagnosis"])
        jobs.unlink()
        jobs.mkdir()
        assert (await control.follow(control.submit(a_job())))["state"] == "succeeded"
        await eventually(lambda: not seen(control).degraded)
        assert (await control.follow(urgent))["state"] == "succeeded"
