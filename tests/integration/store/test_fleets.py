"""Fleets in the store: their documents, their versions, and what they may do at present."""

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from forgeyard.errors import Conflict, InvalidRequest, NotFound
from forgeyard.model.fleet import FleetScope, FleetSpec, FleetState, Scaling
from forgeyard.store import fleet_tables, fleets, tables
from forgeyard.store.engine import read
from forgeyard.store.fleets import FleetRecord, Outcome
from forgeyard.store.shares import Intent
from tests.builders import RNG, a_fleet_spec
from tests.leasing import Desk

pytestmark = pytest.mark.integration
BY_ANN = Intent(actor="ann", channel="cli", reason="the release is near")
LARGER = a_fleet_spec(scaling=Scaling(max=50))


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def apply(desk: Desk, spec: FleetSpec, *, expected: int | None = None) -> FleetRecord:
    return desk.change(fleets.apply, spec, BY_ANN, expected_version=expected, rng=RNG)


def trail(desk: Desk) -> list[Any]:
    with read(desk.engine) as connection:
        return list(connection.execute(sa.select(tables.audit)).mappings())


@pytest.mark.requirement("FLM-001", "FLM-005")
@pytest.mark.requirement("PRI-045")
def test_a_document_becomes_a_fleet_with_an_identity_of_its_own(desk: Desk) -> None:
    made = apply(desk, a_fleet_spec())
    assert made.outcome is Outcome.CREATED
    assert (made.version, made.state, made.spec) == (1, FleetState.ACTIVE, a_fleet_spec())
    assert made.fleet_id.startswith("flt_")
    with read(desk.engine) as connection:
        assert fleets.find(connection, "builders") == fleets.find(connection, made.fleet_id)
        assert fleets.list_all(connection) == (replace(made, outcome=Outcome.UNCHANGED),)


def test_the_same_document_again_changes_nothing_and_is_not_audited(desk: Desk) -> None:
    apply(desk, a_fleet_spec())
    again = apply(desk, a_fleet_spec())
    assert (again.outcome, again.version) == (Outcome.UNCHANGED, 1)
    assert [line["action"] for line in trail(desk)] == ["fleet.create"]


@pytest.mark.requirement("PRI-046")
def test_another_document_is_the_next_version_of_the_same_fleet(desk: Desk) -> None:
    first, second = apply(desk, a_fleet_spec()), apply(desk, LARGER)
    assert (second.outcome, second.version) == (Outcome.CHANGED, 2)
    assert (second.fleet_id, second.spec) == (first.fleet_id, LARGER)
    created, changed = trail(desk)
    assert changed["action"] == "fleet.set"
    assert (changed["actor"], changed["target"]) == ("ann", first.fleet_id)
    assert changed["before_digest"] == created["after_digest"]
    assert changed["after_digest"] not in (None, changed["before_digest"])


def test_whoever_expects_another_version_changes_nothing(desk: Desk) -> None:
    with pytest.raises(Conflict, match="there is no fleet builders yet"):
        apply(desk, a_fleet_spec(), expected=1)
    apply(desk, a_fleet_spec(), expected=0)
    with pytest.raises(Conflict) as caught:
        apply(desk, LARGER, expected=0)
    assert (caught.value.field, caught.value.allowed) == ("version", "1")
    assert apply(desk, LARGER, expected=1).version == 2


def test_a_document_that_contradicts_itself_makes_no_fleet(desk: Desk) -> None:
    with pytest.raises(InvalidRequest) as caught:
        apply(desk, a_fleet_spec(scaling=Scaling(min=5, max=3)))
    assert (caught.value.field, caught.value.value) == ("scaling.min", "5")
    with read(desk.engine) as connection:
        assert fleets.list_all(connection) == ()


@pytest.mark.requirement("FLM-006")
def test_a_fleet_serves_a_scope_and_fills_a_pool_that_exist(desk: Desk) -> None:
    with pytest.raises(NotFound, match="no pool ios"):
        apply(desk, a_fleet_spec(pool="ios"))
    with pytest.raises(NotFound, match="no project nowhere"):
        apply(desk, a_fleet_spec(scope=FleetScope(project_id="nowhere")))
    named = a_fleet_spec(scope=FleetScope(tenant_id="default"), pool="default")
    assert apply(desk, named).spec.scope == FleetScope(tenant_id="tnt_default")
    assert apply(desk, named).outcome is Outcome.UNCHANGED


@pytest.mark.requirement("FOP-001")
@pytest.mark.parametrize("state", [state for state in FleetState if state != "active"])
def test_a_fleet_is_told_what_it_may_do_and_by_whom(desk: Desk, state: FleetState) -> None:
    fleet_id = apply(desk, a_fleet_spec()).fleet_id
    told = desk.change(fleets.set_state, "builders", state, BY_ANN)
    assert (told.state, told.state_reason, told.version) == (state, BY_ANN.reason, 1)
    desk.change(fleets.set_state, fleet_id, state, BY_ANN)
    assert [line["action"] for line in trail(desk)] == ["fleet.create", "fleet.state"]
    assert trail(desk)[1]["detail"] == f"builders: active to {state}: {BY_ANN.reason}"


def test_nobody_takes_back_that_a_fleet_is_deleted(desk: Desk) -> None:
    apply(desk, a_fleet_spec())
    assert desk.change(fleets.delete, "builders", BY_ANN).state is FleetState.DELETING
    with pytest.raises(Conflict, match="is being deleted"):
        desk.change(fleets.set_state, "builders", FleetState.ACTIVE, BY_ANN)
    with pytest.raises(Conflict, match="is being deleted"):
        apply(desk, LARGER)


def test_a_name_is_free_again_once_its_fleet_is_gone(desk: Desk) -> None:
    first = apply(desk, a_fleet_spec())
    gone = sa.update(fleet_tables.fleets).values(live=None, deleted_at=1)
    desk.change(lambda connection: connection.execute(gone))
    with read(desk.engine) as connection, pytest.raises(NotFound, match="no fleet builders"):
        fleets.find(connection, "builders")
    assert apply(desk, a_fleet_spec()).fleet_id != first.fleet_id
