"""A job that was placed by what a tool was never meets another: it goes on elsewhere, or waits."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.agent import asking, identity, toolchains
from forgeyard.machine_settings import AgentConfig, ToolchainConfig
from forgeyard.model.capability import Requirements, ToolchainRequirement
from forgeyard.model.job import JobSpec
from forgeyard.store import tables
from tests.builders import a_job_spec
from tests.integration.agent.control import Control, a_control
from tests.integration.agent.scripts import eventually
from tests.integration.agent.test_agent_end_to_end import an_agent
from tests.integration.agent.test_location import seen
from tests.integration.agent.test_probe import a_tool

pytestmark = pytest.mark.integration
NODE_20 = ToolchainRequirement(name="node", version="==20.*")


@pytest.fixture
async def control(sqlite_engine: sa.Engine, tmp_path: Path) -> AsyncIterator[Control]:
    """Serve the agent API."""
    async with a_control(sqlite_engine, tmp_path) as made, made.listening():
        yield made


def a_place(control: Control, name: str, version: str) -> dict[str, object]:
    """Put a node of some version on the PATH of an agent; return the agent's settings."""
    folder = control.folder / f"{name}-tools"
    folder.mkdir()
    a_tool(folder, "node", f"echo v{version}")
    return {"path": f"{folder}:{control.settings(name).config.path}"}


def a_job(control: Control, wanted: ToolchainRequirement = NODE_20) -> JobSpec:
    """Describe a job that leaves a trace as soon as it begins."""
    requires = Requirements(toolchains=(wanted,))
    return a_job_spec("build", run=f"echo x >> {control.folder}/began", requires=requires)


@pytest.mark.requirement("ELG-045", "ELG-028")
async def test_a_tool_that_changed_since_the_report_fails_preparation_and_the_job_moves_on(
    control: Control,
) -> None:
    async with an_agent(control, "first", **a_place(control, "first", "20.1.0")):
        before = seen(control, "first")
        a_tool(control.folder / "first-tools", "node", "echo v18.2.0")
        run_id = control.submit(a_job(control))
        assert control.schedule() == 1
        await eventually(lambda: control.attempts(run_id)[0]["state"] == "failed")
        (failed,) = control.attempts(run_id)
        assert failed["failure_class"] == "toolchain_unavailable"
        assert failed["message"].startswith("node: reported as 20.1.0 (sha256:")
        assert "now 18.2.0" in failed["message"]
        assert failed["started_at"] is None
        assert not (control.folder / "began").exists(), "no step may meet the other tool"
        after = seen(control, "first")
        assert after.capability_digest != before.capability_digest
        assert [(it.name, it.version) for it in after.capabilities.toolchains] == [
            ("node", "18.2.0")
        ]
        assert after.penalty > 0
        control.sweep()
        assert control.schedule() == 0
        (parked,) = control.rows(tables.parked_classes)
        assert "needs node ==20.*, but first has node 18.2.0" in parked["diagnosis"]
        async with an_agent(control, "second", **a_place(control, "second", "20.3.0")):
            assert (await control.follow(run_id))["state"] == "succeeded"
            second = seen(control, "second")
    assert [row["runner_id"] for row in control.attempts(run_id)] == [
        before.runner_id,
        second.runner_id,
    ]
    assert (control.folder / "began").read_text() == "x\n"


@pytest.mark.requirement("ELG-045")
async def test_a_tool_that_was_replaced_by_one_of_the_same_version_is_another_tool(
    control: Control,
) -> None:
    async with an_agent(control, **a_place(control, "runner-1", "20.1.0")):
        (tool,) = seen(control).capabilities.toolchains
        assert tool.digest is not None
        exactly = ToolchainRequirement(name="node", digest=tool.digest)
        run_id = control.submit(a_job(control, exactly))
        assert (await control.follow(run_id))["state"] == "succeeded"
        a_tool(control.folder / "runner-1-tools", "node", "echo v20.1.0 # patched")
        run_id = control.submit(a_job(control, exactly))
        assert control.schedule() == 1
        await eventually(lambda: control.attempts(run_id)[0]["state"] == "failed")
        assert control.attempts(run_id)[0]["failure_class"] == "toolchain_unavailable"
        (now,) = seen(control).capabilities.toolchains
        assert (now.version, now.digest == tool.digest) == ("20.1.0", False)


