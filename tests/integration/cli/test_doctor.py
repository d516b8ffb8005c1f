"""`forgeyard scheduler doctor` and `rebalance` against a real API."""

import pytest
import sqlalchemy as sa

from forgeyard.store import tables
from forgeyard.store.engine import write
from tests.integration.cli.house import House

pytestmark = pytest.mark.integration
ONE = "jobs: {build: {steps: [{run: make}]}}"
HUGE = "jobs: {huge: {resources: {memory: 64Gi}, steps: [{run: make}]}}"


@pytest.mark.requirement("DIA-019")
def test_the_doctor_passes_a_healthy_system_and_exits_1_on_a_failure(house: House) -> None:
    house.submit(ONE)
    house.lease()
    said = house.run("scheduler", "doctor")
    assert said.code == 0, said.out
    assert "runner pools" in said.out
    assert "fail" not in said.out
    with write(house.desk.engine) as connection:
        connection.execute(sa.update(tables.runners).values(reserved_memory_bytes=0))
    said = house.run("scheduler", "doctor")
    assert said.code == 1
    assert "Wrong books: 1 runner; linux-1 says memory_bytes 0" in said.out
    assert "The sweep repairs them" in said.out
    house.desk.sweep()
    said = house.run("scheduler", "doctor", "--json")
    assert said.code == 0
    assert said.json()["verdict"] == "ok"


def test_a_warning_is_no_failure(house: House) -> None:
    house.submit(HUGE)
    house.desk.register("linux-1")
    said = house.run("scheduler", "doctor", "--json")
    assert (said.code, said.json()["verdict"]) == (0, "warn")
    house.desk.overwrite(tables.runners, house.desk.rows(tables.runners)[0]["runner_id"], suspect=1)
    said = house.run("scheduler", "doctor", "--json")
    assert (said.code, said.json()["verdict"]) == (1, "fail")


@pytest.mark.requirement("CLI-006", "CLI-010", "FAR-038")
def test_rebalancing_looks_at_waiting_jobs_again_and_moves_nothing_that_runs(house: House) -> None:
    house.submit(ONE)
    lease = house.lease("linux-1")
    house.desk.register("linux-2")
    run_id = house.submit(ONE)
    wakes = house.desk.wakes()
    said = house.run("scheduler", "rebalance", "--dry-run", "--json")
    assert [one["runner"] for one in said.json()["placements"]] == ["linux-2"]
    assert house.desk.wakes() == wakes
    said = house.run("scheduler", "rebalance", "--reason", "a new runner")
    assert said.code == 0, said.err
    assert run_id in said.out
    assert "linux-2" in said.out
    assert house.desk.wakes() == wakes + 1
    (line,) = house.desk.audited("scheduler.rebalance")
    assert (line["target"], line["detail"]) == ("default", "a new runner")
    assert house.desk.states(lease) == ("active", "running", "running")
    assert house.desk.row(tables.leases, lease.lease_id)["runner_id"] == lease.runner_id
