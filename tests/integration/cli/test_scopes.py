"""`forgeyard scope …`, `forgeyard job …` and the queue of a run, against a real API."""

import pytest

from forgeyard.store import tables
from tests.integration.cli.house import House

pytestmark = pytest.mark.integration
QUEUE = "acme/core/web/main"
WHY = ("--reason", "a new team")
ONE = "jobs: {build: {steps: [{run: 'true'}]}}"


@pytest.mark.requirement("FAR-004", "QUO-002", "QUO-005")
def test_a_queue_is_declared_changed_paused_and_listed(house: House) -> None:
    made = house.run("scope", "create", QUEUE, "-p", "--weight", "3", *WHY)
    assert made.code == 0, made.err
    said = house.run(
        *("scope", "set", "acme/core", "--max-jobs", "20", "--max-cpu", "8"),
        *("--max-memory", "32Gi", "--burst", "50", *WHY),
    )
    assert said.code == 0, said.err
    assert "0 of 20" in said.out
    kept = house.run("scope", "set", "acme/core", "--max-cpu", "none", *WHY, "--json").json()
    assert (kept["shares"]["max_jobs"], kept["shares"]["max_cpu_milli"]) == (20, None)
    assert kept["shares"]["max_memory_bytes"] == 32 * 2**30
    paused = house.run("scope", "pause", QUEUE, "--reason", "migration")
    assert "paused: migration" in paused.out
    listed = house.run("scope", "list").out
    assert QUEUE in listed
    assert "pool:default" in listed
    assert house.run("scope", "resume", QUEUE, *WHY, "--json").json()["paused"] is False


def test_what_is_wrong_with_a_scope_is_said(house: House) -> None:
    house.run("scope", "create", "acme", *WHY)
    again = house.run("scope", "create", "acme", *WHY)
    assert (again.code, "exists already" in again.err) == (4, True)
    stale = house.run("scope", "set", "acme", "--weight", "2", "--expect", "7", *WHY)
    assert stale.code == 4
    missing = house.run("scope", "pause", "acmee", *WHY)
    assert missing.code == 3
    assert "acme" in missing.err
    for wrong in (("--max-jobs", "many"), ("--max-cpu", "fast"), ("--weight", "0")):
        assert house.run("scope", "set", "acme", *wrong, *WHY).code == 2
    assert house.run("scope", "set", "acme", "--weight", "2").code == 2  # no reason


@pytest.mark.requirement("CLI-003")
def test_a_run_is_submitted_to_a_queue_and_shown_in_it(house: House) -> None:
    house.run("scope", "create", QUEUE, "-p", *WHY)
    run_id = house.submit(ONE, "--queue", QUEUE)
    assert f"in the queue {QUEUE}" in house.run("run", "show", run_id).out
    house.run("scope", "pause", "acme", "--reason", "audit")
    assert "paused: audit" in house.run("scheduler", "queues").out
    told = house.run("scheduler", "explain-job", f"{run_id}/build").out
    assert f"{QUEUE}, class normal" in told
    assert "tenant acme is paused: audit" in told
    wrong = house.run("run", "submit", "ci.yaml", "--no-source", "--queue", "acme/core/web/x")
    assert wrong.code == 3
    assert QUEUE in wrong.err


@pytest.mark.requirement("FAR-007", "FAR-021", "ACC-019")
def test_an_emergency_wants_a_reason(house: House) -> None:
    text = "jobs: {build: {priority: emergency, steps: [{run: 'true'}]}}"
    with pytest.raises(AssertionError, match="emergency must be asked for with a reason"):
        house.submit(text)
    run_id = house.submit(text, "--elevate", "the site is down")
    (line,) = house.desk.audited("run.elevate")
    assert line["target"] == run_id
    assert line["detail"] == "1 jobs (build emergency): the site is down"
    house.run("run", "cancel", run_id)
    assert house.run("run", "rerun", run_id).code == 5
    assert house.run("run", "rerun", run_id, "--elevate", "still down").code == 0


@pytest.mark.requirement("FAR-039", "FAR-040")
def test_jobs_and_runs_are_put_elsewhere_in_their_queue(house: House) -> None:
    run_id = house.submit("jobs: {a: {steps: [{run: 'true'}]}, b: {steps: [{run: 'true'}]}}")
    said = house.run(
        "job", "reprioritise", f"{run_id}/b", "--priority", "high", "--adjust", "-5", *WHY
    )
    assert said.code == 0, said.err
    assert said.out == "b: high -5, eligible\n"
    assert house.run("job", "reprioritise", f"{run_id}/b", *WHY).code == 2
    whole = house.run("run", "reprioritise", run_id, "--adjust", "30", *WHY, "--json").json()
    assert [job["adjustment"] for job in whole] == [30, 30]
    assert len(house.desk.audited("job.reprioritise")) == 3
    assert {row["adjustment"] for row in house.desk.rows(tables.jobs)} == {30}


def test_the_wishes_of_a_run_file_reach_the_scheduler(house: House) -> None:
    text = """
jobs:
  deploy:
    class: release
    exclusive: [staging, "db"]
    preemption: restartable
    steps: [{run: "true"}]
"""
    run_id = house.submit(text)
    (job,) = house.run("run", "show", run_id, "--json").json()["jobs"]
    assert (job["scheduling_class"], job["exclusive"]) == ("release", ["staging", "db"])
    (row,) = house.desk.rows(tables.jobs)
    assert '"preemption":"restartable"' in row["wishes"]
