"""What a provider has, held against what our rows say: ends that nobody told, and orphans.

A listing proves nothing by itself. A machine that it does not name is looked at directly before
anything follows. A machine with our tags that no living row speaks of is an orphan of ours only if
a row says that we asked for it by this very key, and it was seen twice with time in between;
whatever else carries our tags is reported and never touched (FRC-013 to FRC-016).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import sqlalchemy as sa

from forgeyard.fleet.ports import (
    TAG_INSTALLATION,
    TAG_INSTANCE,
    TAG_OPERATION,
    Interruption,
    Listing,
    Machine,
)
from forgeyard.model.capacity import CapacityInstanceState, MachineState
from forgeyard.model.fleet import Offering
from forgeyard.store import changes, codec, fleet_tables, image_standing, machines
from forgeyard.store.changes import Row

ORPHAN_GRACE_MS: Final = 2 * 60 * 1000
"""Between the first sight of an orphan and its end; it may be one that is just ending itself."""
MOST_ENDED: Final = 5
"""Orphans that one look may end."""
FORGOTTEN_MS: Final = 24 * 3600 * 1000
_instances, _sightings = fleet_tables.capacity_instances, fleet_tables.provider_sightings
_breakers = fleet_tables.provider_breakers
_ONCE_MORE: Final = _sightings.c.sightings + 1
S = CapacityInstanceState


class SightingVerdict(StrEnum):
    """What a machine with our tags is that no living row speaks of."""

    FOREIGN = "foreign"
    """Nothing proves that it is ours: an operator has to look at it."""
    ORPHAN = "orphan"
    """We asked for it, and have given it up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A machine of ours that nobody needs and that may be ended now."""

    ref: str
    row: Row
    """The row that says that it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look at a provider showed."""

    machines: int
    missing: int
    """Machines of ours that a complete listing does not name."""
    strangers: int
    orphans: tuple[Orphan, ...]


def take_turn(connection: sa.Connection, provider: str, *, every: int, now: int) -> bool:
    """Tell whether it is our turn to look at a provider: one worker does for all its fleets."""
    keys = {"provider": provider, "fleet_id": "", "offering": ""}
    changes.upsert(connection, _breakers, keys, changes={"failures": _breakers.c.failures})
    taken = connection.execute(
        sa.update(_breakers)
        .where(
            *(_breakers.c[name] == value for name, value in keys.items()),
            _breakers.c.looked_at <= now - every,
        )
        .values(looked_at=now)
    )
    return taken.rowcount == 1


def observe(
    connection: sa.Connection, provider: str, installation: str, listing: Listing, *, now: int
) -> Seen:
    """Hold a listing against the rows of a provider."""
    ours = [one for one in listing.machines if one.tags.get(TAG_INSTALLATION) == installation]
    query = sa.select(_instances).where(
        _instances.c.provider == provider,
        _instances.c.ended_at.is_(None) | (_instances.c.ended_at > now - FORGOTTEN_MS),
    )
    rows = [dict(row) for row in connection.execute(query).mappings()]
    named = {one.ref for one in ours}
    missing = [row for row in rows if _is_missing(row, named)] if listing.complete else []
    for row in missing:
        machines.change(connection, row, missing_since=row["missing_since"] or now, tended_until=0)
    ended = {one.ref: one for one in ours if one.state in _ENDED}
    for row in rows:
        if row["state"] in _WATCHED and row["provider_ref"] in ended:
            machine = ended[row["provider_ref"]]
            machines.change(
                connection,
                row,
                machine=machine.state.value,
                detail=machine.detail[:500],
                tended_until=0,
            )
    _compare_images(connection, rows, {one.ref: one for one in ours})
    strangers = _strangers(ours, rows)
    orphans = _orphans(connection, provider, strangers, now=now)
    return Seen(machines=len(ours), missing=len(missing), strangers=len(strangers), orphans=orphans)


def _compare_images(
    connection: sa.Connection, rows: Sequence[Row], ours: Mapping[str, Machine]
) -> None:
    """Note which machines have another image than they were wanted with (IMG-010)."""
    for row in rows:
        machine = ours.get(row["provider_ref"])
        if not row["image"] or row["state"] not in _WATCHED or machine is None:
            continue
        offering = codec.decode(Offering, row["offering"])
        places = (offering.name, machine.region)
        called = image_standing.reference(connection, row["image"], row["provider"], *places)
        is_right = not machine.image or machine.image in (row["image"], called)
        seen = "" if is_right else machine.image
        if seen != row["seen_image"]:
            machines.change(connection, row, seen_image=seen)


_ENDED = frozenset({MachineState.STOPPING, MachineState.STOPPED, MachineState.GONE})
_WATCHED = frozenset({S.HEALTHY.value, S.DRAINING.value})


def _is_missing(row: Row, named: set[str]) -> bool:
    return row["state"] in _WATCHED and row["provider_ref"] and row["provider_ref"] not in named


def _strangers(ours: Sequence[Machine], rows: Sequence[Row]) -> list[tuple[Machine, Row | None]]:
    """List machines that live and that no living row speaks of, each with the row that proves it.

    Not those whose making was asked for and that are about to be found: their row lives.
    """
    living = {row["provider_ref"] for row in rows if row["ended_at"] is None}
    by_id: Mapping[str, Row] = {row["instance_id"]: row for row in rows}
    found: list[tuple[Machine, Row | None]] = []
    for machine in ours:
        row = by_id.get(machine.tags.get(TAG_INSTANCE, ""))
        if machine.ref in living or machine.state is MachineState.GONE:
            continue
        if row is not None and row["ended_at"] is None and row["provider_ref"] is None:
            continue
        found.append((machine, row if row is not None and _is_proved(machine, row) else None))
    return found


def _is_proved(machine: Machine, row: Row) -> bool:
    """Tell whether we asked for this machine: its name is recorded, or its key was once ours."""
    if row["provider_ref"] == machine.ref:
        return True
    numbers = range(1, row["generation"] + 1)
    asked = {machines.operation_key({**row, "generation": number}) for number in numbers}
    return machine.tags.get(TAG_OPERATION) in asked


def _orphans(
    connection: sa.Connection,
    provider: str,
    strangers: Sequence[tuple[Machine, Row | None]],
    *,
    now: int,
) -> tuple[Orphan, ...]:
    """Note who was seen; return a few of those that have been seen for long enough to be ended."""
    for verdict in SightingVerdict:
        those = [one for one, row in strangers if _verdict(row) is verdict]
        _note(connection, provider, those, verdict, now=now)
    query = sa.select(_sightings.c.ref, _sightings.c.sightings).where(
        _sightings.c.provider == provider,
        _sightings.c.last_at == now,
        _sightings.c.first_at <= now - ORPHAN_GRACE_MS,
    )
    known = {ref: sightings for ref, sightings in connection.execute(query)}
    stale = _sightings.c.last_at < now - FORGOTTEN_MS
    connection.execute(sa.delete(_sightings).where(_sightings.c.provider == provider, stale))
    ripe = {
        one.ref: Orphan(ref=one.ref, row=row)
        for one, row in strangers
        if row is not None and one.ref in known
    }
    looks = max((known[ref] for ref in ripe), default=0)
    return _in_turn([ripe[ref] for ref in sorted(ripe)], looks)


def _verdict(row: Row | None) -> SightingVerdict:
    return SightingVerdict.FOREIGN if row is None else SightingVerdict.ORPHAN


def _note(
    connection: sa.Connection,
    provider: str,
    those: Sequence[Machine],
    verdict: SightingVerdict,
    *,
    now: int,
) -> None:
    """Note machines in one statement, however many there are (FLT-025)."""
    rows = [
        {
            "provider": provider,
            "ref": one.ref,
            "tags": json.dumps(dict(one.tags), sort_keys=True)[:4_000],
            "first_at": now,
            "last_at": now,
            "verdict": verdict.value,
        }
        for one in those
    ]
    counted = {"last_at": now, "sightings": _ONCE_MORE, "verdict": verdict.value}
    changes.upsert_all(connection, _sightings, rows, changes=counted)


def _in_turn(ripe: Sequence[Orphan], look: int) -> tuple[Orphan, ...]:
    """Pick a few, others at the next look: those that cannot be ended hold up nobody."""
    start = look * MOST_ENDED % max(1, len(ripe))
    return tuple([*ripe[start:], *ripe[:start]][:MOST_ENDED])


def interrupted(
    connection: sa.Connection, provider: str, told: Sequence[Interruption], *, now: int
) -> int:
    """Note which machines will be taken away; return how many that was news for (SPT-009)."""
    refs = [one.ref for one in told if one.is_final]
    if not refs:
        return 0
    changed = connection.execute(
        sa.update(_instances)
        .where(
            _instances.c.provider == provider,
            _instances.c.provider_ref.in_(refs),
            _instances.c.interrupted_at.is_(None),
            _instances.c.ended_at.is_(None),
        )
        .values(interrupted_at=now)
    )
    return int(changed.rowcount)
