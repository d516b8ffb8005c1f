"""Fleets: what people say of them, one document each, and what they may do at present.

A change is for machines that are wanted from now on; one that exists keeps the class and the
offering that it was wanted with. Whoever tends a fleet reads its row again within seconds, so a
change wakes nobody.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import Conflict, NotFound
from forgeyard.fleet import sanity
from forgeyard.model.fleet import (
    DAY_MS,
    FleetHealth,
    FleetScope,
    FleetSpec,
    FleetState,
    Override,
)
from forgeyard.model.units import brief_duration
from forgeyard.store import changes, codec, fleet_tables, image_tables, images, shares, tables
from forgeyard.store.births import draw_id
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now
from forgeyard.store.shares import Intent
from forgeyard.trust.image_signatures import NO_KEYS, ImageKeys

_fleets = fleet_tables.fleets
_overrides = fleet_tables.fleet_overrides
OVERRIDE_MS: Final = DAY_MS
LONGEST_OVERRIDE_MS: Final = 30 * DAY_MS
_LIVE = _fleets.c.live == 1
_ALL = sa.select(_fleets).where(_LIVE).order_by(_fleets.c.name)
_NAMED = sa.select(_fleets).where(
    _LIVE,
    sa.or_(_fleets.c.name == sa.bindparam("own"), _fleets.c.fleet_id == sa.bindparam("own")),
)
_LOCK = _NAMED.with_for_update()


class Outcome(StrEnum):
    """What became of a document that was applied."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Other bounds for a fleet; `None` leaves one as the document has it."""

    min: int | None = None
    max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRecord:
    """A fleet as people see it; instants are epoch milliseconds."""

    fleet_id: str
    name: str
    version: int
    """Of its document."""
    state: FleetState
    state_reason: str
    health: FleetHealth
    health_reason: str
    spec: FleetSpec
    created_at: int
    tended_at: int
    """When its reconciler last looked; 0 if it never did."""
    outcome: Outcome = Outcome.UNCHANGED


def apply(
    connection: sa.Connection,
    spec: FleetSpec,
    intent: Intent,
    *,
    expected_version: int | None,
    rng: random.Random,
    keys: ImageKeys = NO_KEYS,
) -> FleetRecord:
    """Make the fleet of a document's name, or replace its document; the same again is no change.

    Raises:
        InvalidRequest: the document contradicts itself.
        NotFound: there is no such pool or scope.
        Conflict: it is at another version (0: it must be new), or is being deleted.
    """
    sanity.demand_sane(spec)
    spec, now = settled(connection, spec, keys=keys), database_now(connection)
    fleet_id = draw_id("flt", now=now, rng=rng)
    row = {"fleet_id": fleet_id, "created_at": now, "state": FleetState.ACTIVE.value}
    row |= {"name": spec.name, "live": 1, **_written(spec)}
    row["numbered"] = _numbered(connection, spec.name)
    changes.upsert(connection, _fleets, row, changes={}, keys=("name", "live"))
    found = lock(connection, spec.name)
    is_new = found["fleet_id"] == fleet_id
    _demand_version(found, expected_version, present=0 if is_new else found["version"])
    if is_new:
        tell(connection, "fleet.create", found, intent, after=_digest(found), now=now)
        return replace(view(found), outcome=Outcome.CREATED)
    return _replace(connection, found, spec, intent, now=now)


def _numbered(connection: sa.Connection, name: str) -> int:
    """Tell the last number of a machine of earlier fleets of this name: runners keep theirs."""
    last = sa.select(sa.func.max(_fleets.c.numbered)).where(_fleets.c.name == name)
    return connection.execute(last).scalar_one() or 0


def settled(connection: sa.Connection, spec: FleetSpec, *, keys: ImageKeys = NO_KEYS) -> FleetSpec:
    """Write the names in a document as the ids that they have here.

    Raises:
        NotFound: there is no such pool, scope or image.
        Conflict: the fleet may not have this image.
    """
    _demand_pool(connection, spec.pool)
    found = connection.execute(_NAMED, {"own": spec.name}).mappings().first()
    present = None if found is None else codec.decode(FleetSpec, found["spec"])
    image = images.settled(connection, spec, present, keys)
    scope = FleetScope(
        tenant_id=_scope_id(connection, spec.scope.tenant_id, "tenant"),
        project_id=_scope_id(connection, spec.scope.project_id, "project"),
    )
    return replace(spec, scope=scope, capacity=replace(spec.capacity, image=image))


