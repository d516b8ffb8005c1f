"""A held store at the command line: why, what would follow, and going on."""

import pytest

from forgeyard.store import lineage, tables
from tests.integration.cli.house import House

pytestmark = pytest.mark.integration
WHY = ("--reason", "last night's dump")
JOB = "jobs: {build: {steps: [{run: 'true'}]}}"


def test_a_store_is_held_looked_at_and_confirmed(house: House) -> None:
    free = house.run("store", "status")
    assert (free.code, "never" in free.out, "no" in free.out) == (0, True, True)
    house.submit(JOB)
    lease = house.lease()
    assert house.run("store", "hold", *WHY).out == "the store is held: last night's dump\n"
    house.desk.change(lineage.claim, lease.session_id, ["lse_lost"])
    said = house.run("store", "status")
    assert said.code == 1
    assert "would be abandoned  1 lease that this store does not know" in said.out
    assert "would run again     1 lease of which no agent has spoken" in said.out
    assert "unknown here, worked for by an agent: lse_lost" in said.out
    assert f"/build ({lease.run_id}, leased to linux-1)" in said.out
    assert "forgeyard store confirm --reason WHY" in said.err
    assert house.run("store", "status", "--json").json()["held"] is True
    assert "last night's dump" in house.run("scheduler", "status").out
    refused = house.run("run", "submit", "ci.yaml", "--no-source")
    assert (refused.code, "the store is held" in refused.err) == (7, True)
    done = house.run("store", "confirm", *WHY)
    expected = "0 leases go on, 1 lease abandoned, 1 lease without an agent"
    assert done.out == f"the store goes on: {expected}\n"
    assert house.run("store", "status").code == 0
    again = house.run("store", "confirm", *WHY, "--json")
    assert (again.code, again.problem()["detail"]) == (4, "the store is not held")


def test_who_held_and_confirmed_it_is_audited(house: House) -> None:
    house.run("store", "hold", *WHY)
    house.run("store", "confirm", *WHY)
    for action in ("store.held", "store.confirmed"):
        (line,) = house.desk.audited(action)
        assert (line["channel"], "last night's dump" in line["detail"]) == ("api", True)
    assert house.desk.row(tables.lineage, lineage.NAME)["held_at"] is None
