"""What machines cost at present, as their providers say; the document's price stands for the rest.

Asked for by workers at a slow rhythm, and believed only while it is young (CST-003, CST-004).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from forgeyard.fleet.ports import Price, Sku, sku_of
from forgeyard.model.fleet import FleetSpec, Offering
from forgeyard.store import changes, codec, fleet_tables

EVERY_MS: Final = 60 * 60 * 1000
FRESH_MS: Final = 6 * EVERY_MS
MOST_AT_ONCE: Final = 5
"""Asked for in one look at a provider: it has other things to tell."""
DOCUMENT: Final = "the fleet's document"
_breakers, _fleets = fleet_tables.provider_breakers, fleet_tables.fleets


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferingPrice:
    """What an hour of an offering is reckoned with, in millionths, and who says so."""

    offering: str
    cost: int
    source: str
    at: int | None = None
    """When its provider said so; `None`: it is the document's price."""
    remark: str = ""
    """Why no price of its provider counts, where it was asked for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is kept of a provider's answers about one offering."""

    answers: tuple[Price, ...] = ()
    """The last that told a price, then the last one if it did not."""
    asked_at: int = 0

    @property
    def known(self) -> Price | None:
        """Give the last price that was told."""
        return next((it for it in self.answers if it.cost is not None), None)

    @property
    def failure(self) -> str:
        """Say why the last answer told no price, or nothing."""
        return self.answers[-1].reason if self.answers else ""


class Prices:
    """What is kept of providers' answers about the offerings of some fleets."""

    def __init__(self, connection: sa.Connection, fleet_ids: Iterable[str]) -> None:
        self._said: dict[tuple[str, str, str], Said] = {}
        for row in connection.execute(_ROWS, {"ids": list(fleet_ids)}):
            answers = codec.decode(tuple[Price, ...], row.checks)
            where = (row.provider, row.fleet_id, row.offering)
            self._said[where] = Said(answers=answers, asked_at=row.checked_at)

    def of(self, fleet_id: str, spec: FleetSpec, offering: Offering) -> Said:
        """Find the answers about an offering as it is now, not as it was before a change."""
        said = self._said.get((spec.provider, fleet_id, offering.name), Said())
        sku = sku_of(spec, offering)
        return said if all(it.sku == sku for it in said.answers) else Said()

    def told(self, fleet_id: str, spec: FleetSpec, *, now: int) -> tuple[OfferingPrice, ...]:
        """Say what every offering is reckoned with, and why its provider's word does not count."""
        return tuple(_told(spec, it, self.of(fleet_id, spec, it), now) for it in spec.offerings)

    def current(self, fleet_id: str, spec: FleetSpec, *, now: int) -> Mapping[str, int]:
        """Give by offering what providers have told of late."""
        told = self.told(fleet_id, spec, now=now)
        return {it.offering: it.cost for it in told if it.at is not None}


def due(connection: sa.Connection, provider: str, *, now: int) -> tuple[Sku, ...]:
    """List a few of the prices that are to be asked for now, each once."""
    fleets = _served(connection, provider)
    prices = Prices(connection, fleets)
    found = {
        sku_of(spec, one): None
        for fleet_id, spec in fleets.items()
        for one in spec.offerings
        if prices.of(fleet_id, spec, one).asked_at <= now - EVERY_MS
    }
    return tuple(found)[:MOST_AT_ONCE]


def keep(connection: sa.Connection, provider: str, answers: Sequence[Price], *, now: int) -> None:
    """Write down answers for the offerings they are about; a price that was known stays so."""
    fleets = _served(connection, provider)
    prices = Prices(connection, fleets)
    by_sku = {it.sku: it for it in answers}
    for fleet_id, spec in fleets.items():
        for one in spec.offerings:
            answer = by_sku.get(sku_of(spec, one))
            if answer is None:
                continue
            known = prices.of(fleet_id, spec, one).known
            said = (answer,) if known is None or answer.cost is not None else (known, answer)
            values = {"checks": codec.encode(said, tuple[Price, ...]), "checked_at": now}
            keys = {"provider": provider, "fleet_id": fleet_id, "offering": one.name}
            changes.upsert(connection, _breakers, {**keys, **values}, changes=values)


def _served(connection: sa.Connection, provider: str) -> Mapping[str, FleetSpec]:
    query = sa.select(_fleets.c.fleet_id, _fleets.c.spec).where(
        _fleets.c.provider == provider, _fleets.c.live == 1
    )
    return {fleet_id: codec.decode(FleetSpec, text) for fleet_id, text in connection.execute(query)}


def _told(spec: FleetSpec, offering: Offering, said: Said, now: int) -> OfferingPrice:
    known, mine = said.known, spec.guardrail.currency
    remarks = [said.failure] if said.failure else []
    if known is not None and known.cost is not None:
        if known.currency == mine and now - known.at < FRESH_MS:
            return OfferingPrice(
                offering=offering.name, cost=known.cost, source=known.source, at=known.at
            )
        stale = f"{known.source} told {known.cost} millionths {known.currency}"
        remarks.append(f"{stale}, {(now - known.at) // EVERY_MS} h ago")
    return OfferingPrice(
        offering=offering.name, cost=offering.cost, source=DOCUMENT, remark="; ".join(remarks)
    )


_ROWS = sa.select(
    _breakers.c.provider,
    _breakers.c.fleet_id,
    _breakers.c.offering,
    _breakers.c.checks,
    _breakers.c.checked_at,
).where(
    _breakers.c.fleet_id.in_(sa.bindparam("ids", expanding=True)),
    _breakers.c.offering != "",
)