def set_state(
    connection: sa.Connection, name_or_id: str, state: FleetState, intent: Intent
) -> FleetRecord:
    """Say what a fleet may do from now on.

    Raises:
        NotFound: there is no such fleet.
        Conflict: it is being deleted, which nobody takes back.
    """
    row = lock(connection, name_or_id)
    if row["state"] != state.value:
        _demand_kept(row)
        before, changed = row["state"], {"state": state.value, "state_reason": intent.reason}
        row = _set(connection, row, changed)
        said = f"{before} to {state.value}"
        tell(connection, "fleet.state", row, intent, said, now=database_now(connection))
    return view(row)


def delete(connection: sa.Connection, name_or_id: str, intent: Intent) -> FleetRecord:
    """Let a fleet go: it drains, and is forgotten once nothing of it is left.

    Raises:
        NotFound: there is no such fleet.
    """
    return set_state(connection, name_or_id, FleetState.DELETING, intent)


def override(
    connection: sa.Connection,
    name_or_id: str,
    bounds: Bounds,
    intent: Intent,
    *,
    for_ms: int | None,
    rng: random.Random,
) -> Override:
    """Let other bounds hold for a while, a day unless told; they end those that held before.

    Raises:
        NotFound: there is no such fleet.
        InvalidRequest: they leave no number of machines, or would hold for too long.
        Conflict: the fleet is being deleted.
    """
    row, now = lock(connection, name_or_id), database_now(connection)
    _demand_kept(row)
    lasts = OVERRIDE_MS if for_ms is None else for_ms
    sanity.demand_span("for_ms", lasts, most=LONGEST_OVERRIDE_MS)
    sanity.demand_bounds(codec.decode(FleetSpec, row["spec"]).scaling, bounds.min, bounds.max)
    found = Override(min=bounds.min, max=bounds.max, expires_at=now + lasts)
    _end_overrides(connection, row, now=now)
    written = {"override": codec.encode(found), "expires_at": found.expires_at}
    override_id = draw_id("fov", now=now, rng=rng)
    own = {"override_id": override_id, "fleet_id": row["fleet_id"], "reason": intent.reason}
    connection.execute(sa.insert(_overrides).values({**own, **written}))
    said = f"min {_said(bounds.min)}, max {_said(bounds.max)}, for {brief_duration(lasts)}"
    tell(connection, "fleet.override", row, intent, said, now=now)
    return found


def scale(
    connection: sa.Connection,
    name_or_id: str,
    count: int,
    intent: Intent,
    *,
    for_ms: int | None,
    rng: random.Random,
) -> Override:
    """Ask for exactly so many machines, for a while; whoever tends the fleet makes it so (FOP-017).

    Raises:
        NotFound: there is no such fleet.
        InvalidRequest: there cannot be so many, or not for so long.
        Conflict: the fleet is being deleted.
    """
    bounds = Bounds(min=count, max=count)
    return override(connection, name_or_id, bounds, intent, for_ms=for_ms, rng=rng)


def end_override(connection: sa.Connection, name_or_id: str, intent: Intent) -> None:
    """Let the bounds of the document hold again at once.

    Raises:
        NotFound: there is no such fleet.
    """
    row, now = lock(connection, name_or_id), database_now(connection)
    if _end_overrides(connection, row, now=now):
        tell(connection, "fleet.override_end", row, intent, now=now)


def _end_overrides(connection: sa.Connection, row: Row, *, now: int) -> bool:
    in_force = sa.and_(
        _overrides.c.fleet_id == row["fleet_id"],
        _overrides.c.ended_at.is_(None),
        _overrides.c.expires_at > now,
    )
    done = connection.execute(sa.update(_overrides).where(in_force).values(ended_at=now))
    return done.rowcount > 0


def _said(bound: int | None) -> str:
    return "as it was" if bound is None else str(bound)


def find(connection: sa.Connection, name_or_id: str) -> Row:
    """Read the row of a fleet that is not deleted.

    Raises:
        NotFound: there is no such fleet.
    """
    return _read(connection, _NAMED, name_or_id)


def present(connection: sa.Connection, name_or_id: str) -> FleetRecord | None:
    """Show a fleet, if there is one of this name."""
    row = connection.execute(_NAMED, {"own": name_or_id}).mappings().first()
    return None if row is None else view(dict(row))


def list_all(connection: sa.Connection) -> tuple[FleetRecord, ...]:
    """List the fleets that are not deleted, by name."""
    return tuple(view(dict(row)) for row in connection.execute(_ALL).mappings())


def view(row: Row) -> FleetRecord:
    """Show a fleet."""
    return FleetRecord(
        fleet_id=row["fleet_id"],
        name=row["name"],
        version=row["version"],
        state=FleetState(row["state"]),
        state_reason=row["state_reason"],
        health=FleetHealth(row["health"]),
        health_reason=row["health_reason"],
        spec=codec.decode(FleetSpec, row["spec"]),
        created_at=row["created_at"],
        tended_at=row["tended_at"],
    )


