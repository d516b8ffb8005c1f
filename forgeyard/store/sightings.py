"""What a provider has, held against what our rows say: ends that nobody told, and orphans.

A listing proves nothing by itself. A machine that it does not name is looked at directly before
anything follows. A machine with our tags that no living row speaks of is an orphan of ours only if
a row says that we asked for it by this very key, and it was seen twice with time in between;
whatever else carries our tags is reported and never touched (FRC-013 to FRC-016). Where one wish
has made two machines and somebody has enrolled, nobody knows on which: neither is ended then.
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
from forgeyard.redaction import redacted
from forgeyard.store import changes, codec, fleet_tables, image_standing, machines
from forgeyard.store.changes import Row

ORPHAN_GRACE_MS: Final = 2 * 60 * 1000
"""Between the first sight of an orphan and its end; it may be one that is just ending itself."""
MOST_ENDED: Final = 5
"""Orphans that one look may end."""
IN_MOTION_MS: Final = 15 * 60 * 1000
"""A machine that comes or goes for longer than this is looked at no more often than others."""
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
    TWIN = "twin"
    """One wish made it and the machine that its row knows, and either may be the runner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A machine of ours that nobody needs and that may be ended now."""

    ref: str
    row: Row
    """The row that says that it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stranger:
    """A machine that lives and that no living row speaks of."""

    machine: Machine
    verdict: SightingVerdict
    row: Row | None = None
    """The row that proves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look at a provider showed."""

    machines: int
    missing: int
    """Machines of ours that a complete listing does not name."""
    strangers: int
    orphans: tuple[Orphan, ...]
    news: int = 0
    """Machines that somebody has to look after at once."""


def period(connection: sa.Connection, provider: str, *, usual: int, soon: int, now: int) -> int:
    """Tell how long to wait between two looks at a provider: less while machines come or go.

    One listing tells of all of them, so that nobody has to look at each again and again.
    """
    recently, is_known = now - IN_MOTION_MS, _instances.c.provider_ref.is_not(None)
    comes = (_instances.c.state == S.PROVISIONING.value) & (_instances.c.asked_at > recently)
    goes = (_instances.c.state == S.TERMINATING.value) & (_instances.c.ending_at > recently)
    moving = sa.select(_instances.c.instance_id).where(
        _instances.c.provider == provider, is_known, comes | goes
    )
    found = connection.execute(moving.limit(1)).first()
    return usual if found is None else min(usual, soon)


def is_due(connection: sa.Connection, provider: str, *, every: int, now: int) -> bool:
    """Tell whether it is time to look at a provider, whoever does."""
    own = (_breakers.c.provider == provider) & (_breakers.c.fleet_id == "")
    query = sa.select(sa.func.max(_breakers.c.looked_at)).where(own, _breakers.c.offering == "")
    return (connection.execute(query).scalar_one() or 0) <= now - every


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
    found = [dict(row) for row in connection.execute(query).mappings()]
    rows = [_moved_on(connection, row, listing.complete, ours) for row in found]
    named = {one.ref for one in ours}
    missing = [row for row in rows if _is_missing(row, named)] if listing.complete else []
    for row in missing:
        machines.change(connection, row, missing_since=row["missing_since"] or now, tended_until=0)
    told = _tell(connection, rows, {one.ref: one for one in ours}, now=now)
    _compare_images(connection, rows, {one.ref: one for one in ours})
    strangers = _strangers(connection, ours, rows)
    orphans = _orphans(connection, provider, strangers, now=now)
    return Seen(
        machines=len(ours),
        missing=len(missing),
        strangers=len(strangers),
        orphans=orphans,
        news=len(missing) + told,
    )


def _tell(
    connection: sa.Connection, rows: Sequence[Row], ours: Mapping[str, Machine], *, now: int
) -> int:
    """Note what has become of machines, unless they are elsewhere by now; return of how many."""
    told = 0
    for row in rows:
        machine = ours.get(row["provider_ref"])
        values = {} if machine is None else _news(row, machine, now=now)
        if not values:
            continue
        own = (_instances.c[name] == row[name] for name in ("instance_id", "state", "provider_ref"))
        change = sa.update(_instances).where(*own).values(**values, tended_until=0)
        told += int(connection.execute(change).rowcount)
    return told


