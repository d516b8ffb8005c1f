"""No job reaches the address where a cloud hands out credentials (BOO-022)."""

import subprocess
import sys
import time

import pytest

from tests.integration.agent.prison import IS_ROOT, USER, a_cloud, some_ground

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not IS_ROOT, reason="only root may keep a user from an address"),
]
CONNECT = "exec 3<>/dev/tcp/169.254.169.254/80 && echo reached"
AGENT = """
import json, sys
from pathlib import Path
from subprocess import run
from forgeyard.agent import isolation
from forgeyard.agent.process import Command
from forgeyard.agent.workspace import folders_of, prepare_work_dir
from forgeyard.machine_settings import AgentConfig
from forgeyard.model.ids import LeaseId

work_dir, settings, script = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
prepare_work_dir(str(work_dir), name="x")
found = isolation.establish(AgentConfig.model_validate(settings), work_dir)
folders = folders_of(work_dir, LeaseId("lea"))
folders.make()
found.confinement.take_over(folders)
step = Command(argv=("bash", "-c", script), cwd=folders.workspace, env={"PATH": "/usr/bin:/bin"})
step = found.confinement.shut_in(step, folders, network="host")
done = run(step.argv, cwd=step.cwd, env=dict(step.env), input=step.feed)
sys.exit(done.returncode)
"""


def inside(host: str, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command on the host that reaches a metadata service."""
    return subprocess.run(
        ("ip", "netns", "exec", host, *command),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def as_a_job(host: str) -> "subprocess.CompletedProcess[str]":
    """Connect as the user of jobs, whom no agent has shut in."""
    return inside(host, "setpriv", "--reuid", USER, "--clear-groups", "bash", "-c", CONNECT)


def until_it_answers(host: str) -> None:
    """Wait for the metadata service to listen; the user of jobs reaches it like anybody else."""
    deadline = time.monotonic() + 60
    while as_a_job(host).stdout != "reached\n":
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.requirement("BOO-022", "ACC-051")
@pytest.mark.parametrize("sandbox", ["none", "linux_namespace"])
def test_a_job_cannot_connect_to_the_metadata_service_and_its_agent_can(sandbox: str) -> None:
    """Prove the part of S2 and TST-027 that is about the network."""
    with some_ground() as ground, a_cloud() as host:
        until_it_answers(host)
        settings = f'{{"job_user": "{USER}", "sandbox": "{sandbox}"}}'
        agent = inside(host, sys.executable, "-c", AGENT, str(ground / "a"), settings, CONNECT)
        assert "metadata=forbidden" in agent.stdout
        assert agent.returncode == 1
        assert "reached" not in agent.stdout
        assert "Permission denied" in agent.stderr
        assert as_a_job(host).returncode == 1, "it is the user that is kept from it"
        assert inside(host, "bash", "-c", CONNECT).stdout == "reached\n"


def test_an_address_that_the_host_has_itself_is_reported_to_be_reachable() -> None:
    with some_ground() as ground, a_cloud() as host:
        inside(host, "ip", "addr", "add", "169.254.169.254/32", "dev", "lo")
        settings = f'{{"job_user": "{USER}"}}'
        agent = inside(host, sys.executable, "-c", AGENT, str(ground / "a"), settings, "true")
    assert "metadata=reachable" in agent.stdout
    assert "the host has this address itself" in agent.stdout
