"""A fleet on one machine, as its operator types it: from nothing to work and back to nothing."""

import time

import pytest

from tests.acceptance.conftest import Forgeyard

pytestmark = pytest.mark.integration

FLEET = """
fleets:
  - name: lab
    capacity:
      resources: {cpu: 1, memory: 1Gi, disk: 1Gi, slots: 1}
      trust: trusted_internal
    scaling: {max: 2, down: {idle_grace: 2s, window: 2s}}
"""
SMALL = "resources: {cpu: 100m, memory: 64Mi, disk: 64Mi}"
RUN = f"""
jobs:
  one: {{{SMALL}, steps: [{{run: sleep 2}}]}}
  two: {{{SMALL}, steps: [{{run: sleep 2}}]}}
  three: {{{SMALL}, steps: [{{run: sleep 2}}]}}
"""


@pytest.mark.requirement("ACC-039", "FOP-017", "FOP-018", "PLN-002", "DRN-002", "DEM-005")
@pytest.mark.requirement("PHA-014", "PRI-048", "PRI-049", "PRI-051", "PRI-073")
def test_a_fleet_comes_from_zero_does_the_work_and_goes_back_to_zero(fresh: Forgeyard) -> None:
    fresh.type("up", "-d", "--agents", "0", FORGEYARD_FLEETS__LOOK_S="0.5").ok()
    file = fresh.home / "fleet.yaml"
    file.write_text(FLEET)
    applied = fresh.type("fleet", "apply", "-f", str(file), "--reason", "a test").ok()
    assert "lab" in applied.out
    again = fresh.type("fleet", "apply", "-f", str(file), "--reason", "a test").ok()
    assert "unchanged" in again.out
    project = fresh.project("work", RUN)
    watched = fresh.submit(project, "--watch", "--timeout", "180s")
    assert watched.code == 0, watched.out + watched.err
    deadline = time.monotonic() + 90
    while True:
        standing = fresh.type("fleet", "status", "lab", "--json").ok().json()
        if not standing["machines"]:
            break
        assert time.monotonic() < deadline, standing
        time.sleep(0.5)
    machines = fresh.type("fleet", "instances", "lab", "--json").ok().json()
    assert {one["state"] for one in machines} == {"terminated"}
    assert 1 <= len(machines) <= 2
    assert {one["reason"] for one in machines} == {"queued_demand"}
    page = fresh.type("fleet", "status", "lab").ok().out
    assert f"/workflows/fleet%2F{standing['fleet']['fleet_id']}" in page
    listed = fresh.type("fleet", "instances", "lab", "--all").ok().out
    assert f"/workflows/instance%2F{machines[0]['instance_id']}" in listed
    told = fresh.type("fleet", "explain", "lab").ok().out
    assert "0 wanted" in told
    frozen = fresh.type("fleet", "freeze", "lab", "--reason", "holidays").ok()
    assert frozen.code == 0
    refused = fresh.type("fleet", "scale", "lab", "--to", "99999", "--reason", "a test")
    assert refused.code == 2
    assert fresh.type("fleet", "status", "nobody").code == 3
