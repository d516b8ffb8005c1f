"""A machine that its provider takes away: what the real processes of its jobs hear of it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.config import child_environment
from forgeyard.model.job import FailureClass
from forgeyard.store import tables
from tests.builders import a_fleet_spec, a_job_spec
from tests.integration.agent.control import TOKEN, Control, a_control
from tests.integration.agent.machines import a_machine, take_away
from tests.integration.agent.scripts import eventually, is_alive, number_in, text_of
from tests.integration.agent.test_agent_end_to_end import an_agent

pytestmark = pytest.mark.integration
NOTICE = 120_000
WORKS = """
if [ -e {state} ]; then test "$(cat {state})" = half; exit $?; fi
echo started > {began}
while ! [ -e "$FORGEYARD_NOTICE" ]; do sleep 0.05; done
cat "$FORGEYARD_NOTICE" > {left}; echo half > {state}; exit 3
"""
"""Saves half of its work when it has to, and goes on from there when there is something saved."""
WAITS = "echo $$ > {began}; while ! [ -e {go} ]; do sleep 0.05; done"


@pytest.fixture
async def control(sqlite_engine: sa.Engine, tmp_path: Path) -> AsyncIterator[Control]:
    """Serve the agent API."""
    async with a_control(sqlite_engine, tmp_path) as made, made.listening():
        yield made


def script(text: str, folder: Path) -> str:
    """Fill in where a job leaves what a test looks at."""
    names = ("state", "began", "left", "go")
    return text.format(**{name: folder / name for name in names})


@pytest.mark.requirement("SPT-010", "SPT-007", "SPT-009", "ACC-043")
async def test_a_job_that_can_save_its_work_does_and_goes_on_elsewhere(
    control: Control, tmp_path: Path
) -> None:
    name = a_machine(control, a_fleet_spec())
    job = a_job_spec(run=script(WORKS, tmp_path), checkpoint=True)
    async with an_agent(control, name):
        run_id = control.submit(job)
        await control.until_running(run_id)
        await eventually(lambda: (tmp_path / "began").exists())
        take_away(control, name, within_ms=NOTICE)
        await eventually(lambda: control.attempts(run_id)[0]["state"] == "failed")
        async with an_agent(control, "elsewhere"):
            assert (await control.follow(run_id))["state"] == "succeeded"
    first, second = control.attempts(run_id)
    assert first["failure_class"] == FailureClass.INFRASTRUCTURE
    assert "its machine is being taken away by its provider" in first["message"]
    assert "will be taken away" in control.log(first["attempt_id"])
    assert first["runner_id"] != second["runner_id"]
    assert NOTICE / 1000 - 20 < int(text_of(tmp_path / "left")) <= NOTICE / 1000


async def test_one_that_cannot_is_left_to_its_work_and_its_success_counts(
    control: Control, tmp_path: Path
) -> None:
    name = a_machine(control, a_fleet_spec())
    quiet = f'test -z "${{FORGEYARD_NOTICE-}}"; {script(WAITS, tmp_path)}'
    async with an_agent(control, name):
        run_id = control.submit(a_job_spec(run=quiet), a_job_spec("later", needs=("build",)))
        await control.until_running(run_id)
        pid = await number_in(tmp_path / "began")
        take_away(control, name, within_ms=NOTICE)
        await asyncio.sleep(1.0)
        assert is_alive(pid)
        (tmp_path / "go").touch()
        await eventually(lambda: control.attempts(run_id)[0]["state"] == "succeeded")
        assert control.schedule() == 1
        # Nobody has decided yet that it drains, and still nothing new is begun on it.
        await eventually(lambda: "rejected" in [one["state"] for one in control.attempts(run_id)])


@pytest.mark.requirement("SPT-007", "SPT-008", "ACC-043", "INV-062", "TST-014")
async def test_what_goes_down_with_its_machine_is_an_infrastructure_failure_and_done_elsewhere(
    control: Control, tmp_path: Path
) -> None:
    name = a_machine(control, a_fleet_spec())
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    settings = control.settings(name)
    command = (
        *(sys.executable, "-m", "forgeyard.cli.main", "agent", "--join", control.url),
        *("--name", name, "--token-file", str(token_file)),
    )
    environment = child_environment(FORGEYARD_AGENT=settings.config.model_dump_json())
    machine = await asyncio.create_subprocess_exec(
        *command, env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await control.registered(name)
        run_id = control.submit(a_job_spec(run=script(WAITS, tmp_path)))
        await control.until_running(run_id)
        pid = await number_in(tmp_path / "began")
        take_away(control, name, within_ms=500)
    finally:
        machine.kill()
        await machine.wait()
    os.killpg(pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    control.change(tables.leases, {"state": "active"}, expires_at=1)
    async with an_agent(control, "elsewhere"):
        assert (await control.follow(run_id))["state"] == "succeeded"
    first, second = control.attempts(run_id)
    assert first["failure_class"] == FailureClass.INFRASTRUCTURE
    assert "taken away by its provider" in first["message"]
    assert first["runner_id"] != second["runner_id"]
