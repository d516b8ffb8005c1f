"""`forgeyard up`: ports, double starts, ending, and going on where it stopped."""

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.conftest import Forgeyard

pytestmark = pytest.mark.integration

TWO_JOBS = """
jobs:
  slow:
    timeouts: {execution: 5m}
    steps: [{run: "until test -e GATE; do sleep 0.1; done"}]
  last: {needs: slow, steps: [{run: "echo all done"}]}
"""


def test_a_taken_port_is_named_with_the_setting_that_moves_it(fresh: Forgeyard) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = fresh.type("up", FORGEYARD_API__PORT=str(port))
    assert answer.code == 7
    assert f"port {port}" in answer.err
    assert "FORGEYARD_API__PORT" in answer.err
    assert not (fresh.home / "data" / "processes.json").exists()


@pytest.mark.requirement("INV-016", "PRI-024")
@pytest.mark.requirement("ACC-068", "INV-071")
def test_an_unfinished_run_goes_on_at_the_next_start(fresh: Forgeyard) -> None:
    gate = fresh.home / "gate"
    project = fresh.project("unfinished", TWO_JOBS.replace("GATE", str(gate)))
    fresh.type("up", "-d").ok()
    run = fresh.type("run", "submit", str(project / "forgeyard.yaml"), "--no-source", "--json")
    run_id = run.ok().json()["run_id"]
    _wait(lambda: _states(fresh, run_id)["slow"] == "running")
    fresh.type("down").ok()
    assert fresh.type("status", "--json").json()["running"] is False

    gate.touch()
    fresh.type("up", "-d").ok()
    watched = fresh.type("run", "watch", run_id, "--timeout", "90s")
    assert watched.code == 0, watched.out + watched.err
    assert _states(fresh, run_id) == {"slow": "succeeded", "last": "succeeded"}
    assert fresh.type("fleet", "list", "--json").ok().json() == [], "and there is no fleet at all"


def _states(forgeyard: Forgeyard, run_id: str) -> dict[str, Any]:
    shown = forgeyard.type("run", "show", run_id, "--json").ok().json()
    return {job["name"]: job["state"] for job in shown["jobs"]}


def _wait(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)
