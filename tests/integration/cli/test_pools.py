"""Pools, rules and proposals at the command line, against a real API."""

import json
from pathlib import Path

import pytest

from forgeyard.model.capability import TrustClass
from forgeyard.store import tables
from tests.builders import a_job_spec, some_capabilities, some_resources
from tests.integration.cli.house import House, Said

pytestmark = pytest.mark.integration
WHY = ("--reason", "new racks")
DEPLOY = "jobs: {ship: {purpose: deploy, steps: [{run: 'true'}]}}"
LARGE = some_resources(cpu=3_500, memory=2**28, disk=2**28)
"""More than what two small jobs leave of a runner."""
RULES = """
nameable_pools: [ios]
rules:
  - name: phones
    when: {purpose: test}
    requires: {pools: ios, labels: {phone: present}}
"""


def did(house: House, *arguments: str) -> Said:
    said = house.run(*arguments)
    assert said.code == 0, said.err
    return said


@pytest.mark.requirement("RUN-002", "RUN-005", "RES-019", "ELG-042")
@pytest.mark.requirement("API-005")
def test_a_pool_is_made_filled_drained_and_opened(house: House) -> None:
    house.desk.register("mac-1", pool="ios")
    made = did(house, "pool", "create", "ios", "--owner", "default/default", "--spillover", *WHY)
    assert made.out == "pool ios serves organization default, lends the rest\n"
    assert "asked for by: mac-1" in did(house, "pool", "show", "ios").out
    assert "asks for pool ios, is in default" in did(house, "runner", "list").out
    assert did(house, "pool", "assign", "mac-1", "ios", *WHY).out == "mac-1 is in pool ios\n"
    assert "runners: mac-1" in did(house, "pool", "show", "ios").out
    did(house, "pool", "drain", "ios", *WHY)
    (pool,) = (it for it in did(house, "pool", "list", "--json").json() if it["name"] == "ios")
    assert (pool["state"], pool["reason"]) == ("draining", "new racks")
    did(house, "pool", "undrain", "ios", *WHY)
    changed = did(house, "pool", "set", "ios", "--trust", "confidential", *WHY, "--json").json()
    assert (changed["sharing"], changed["trust"], changed["owner"]) == (
        "shared",
        "confidential",
        None,
    )


@pytest.mark.requirement("RUN-003")
def test_a_cancelling_drain_stops_what_runs_in_the_pool_and_nothing_else(house: House) -> None:
    did(house, "pool", "create", "ios", *WHY)
    did(house, "pool", "assign", house.desk.register("mac-1").runner_id, "ios", *WHY)
    runs = [house.desk.submit(a_job_spec(f"job-{n}")) for n in range(2)]
    assert house.desk.cycle().granted == 2
    house.desk.register("linux-1")
    runs.append(house.desk.submit(a_job_spec("elsewhere", resources=LARGE)))
    assert house.desk.cycle().granted == 1
    done = did(house, "pool", "drain", "ios", "--now", *WHY, "--json").json()
    assert done == {"pool": "ios", "cancelled": 2}
    states = [house.desk.rows(tables.jobs, run_id=run)[0]["state"] for run in runs]
    assert states == ["cancelled", "cancelled", "leased"]
    again = did(house, "pool", "drain", "ios", "--now", *WHY).out
    assert again == "pool ios takes no more work; cancels 0 jobs\n"


@pytest.mark.requirement("RUN-004")
def test_maintenance_is_planned_shown_and_cancelled(house: House) -> None:
    add = ("pool", "maintenance", "add", "default", "--for", "2h", *WHY)
    window = did(house, *add, "--at", "2099-12-01T22:00Z", "--json").json()
    listed = did(house, "pool", "maintenance", "list", "default").out
    assert listed == (
        f"{window['window_id']}: closed from 2099-12-01T22:00:00Z to 2099-12-02T00:00:00Z:"
        " new racks\n"
    )
    assert "open" in did(house, "pool", "list").out
    did(house, *add)
    assert "closed" in did(house, "pool", "list").out
    for one in did(house, "pool", "maintenance", "list", "default", "--json").json():
        did(house, "pool", "maintenance", "cancel", one["window_id"], *WHY)
    assert did(house, "pool", "maintenance", "list", "default").out == ""
    assert house.run(*add, "--at", "tomorrow").code == 2


