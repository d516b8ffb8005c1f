"""`forgeyard scheduler …` and `runner …` against a real API."""

import json
import re

import pytest

from forgeyard.model.equipment import Device, Equipment, Gpu, Provenance, SandboxKind
from forgeyard.model.location import Location, ReliabilityClass
from forgeyard.model.units import GIB, Bytes
from forgeyard.store import tables
from tests.builders import some_capabilities
from tests.integration.cli.house import House

pytestmark = pytest.mark.integration

HUGE = """\
jobs:
  huge:
    resources: {memory: 64Gi}
    steps: [{run: make}]
  small:
    steps: [{run: make}]
"""


@pytest.mark.requirement("CLI-001")
def test_the_status_says_what_waits_and_what_runs(house: House) -> None:
    said = house.run("scheduler", "status")
    assert said.code == 0, said.err
    assert "none" in said.out
    house.submit(HUGE)
    house.lease()
    said = house.run("scheduler", "status")
    assert "1 running" in said.out
    assert "1 eligible" in said.out
    assert "1 online" in said.out
    assert house.run("scheduler", "status", "--json").json()["partition"] == "default"


@pytest.mark.requirement("CLI-003")
def test_the_queues_count_what_waits_by_priority(house: House) -> None:
    house.submit(HUGE.replace("  small:", "  small:\n    priority: high"))
    said = house.run("scheduler", "queues")
    assert "1 high" in said.out
    assert "1 normal" in said.out
    assert house.run("scheduler", "queues", "--json").code == 0


@pytest.mark.requirement("CLI-004", "CLI-005")
def test_capacity_and_runners_show_what_is_left(house: House) -> None:
    assert "no runner" in house.run("scheduler", "runners").err
    house.submit(HUGE)
    house.lease()
    rows = [line.split() for line in house.run("scheduler", "capacity").out.splitlines()]
    assert ["free", "3.5", "7.8", "GiB", "49.8", "GiB", "3"] in rows
    listed = house.run("scheduler", "runners").out
    assert "3.5 of 4" in listed
    assert "linux/x86_64" in listed
    assert house.run("scheduler", "runners", "--json").json()[0]["name"] == "linux-1"
    assert "ci/small, try 1" in house.run("runner", "list").out


@pytest.mark.requirement("CLI-002")
def test_a_job_is_explained_by_its_name_with_the_nearest_miss(house: House) -> None:
    run_id = house.submit(HUGE)
    house.desk.register("linux-1")
    said = house.run("scheduler", "explain-job", f"{run_id}/huge")
    assert said.code == 0, said.err
    assert "64 GiB" in said.out
    assert "(never)" in said.out
    fits = house.run("scheduler", "explain-job", f"{run_id}/small").out
    assert "Goes to linux-1" in fits
    assert "position" in fits


def test_a_job_is_explained_by_its_id_for_programs(house: House) -> None:
    run_id = house.submit(HUGE)
    jobs = house.run("run", "show", run_id, "--json").json()["jobs"]
    said = house.run("scheduler", "explain-job", jobs[0]["job_id"], "--json")
    assert said.json()["job_name"] == "huge"
    assert house.run("scheduler", "explain-job", f"{run_id}/absent").code == 3
    assert house.run("scheduler", "explain-job", "job_0").code == 3


def test_a_runner_is_drained_with_a_reason_and_undrained(house: House) -> None:
    house.desk.register("linux-1")
    assert house.run("runner", "drain", "linux-1", "--reason", "new kernel").code == 0
    assert "new kernel" in house.run("runner", "list").out
    assert "draining" in house.run("runner", "list").out
    assert house.run("runner", "undrain", "linux-1").code == 0
    assert "online" in house.run("runner", "list").out
    assert len(house.desk.rows(tables.audit)) == 2
    assert house.run("runner", "drain", "absent").code == 3
    said = house.run("runner", "drain", "linux-1", "--json").out
    assert json.loads(said) == {"runner": "linux-1", "drain_requested": True, "cancelled": 0}
    said = house.run("runner", "undrain", "linux-1", "--json").out
    assert json.loads(said) == {"runner": "linux-1", "drain_requested": False}


