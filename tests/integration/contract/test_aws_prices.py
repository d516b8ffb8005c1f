"""What Amazon asks for its machines: read from the spot market and the list, and reckoned with."""

import json
from dataclasses import replace
from unittest.mock import patch

import pytest
import sqlalchemy as sa
from temporalio import activity

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from activities.provisioning import Infrastructure
from forgeyard.fleet.ports import PricedProvider, Sku
from forgeyard.model.capability import Platform
from forgeyard.model.fleet import Market, Offering, Scaling
from forgeyard.store import codec, fleet_tables, fleet_views, fleets, lineage
from forgeyard.store.engine import read
from forgeyard.store.shares import Intent
from tests.builders import PARTITION, RNG, a_fleet_spec
from tests.integration.contract.benches import AwsBench, LocalBench
from tests.leasing import Desk

pytestmark = pytest.mark.integration
NOW = 1_796_040_000_000
ME = Intent(actor="ann", channel="test", reason="a test")
STABLE = Sku(platform=Platform.LINUX, machine="m5.large", region="", zone="", market=Market.STABLE)
SPOT = replace(STABLE, market=Market.PREEMPTIBLE)
ZONES = """<DescribeSpotPriceHistoryResponse><spotPriceHistorySet>{}</spotPriceHistorySet>
<nextToken/></DescribeSpotPriceHistoryResponse>"""
LISTED = "GetProducts"
MARKET = "DescribeSpotPriceHistory"


def product(*amounts: str, unit: str = "Hrs") -> str:
    """Write one product of the price list with so many prices."""
    dimensions = {
        f"rate-{place}": {"unit": unit, "pricePerUnit": {"USD": amount}, "beginRange": "0"}
        for place, amount in enumerate(amounts)
    }
    terms = {"OnDemand": {"SKU.JRTCKXETXF": {"sku": "SKU", "priceDimensions": dimensions}}}
    return json.dumps({"product": {"sku": "SKU"}, "serviceCode": "AmazonEC2", "terms": terms})


def listed(*products: str) -> str:
    """Write an answer of the price list."""
    return json.dumps({"FormatVersion": "aws_v1", "PriceList": list(products)})


def history(*entries: tuple[str, str, str]) -> str:
    """Write what the spot market says: zone, price, since when."""
    return ZONES.format(
        "".join(
            f"<item><instanceType>m5.large</instanceType><availabilityZone>{zone}"
            f"</availabilityZone><spotPrice>{amount}</spotPrice>"
            f"<timestamp>{since}</timestamp></item>"
            for zone, amount, since in entries
        )
    )


@pytest.mark.requirement("CST-004")
def test_the_price_of_a_spot_machine_is_what_the_market_says(aws: AwsBench) -> None:
    told = aws.provider.price(SPOT, now=NOW)
    assert (told.cost, told.currency, told.at) == (10, "USD", NOW)
    assert "spot" in told.source
    (call,) = aws.proxy.called(MARKET)
    assert call["InstanceType.1"] == "m5.large"
    assert call["ProductDescription.1"] == "Linux/UNIX"
    assert call["StartTime"] == call["EndTime"]


def test_a_machine_that_may_come_to_be_in_any_zone_costs_what_the_dearest_asks_now(
    aws: AwsBench,
) -> None:
    aws.proxy.told[MARKET] = history(
        ("us-east-1a", "0.0301", "2026-11-30T11:00:00Z"),
        ("us-east-1b", "0.0900", "2026-11-30T08:00:00Z"),
        ("us-east-1b", "0.0355004", "2026-11-30T10:00:00Z"),
    )
    assert aws.provider.price(SPOT, now=NOW).cost == 35_501
    aws.provider.price(replace(SPOT, zone="us-east-1a"), now=NOW)
    assert aws.proxy.called(MARKET)[-1]["AvailabilityZone"] == "us-east-1a"


