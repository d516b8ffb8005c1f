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
    """Note who was seen; return those that have been seen for long enough to be ended."""
    ripe: list[Orphan] = []
    for machine, row in strangers:
        verdict = SightingVerdict.FOREIGN if row is None else SightingVerdict.ORPHAN
        keys = {"provider": provider, "ref": machine.ref}
        values = {
            **keys,
            "tags": json.dumps(dict(machine.tags), sort_keys=True)[:4_000],
            "first_at": now,
            "last_at": now,
            "verdict": verdict.value,
        }
        changes.upsert(
            connection,
            _sightings,
            values,
            changes={
                "last_at": now,
                "sightings": _sightings.c.sightings + 1,
                "verdict": verdict.value,
            },
        )
        own = sa.and_(*(_sightings.c[name] == value for name, value in keys.items()))
        first = connection.execute(sa.select(_sightings.c.first_at).where(own)).scalar_one()
        if row is not None and now - first >= ORPHAN_GRACE_MS:
            ripe.append(Orphan(ref=machine.ref, row=row))
    stale = _sightings.c.last_at < now - FORGOTTEN_MS
    connection.execute(sa.delete(_sightings).where(_sightings.c.provider == provider, stale))
    return tuple(ripe[:MOST_ENDED])


def interrupted(
    connection: sa.Connection, provider: str, told: Sequence[Interruption], *, now: int
) -> int:
    """Note which machines will be taken away; return how many that was news for (SPT-009)."""
    news = 0
    for one in told:
        if one.is_final:
            done = connection.execute(
                sa.update(_instances)
                .where(
                    _instances.c.provider == provider,
                    _instances.c.provider_ref == one.ref,
                    _instances.c.interrupted_at.is_(None),
                    _instances.c.ended_at.is_(None),
                )
                .values(interrupted_at=now, leaves_at=one.at)
            )
            news += done.rowcount
    return news


def is_taken_away(connection: sa.Connection, runner_id: str) -> bool:
    """Tell whether the provider of a runner's machine has said that it takes it away."""
    query = sa.select(_instances.c.instance_id).where(
        _instances.c.runner_id == runner_id, _instances.c.interrupted_at.is_not(None)
    )
    return connection.execute(query.limit(1)).first() is not None