@pytest.mark.requirement("ELG-045")
async def test_a_directory_of_tools_is_known_by_all_that_lies_in_it(control: Control) -> None:
    folder = control.folder / "node"
    folder.mkdir()
    a_tool(folder, "node", "echo v20.1.0")
    (folder / "npm").write_text("npm")
    offered = [{"name": "node", "version": "20.1.0", "bin": str(folder)}]
    async with an_agent(control, toolchains=offered):
        (tool,) = seen(control).capabilities.toolchains
        run_id = control.submit(
            a_job(control, ToolchainRequirement(name="node", digest=tool.digest))
        )
        assert (await control.follow(run_id))["state"] == "succeeded"
        (folder / "npm").write_text("another npm")
        run_id = control.submit(a_job(control))
        assert control.schedule() == 1
        await eventually(lambda: control.attempts(run_id)[0]["state"] == "failed")
        assert control.attempts(run_id)[0]["failure_class"] == "toolchain_unavailable"
        # By now the runner has said what it has; that is what the job asked for, so it may run.
        assert (await control.follow(run_id))["state"] == "succeeded"


@pytest.mark.requirement("ELG-028", "ELG-029")
async def test_a_host_is_looked_at_anew_from_time_to_time(control: Control) -> None:
    settings = a_place(control, "runner-1", "18.2.0")
    async with an_agent(control, refresh_s=0.3, **settings):
        first = seen(control)
        run_id = control.submit(a_job(control))
        assert control.schedule() == 0
        await eventually(lambda: seen(control).reported_at > first.reported_at)
        assert seen(control).capability_digest == first.capability_digest
        a_tool(control.folder / "runner-1-tools", "node", "echo v20.2.0")
        assert (await control.follow(run_id))["state"] == "succeeded"
        assert seen(control).capability_digest != first.capability_digest


async def test_a_tool_that_does_not_answer_now_is_the_same_as_long_as_its_program_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "TIMEOUT_S", 0.5)
    a_tool(tmp_path, "node", f"[ ! -e {tmp_path}/slow ] || /bin/sleep 60; echo v20.1.0")
    config = AgentConfig(path=str(tmp_path))
    known = await toolchains.offered(config)
    (tmp_path / "slow").touch()
    assert await toolchains.altered((NODE_20,), known, config) == ""
    a_tool(tmp_path, "node", "exit 1")
    assert "now not there" in await toolchains.altered((NODE_20,), known, config)
    assert "not offered" in await toolchains.altered((NODE_20,), (), config)


def test_a_program_is_hashed_again_only_when_it_may_have_changed(tmp_path: Path) -> None:
    path = tmp_path / "node"
    path.write_bytes(b"one")
    first = identity.program_digest(path)
    assert first == identity.program_digest(path)
    before = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert identity.program_digest(path) not in (None, first), "its size and time say nothing"
    assert identity.program_digest(tmp_path / "absent") is None
    assert identity.program_digest(tmp_path) is None


def test_a_directory_that_is_too_large_has_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"aa")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "link").symlink_to("a")
    assert identity.folder_digest(tmp_path) is not None
    monkeypatch.setattr(identity, "MOST_BYTES", 3)
    assert identity.folder_digest(tmp_path) is None
    monkeypatch.setattr(identity, "MOST_BYTES", 4)
    monkeypatch.setattr(identity, "MOST_FILES", 1)
    assert identity.folder_digest(tmp_path) is None
    assert identity.folder_digest(tmp_path / "absent") is None


async def test_a_configured_tool_comes_first_and_both_are_known_by_digest(tmp_path: Path) -> None:
    a_tool(tmp_path, "node", "echo v20.1.0")
    config = AgentConfig(
        path=str(tmp_path),
        toolchains=(ToolchainConfig(name="node", version="20.1.0", bin=str(tmp_path)),),
    )
    first, second = await toolchains.offered(config)
    assert first.digest == identity.folder_digest(tmp_path)
    assert second.digest == identity.program_digest(tmp_path / "node")
    assert await toolchains.altered((NODE_20,), (first, second), config) == ""
