"""An agent that nobody answers any more: it ends its jobs and itself, and says why by its code."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.agent.contact import GAVE_UP, Contact
from forgeyard.agent.loop import Agent
from forgeyard.config import child_environment
from forgeyard.store import tables
from forgeyard.trust import tokens
from tests.builders import a_job_spec
from tests.integration.agent.control import TOKEN, Control, a_control, a_policy
from tests.integration.agent.scripts import eventually, is_alive, number_in

pytestmark = pytest.mark.integration
Process = subprocess.Popen[bytes]
ENROLMENT = f"enr_{'0' * 26}"
PIN = f"sha256/{'A' * 43}="


def started(control: Control, **settings: object) -> Process:
    """Start an agent as its machine does, from the command line."""
    token = control.folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    command = (sys.executable, "-m", "forgeyard.cli.main", "agent", "--join", control.url)
    said = {"WORK_DIR": control.folder / "runner-1", "HEADROOM_DISK": 0, **settings}
    environment = {f"FORGEYARD_AGENT__{name}": str(value) for name, value in said.items()}
    with (control.folder / "agent.log").open("ab") as log:
        return subprocess.Popen(
            (*command, "--name", "runner-1", "--token-file", str(token)),
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=child_environment(FORGEYARD_DATA_DIR=str(control.folder / "data"), **environment),
        )


@contextmanager
def a_process(control: Control, **settings: object) -> Iterator[Process]:
    """Run an agent; kill it if it stays."""
    process = started(control, **settings)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.case("FLT-027")
async def test_an_agent_that_nobody_answers_ends_its_job_and_itself_with_a_code_of_its_own(
    sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    ready, policy = tmp_path / "ready", a_policy(execution_ttl=4_000, connectivity_grace=500)
    async with a_control(sqlite_engine, tmp_path, policy=policy) as control:
        async with control.listening():
            pass
        with a_process(control, GIVE_UP_S=6, DRAIN_TIMEOUT_S=1) as process:
            async with control.listening():
                run_id = control.submit(a_job_spec(run=f"echo $$ > {ready}; sleep 600"))
                await control.registered()
                await control.until_running(run_id)
                leader = await number_in(ready)
                await asyncio.sleep(7)
                assert process.poll() is None, "it is answered, though its job lasts"
            await asyncio.sleep(2)
            assert is_alive(leader), "nor is a short silence minded"
            await eventually(lambda: process.poll() is not None, within=30)
        assert process.returncode == GAVE_UP
        assert not is_alive(leader)
        assert control.rows(tables.sessions)[0]["state"] == "open", "nobody heard it leave"


async def cut_off(tmp_path: Path, engine: sa.Engine, **changed: object) -> Agent:
    """Make an agent that was invited to a server which is not there."""
    token = tokens.derive(b"k" * 32, ENROLMENT, "host/runner-1/1").written()
    async with a_control(engine, tmp_path) as control:
        async with control.listening():
            pass
        settings = control.settings(**changed)
    return Agent(replace(settings, token="", enrol_token=token, ca_pin=PIN))


@pytest.mark.case("FLT-027")
async def test_a_machine_that_never_finds_its_server_gives_up_as_well(
    sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    agent = await cut_off(tmp_path, sqlite_engine, give_up_s=1.0)
    assert await asyncio.wait_for(agent.run(), 20) == GAVE_UP


async def test_an_agent_that_still_waits_to_be_enrolled_ends_when_it_is_told_to(
    sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    agent = await cut_off(tmp_path, sqlite_engine)
    running = asyncio.create_task(agent.run())
    await asyncio.sleep(0.5)
    assert not running.done()
    agent.drain()
    assert await asyncio.wait_for(running, 20) == 0


async def test_who_minds_no_silence_waits_for_ever_and_an_answer_counts_anew() -> None:
    time_s = [0.0]
    patient = Contact(0, monotonic=lambda: time_s[0])
    strict = Contact(100, monotonic=lambda: time_s[0])
    time_s[0] = 99.0
    strict.heard()
    time_s[0] = 198.0
    for one in (patient, strict):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await one.lost()
        assert not one.is_lost
    time_s[0] = 199.0
    async with asyncio.timeout(5):
        await strict.lost()
    assert strict.is_lost
