"""Real agents and what they are trusted with: policy sends jobs, and no agent draws them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.model.capability import TrustClass
from forgeyard.model.wishes import Purpose, Wishes
from forgeyard.scheduler.explain import explain
from forgeyard.store import snapshot, tables
from forgeyard.store.engine import read, write
from tests.builders import submit_run
from tests.integration.agent.control import Control, a_control
from tests.integration.agent.test_agent_end_to_end import a_job, an_agent

pytestmark = pytest.mark.integration
DEPLOY = a_job("true", "deploy", wishes=Wishes(purpose=Purpose.DEPLOY))


@pytest.fixture
async def control(sqlite_engine: sa.Engine, tmp_path: Path) -> AsyncIterator[Control]:
    """Serve the agent API."""
    async with a_control(sqlite_engine, tmp_path) as made, made.listening():
        yield made


def explained(control: Control) -> str:
    (job,) = control.rows(tables.jobs)
    with read(control.engine) as connection:
        found = snapshot.load_with(connection, job["job_id"], control.policy)
    return explain(*found, control.policy).sentence


@pytest.mark.requirement("DEV-011", "ELG-036", "ELG-040", "ACC-033")
@pytest.mark.requirement("MOD-006", "MOD-007")
async def test_a_deploy_job_never_goes_to_an_untrusted_agent_although_only_that_is_idle(
    control: Control,
) -> None:
    run_id = control.submit(DEPLOY)
    labels = {"trust": "trusted_internal"}
    async with an_agent(control, "stranger", trust="untrusted_general", labels=labels):
        assert control.schedule() == 0
        assert "needs trust trusted_internal (policy 0: deploy jobs)" in explained(control)
        assert control.attempts(run_id) == []
        async with an_agent(control, "own", trust="trusted_internal"):
            assert (await control.follow(run_id))["state"] == "succeeded"
    (attempt,) = control.attempts(run_id)
    (own,) = control.rows(tables.runners, name="own")
    assert attempt["runner_id"] == own["runner_id"]
    (audited,) = control.rows(tables.audit, action="job.placed")
    assert audited["target"] == attempt["job_id"]


@pytest.mark.requirement("DEV-012")
async def test_a_proposal_runs_on_an_untrusted_agent_and_on_no_other(control: Control) -> None:
    with write(control.engine) as connection:
        run_id = submit_run(connection, a_job("true"), proposal=True)
    async with an_agent(control, "own", trust="trusted_internal"):
        assert control.schedule() == 0
        assert "(policy 0: untrusted proposals)" in explained(control)
        async with an_agent(control, "stranger", trust=TrustClass.UNTRUSTED_GENERAL):
            assert (await control.follow(run_id))["state"] == "succeeded"


@pytest.mark.requirement("ELG-042")
async def test_an_agent_asks_for_a_pool_and_is_not_in_it(control: Control) -> None:
    async with an_agent(control, pool="vault"):
        (runner,) = control.rows(tables.runners)
    assert (runner["pool_id"], runner["pool_wish"]) == ("pol_default", "vault")
