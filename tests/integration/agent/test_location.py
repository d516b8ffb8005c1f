"""What an operator says of a machine reaches the scheduler: where it is, how sure, how dear."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from forgeyard.agent import probe
from forgeyard.machine_settings import AgentConfig
from forgeyard.model.capability import REPORT_VERSION
from forgeyard.model.equipment import Provenance
from forgeyard.model.location import Location, ReliabilityClass
from forgeyard.scheduler.snapshot import SchedulingRunner
from forgeyard.store import snapshot
from forgeyard.store.engine import read
from tests.integration.agent.control import TOKEN, Control, a_control
from tests.integration.agent.test_agent_end_to_end import an_agent

pytestmark = pytest.mark.integration


@pytest.fixture
async def control(sqlite_engine: sa.Engine, tmp_path: Path) -> AsyncIterator[Control]:
    """Serve the agent API."""
    async with a_control(sqlite_engine, tmp_path) as made, made.listening():
        yield made


def seen(control: Control, name: str = "runner-1") -> SchedulingRunner:
    """Look at a runner as a cycle does."""
    with read(control.engine) as connection:
        runners = snapshot.load(connection, "default", control.policy).runners
    (found,) = (runner for runner in runners if runner.name == name)
    return found


@pytest.mark.requirement("SPT-003", "SPT-001", "RUN-009", "SCO-023", "ELG-027")
async def test_what_an_operator_said_of_a_machine_is_seen_by_a_cycle(control: Control) -> None:
    said = {
        "host": "big-iron",
        "site": "rack-4",
        "region": "eu-1",
        "reliability": "preemptible",
        "cost_micros_per_hour": 120_000,
    }
    async with an_agent(control, **said):
        runner = seen(control)
    assert runner.location == Location(host="big-iron", site="rack-4", region="eu-1")
    assert runner.capabilities.reliability is ReliabilityClass.PREEMPTIBLE
    assert runner.capabilities.cost_micros_per_hour == 120_000
    assert runner.capabilities.schema_version == REPORT_VERSION == 3
    assert runner.capabilities.provenance["reliability"] is Provenance.CONFIGURED


async def test_an_agent_that_is_told_nothing_knows_its_host_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node-7")
    message = await probe.registration(AgentConfig(path=str(tmp_path)), tmp_path)
    assert message.location == Location(host="node-7", site=None, region=None)
    assert message.capabilities.reliability is ReliabilityClass.STANDARD
    assert message.capabilities.cost_micros_per_hour is None


async def test_the_report_of_an_older_agent_is_taken(control: Control) -> None:
    old = {
        "runner_name": "old",
        "capabilities": {"platform": "linux", "schema_version": 2},
        "total": {"cpu": 4_000, "memory": 2**30, "disk": 2**30, "slots": 2},
        "headroom": {"cpu": 0, "memory": 0, "disk": 0, "slots": 0},
    }
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        answer = await client.post(f"{control.url}/agent/v1/sessions", json=old)
    assert answer.status_code == 201
    runner = seen(control, "old")
    assert runner.location == Location(host=None, site=None, region=None)
    assert runner.capabilities.reliability is ReliabilityClass.STANDARD
    assert runner.capabilities.cost_micros_per_hour is None
