"""Fleets at the command line, against a real API: said, asked after, explained, let go."""

from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.fleet.ports import Price, sku_of
from forgeyard.fleet.view import (
    Allocation,
    Clamp,
    ClampKind,
    FleetDecision,
    FleetView,
    Launch,
    Unserved,
)
from forgeyard.model.capacity import ScaleReason
from forgeyard.scheduler.demand import Demand
from forgeyard.store import fleet_decisions, fleet_tables, fleets, prices, tables
from forgeyard.store.engine import database_now, read
from tests.builders import PARTITION, RNG
from tests.integration.cli.house import House, Said

pytestmark = pytest.mark.integration
WHY = ("--reason", "the release is near")
EXAMPLE = Path(__file__).parents[3] / "examples" / "fleet.yaml"
SMALL = """
name: builders
capacity: {resources: {cpu: 4, memory: 8Gi, slots: 4}, isolation: vm}
offerings: [{name: only, cost: 0.25}]
scaling: {max: 10}
"""


def did(house: House, *arguments: str, code: int = 0) -> Said:
    said = house.run("fleet", *arguments)
    assert said.code == code, said.err + said.out
    return said


def applied(house: House, text: str = SMALL) -> str:
    """Apply a file; return the id of its fleet."""
    Path("fleet.yaml").write_text(text)
    did(house, "apply", "-f", "fleet.yaml", *WHY)
    return str(did(house, "status", "builders", "--json").json()["fleet"]["fleet_id"])


def decided(house: House, decision: FleetDecision, allocation: Allocation | None = None) -> None:
    """Make a decision real, as whoever tends the fleet does."""

    def commit(connection: sa.Connection) -> None:
        found = fleets.view(fleets.find(connection, "builders"))
        query = sa.select(fleet_tables.fleet_allocations.c.version)
        fleet_decisions.commit(
            connection,
            FleetView(fleet_id=found.fleet_id, spec=found.spec, state=found.state),
            decision,
            partition=PARTITION,
            demand=Demand(demand_id="sha256:one", taken_at=1, classes=()),
            allocation=allocation or Allocation(),
            version=connection.execute(query).scalar() or 0,
            rng=RNG,
        )

    house.desk.change(commit)


def audited(house: House) -> list[tuple[str, str]]:
    audit = tables.audit
    with read(house.desk.engine) as connection:
        rows = connection.execute(sa.select(audit.c.action, audit.c.detail))
        return [(action, detail) for action, detail in rows]


GROWS = FleetDecision(
    needed=3,
    wanted=2,
    usable=0,
    launch=(Launch(offering="only", reason=ScaleReason.QUEUED_DEMAND),) * 2,
    clamps=(Clamp(kind=ClampKind.MAXIMUM, before=3, after=2, text="no more than 2 may exist"),),
)


@pytest.mark.requirement("FLM-005", "ALR-007", "DEM-023")
def test_the_example_makes_two_fleets_and_the_same_file_again_changes_nothing(
    house: House,
) -> None:
    wish = ("apply", "-f", str(EXAMPLE), *WHY)
    planned = did(house, *wish, "--dry-run").out
    assert "builders: would be created\n" in planned
    assert "  scaling.max: 20" in planned
    assert did(house, "list").out == ""
    assert "builders-spot: created, version 1\n" in did(house, *wish).out
    again = did(house, *wish, "--json").json()
    assert [(one["name"], one["outcome"], one["differences"]) for one in again] == [
        ("builders", "unchanged", []),
        ("builders-spot", "unchanged", []),
    ]
    assert [action for action, _ in audited(house)] == ["fleet.create"] * 2


@pytest.mark.requirement("ALR-008")
def test_a_change_is_shown_field_by_field_before_and_after(house: House) -> None:
    applied(house)
    Path("fleet.yaml").write_text(SMALL.replace("max: 10", "max: 50"))
    planned = did(house, "apply", "-f", "fleet.yaml", *WHY, "--dry-run").out
    assert planned == "builders: would be changed, version 1\n  scaling.max: 10 -> 50\n"
    refused = did(house, "apply", "-f", "fleet.yaml", *WHY, "--expect", "7", code=4)
    assert "version" in refused.err
    done = did(house, "apply", "-f", "fleet.yaml", *WHY).out
    assert done == "builders: changed, version 2\n  scaling.max: 10 -> 50\n"
    assert audited(house)[-1] == ("fleet.set", f"builders: {WHY[1]}")


def test_a_wrong_file_is_refused_at_its_line_before_anything_is_sent(house: House) -> None:
    Path("fleet.yaml").write_text(SMALL.replace("max: 10", "max: 10, min: 11"))
    said = house.run("fleet", "apply", "-f", "fleet.yaml", *WHY, "--json")
    assert said.code == 2
    problem = said.problem()
    assert (problem["field"], problem["line"]) == ("scaling.min", 5)
    assert "which is 10" in problem["allowed"]


