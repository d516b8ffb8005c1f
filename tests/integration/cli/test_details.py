"""`forgeyard run show` on tests and timings, from what an agent reported to what is printed."""

import pytest

from forgeyard.model import protocol
from forgeyard.model.job import FailureClass
from forgeyard.model.protocol import Outcome, Phase, StepResult
from forgeyard.model.units import Millis
from forgeyard.store import tables
from tests.integration.cli.house import House
from tests.leasing import Lease

pytestmark = pytest.mark.integration

TWO = """\
name: ci
jobs:
  unit: {steps: [{run: make unit}], test-reports: reports/*.xml}
  slow: {steps: [{run: make slow}], test-reports: reports/*.xml}
"""
UNIT = protocol.TestCounts(tests=100, skipped=1, files=1, time=Millis(900))
SLOW = protocol.TestCounts(
    tests=24,
    failures=1,
    errors=1,
    files=2,
    failing=(
        protocol.TestFailure(name="slow.test_a", message="assert 1 == 2"),
        protocol.TestFailure(name="slow.test_b"),
    ),
)
STEPS = (
    StepResult(name="set up", exit_code=0, wall=Millis(1_200), began=Millis(300)),
    StepResult(name="test", exit_code=1, wall=Millis(62_000), began=Millis(1_500)),
)


def end(house: House, lease: Lease, counts: protocol.TestCounts) -> None:
    """End an attempt as its agent would."""
    if counts.failed:
        house.desk.complete(
            lease,
            Outcome.FAILED,
            failure_class=FailureClass.TEST_FAILURE,
            exit_code=1,
            tests=counts,
            steps=STEPS,
        )
        house.desk.settle(lease)
    else:
        house.desk.progress(lease, Phase.UPLOADING_OUTPUTS)
        house.desk.complete(lease, tests=counts)


@pytest.fixture
def run_id(house: House) -> str:
    """Run both jobs to their ends."""
    submitted = house.submit(TWO)
    house.desk.register("linux-1")
    house.desk.cycle()
    for lease in house.desk.leases(state="offered"):
        house.desk.accept(lease)
        house.desk.progress(lease, Phase.RUNNING)
        name = house.desk.row(tables.jobs, lease.job_id)["name"]
        end(house, lease, UNIT if name == "unit" else SLOW)
    return submitted


def test_a_run_shows_the_sums_and_which_tests_did_not_pass(house: House, run_id: str) -> None:
    shown = house.run("run", "show", run_id).out
    assert "124 tests, 1 failed, 1 error, 1 skipped\n" in shown
    assert "  slow: slow.test_a: assert 1 == 2\n  slow: slow.test_b\n" in shown
    assert "test_failure" in shown
    assert "set up" not in shown, "details come with --job"


def test_programs_get_the_same_numbers(house: House, run_id: str) -> None:
    run = house.run("run", "show", run_id, "--json").json()
    assert (run["tests"]["tests"], run["tests"]["failures"], run["tests"]["time"]) == (124, 1, 900)
    assert run["tests"]["failing"] == []
    slow = house.run("run", "show", run_id, "--job", "slow", "--json").json()
    assert slow["name"] == "slow"
    (attempt,) = slow["attempts"]
    assert [one["name"] for one in attempt["tests"]["failing"]] == ["slow.test_a", "slow.test_b"]
    assert [step["began"] for step in attempt["steps"]] == [300, 1_500]


def test_one_job_shows_its_phases_and_steps(house: House, run_id: str) -> None:
    said = house.run("run", "show", run_id, "--job", "slow")
    assert said.code == 0, said.err
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert "try 1 on linux-1: failed" in lines
    assert any(line.startswith("queued ") and ", ran " in line for line in lines)
    assert "STEP EXIT BEGAN TOOK" in lines
    assert any("of CPU" in line and line.endswith("0 B uploaded") for line in lines)
    assert "set up 0 +0.3s 1.2s" in lines
    assert "test 1 +1.5s 1m 2s" in lines
    assert "24 tests, 1 failed, 1 error" in lines
    assert "slow.test_a: assert 1 == 2" in lines
    assert "unit" not in said.out.replace("unit tests", "")
    assert house.run("run", "show", run_id, "--job", "absent").code == 3


def test_a_run_without_reports_says_nothing_of_tests(house: House) -> None:
    run_id = house.submit("name: ci\njobs:\n  build: {steps: [{run: make}]}\n")
    assert "tests" not in house.run("run", "show", run_id).out
    assert house.run("run", "show", run_id, "--json").json()["tests"] is None


def test_only_the_latest_attempt_counts_for_the_run(house: House) -> None:
    retrying = "retry: {on: [test_failure], max-attempts: 2}"
    run_id = house.submit(f"name: ci\njobs:\n  slow:\n    steps: [{{run: make}}]\n    {retrying}\n")
    end(house, house.lease(), SLOW)
    house.desk.cycle()
    (again,) = house.desk.leases(state="offered")
    house.desk.accept(again)
    end(house, again, UNIT)
    run = house.run("run", "show", run_id, "--json").json()
    assert (run["state"], run["tests"]["tests"], run["tests"]["failures"]) == ("succeeded", 100, 0)
    assert [one["tests"]["tests"] for one in run["jobs"][0]["attempts"]] == [24, 100]
