"""What people want of fleets for a while: other bounds, reservations, pins, frozen providers."""

from typing import Any

import pytest
import sqlalchemy as sa

from forgeyard import telemetry
from forgeyard.api.metrics import StoreFigures
from forgeyard.errors import Conflict, InvalidRequest, NotFound
from forgeyard.fleet.view import Launch
from forgeyard.model.capacity import CapacityInstanceState, ScaleReason
from forgeyard.model.fleet import DAY_MS, FleetSpec, Offering, Scaling
from forgeyard.store import fleet_tables, fleet_views, fleet_wishes, fleets, machines, tables
from forgeyard.store.engine import database_now, read
from forgeyard.store.fleet_wishes import Window
from forgeyard.store.fleets import Bounds
from forgeyard.store.shares import Intent
from tests.builders import PARTITION, RNG, a_fleet_spec
from tests.leasing import Desk
from tests.scraping import scraped

pytestmark = pytest.mark.integration
BY_ANN = Intent(actor="ann", channel="cli", reason="the release is near")
HOUR = 3_600_000
PRICED = a_fleet_spec(
    scaling=Scaling(min=1, max=10), offerings=(Offering(name="only", cost=250_000),)
)


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    found = Desk(engine)
    found.change(fleets.apply, PRICED, BY_ANN, expected_version=0, rng=RNG)
    return found


def shown(desk: Desk) -> fleet_views.FleetStanding:
    with read(desk.engine) as connection:
        return fleet_views.standing(connection, "builders")


def bound(desk: Desk, bounds: Bounds, *, for_ms: int | None = None) -> Any:
    return desk.change(fleets.override, "builders", bounds, BY_ANN, for_ms=for_ms, rng=RNG)


def a_machine(desk: Desk, state: CapacityInstanceState | None = None) -> str:
    """Want one machine, and take it to a state; the row's own rules are tried elsewhere."""

    def want(connection: sa.Connection) -> str:
        row, now = fleets.lock(connection, "builders"), database_now(connection)
        launch = Launch(offering="only", reason=ScaleReason.MANUAL)
        spec: FleetSpec = fleets.view(row).spec
        (instance_id,) = machines.intend(connection, row, spec, [launch], now=now, rng=RNG)
        if state is not None:
            own = fleet_tables.capacity_instances.c.instance_id == instance_id
            moved = sa.update(fleet_tables.capacity_instances).where(own)
            connection.execute(moved.values(state=state.value, healthy_at=now))
        return instance_id

    return desk.change(want)


def machine(desk: Desk, instance_id: str) -> fleet_views.MachineRecord:
    with read(desk.engine) as connection:
        return fleet_views.machine(connection, instance_id)


def actions(desk: Desk) -> list[str]:
    with read(desk.engine) as connection:
        return list(connection.execute(sa.select(tables.audit.c.action)).scalars())


def now(desk: Desk) -> int:
    with read(desk.engine) as connection:
        return database_now(connection)


def a_window(desk: Desk, **changed: int) -> Window:
    starts_at = now(desk) + HOUR
    return Window(**{"quantity": 3, "starts_at": starts_at, "ends_at": starts_at + HOUR, **changed})


@pytest.mark.requirement("FOP-014", "FOP-015", "FOP-016")
def test_other_bounds_hold_for_a_day_unless_told_and_replace_each_other(desk: Desk) -> None:
    before = now(desk)
    bound(desk, Bounds(max=20))
    found = shown(desk).override
    assert found is not None
    assert (found.min, found.max) == (None, 20)
    assert DAY_MS <= found.expires_at - before < DAY_MS + HOUR
    bound(desk, Bounds(min=2), for_ms=HOUR)
    found = shown(desk).override
    assert found is not None
    assert (found.min, found.max) == (2, None)
    assert actions(desk) == ["fleet.create", "fleet.override", "fleet.override"]


def test_other_bounds_end_by_themselves_or_when_somebody_says_so(desk: Desk) -> None:
    bound(desk, Bounds(min=2))
    over = sa.update(fleet_tables.fleet_overrides).values(expires_at=now(desk))
    desk.change(lambda connection: connection.execute(over))
    assert shown(desk).override is None
    bound(desk, Bounds(min=2))
    desk.change(fleets.end_override, "builders", BY_ANN)
    desk.change(fleets.end_override, "builders", BY_ANN)
    assert shown(desk).override is None
    assert actions(desk).count("fleet.override_end") == 1