def test_nothing_there_is_said_in_words(house: House) -> None:
    assert "no fleet; make one with" in did(house, "list").err
    assert "no job waits for room" in did(house, "demand").err
    assert did(house, "status", "nowhere", code=3).err.startswith("error: no fleet nowhere")
    applied(house)
    assert "nobody has decided about fleet builders yet" in did(house, "explain", "builders").err
    assert "nobody has decided about it yet" in did(house, "status", "builders").out
    assert "fleet builders has no machine" in did(house, "instances", "builders").err
    assert "has no reservation" in did(house, "reservation", "list", "builders").err


@pytest.mark.requirement("FOP-001", "FOP-002", "ALR-010", "CLI-014", "CLI-015")
def test_a_fleet_is_frozen_drained_and_let_go(house: House) -> None:
    applied(house)
    for verb, state in (
        (("freeze",), "frozen"),
        (("freeze", "--scale-up-only"), "scale_up_only"),
        (("drain",), "draining"),
        (("activate",), "active"),
        (("delete",), "deleting"),
    ):
        name, *more = verb
        answer = did(house, name, "builders", *more, *WHY, "--json").json()
        assert answer["state"] == state
    assert "is being deleted" in did(house, "activate", "builders", *WHY, code=4).err
    assert [action for action, _ in audited(house)].count("fleet.state") == 5


@pytest.mark.requirement("FOP-014", "ALR-009", "CLI-011", "CLI-012", "CLI-013")
def test_other_bounds_hold_for_as_long_as_was_said(house: House) -> None:
    applied(house)
    said = did(house, "scale", "builders", "--to", "8", "--for", "2h", *WHY).out
    assert said.startswith("fleet builders: min 8, max 8 for the next ")
    assert "8 to 8, for now" in did(house, "list").out
    assert "other bounds until" in did(house, "status", "builders").out
    did(house, "scale", "builders", "--to", "8", "--max", "9", *WHY, code=2)
    did(house, "scale", "builders", "--to", "8", "--for", "31d", *WHY, code=2)
    did(house, "unscale", "builders", *WHY)
    assert "0 to 10" in did(house, "list").out


@pytest.mark.requirement("RSV-001", "ALR-012", "CLI-016")
def test_capacity_is_reserved_listed_and_given_back(house: House) -> None:
    applied(house)
    wish = ("--machines", "3", "--at", "90m", "--for", "2h", *WHY)
    made = did(house, "reservation", "create", "builders", *wish, "--json").json()
    own = made["reservation"]["reservation_id"]
    assert f"{own}: 3 machines from " in did(house, "reservation", "list", "builders").out
    assert "reservations: 1" in did(house, "status", "builders").out
    assert did(house, "reservation", "cancel", own, *WHY).out == f"{own} is cancelled\n"
    assert did(house, "reservation", "list", "builders", "--json").json() == []


@pytest.mark.requirement("FLM-026", "CST-009")
def test_a_decision_is_explained_and_its_machines_are_shown_pinned_and_priced(
    house: House,
) -> None:
    applied(house)
    decided(house, GROWS)
    told = did(house, "explain", "builders").out
    assert "3 needed, 2 wanted, 0 there or coming" in told
    assert "  maximum, 3 -> 2: no more than 2 may exist\n" in told
    assert "  makes 2 of only: queued demand\n" in told
    machines = did(house, "instances", "builders", "--json").json()
    assert [one["state"] for one in machines] == ["requested"] * 2
    own = machines[0]["instance_id"]
    did(house, "pin", own, "--for", "2h", *WHY)
    listed = did(house, "instances", "builders").out
    assert f"builders-1 {own}" in listed
    assert f": {WHY[1]}" in listed
    cold = '{"missing": 1, "problem": "no archive of this warm-up"}'
    house.desk.overwrite(fleet_tables.capacity_instances, own, warmed_at=1, warmup=cold)
    did(house, "unpin", own, *WHY)
    assert "warm-up: no archive of this warm-up" in did(house, "instances", "builders").out
    assert "pinned" not in did(house, "instances", "builders").out
    assert "requested" in did(house, "retire", own, *WHY, code=4).err
    did(house, "release", own, *WHY, code=4)
    assert "2 requested" in did(house, "list").out
    cost = did(house, "cost", "builders", "--json").json()
    assert (cost["approximate"], cost["hourly_micros"], cost["currency"]) == (True, 500_000, "USD")
    said = did(house, "cost", "builders").out
    assert "about 0.50 USD an hour" in said
    assert "no bill" in said