def test_what_is_not_there_is_said_with_its_exit_code(house: House) -> None:
    assert house.run("pool", "show", "none").code == 3
    assert house.run("pool", "create", "default", *WHY).code == 4
    assert house.run("pool", "create", "mine", "--reserved", *WHY).code == 2
    assert house.run("runner", "set-state", "nobody", "unhealthy", *WHY).code == 3


def test_an_operator_declares_a_runner_unhealthy(house: House) -> None:
    house.desk.register("mac-1")
    did(house, "runner", "set-state", "mac-1", "unhealthy", *WHY)
    assert "mac-1: taken for unhealthy: new racks" in did(house, "runner", "list").out
    house.submit("jobs: {build: {steps: [{run: 'true'}]}}")
    assert house.desk.cycle().granted == 0
    did(house, "runner", "set-state", "mac-1", "online", *WHY)
    assert house.desk.cycle().granted == 1


@pytest.mark.requirement("ELG-036", "ACC-033", "POL-006")
def test_the_explanation_and_the_job_name_rule_and_judgement(house: House) -> None:
    general = some_capabilities(trust=TrustClass.UNTRUSTED_GENERAL)
    house.desk.register("stranger", capabilities=general)
    run_id = house.submit(DEPLOY)
    assert house.desk.cycle().granted == 0
    waiting = did(house, "run", "show", run_id).out
    assert "needs trust trusted_internal (policy 0: deploy jobs)" in " ".join(waiting.split())
    lease = house.lease("own")
    shown = did(house, "run", "show", run_id, "--job", "ship").out
    attempt = house.desk.row(tables.attempts, lease.attempt_id)
    told = " ".join(shown.split())
    assert "pool default, trust trusted_internal" in told
    assert attempt["capability_digest"] in told


@pytest.mark.requirement("DEV-012")
def test_no_run_file_takes_a_proposal_back(house: House) -> None:
    run_id = house.submit("jobs: {build: {steps: [{run: 'true'}]}}", "--proposal")
    house.desk.register("own")
    assert house.desk.cycle().granted == 0
    wanted = "jobs: {build: {requires: {trust: trusted_internal}, steps: [{run: 'true'}]}}"
    Path("ci.yaml").write_text(wanted)
    refused = house.run("run", "submit", "ci.yaml", "--no-source", "--proposal", "--json")
    assert refused.code == 2
    assert refused.problem()["field"] == "jobs.build.requires.trust"
    Path("ci.yaml").write_text(f"proposal: false\n{wanted}")
    assert house.run("run", "submit", "ci.yaml", "--no-source").code == 2
    assert run_id


@pytest.mark.requirement("ELG-030", "ELG-031")
def test_rules_are_set_shown_and_applied(house: House) -> None:
    Path("policy.yaml").write_text(RULES)
    did(house, "policy", "set", "policy.yaml", *WHY)
    shown = did(house, "policy", "show").out
    Path("again.yaml").write_text(shown)
    assert "nothing to do" in did(house, "policy", "set", "again.yaml", *WHY).out
    run_id = house.submit("jobs: {unit: {purpose: test, steps: [{run: 'true'}]}}")
    (job,) = did(house, "run", "show", run_id, "--json").json()["jobs"]
    spec = json.loads(house.desk.row(tables.jobs, job["job_id"])["spec"])
    assert spec["requires"]["pools"] == ["ios"]
    assert spec["requires"]["origins"]["labels.phone"]["policy_version"] == 1
    named = "jobs: {unit: {requires: {pools: [linux]}, steps: [{run: 'true'}]}}"
    Path("ci.yaml").write_text(named)
    assert house.run("run", "submit", "ci.yaml", "--no-source").code == 2
    house.submit(named.replace("linux", "ios"))