@pytest.mark.parametrize(
    ("bounds", "for_ms", "field"),
    [
        (Bounds(), None, "min"),
        (Bounds(min=11), None, "min"),
        (Bounds(max=0), None, "max"),
        (Bounds(min=5, max=4), None, "min"),
        (Bounds(max=10_001), None, "max"),
        (Bounds(max=20), 0, "for_ms"),
        (Bounds(max=20), 30 * DAY_MS + 1, "for_ms"),
    ],
)
def test_bounds_that_leave_nothing_or_last_too_long_are_refused(
    desk: Desk, bounds: Bounds, for_ms: int | None, field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bound(desk, bounds, for_ms=for_ms)
    assert caught.value.field == field
    assert shown(desk).override is None


def test_scaling_to_a_number_is_both_bounds_at_once(desk: Desk) -> None:
    desk.change(fleets.scale, "builders", 4, BY_ANN, for_ms=HOUR, rng=RNG)
    found = shown(desk).override
    assert found is not None
    assert (found.min, found.max) == (4, 4)


@pytest.mark.requirement("RSV-001")
def test_a_reservation_is_kept_until_it_ends_or_is_cancelled(desk: Desk) -> None:
    late = desk.change(
        fleet_wishes.reserve, "builders", a_window(desk, quantity=5), BY_ANN, rng=RNG
    )
    window = a_window(desk, starts_at=now(desk))
    soon = desk.change(fleet_wishes.reserve, "builders", window, BY_ANN, rng=RNG)
    with read(desk.engine) as connection:
        listed = fleet_wishes.reservations(connection, "builders")
    assert [one.reservation.quantity for one in listed] == [3, 5]
    assert listed[0] == soon
    assert shown(desk).reservations == 2
    desk.change(fleet_wishes.cancel_reservation, late.reservation.reservation_id, BY_ANN)
    desk.change(fleet_wishes.cancel_reservation, late.reservation.reservation_id, BY_ANN)
    assert shown(desk).reservations == 1
    assert actions(desk).count("fleet.unreserve") == 1
    with pytest.raises(NotFound):
        desk.change(fleet_wishes.cancel_reservation, "rsv_none", BY_ANN)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"quantity": 0}, "quantity"),
        ({"quantity": 10_001}, "quantity"),
        ({"starts_at": 1, "ends_at": 2}, "ends_at"),
        ({"ends_at": 1}, "ends_at"),
        ({"ends_at": 2**52}, "ends_at"),
        ({"lead": 2 * DAY_MS}, "lead"),
    ],
)
def test_a_window_that_is_over_empty_or_endless_is_refused(
    desk: Desk, changed: dict[str, int], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        desk.change(fleet_wishes.reserve, "builders", a_window(desk, **changed), BY_ANN, rng=RNG)
    assert caught.value.field == field


@pytest.mark.requirement("DRN-009", "DRN-010")
def test_a_machine_is_pinned_for_a_week_at_most(desk: Desk) -> None:
    own = a_machine(desk)
    desk.change(fleet_wishes.pin, own, BY_ANN, for_ms=HOUR)
    found = machine(desk, own)
    assert found.pinned_until is not None
    assert 0 < found.pinned_until - now(desk) <= HOUR
    assert found.pin_reason == BY_ANN.reason
    desk.change(fleet_wishes.unpin, own, BY_ANN)
    assert machine(desk, own).pinned_until is None
    with pytest.raises(InvalidRequest):
        desk.change(fleet_wishes.pin, own, BY_ANN, for_ms=7 * DAY_MS + 1)
    with pytest.raises(NotFound):
        desk.change(fleet_wishes.pin, "cin_none", BY_ANN, for_ms=HOUR)
    assert actions(desk)[1:] == ["instance.pin", "instance.unpin"]


def test_what_is_on_its_way_out_is_neither_pinned_nor_drained(desk: Desk) -> None:
    own = a_machine(desk, CapacityInstanceState.TERMINATING)
    with pytest.raises(Conflict) as caught:
        desk.change(fleet_wishes.pin, own, BY_ANN, for_ms=HOUR)
    assert caught.value.value == "terminating"
    with pytest.raises(Conflict):
        desk.change(fleet_wishes.drain_machine, own, BY_ANN)


def test_an_operator_lets_one_machine_go(desk: Desk) -> None:
    own = a_machine(desk, CapacityInstanceState.HEALTHY)
    desk.change(fleet_wishes.drain_machine, own, BY_ANN)
    found = machine(desk, own)
    assert (found.state, found.drain_reason) == (CapacityInstanceState.DRAINING, "operator")
    assert "instance.drain" in actions(desk)


def test_only_a_machine_that_is_kept_for_a_look_is_released(desk: Desk) -> None:
    kept, fine = (
        a_machine(desk, state)
        for state in (CapacityInstanceState.QUARANTINED, CapacityInstanceState.HEALTHY)
    )
    desk.change(fleet_wishes.release, kept, BY_ANN)
    desk.change(fleet_wishes.release, kept, BY_ANN)
    with pytest.raises(Conflict):
        desk.change(fleet_wishes.release, fine, BY_ANN)
    assert actions(desk).count("instance.release") == 1


@pytest.mark.requirement("FOP-005")
def test_a_frozen_provider_is_seen_at_each_of_its_fleets(desk: Desk) -> None:
    desk.change(fleet_wishes.freeze_provider, "local", BY_ANN)
    desk.change(fleet_wishes.freeze_provider, "another", BY_ANN)
    assert shown(desk).provider_frozen
    with read(desk.engine) as connection:
        assert machines.is_frozen(connection, "local")
    desk.change(fleet_wishes.thaw_provider, "local", BY_ANN)
    assert not shown(desk).provider_frozen
    assert actions(desk)[1:] == ["provider.freeze", "provider.freeze", "provider.thaw"]


@pytest.mark.requirement("FLM-026", "CST-002")
def test_machines_are_counted_and_priced_by_what_may_exist(desk: Desk) -> None:
    own = [a_machine(desk), a_machine(desk, CapacityInstanceState.HEALTHY)]
    seen = shown(desk)
    assert seen.machines == {
        CapacityInstanceState.REQUESTED: 1,
        CapacityInstanceState.HEALTHY: 1,
    }
    assert seen.hourly == 500_000
    with read(desk.engine) as connection:
        listed = fleet_views.machines(connection, "builders")
    assert [one.instance_id for one in listed] == own
    assert {(one.offering, one.cost, one.leases) for one in listed} == {("only", 250_000, 0)}


@pytest.mark.requirement("FLM-002")
def test_a_change_of_a_fleet_leaves_the_machines_that_it_has(desk: Desk) -> None:
    own = a_machine(desk)
    dearer = a_fleet_spec(offerings=(Offering(name="only", cost=9_000_000),))
    desk.change(fleets.apply, dearer, BY_ANN, expected_version=1, rng=RNG)
    assert machine(desk, own).cost == 250_000
    later = a_machine(desk)
    assert machine(desk, later).cost == 9_000_000


@pytest.mark.requirement("MET-031", "MET-032", "MET-033", "MET-040")
def test_prometheus_is_told_how_many_machines_each_fleet_wants_and_has(desk: Desk) -> None:
    for state in (None, CapacityInstanceState.HEALTHY, CapacityInstanceState.HEALTHY):
        a_machine(desk, state)
    a_machine(desk, CapacityInstanceState.BOOTSTRAPPING)
    decided = {"fleet_id": shown(desk).fleet.fleet_id, "number": 1, "at": 1, "usable": 0}
    said = {"wanted": 7, "launched": 0, "drained": 0, "demand_id": "", "decision": "{}"}
    desk.change(lambda it: it.execute(sa.insert(fleet_tables.fleet_decisions), [decided | said]))
    desk.change(lambda it: it.execute(sa.update(fleet_tables.fleets).values(decisions=1)))
    registry = telemetry.published(StoreFigures(desk.engine, PARTITION))
    found = scraped(telemetry.text(registry).decode())
    labels = {
        "fleet": "builders",
        "provider": "local",
        "capacity_class": PRICED.capacity.class_id,
    }
    counts = {
        name: found.value(f"forgeyard_fleet_{name}_instances", **labels)
        for name in ("desired", "ready", "provisioning")
    }
    assert counts == {"desired": 7, "ready": 2, "provisioning": 2}