@pytest.mark.requirement("CST-003")
def test_what_a_price_is_and_who_says_so_is_told(house: House) -> None:
    applied(house)
    decided(house, FleetDecision(needed=0, wanted=0, usable=0))
    by_hand = "price of only: 0.25 USD an hour, by the fleet's document\n"
    assert by_hand in did(house, "cost", "builders").out
    with read(house.desk.engine) as connection:
        now = database_now(connection)
        spec = fleets.list_all(connection)[0].spec
    sku = sku_of(spec, spec.offerings[0])
    known = Price(sku=sku, cost=31_000, at=now - 5_000, source="a list of prices")
    house.desk.change(prices.keep, "local", (known,), now=now)
    told = did(house, "explain", "builders").out
    assert "price of only: 0.031 USD an hour, by a list of prices, " in told
    assert did(house, "cost", "builders", "--json").json()["prices"] == [
        {
            "offering": "only",
            "cost": 31_000,
            "source": "a list of prices",
            "at": now - 5_000,
            "remark": "",
        }
    ]
    old = replace(known, at=1)
    lost = replace(known, cost=None, reason="UnauthorizedOperation")
    for answer in (old, lost):
        house.desk.change(prices.keep, "local", (answer,), now=now)
    told = did(house, "cost", "builders").out
    assert f"{by_hand[:-1]}; its provider's is not known: UnauthorizedOperation; a list of" in told


@pytest.mark.requirement("MET-023", "MET-026", "MET-027", "MET-030")
def test_what_a_fleet_did_is_told_figure_by_figure(house: House) -> None:
    assert "no fleet; make one with" in did(house, "analytics").err
    applied(house)
    idle = did(house, "analytics", "builders").out
    assert "in use: nothing was ready, " in idle
    assert "jobs waited: no job was taken\n" in idle
    decided(house, GROWS)
    table = fleet_tables.capacity_instances
    times = {"requested_at": table.c.requested_at - 4_000_000, "state": "healthy"}
    ready = {"healthy_at": table.c.requested_at - 3_600_000}
    house.desk.change(lambda it: it.execute(sa.update(table).values(**times, **ready)))
    told = did(house, "analytics", "builders", "--since", "6h").out
    assert "in use: 0.0%, 0.0 of 2.0 machine hours with leases\n" in told
    wish = "from the wish for a machine to a ready one: median 6m 40s, 95% within 6m 40s, "
    assert f"{wish}longest 6m 40s (2 seen)\n" in told
    assert "idle: about 0.50 USD of about 0.56 USD\n" in told
    assert "interrupted by the provider: 0 of 0 preemptible machines, " in told
    assert "no bill" in told
    (every,) = did(house, "analytics", "--json").json()
    one = did(house, "analytics", "builders", "--json").json()
    assert every["figures"].keys() == one["figures"].keys()
    assert not [name for name in one["figures"] if "score" in name or "efficiency" in name]
    assert "builders" in did(house, "analytics", "--since", "31d").out
    assert "since" in did(house, "analytics", "builders", "--since", "99d", code=2).err


@pytest.mark.requirement("FRC-031", "FRC-033", "FOP-005", "DEM-016")
@pytest.mark.requirement("PRI-071", "CLI-017")
def test_the_doctor_names_what_is_wrong_and_fails_for_what_does_not_heal(house: House) -> None:
    applied(house)
    sick = did(house, "doctor", code=1)
    assert "builders: reconciler" in sick.out
    assert "Nobody has decided about it yet." in sick.out
    nothing = FleetDecision(needed=0, wanted=0, usable=0)
    left = Unserved(requirement_class="dem_1", count=4, reasons={"builders": "no such tool"})
    decided(house, nothing, Allocation(unserved=(left,)))
    well = did(house, "doctor", "builders", "--json").json()
    assert well["verdict"] == "warn"
    warned = {one["name"] for one in well["checks"] if one["verdict"] != "ok"}
    assert warned == {"waiting jobs"}
    assert "builders: no such tool" in did(house, "demand").out
    did(house, "provider", "freeze", "local", *WHY)
    assert "local (frozen)" in did(house, "list").out
    assert "An operator froze provider local." in did(house, "doctor").out
    did(house, "provider", "thaw", "local", *WHY)
    assert "(frozen)" not in did(house, "list").out


@pytest.mark.parametrize(
    "command",
    [
        *("apply", "list", "status", "explain", "scale", "unscale", "drain", "freeze", "activate"),
        *("delete", "pin", "unpin", "retire", "release", "instances", "demand", "doctor", "cost"),
        "forecast",
        "analytics",
        *("reservation create", "reservation cancel", "reservation list"),
        *("provider freeze", "provider thaw"),
    ],
)
def test_every_command_shows_how_it_is_used(house: House, command: str) -> None:
    said = did(house, *command.split(), "--help").out
    assert "Example" in said
    assert "--json" in said
