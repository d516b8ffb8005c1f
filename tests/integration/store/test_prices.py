"""Prices that providers tell: believed while they are young, and else the document's stand."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from forgeyard.fleet.ports import Price, Sku, sku_of
from forgeyard.model.fleet import FleetSpec, Guardrail, Offering, Scaling
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import fleet_reading, fleets, prices, tables
from forgeyard.store.engine import database_now, read
from forgeyard.store.prices import DOCUMENT, EVERY_MS, FRESH_MS, OfferingPrice
from forgeyard.store.shares import Intent
from tests.builders import PARTITION, RNG, a_fleet_spec
from tests.leasing import Desk

pytestmark = pytest.mark.integration
ME = Intent(actor="ann", channel="test", reason="a test")
LARGE = Offering(name="large", machine="m5.large", cost=100_000)
SPEC = a_fleet_spec(offerings=(LARGE,))


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def apply(desk: Desk, spec: FleetSpec = SPEC) -> str:
    return desk.change(fleets.apply, spec, ME, expected_version=None, rng=RNG).fleet_id


def now_of(desk: Desk) -> int:
    with read(desk.engine) as connection:
        return database_now(connection)


def due(desk: Desk, *, now: int) -> tuple[Sku, ...]:
    with read(desk.engine) as connection:
        return prices.due(connection, "local", now=now)


def keep(desk: Desk, *, now: int, **changed: object) -> None:
    answer = Price(sku=sku_of(SPEC, LARGE), cost=70_000, at=now, source="a list")
    desk.change(prices.keep, "local", (replace(answer, **changed),), now=now)


def told(desk: Desk, fleet_id: str, *, now: int, spec: FleetSpec = SPEC) -> OfferingPrice:
    with read(desk.engine) as connection:
        (one,) = prices.Prices(connection, [fleet_id]).told(fleet_id, spec, now=now)
    return one


@pytest.mark.requirement("CST-003", "CST-004")
def test_a_price_counts_while_it_is_young_and_then_the_document_s_does(desk: Desk) -> None:
    fleet_id = apply(desk)
    now = now_of(desk)
    assert told(desk, fleet_id, now=now) == OfferingPrice(
        offering="large", cost=100_000, source=DOCUMENT
    )
    keep(desk, now=now)
    assert told(desk, fleet_id, now=now + FRESH_MS - 1) == OfferingPrice(
        offering="large", cost=70_000, source="a list", at=now
    )
    old = told(desk, fleet_id, now=now + FRESH_MS)
    assert (old.cost, old.source, old.at) == (100_000, DOCUMENT, None)
    assert old.remark == "a list told 70000 millionths USD, 6 h ago"


def test_a_price_is_asked_for_once_and_again_when_it_is_time_or_the_offering_is_another(
    desk: Desk,
) -> None:
    apply(desk)
    apply(desk, replace(SPEC, name="twins"))
    now = now_of(desk)
    assert due(desk, now=now) == (sku_of(SPEC, LARGE),)
    keep(desk, now=now)
    assert due(desk, now=now + EVERY_MS - 1) == ()
    assert due(desk, now=now + EVERY_MS) == (sku_of(SPEC, LARGE),)
    other = replace(LARGE, machine="m5.xlarge")
    fleet_id = apply(desk, replace(SPEC, offerings=(other,)))
    assert [sku.machine for sku in due(desk, now=now)] == ["m5.xlarge"]
    one = told(desk, fleet_id, now=now, spec=replace(SPEC, offerings=(other,)))
    assert (one.cost, one.source) == (100_000, DOCUMENT)


def test_a_price_that_cannot_be_learned_anew_leaves_the_last_one_and_says_why_it_is_old(
    desk: Desk,
) -> None:
    fleet_id = apply(desk)
    now = now_of(desk)
    keep(desk, now=now, cost=None, reason="Denied")
    unknown = told(desk, fleet_id, now=now)
    assert (unknown.cost, unknown.source, unknown.remark) == (100_000, DOCUMENT, "Denied")
    keep(desk, now=now)
    later = now + EVERY_MS
    keep(desk, now=later, cost=None, reason="Throttled")
    keep(desk, now=later, cost=None, reason="Denied")
    assert due(desk, now=later) == (), "it was asked for, whatever came of it"
    assert told(desk, fleet_id, now=later).cost == 70_000
    old = told(desk, fleet_id, now=now + FRESH_MS)
    assert old.remark == "Denied; a list told 70000 millionths USD, 6 h ago"


def test_a_price_in_another_currency_is_told_and_not_reckoned_with(desk: Desk) -> None:
    spec = replace(SPEC, guardrail=Guardrail(currency="EUR"))
    fleet_id = apply(desk, spec)
    now = now_of(desk)
    keep(desk, now=now)
    one = told(desk, fleet_id, now=now, spec=spec)
    assert (one.cost, one.source) == (100_000, DOCUMENT)
    assert "70000 millionths USD" in one.remark


def test_a_plan_reckons_with_the_price_and_the_document_stays_as_it_is(desk: Desk) -> None:
    apply(desk)
    keep(desk, now=now_of(desk))
    with read(desk.engine) as connection:
        (view,) = fleet_reading.read(connection, PARTITION, SchedulingPolicy()).fleets
    assert view.priced.offerings == (replace(LARGE, cost=70_000),)
    assert view.spec == SPEC


@pytest.mark.requirement("CST-012")
def test_who_may_change_a_fleet_lifts_its_ceiling_at_once_and_is_on_record(desk: Desk) -> None:
    """In an emergency money gives way to a person with a reason, and to nobody else."""
    enough = Guardrail(hourly=LARGE.cost)
    poor = replace(SPEC, scaling=Scaling(min=2, max=2), guardrail=enough)
    fleet = contracts.Fleet(fleet_id=apply(desk, poor), partition=PARTITION)
    deciding = FleetActivities(desk.engine, desk.policy, {}, Rhythm(), rng=RNG)
    assert [deciding.tick_fleet(fleet).launched for _ in range(2)] == [1, 0]
    lifted = replace(poor, guardrail=Guardrail(hourly=2 * LARGE.cost))
    urgent = Intent(actor="ann", channel="cli", reason="a hole in the image of yesterday")
    desk.change(fleets.apply, lifted, urgent, expected_version=1, rng=RNG)
    assert deciding.tick_fleet(fleet).launched == 1
    audit = tables.audit
    query = sa.select(audit.c.actor, audit.c.detail).where(audit.c.action == "fleet.set")
    with read(desk.engine) as connection:
        ((actor, detail),) = connection.execute(query)
    assert actor == "ann"
    assert urgent.reason in detail
