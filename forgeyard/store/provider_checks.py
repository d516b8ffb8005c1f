"""What a provider says of our credentials, images and places: asked by workers, read by doctors."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import sqlalchemy as sa

from forgeyard.fleet.ports import IDENTITY, Check, CheckLevel
from forgeyard.model.fleet import FleetSpec, Offering
from forgeyard.redaction import redacted
from forgeyard.store import changes, codec, fleet_tables
from forgeyard.store.machines import AUTOSCALER

EVERY_MS: Final = 10 * 60 * 1000
MOST_KEPT: Final = 100
LAST_KNOWN: Final = "identity, last known"
"""Names what is kept of an identity while nobody can tell it."""
_breakers, _fleets = fleet_tables.provider_breakers, fleet_tables.fleets


def due(connection: sa.Connection, provider: str, *, now: int) -> tuple[Offering, ...]:
    """List the offerings that are to be looked at now; none while the last look is young."""
    asked = sa.select(_breakers.c.checked_at).where(*_own(provider))
    if (connection.execute(asked).scalar_one_or_none() or 0) > now - EVERY_MS:
        return ()
    query = sa.select(_fleets.c.spec).where(_fleets.c.provider == provider, _fleets.c.live == 1)
    specs = (codec.decode(FleetSpec, one) for one in connection.execute(query).scalars())
    return tuple(offering for spec in specs for offering in spec.offerings)


def keep(connection: sa.Connection, provider: str, found: Sequence[Check], *, now: int) -> None:
    """Write down what a look has shown; that we are let in as somebody else is audited."""
    shown = [replace(one, text=redacted(one.text)) for one in found[: MOST_KEPT - 1]]
    known = _told_as(_last(connection, provider))
    told = _told_as(shown)
    if told and told != known:
        changes.audit(
            connection,
            actor=AUTOSCALER.actor,
            channel=AUTOSCALER.channel,
            action="provider.identity",
            target=provider,
            detail=f"{known or 'nobody'} to {told}",
            now=now,
        )
    if known and not told:
        shown.append(Check(name=LAST_KNOWN, level=CheckLevel.OK, text=known))
    kept = codec.encode(tuple(shown), tuple[Check, ...])
    keys = {"provider": provider, "fleet_id": "", "offering": ""}
    said = {"checks": kept, "checked_at": now}
    changes.upsert(connection, _breakers, {**keys, **said}, changes=said)


def complaints(connection: sa.Connection, provider: str) -> tuple[str, ...]:
    """Say what the last look at a provider found wrong."""
    found = _last(connection, provider)
    return tuple(f"{one.name}: {one.text}" for one in found if one.level is not CheckLevel.OK)


def _last(connection: sa.Connection, provider: str) -> tuple[Check, ...]:
    query = sa.select(_breakers.c.checks).where(*_own(provider))
    text = connection.execute(query).scalar_one_or_none() or "[]"
    return codec.decode(tuple[Check, ...], text)


def _told_as(found: Sequence[Check]) -> str:
    """Tell as whom a look was let in, if it was."""
    names = (IDENTITY, LAST_KNOWN)
    fine = (it.text for it in found if it.name in names and it.level is CheckLevel.OK)
    return next(fine, "")


def _own(provider: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        _breakers.c.provider == provider,
        _breakers.c.fleet_id == "",
        _breakers.c.offering == "",
    )
