"""A runner elsewhere: another network, user and directory; a URL, a token for itself, a pin."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import Forgeyard
from tests.networks import OtherHost, other_hosts

pytestmark = pytest.mark.integration

NOBODY = "65534"
RUN = """
jobs:
  there:
    steps:
      - run: "id -u; pwd; grep -o 10.213.* /proc/net/fib_trie; wc -c < input.txt > size"
    outputs: {size: size}
  back: {needs: there, steps: [{run: 'test "$(cat size)" -eq 7'}]}
"""


@pytest.fixture
def other_host() -> Iterator[OtherHost]:
    """Make a second host."""
    if not shutil.which("setpriv"):
        pytest.skip("an agent of nobody's takes setpriv")
    with other_hosts(1) as (host,):
        yield host


@pytest.mark.requirement("BOO-004", "BOO-018", "BOO-019", "ACC-050", "PRI-063", "GAT-014")
def test_an_agent_elsewhere_needs_only_the_url_a_token_and_the_pin(
    fresh: Forgeyard, other_host: OtherHost, tmp_path_factory: pytest.TempPathFactory
) -> None:
    fresh.type("up", "-d", "--listen", other_host.here, "--agents", "0").ok()
    status = fresh.type("status", "--json").ok().json()
    invited = fresh.type("runner", "invite", "abroad", "--reason", "a test", "--json").ok().json()
    home = tmp_path_factory.mktemp("elsewhere")
    home.chmod(0o700)
    os.chown(home, int(NOBODY), int(NOBODY))
    token = home / "token"
    token.write_text(invited["token"])
    os.chown(token, int(NOBODY), int(NOBODY))
    agent = _agent(other_host, home, status["agent_url"], invited["pin"])
    try:
        project = fresh.project("abroad", RUN, input__txt="1234567")
        submitted = fresh.type(
            *("run", "submit", str(project / "forgeyard.yaml"), "--source", str(project)),
            *("--watch", "--timeout", "60s"),
        )
        assert submitted.code == 0, submitted.out + submitted.err + _tail(home)
        run_id = fresh.type("run", "list", "--json").ok().json()["runs"][0]["run_id"]
        log = fresh.type("run", "logs", run_id, "--job", "there").ok().out
        assert NOBODY in log
        assert other_host.there in log
        assert str(home) in log
        runners = fresh.type("runner", "list", "--json").ok().out
        assert json.loads(runners)
        assert "abroad" in runners
    finally:
        agent.terminate()
        assert agent.wait(30) == 0, _tail(home)
    left = [path for path in (home / "work" / "jobs").rglob("*") if path.is_file()]
    assert left == []


@pytest.mark.requirement("PHA-016", "BOO-001", "BOO-021")
def test_a_runner_elsewhere_works_on_from_one_certificate_to_the_next_until_it_is_revoked(
    fresh: Forgeyard, other_host: OtherHost, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Enrolled, at work, renewed while it works, shut out: its process ends by itself."""
    words = ("up", "-d", "--listen", other_host.here, "--agents", "0")
    fresh.type(*words, FORGEYARD_API__CERTIFICATE_S="20").ok()
    status = fresh.type("status", "--json").ok().json()
    invited = fresh.type("runner", "invite", "abroad", "--reason", "a test", "--json").ok().json()
    home = tmp_path_factory.mktemp("renewed")
    home.chmod(0o700)
    (home / "token").write_text(invited["token"])
    os.chown(home / "token", int(NOBODY), int(NOBODY))
    os.chown(home, int(NOBODY), int(NOBODY))
    agent = _agent(other_host, home, status["agent_url"], invited["pin"])
    try:
        project = fresh.project("renewed", "jobs: {long: {steps: [{run: sleep 45}]}}")
        watched = fresh.submit(project, "--watch", "--timeout", "180s")
        assert watched.code == 0, watched.out + watched.err + _tail(home)
        (run,) = fresh.type("run", "list", "--json").ok().json()["runs"]
        shown = fresh.type("run", "show", run["run_id"], "--json").ok().json()
        assert [len(job["attempts"]) for job in shown["jobs"]] == [1]
        assert _listening(other_host) == []
        certificates = fresh.type("runner", "certificates", "abroad", "--json").ok().json()
        assert len(certificates) >= 3
        fresh.type("runner", "revoke", "abroad", "--reason", "stolen").ok()
        assert agent.wait(60) == 5, _tail(home)
    finally:
        if agent.poll() is None:
            agent.kill()
            agent.wait(30)
    assert "quarantined: stolen" in fresh.type("runner", "list").ok().out


def _listening(host: OtherHost) -> list[str]:
    """List what listens on the other host; nobody has to reach into it."""
    words = host.command("cat", "/proc/net/tcp", "/proc/net/tcp6")
    rows = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    return [row for row in rows if row.split()[3] == "0A"]


def _agent(host: OtherHost, home: Path, url: str, pin: str) -> subprocess.Popen[bytes]:
    """Start an agent as nobody; it may read our Python, and nothing else of ours is given."""
    command = (
        *host.command("setpriv", "--reuid", NOBODY, "--regid", NOBODY),
        *("--clear-groups", "--inh-caps", "+dac_read_search", "--ambient-caps"),
        *("+dac_read_search", sys.executable, "-m", "forgeyard.cli.main", "agent"),
        *("--join", url, "--enrol-token-file", "token", "--ca-pin", pin),
        *("--work-dir", str(home / "work")),
    )
    with (home / "agent.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=home, env={"PATH": "/usr/bin:/bin"}, stdout=log, stderr=log
        )


def _tail(home: Path) -> str:
    return (home / "agent.log").read_text(errors="replace")[-3000:]
