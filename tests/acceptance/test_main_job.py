"""Submit a run, see it scheduled, leased, executed and settled."""

import tarfile

import pytest

from tests.acceptance.conftest import Forgeyard

pytestmark = pytest.mark.integration

FOUR_JOBS = """
name: four
jobs:
  make:
    steps: [{run: "mkdir -p dist && wc -c < input.txt > dist/size"}]
    outputs: {size: dist/size}
  check:
    needs: make
    steps: [{run: 'test "$(cat dist/size)" -eq 5 && echo size is right'}]
  broken:
    steps: [{run: "echo about to break; exit 3"}]
    continue-on-error: true
  after:
    needs: [broken]
    if: failure
    steps: [{run: "echo cleaned up"}]
"""


@pytest.fixture(scope="module")
def run(system: Forgeyard) -> dict[str, object]:
    project = system.project("four", FOUR_JOBS, input__txt="12345")
    answer = system.submit(project, "--watch")
    assert answer.code == 0, answer.out + answer.err
    listed = system.type("run", "list", "--json").ok().json()
    return next(each for each in listed["runs"] if each["name"] == "four")


@pytest.mark.requirement("RCN-008", "RCN-010")
def test_a_run_ends_well_when_only_a_tolerated_job_fails(
    system: Forgeyard, run: dict[str, str]
) -> None:
    shown = system.type("run", "show", run["run_id"], "--json").ok().json()
    states = {job["name"]: job["state"] for job in shown["jobs"]}
    assert shown["state"] == "succeeded"
    assert states == {
        "make": "succeeded",
        "check": "succeeded",
        "broken": "failed",
        "after": "succeeded",
    }


def test_logs_of_all_jobs_are_merged_and_one_can_be_chosen(
    system: Forgeyard, run: dict[str, str]
) -> None:
    merged = system.type("run", "logs", run["run_id"]).ok().out
    assert "size is right" in merged
    assert "about to break" in merged
    only = system.type("run", "logs", run["run_id"], "--job", "check").ok().out
    assert "size is right" in only
    assert "about to break" not in only


def test_outputs_travel_to_dependents_and_can_be_downloaded(
    system: Forgeyard, run: dict[str, str]
) -> None:
    listed = system.type("run", "artifacts", run["run_id"]).ok().out
    assert "make" in listed
    assert "size" in listed
    target = system.home / "downloaded"
    system.type("run", "download", run["run_id"], "--to", str(target)).ok()
    found = [path for path in target.rglob("*") if path.is_file()]
    assert found
    if found[0].suffix == ".gz":
        with tarfile.open(found[0]) as archive:
            assert archive.getnames() == ["dist/size"]
    else:
        assert found[0].read_text().strip() == "5"


def test_show_links_each_attempt_to_its_workflow(system: Forgeyard, run: dict[str, str]) -> None:
    shown = system.type("run", "show", run["run_id"]).ok().out
    assert "/namespaces/default/workflows/attempt%2Fjob_" in shown


def test_the_scheduler_explains_itself(system: Forgeyard, run: dict[str, str]) -> None:
    for noun in ("status", "queues", "runners", "capacity"):
        assert system.type("scheduler", noun, "--json").ok().json()
    assert "default" in system.type("scheduler", "queues").ok().out


@pytest.mark.requirement("RCN-009", "ACC-022", "INV-012", "INV-013")
def test_an_impossible_job_says_why_it_waits_and_can_be_cancelled(system: Forgeyard) -> None:
    project = system.project(
        "impossible",
        "jobs: {mac: {requires: {platform: macos}, steps: [{run: sw_vers}]}}\n",
    )
    submitted = system.submit(project, "--json").ok().json()
    job = submitted["jobs"][0]["job_id"]
    explained = system.type("scheduler", "explain-job", job).ok().out
    assert "macos" in explained
    assert "linux" in explained
    cancelled = system.type("run", "cancel", submitted["run_id"], "--reason", "no such machine")
    assert cancelled.code == 0, cancelled.err
    shown = system.type("run", "show", submitted["run_id"], "--json").ok().json()
    assert shown["state"] == "cancelled"


def test_a_broken_shard_turns_the_run_red_with_the_right_line(system: Forgeyard) -> None:
    project = system.project(
        "red",
        "jobs:\n"
        "  shard-1: {steps: [{run: python3 -m unittest -q tests_one.py}]}\n"
        "  shard-2: {steps: [{run: python3 -m unittest -q tests_two.py}]}\n"
        "  report: {needs: [shard-1, shard-2], steps: [{run: exit 0}]}\n",
        tests_one__py="import unittest\nclass T(unittest.TestCase):\n def test_a(self): pass\n",
        tests_two__py="import unittest\nclass T(unittest.TestCase):\n"
        " def test_b(self): self.assertEqual(1 + 1, 3, 'sums are off')\n",
    )
    answer = system.submit(project, "--watch")
    assert answer.code == 1, answer.out + answer.err
    run = system.type("run", "list", "--json").ok().json()["runs"][0]
    shown = system.type("run", "show", run["run_id"], "--json").ok().json()
    states = {job["name"]: job["state"] for job in shown["jobs"]}
    assert states == {"shard-1": "succeeded", "shard-2": "failed", "report": "skipped"}
    assert "sums are off" in system.type("run", "logs", run["run_id"], "--job", "shard-2").ok().out

    again = system.type("run", "rerun", run["run_id"], "--json").ok().json()
    reused = {job["name"]: job["state"] for job in again["jobs"]}
    assert reused["shard-1"] == "succeeded"
    assert reused["shard-2"] != "succeeded"


def test_an_idempotency_key_starts_one_run(system: Forgeyard) -> None:
    project = system.project("once", "jobs: {only: {steps: [{run: 'true'}]}}\n")
    words = ("--idempotency-key", "k-1", "--json")
    first, second = (system.submit(project, *words).ok().json() for _ in range(2))
    assert first["run_id"] == second["run_id"]


def test_our_own_data_never_travels_with_a_source(system: Forgeyard) -> None:
    project = system.project("leak", "jobs: {look: {steps: [{run: 'find . -type f'}]}}\n")
    file = str(project / "forgeyard.yaml")
    submitted = system.type("run", "submit", file, "--source", str(system.home), "--watch")
    assert submitted.code == 0, submitted.out + submitted.err
    run = system.type("run", "list", "--json").ok().json()["runs"][0]
    listed = system.type("run", "logs", run["run_id"]).ok().out
    assert "leak/forgeyard.yaml" in listed
    assert "data/" not in listed
