"""`forgeyard scheduler doctor` and `rebalance`, and what waits and is there by groups."""

import pytest
import sqlalchemy as sa

from forgeyard.model.capability import Platform
from forgeyard.model.equipment import Device, Equipment, Gpu
from forgeyard.store import tables
from forgeyard.store.engine import write
from tests.builders import some_capabilities
from tests.integration.cli.house import House

pytestmark = pytest.mark.integration
ONE = "jobs: {build: {steps: [{run: make}]}}"
HUGE = "jobs: {huge: {resources: {memory: 64Gi}, steps: [{run: make}]}}"


@pytest.mark.requirement("DIA-019")
def test_the_doctor_passes_a_healthy_system_and_exits_1_on_a_failure(house: House) -> None:
    house.submit(ONE)
    house.lease()
    house.desk.sweep()
    said = house.run("scheduler", "doctor")
    assert said.code == 0, said.out
    assert "runner pools" in said.out
    assert "fail" not in said.out
    with write(house.desk.engine) as connection:
        connection.execute(sa.update(tables.runners).values(reserved_memory_bytes=0))
    said = house.run("scheduler", "doctor")
    assert said.code == 1
    assert "Wrong books: 1 runner; runner_sum of rnr_" in said.out
    assert "is memory_bytes 0 and should be memory_bytes 268435456" in said.out
    assert "The sweep repairs them" in said.out
    house.desk.sweep()
    said = house.run("scheduler", "doctor", "--json")
    assert said.code == 0
    told = {one["name"]: one["verdict"] for one in said.json()["checks"]}
    assert told.pop("reconciliation") == "warn", "what was repaired is told for an hour"
    told.pop("outbox")  # Temporal is away here, so that events wait
    assert set(told.values()) == {"ok"}, told


@pytest.mark.requirement("RCN-012", "RCN-014", "RCN-017")
def test_reconciling_shows_what_is_wrong_repairs_it_and_remembers_it(house: House) -> None:
    house.submit(ONE)
    lease = house.lease()
    assert "nothing contradicts" in house.run("scheduler", "reconcile").err
    assert "nothing was found" in house.run("scheduler", "findings").err
    desk, runner_id = house.desk, lease.runner_id
    desk.overwrite(tables.runners, runner_id, reserved_slots=3, total_memory_bytes=1)
    for _ in range(2):
        said = house.run("scheduler", "reconcile", "--dry-run")
        assert said.code == 0, said.err
        rows = [" ".join(line.split()) for line in said.out.splitlines()]
        assert f"runner sum {runner_id} slots 3 slots 1 would be repaired" in rows, said.out
        assert "runner overfull" in said.out
        assert "reported" in said.out
    assert desk.row(tables.runners, runner_id)["reserved_slots"] == 3
    said = house.run("scheduler", "reconcile", "--reason", "a look", "--json")
    assert said.code == 0, said.err
    assert (said.json()["repaired"], said.json()["reported"]) == (1, 1)
    assert desk.row(tables.runners, runner_id)["reserved_slots"] == 1
    (audited,) = desk.audited("scheduler.reconcile")[-1:]
    assert audited["detail"] == "a look"
    listed = house.run("scheduler", "findings").out
    assert "slots 3" in listed
    assert "repaired" in listed
    found = house.run("scheduler", "findings", "--limit", "1", "--json").json()
    assert found[0]["kind"] == "runner_overfull"
    desk.overwrite(tables.runners, runner_id, total_memory_bytes=2**40)
    assert house.run("scheduler", "reconcile", "--partition", "elsewhere", "--json").json() == {
        "findings": [],
        "repaired": 0,
        "reported": 0,
        "failed": 0,
        "more": False,
    }


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


MIXED = """\
jobs:
  here: {steps: [{run: make}]}
  apple: {priority: high, requires: {platform: macos}, steps: [{run: make}]}
"""


@pytest.mark.requirement("CLI-008")
def test_the_queues_are_grouped_by_priority_tenant_platform_and_pool(house: House) -> None:
    house.submit(MIXED)
    house.lease()
    found = {
        by: {
            one["name"]: (one["eligible"], one["running"])
            for one in house.run("scheduler", "queues", "--by", by, "--json").json()
        }
        for by in ("priority", "tenant", "platform", "pool")
    }
    assert found == {
        "priority": {"high": (1, 0), "normal": (0, 1)},
        "tenant": {"tnt_default": (1, 1)},
        "platform": {"any": (0, 1), "macos": (1, 0)},
        "pool": {"default": (0, 1), "not placed yet": (1, 0)},
    }
    said = house.run("scheduler", "queues", "--by", "platform")
    assert [line.split()[:3] for line in said.out.splitlines()][1:] == [
        ["any", "0", "1"],
        ["macos", "1", "0"],
    ]
    assert house.run("scheduler", "queues", "--by", "colour").code == 2


@pytest.mark.requirement("CLI-009")
def test_the_capacity_is_told_by_pool_and_platform_with_gpus_and_devices(house: House) -> None:
    equipment = Equipment(
        devices=(Device(kind="phone", count=2), Device(kind="board", count=1)),
        gpus=(Gpu(model="A10"),),
    )
    house.desk.register("phones", capabilities=some_capabilities(equipment=equipment))
    house.desk.register("mac", capabilities=some_capabilities(platform=Platform.MACOS))
    house.submit("jobs: {here: {requires: {platform: linux}, steps: [{run: make}]}}")
    assert house.desk.cycle().granted == 1
    rows = [line.split() for line in house.run("scheduler", "capacity").out.splitlines()]
    assert ["free", "7.5", "15.8", "GiB", "99.8", "GiB", "7"] in rows
    linux = next(row for row in rows if row[:2] == ["default", "linux/x86_64"])
    assert linux[2:6] == ["1", "3.5", "of", "4"]
    assert linux[-3:] == ["1", "3", "0"]
    assert ["default", "macos/x86_64", "1", "4", "of", "4"] in [row[:6] for row in rows]
    with write(house.desk.engine) as connection:
        lease = house.desk.leases(state="offered")[0]
        held = {"lease_id": lease.lease_id, "device_id": "phone/0", "share": 1_000}
        connection.execute(sa.insert(tables.device_holds).values(runner_id=lease.runner_id, **held))
    pools = house.run("scheduler", "capacity", "--json").json()["pools"]
    assert [pool["devices_held"] for pool in pools] == [1, 0]


@pytest.mark.requirement("CLI-007")
def test_the_status_tells_what_waits_runs_is_leased_free_and_under_pressure(house: House) -> None:
    house.submit(ONE)
    house.lease()
    house.submit(HUGE)
    house.desk.cycle()
    said = house.run("scheduler", "status")
    assert "1 eligible" in said.out
    assert "1 running" in said.out
    for row in ("longest wait", "pressure"):
        assert row in said.out
    assert "1 active" in said.out
    assert "3.5 of 4 cores" in said.out
    assert "3 of 4 slots" in said.out