def _news(row: Row, machine: Machine, *, now: int) -> dict[str, object]:
    """Say what a listing tells of a machine that somebody waits for.

    One that is to end is looked at itself, before it is believed that it has.
    """
    state = S(row["state"])
    known: dict[str, object] = {
        "machine": machine.state.value,
        "detail": redacted(machine.detail)[:500],
    }
    if state is S.TERMINATING:
        is_gone = machine.state is MachineState.GONE and row["missing_since"] is None
        return {"missing_since": now} if is_gone else {}
    if state is S.PROVISIONING and machine.state is MachineState.RUNNING:
        return {**known, "running_at": row["running_at"] or now, "looked_at": now}
    return known if state in _EXPECTED and machine.state in _ENDED else {}


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
_EXPECTED = frozenset({S.PROVISIONING, S.BOOTSTRAPPING, S.ENROLLING, S.HEALTHY, S.DRAINING})


def _is_missing(row: Row, named: set[str]) -> bool:
    """Tell whether a listing does not name a machine that it should, or that is to end."""
    if row["provider_ref"] is None or row["provider_ref"] in named:
        return False
    is_ending = row["state"] == S.TERMINATING and row["missing_since"] is None
    return is_ending or row["state"] in _WATCHED


def _moved_on(connection: sa.Connection, row: Row, complete: bool, ours: Sequence[Machine]) -> Row:
    """Let a row know the other machine of its wish, where the one that it knew is no more.

    Whoever enrolled and still answers can only be on the one that is left.
    """
    known = next((one for one in ours if one.ref == row["provider_ref"]), None)
    is_over = complete if known is None else known.state in _ENDED
    if row["state"] not in _AT_WORK or row["provider_ref"] is None or not is_over:
        return row
    twins = [
        one
        for one in ours
        if one.ref != row["provider_ref"] and one.state not in _ENDED and _is_of_wish(one, row)
    ]
    if len(twins) != 1 or not machines.has_enrolled(connection, row):
        return row
    (twin,) = twins
    return machines.change(
        connection,
        row,
        provider_ref=twin.ref,
        machine=twin.state.value,
        detail=redacted(twin.detail)[:500],
        missing_since=None,
        sightings=0,
        tended_until=0,
    )


_AT_WORK = frozenset(one.value for one in (S.BOOTSTRAPPING, S.ENROLLING, S.HEALTHY, S.DRAINING))


def _strangers(
    connection: sa.Connection, ours: Sequence[Machine], rows: Sequence[Row]
) -> list[_Stranger]:
    """List machines that live and that no living row speaks of.

    Not those whose making was asked for and that are about to be found: their row lives.
    """
    living = {row["provider_ref"] for row in rows if row["ended_at"] is None}
    by_id: Mapping[str, Row] = {row["instance_id"]: row for row in rows}
    found: list[_Stranger] = []
    for machine in ours:
        row = by_id.get(machine.tags.get(TAG_INSTANCE, ""))
        if machine.ref in living or machine.state is MachineState.GONE:
            continue
        if row is not None and row["ended_at"] is None and row["provider_ref"] is None:
            continue
        found.append(_stranger(connection, machine, row))
    return found


def _stranger(connection: sa.Connection, machine: Machine, row: Row | None) -> _Stranger:
    if row is None or not _is_proved(machine, row):
        return _Stranger(machine=machine, verdict=SightingVerdict.FOREIGN)
    is_twin = (
        row["ended_at"] is None
        and _is_of_wish(machine, row)
        and machines.has_enrolled(connection, row)
    )
    verdict = SightingVerdict.TWIN if is_twin else SightingVerdict.ORPHAN
    return _Stranger(machine=machine, verdict=verdict, row=row)


def _is_of_wish(machine: Machine, row: Row) -> bool:
    """Tell whether the very wish of a row made this machine, so that it has the same token."""
    return machine.tags.get(TAG_OPERATION) == machines.operation_key(row)


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
    strangers: Sequence[_Stranger],
    *,
    now: int,
) -> tuple[Orphan, ...]:
    """Note who was seen; return a few of those that have been seen for long enough to be ended."""
    for verdict in SightingVerdict:
        those = [one.machine for one in strangers if one.verdict is verdict]
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
        one.machine.ref: Orphan(ref=one.machine.ref, row=one.row)
        for one in strangers
        if one.verdict is SightingVerdict.ORPHAN and one.row and one.machine.ref in known
    }
    looks = max((known[ref] for ref in ripe), default=0)
    return _in_turn([ripe[ref] for ref in sorted(ripe)], looks)


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
