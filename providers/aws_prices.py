"""What Amazon asks for an hour of a machine: the spot market of a region, and the price list."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Final

from annotated_types import MaxLen
from pydantic import BaseModel, Field, ValidationError
from pydantic.alias_generators import to_camel, to_pascal

from forgeyard.errors import ForgeyardError, Unavailable
from forgeyard.fleet.ports import Price, Sku
from forgeyard.model.capability import Platform
from forgeyard.model.fleet import Market
from providers.aws_sdk import Sdk

LIST_REGION: Final = "us-east-1"
"""Where the price list of all regions is served."""
MOST_PAGES: Final = 10
SPOT: Final = "Amazon's spot price history"
LIST: Final = "Amazon's price list"
CURRENCY: Final = "USD"
MICROS: Final = Decimal(1_000_000)
SYSTEMS: Final[Mapping[Platform, tuple[str, str]]] = {
    Platform.LINUX: ("Linux/UNIX", "Linux"),
    Platform.WINDOWS: ("Windows", "Windows"),
}
"""What each is called on the spot market, and in the list; Macs are rented by the host."""
LARGEST: Final = 1024 * 1024
Amount = Annotated[Decimal, Field(ge=0, max_digits=30)]


class _Spot(BaseModel, frozen=True, alias_generator=to_pascal):
    availability_zone: str = ""
    spot_price: Amount
    timestamp: datetime


class _History(BaseModel, frozen=True, alias_generator=to_pascal):
    spot_price_history: Annotated[tuple[_Spot, ...], MaxLen(10_000)] = ()
    next_token: str = ""


class _Dimension(BaseModel, frozen=True, alias_generator=to_camel):
    unit: str = ""
    price_per_unit: dict[str, Amount] = {}


class _Term(BaseModel, frozen=True, alias_generator=to_camel):
    price_dimensions: dict[str, _Dimension] = {}


class _Terms(BaseModel, frozen=True):
    on_demand: dict[str, _Term] = Field(default={}, alias="OnDemand")


class _Product(BaseModel, frozen=True):
    terms: _Terms = _Terms()


class _Listed(BaseModel, frozen=True, alias_generator=to_pascal):
    price_list: Annotated[tuple[Annotated[str, MaxLen(LARGEST)], ...], MaxLen(100)] = ()


def price(sdk: Sdk, sku: Sku, region: str, *, now: int) -> Price:
    """Ask for one price, by the market or by the list; what fails is an unknown price."""
    source = SPOT if sku.market is Market.PREEMPTIBLE else LIST
    if not sku.machine or sku.platform not in SYSTEMS:
        why = "Amazon rents Macs by the host" if sku.machine else "the offering names no machine"
        return Price(sku=sku, cost=None, at=now, source=source, reason=why)
    ask = _on_the_market if source == SPOT else _in_the_list
    try:
        cost = _micros(ask(sdk, sku, region, now))
    except ForgeyardError as error:
        return Price(sku=sku, cost=None, at=now, source=source, reason=error.message[:500])
    return Price(sku=sku, cost=cost, at=now, source=source, currency=CURRENCY)


def _on_the_market(sdk: Sdk, sku: Sku, region: str, now: int) -> Iterable[Decimal]:
    """List the price of now in every zone that a machine may come to be in."""
    then = datetime.fromtimestamp(now / 1000, UTC)
    asked: dict[str, object] = {
        "InstanceTypes": [sku.machine],
        "ProductDescriptions": [SYSTEMS[sku.platform][0]],
        "StartTime": then,
        "EndTime": then,
    }
    if sku.zone:
        asked["AvailabilityZone"] = sku.zone
    latest: dict[str, _Spot] = {}
    for _ in range(MOST_PAGES):
        with sdk.asking("DescribeSpotPriceHistory"):
            answer = sdk.client("ec2", region).describe_spot_price_history(**asked)
        try:
            page = _History.model_validate(answer)
        except ValidationError as error:
            raise _unreadable("a spot price", error) from error
        for one in page.spot_price_history:
            known = latest.get(one.availability_zone)
            if known is None or known.timestamp < one.timestamp:
                latest[one.availability_zone] = one
        if not page.next_token:
            break
        asked["NextToken"] = page.next_token
    return [one.spot_price for one in latest.values()]


def _in_the_list(sdk: Sdk, sku: Sku, region: str, now: int) -> Iterable[Decimal]:
    """List what an hour costs on demand, on hardware that is shared, with nothing installed."""
    fields = {
        "instanceType": sku.machine,
        "regionCode": region,
        "operatingSystem": SYSTEMS[sku.platform][1],
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "licenseModel": "No License required",
    }
    filters = [{"Type": "TERM_MATCH", "Field": it, "Value": fields[it]} for it in fields]
    with sdk.asking("GetProducts"):
        answer = sdk.client("pricing", LIST_REGION).get_products(
            ServiceCode="AmazonEC2", Filters=filters, FormatVersion="aws_v1", MaxResults=100
        )
    try:
        products = [
            _Product.model_validate(json.loads(text))
            for text in _Listed.model_validate(answer).price_list
        ]
    except (ValidationError, ValueError, RecursionError) as error:
        raise _unreadable("a product", error) from error
    return [
        dimension.price_per_unit.get(CURRENCY, Decimal(0))
        for product in products
        for term in product.terms.on_demand.values()
        for dimension in term.price_dimensions.values()
        if dimension.unit == "Hrs"
    ]


def _micros(found: Iterable[Decimal]) -> int:
    """Take the dearest that a machine may turn out to cost, in whole millionths, rounded up.

    Raises:
        Unavailable: no price was told.
    """
    dearest = max(found, default=Decimal(0))
    if not dearest:
        raise Unavailable("Amazon has no such price")
    return int((dearest * MICROS).to_integral_value(rounding=ROUND_CEILING))


def _unreadable(what: str, error: Exception) -> Unavailable:
    return Unavailable(f"Amazon told {what} that cannot be read: {type(error).__name__}")
