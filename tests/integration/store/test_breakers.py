"""What is not asked of a provider for a while, because it failed; all workers know it."""

import pytest
import sqlalchemy as sa

from forgeyard.errors import (
    ForgeyardError,
    NeverCameUp,
    OutOfCapacity,
    ProviderQuotaExceeded,
    Throttled,
    Unavailable,
)
from forgeyard.fleet.plan import decide
from forgeyard.fleet.view import ClampKind, FleetView
from forgeyard.model.fleet import FleetSpec, Offering, Scaling
from forgeyard.store import breakers, fleet_reading, fleets
from forgeyard.store.engine import database_now, read
from tests.builders import RNG, a_fleet_spec
from tests.fleets import a_demand
from tests.integration.store.grounds import ANN
from tests.leasing import POLICY, Desk

pytestmark = pytest.mark.integration
MINUTE = 60_000
OFFERINGS = (Offering(name="spot", cost=1), Offering(name="stable", cost=2))


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    """Begin with two fleets of one provider and one of another."""
    desk = Desk(engine)
    for name, provider in (("one", "here"), ("two", "here"), ("other", "there")):
        desk.change(fleets.apply, a_spec(name, provider), ANN, expected_version=None, rng=RNG)
    return desk


def a_spec(name: str, provider: str) -> FleetSpec:
    return a_fleet_spec(name, provider=provider, offerings=OFFERINGS, scaling=Scaling(min=2))


def views(desk: Desk, *, later: int = 0) -> dict[str, FleetView]:
    with read(desk.engine) as connection:
        now = database_now(connection) + later
        return {one.spec.name: one for one in fleet_reading.views(connection, (), POLICY, now=now)}


def closed(desk: Desk, *, later: int = 0) -> dict[str, list[str]]:
    """Tell which offerings of which fleets are closed; an empty name is all of them."""
    found = {
        name: sorted(c.offering for c in v.closed) for name, v in views(desk, later=later).items()
    }
    return {name: offerings for name, offerings in found.items() if offerings}


def fails(desk: Desk, error: ForgeyardError, fleet: str = "one", offering: str = "spot") -> int:
    """Let an offering of a fleet fail; tell for how long nothing like it is asked for."""
    fleet_id = views(desk)[fleet].fleet_id

    def failed(connection: sa.Connection) -> int:
        now = database_now(connection)
        until = breakers.failed(connection, "here", fleet_id, offering, error, now=now)
        return until - now if until else 0

    return desk.change(failed)


def made(desk: Desk) -> list[str]:
    view = views(desk)["one"]
    decision = decide(view, {}, demand=a_demand(), now=desk.change(database_now))
    names = [one.offering for one in decision.launch]
    return names or [str(one.kind) for one in decision.clamps if one.kind is ClampKind.NO_OFFERING]


@pytest.mark.requirement("FRC-020")
def test_an_offering_that_failed_is_left_alone_for_longer_each_time(desk: Desk) -> None:
    assert made(desk) == ["spot", "spot"]
    pauses = [fails(desk, OutOfCapacity("none left")) for _ in range(6)]
    assert pauses == [m * MINUTE for m in (3, 6, 12, 24, 30, 30)]
    assert closed(desk) == {"one": ["spot"]}, "of this fleet alone"
    assert made(desk) == ["stable", "stable"]
    assert closed(desk, later=30 * MINUTE) == {}
    quota = [fails(desk, ProviderQuotaExceeded("no more"), offering="stable") for _ in range(5)]
    assert quota == [m * MINUTE for m in (10, 20, 40, 60, 60)]
    assert made(desk) == [ClampKind.NO_OFFERING]


@pytest.mark.requirement("FRC-020", "FRC-021")
@pytest.mark.parametrize("error", [Unavailable("InternalError"), Throttled("slowly")], ids=repr)
def test_a_provider_that_fails_again_and_again_is_left_alone_by_all_its_fleets(
    desk: Desk, error: ForgeyardError
) -> None:
    pauses = [fails(desk, error, *where) for where in [("one", "spot"), ("two", "stable")] * 5]
    assert pauses[:4] == [0] * 4, "now and then a call fails"
    assert pauses[4:] == [s * 1_000 for s in (30, 60, 120, 240, 300, 300)]
    assert closed(desk) == {"one": [""], "two": [""]}, "and those of another go on"
    assert made(desk) == [ClampKind.NO_OFFERING]
    assert closed(desk, later=5 * MINUTE) == {}


@pytest.mark.requirement("FRC-021")
def test_a_machine_that_was_made_closes_the_breaker_and_one_that_came_up_all(desk: Desk) -> None:
    fleet_id = views(desk)["one"].fleet_id
    for _ in range(5):
        fails(desk, Unavailable("InternalError"))
    boots = [fails(desk, NeverCameUp("nobody came")) for _ in range(3)]
    assert boots == [0, 0, MINUTE]
    desk.change(breakers.made, "here", fleet_id, "spot")
    assert closed(desk) == {"one": ["spot"]}, "that it comes up is yet to be seen"
    desk.change(breakers.came_up, "here", fleet_id, "spot")
    assert closed(desk) == {}
    assert fails(desk, Unavailable("InternalError")) == 0, "and it is counted anew"
