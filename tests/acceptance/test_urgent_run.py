"""An urgent run stops a restartable one on a full runner; the stopped one is done afterwards."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.conftest import Forgeyard

NIGHTLY = """
name: nightly
jobs:
  scan:
    preemption: restartable
    resources: {cpu: CPU, memory: 64Mi}
    steps:
      - run: if [ ! -e "$MARK" ]; then touch "$MARK"; sleep 600; fi
    env: {MARK: FILE}
"""
HOTFIX = """
name: hotfix
jobs:
  ship:
    priority: emergency
    resources: {cpu: CPU, memory: 64Mi}
    steps:
      - run: echo shipped
"""


def await_that(what: Callable[[], bool], seconds: float = 60) -> None:
    """Look again and again, for a bounded time."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.3)


@pytest.mark.requirement("PRE-003", "PRE-005", "ACC-019", "FAR-021")
@pytest.mark.requirement("PRI-023", "FOP-019")
def test_an_urgent_run_takes_the_runner_and_the_stopped_job_succeeds_afterwards(
    fresh: Forgeyard, tmp_path: Path
) -> None:
    fresh.type("up", "-d").ok()
    policy = fresh.home / "policy.yaml"
    policy.write_text("preemption: {enabled: 1, least_gap: 100}\n")
    fresh.type("policy", "set", str(policy), "--reason", "we ship at night").ok()
    (runner,) = fresh.type("runner", "list", "--json").ok().json()
    cpu, mark = f"{runner['allocatable']['cpu']}m", tmp_path / "mark"
    nightly = NIGHTLY.replace("CPU", cpu).replace("FILE", str(mark))
    first = fresh.submit(fresh.project("nightly", nightly), "--json").ok().json()["run_id"]
    await_that(mark.exists)

    hotfix = fresh.project("hotfix", HOTFIX.replace("CPU", cpu))
    refused = fresh.submit(hotfix)
    assert refused.code == 5
    assert "reason" in refused.err
    urgent = ("--elevate", "production is down", "--watch")
    fresh.submit(hotfix, *urgent, "--json").ok()

    def ended() -> bool:
        shown = fresh.type("run", "show", first, "--json").ok().json()
        return bool(shown["state"] == "succeeded")

    await_that(ended)
    (job,) = fresh.type("run", "show", first, "--json").ok().json()["jobs"]
    assert [attempt["failure_class"] for attempt in job["attempts"]] == ["preempted", None]