@pytest.mark.requirement("RUN-003")
def test_draining_now_cancels_the_jobs_of_a_runner(house: House) -> None:
    run_id = house.submit("jobs: {build: {steps: [{run: make}]}}")
    house.lease("linux-1")
    assert "end cancelled" in " ".join(house.run("runner", "drain", "--help").out.split())
    said = house.run("runner", "drain", "linux-1", "--now", "--reason", "disk on fire")
    assert (said.code, said.out) == (0, "linux-1 takes no more work; cancels 1 job\n")
    (job,) = house.run("run", "show", run_id, "--json").json()["jobs"]
    assert job["waiting"] == "is being cancelled: disk on fire"
    again = house.run("runner", "drain", "linux-1", "--now", "--json").json()
    assert again == {"runner": "linux-1", "drain_requested": True, "cancelled": 0}


EQUIPPED = some_capabilities(
    labels={"zone": "a"},
    schema_version=2,
    reliability=ReliabilityClass.PREEMPTIBLE,
    cost_micros_per_hour=120_000,
    provenance={
        "platform": Provenance.PROBED,
        "labels": Provenance.CONFIGURED,
        "reliability": Provenance.CONFIGURED,
    },
    equipment=Equipment(
        cpu_features=("avx2", "sse4_2"),
        runtimes=(),
        sandboxes=(SandboxKind.NONE,),
        devices=(Device(kind="phone", count=2, provenance=Provenance.CONFIGURED),),
        gpus=(Gpu(model="A10", memory=Bytes(24 * GIB), provenance=Provenance.PROBED),),
    ),
)


@pytest.mark.requirement("ELG-027")
def test_a_runner_is_shown_with_what_it_reported_and_how_old_that_is(house: House) -> None:
    where = Location(host="big-iron", site="rack-4")
    house.desk.register("linux-1", capabilities=EQUIPPED, location=where)
    said = house.run("runner", "show", "linux-1")
    assert said.code == 0, said.err
    assert re.search(r"linux-1: reported .+ ago, schema 2, sha256:[0-9a-f]{64}", said.out)
    rows = [re.split(r"  +", line.strip()) for line in said.out.splitlines()]
    assert ["platform", "linux", "probed"] in rows
    assert ["label zone", "a", "configured"] in rows
    assert ["toolchain python", "3.11.2", "self reported"] in rows
    assert ["cpu features", "avx2, sse4_2", "self reported"] in rows
    assert ["runtimes", "none"] in rows
    assert ["network modes", "unknown", "self reported"] in rows
    assert ["device phone", "2", "configured"] in rows
    assert ["host", "big-iron"] in rows
    assert ["site", "rack-4"] in rows
    assert ["region", "unknown"] in rows
    assert ["reliability", "preemptible", "configured"] in rows
    assert ["cost", "0.12 an hour", "self reported"] in rows
    assert ["at hand", "0 archives of 0 B, 0 caches"] in rows
    (listed,) = house.run("scheduler", "runners", "--json").json()
    assert listed["location"] == {"host": "big-iron", "site": "rack-4", "region": None}
    assert listed["capabilities"]["reliability"] == "preemptible"
    assert "A10, 24.0 GiB of memory, compute capability unknown" in said.out


def test_a_runner_is_found_by_its_id_for_programs_and_missed_by_any_other(house: House) -> None:
    runner_id = house.desk.register("linux-1", capabilities=EQUIPPED).runner_id
    shown = house.run("runner", "show", runner_id, "--json").json()
    assert shown["capabilities"]["equipment"]["devices"][0]["kind"] == "phone"
    assert shown["reported_at"] > 0
    said = house.run("runner", "show", "linux-2")
    assert said.code == 3
    assert "linux-1" in said.err