def _replace(
    connection: sa.Connection, row: Row, spec: FleetSpec, intent: Intent, *, now: int
) -> FleetRecord:
    _demand_kept(row)
    if codec.decode(FleetSpec, row["spec"]) == spec:
        return view(row)
    _demand_no_rollout(connection, row, spec)
    before = _digest(row)
    row = _set(connection, row, {**_written(spec), "version": row["version"] + 1})
    tell(connection, "fleet.set", row, intent, before=before, after=_digest(row), now=now)
    return replace(view(row), outcome=Outcome.CHANGED)


def set_image(connection: sa.Connection, row: Row, image: str, intent: Intent) -> FleetRecord:
    """Write another image into the document of a fleet that the caller has locked."""
    spec, now = codec.decode(FleetSpec, row["spec"]), database_now(connection)
    spec = replace(spec, capacity=replace(spec.capacity, image=image))
    before = _digest(row)
    row = _set(connection, row, {**_written(spec), "version": row["version"] + 1})
    tell(connection, "fleet.set", row, intent, before=before, after=_digest(row), now=now)
    return view(row)


def _demand_no_rollout(connection: sa.Connection, row: Row, spec: FleetSpec) -> None:
    """Refuse another image by document while one is rolled out."""
    table = image_tables.fleet_rollouts
    query = sa.select(table.c.image).where(table.c.fleet_id == row["fleet_id"], table.c.live == 1)
    under_way = connection.execute(query).scalar_one_or_none()
    if under_way and spec.capacity.image != codec.decode(FleetSpec, row["spec"]).capacity.image:
        raise Conflict(
            f"image {under_way} is being rolled out",
            field="capacity.image",
            value=spec.capacity.image,
            allowed="the image that the fleet has, or `forgeyard fleet rollout rollback` before",
        )


def _written(spec: FleetSpec) -> dict[str, str]:
    document = codec.encode(spec)
    return {"spec": document, "class_id": spec.capacity.class_id, "provider": spec.provider}


def _digest(row: Row) -> str:
    return changes.digest({"spec": row["spec"]})


def _demand_version(row: Row, expected: int | None, *, present: int) -> None:
    if expected is not None and expected != present:
        raise Conflict(
            f"fleet {row['name']} is at version {present}"
            if present
            else f"there is no fleet {row['name']} yet",
            field="version",
            value=expected,
            allowed=str(present),
        )


def _demand_kept(row: Row) -> None:
    if row["state"] == FleetState.DELETING.value:
        raise Conflict(
            f"fleet {row['name']} is being deleted",
            field="state",
            value=row["state"],
            allowed="another name, or the same one once it is gone",
        )


def _demand_pool(connection: sa.Connection, name: str) -> None:
    pools = tables.pools
    known = sa.select(pools.c.pool_id).where(pools.c.name == name)
    if name and connection.execute(known).first() is None:
        raise NotFound(f"there is no pool {name}", field="pool", value=name)


def _scope_id(connection: sa.Connection, said: str | None, kind: str) -> str | None:
    if said is None:
        return None
    for path, row in shares.by_path(connection).items():
        if row["kind"] == kind and said in (path, row["scope_id"]):
            return str(row["scope_id"])
    raise NotFound(
        f"no {kind} {said}",
        field=f"scope.{kind}_id",
        value=said,
        allowed="its id, or the path of names from its tenant on",
    )


def lock(connection: sa.Connection, name_or_id: str) -> Row:
    """Read the row of a fleet, and keep others from changing it meanwhile.

    Raises:
        NotFound: there is no such fleet.
    """
    return _read(connection, _LOCK, name_or_id)


def _read(connection: sa.Connection, query: sa.Select[*tuple[object, ...]], name_or_id: str) -> Row:
    row = connection.execute(query, {"own": name_or_id}).mappings().first()
    if row is None:
        raise NotFound(f"no fleet {name_or_id}", field="fleet", value=name_or_id)
    return dict(row)


def _set(connection: sa.Connection, row: Row, values: Mapping[str, object]) -> Row:
    own = _fleets.c.fleet_id == row["fleet_id"]
    connection.execute(sa.update(_fleets).where(own).values(values))
    return {**row, **values}


def tell(
    connection: sa.Connection,
    action: str,
    row: Row,
    intent: Intent,
    said: str = "",
    *,
    before: str | None = None,
    after: str | None = None,
    now: int,
) -> None:
    """Put on record what was done to a fleet."""
    changes.audit(
        connection,
        actor=intent.actor,
        channel=intent.channel,
        action=action,
        target=row["fleet_id"],
        detail=": ".join(part for part in (row["name"], said, intent.reason) if part),
        before=before,
        after=after,
        now=now,
    )
