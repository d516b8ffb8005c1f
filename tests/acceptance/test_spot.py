"""Machines that are taken away while they work: what runs on them is done elsewhere."""

import time
from collections.abc import Callable

import pytest

from tests.acceptance.conftest import Forgeyard

pytestmark = pytest.mark.integration
NOTICE_S = 6
FLEET = """
name: spot
capacity:
  resources: {cpu: 500m, memory: 256Mi, disk: 256Mi, slots: 1}
  trust: trusted_internal
offerings: [{name: cheap, market: preemptible}]
scaling: {max: 4, down: {idle_grace: 60s}}
"""
SMALL = "resources: {cpu: 100m, memory: 64Mi, disk: 64Mi}"
RUN = f"""
jobs:
  saves:
    {SMALL}
    checkpoint: true
    env: {{HERE: HOME_OF_THE_TEST}}
    steps:
      - run: |
          if [ -e "$HERE/saved" ]; then test "$(cat "$HERE/saved")" = half; exit 0; fi
          touch "$HERE/saves-began"
          while ! [ -e "$FORGEYARD_NOTICE" ]; do sleep 0.1; done
          echo half > "$HERE/saved"
          exit 1
  does-not:
    {SMALL}
    env: {{HERE: HOME_OF_THE_TEST}}
    steps:
      - run: |
          if [ -e "$HERE/does-not-began" ]; then exit 0; fi
          touch "$HERE/does-not-began"
          sleep 600
"""


def await_that(what: Callable[[], bool], seconds: float = 90) -> None:
    """Look again and again, for a bounded time."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.3)


@pytest.mark.requirement("SPT-007", "SPT-008", "SPT-009", "SPT-010", "ACC-043", "TST-014")
@pytest.mark.requirement("INV-062", "GAT-018")
def test_jobs_on_machines_that_are_taken_away_are_done_on_others(fresh: Forgeyard) -> None:
    """S1 §39 to §42, with real processes: one saves its work in time, the other is just lost."""
    pace = {"FORGEYARD_FLEETS__LOOK_S": "0.5", "FORGEYARD_FLEETS__OBSERVE_S": "0.5"}
    fresh.type("up", "-d", "--agents", "0", **pace).ok()
    file = fresh.home / "fleet.yaml"
    file.write_text(FLEET)
    fresh.type("fleet", "apply", "-f", str(file), "--reason", "a test").ok()
    project = fresh.project("work", RUN.replace("HOME_OF_THE_TEST", str(fresh.home)))
    run_id = fresh.submit(project, "--json").ok().json()["run_id"]
    began = [fresh.home / f"{name}-began" for name in ("saves", "does-not")]
    await_that(lambda: all(one.exists() for one in began))
    taken = fresh.type("fleet", "instances", "spot", "--json").ok().json()
    assert [one["state"] for one in taken] == ["healthy"] * 2
    for one in taken:
        folder = fresh.home / "data" / "fleet" / "local" / one["provider_ref"]
        (folder / "interruption").write_text(f"{int(time.time()) + NOTICE_S}\n")

    watched = fresh.type("run", "watch", run_id, "--timeout", "120s")
    assert watched.code == 0, watched.out + watched.err
    shown = fresh.type("run", "show", run_id, "--json").ok().json()
    attempts = {job["name"]: job["attempts"] for job in shown["jobs"]}
    for name, ends in (("saves", "failed"), ("does-not", "lost")):
        first, second = attempts[name]
        assert (first["state"], first["failure_class"]) == (ends, "infrastructure"), name
        assert "taken away by its provider" in first["message"]
        assert first["runner"] in {one["runner_name"] for one in taken}
        assert second["runner"] not in {one["runner_name"] for one in taken}
    machines = fresh.type("fleet", "instances", "spot", "--json").ok().json()
    gone = [one for one in machines if one["interrupted_at"] is not None]
    assert {one["instance_id"] for one in gone} == {one["instance_id"] for one in taken}