@pytest.mark.requirement("CST-004")
def test_the_price_of_a_machine_on_demand_is_what_the_list_says_for_its_system(
    aws: AwsBench,
) -> None:
    aws.proxy.told[LISTED] = listed(product("0.0960000000", "0.0000000000"))
    told = aws.provider.price(replace(STABLE, platform=Platform.WINDOWS), now=NOW)
    assert (told.cost, told.currency) == (96_000, "USD")
    (call,) = aws.proxy.called(LISTED)
    filters = {one["Field"]: one["Value"] for one in json.loads(call["Json"])["Filters"]}
    assert filters["operatingSystem"] == "Windows"
    assert (filters["instanceType"], filters["regionCode"]) == ("m5.large", "us-east-1")
    assert filters["tenancy"] == "Shared"


@pytest.mark.parametrize(
    "answer",
    [listed(), listed(product("0.0")), listed(product("7", unit="Quantity")), listed("{")],
)
def test_where_the_list_has_no_price_none_is_made_up(aws: AwsBench, answer: str) -> None:
    aws.proxy.told[LISTED] = answer
    told = aws.provider.price(STABLE, now=NOW)
    assert told.cost is None
    assert told.reason


def test_a_price_that_cannot_be_asked_for_is_unknown_and_says_why(aws: AwsBench) -> None:
    aws.proxy.refused.append((MARKET, 403, "UnauthorizedOperation"))
    told = aws.provider.price(SPOT, now=NOW)
    assert (told.cost, told.reason) == (None, f"{MARKET}: UnauthorizedOperation")
    mac = aws.provider.price(replace(STABLE, platform=Platform.MACOS), now=NOW)
    assert (mac.cost, mac.reason) == (None, "Amazon rents Macs by the host")


def test_a_provider_without_prices_is_not_asked_for_any(local: LocalBench, aws: AwsBench) -> None:
    assert not isinstance(local.provider, PricedProvider)
    assert isinstance(aws.provider, PricedProvider)


@pytest.mark.requirement("CST-003", "CST-004", "CST-007", "PRI-066")
def test_a_fleet_takes_what_is_cheapest_at_present_and_says_who_told_the_price(
    aws: AwsBench, sqlite_engine: sa.Engine
) -> None:
    desk = Desk(sqlite_engine)
    desk.change(lineage.leave_mark, rng=RNG)
    hands = {"aws": Infrastructure(provider=aws.provider)}
    deciding = FleetActivities(desk.engine, desk.policy, hands, Rhythm(observe=0), rng=RNG)
    settings = {"ami": aws.ami}
    large = Offering(name="large", machine="m5.large", cost=10_000, settings=settings)
    spot = replace(large, name="spot", cost=90_000, market=Market.PREEMPTIBLE)
    other = replace(large, name="other", machine="c5.large", cost=50_000)
    spec = a_fleet_spec(
        provider="aws", offerings=(large, spot, other), scaling=Scaling(min=1, max=1)
    )
    made = desk.change(fleets.apply, spec, ME, expected_version=None, rng=RNG)
    fleet = contracts.Fleet(fleet_id=made.fleet_id, partition=PARTITION)
    aws.proxy.told[LISTED] = listed(product("0.096"))
    with patch.object(activity, "heartbeat", lambda *_details: None):
        deciding.observe_fleet(fleet)
        asked = len(aws.proxy.called(LISTED)), len(aws.proxy.called(MARKET))
        assert asked == (2, 1)
        deciding.observe_fleet(fleet)
        assert (len(aws.proxy.called(LISTED)), len(aws.proxy.called(MARKET))) == asked
    assert deciding.tick_fleet(fleet).launched == 1
    (machine,) = desk.rows(fleet_tables.capacity_instances)
    wanted = codec.decode(Offering, machine["offering"])
    assert (wanted.name, wanted.cost) == ("spot", 10)
    with read(desk.engine) as connection:
        standing = fleet_views.standing(connection, "builders")
    assert [(one.offering, one.cost, one.at is not None) for one in standing.prices] == [
        ("large", 96_000, True),
        ("spot", 10, True),
        ("other", 96_000, True),
    ]
    assert standing.hourly == 10
    assert standing.fleet.spec == spec, "the document stays what people wrote"
