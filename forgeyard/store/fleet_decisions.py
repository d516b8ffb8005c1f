"""Making a fleet's decision real: intents, drains and the record of why, in one transaction.

The allocation's row is the lock of all fleets of a partition: who launches or drains moves it on,
and a decision that was made on an older one is void. So no two fleets buy for the same jobs, and
no two workers for the same fleet (FLT-070, FLT-091).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import Conflict
from forgeyard.fleet.view import Allocation, FleetDecision, FleetView, Launch
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.fleet import FleetHealth, FleetState
from forgeyard.model.units import Resources
from forgeyard.scheduler.demand import Demand
from forgeyard.scheduler.words import wanted_texts
from forgeyard.store import (
    changes,
    codec,
    fleet_history,
    fleet_reading,
    fleet_tables,
    image_standing,
    machine_life,
    machines,
    rollouts,
)
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now

HOUR_MS: Final = 3600 * 1000
DAY_MS: Final = 24 * HOUR_MS
UNTENDED_MS: Final = 30_000
"""After so long without a decision a fleet has perhaps lost its reconciler."""
NOTHING: Final = Resources()
SICK_STARTS: Final = 3
"""Machines that did not come up within an hour, until a fleet is said to have trouble with it."""
_fleets, _instances = fleet_tables.fleets, fleet_tables.capacity_instances
_allocations, _decisions = fleet_tables.fleet_allocations, fleet_tables.fleet_decisions
_spend = fleet_tables.fleet_spend


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Jobs of one kind that wait for room, as people are told of them."""

    requirement_class: str
    count: int
    excluded: int
    """As many more wait that no machine would help."""
    oldest_wait_ms: int
    priority: str
    example: str
    """The id of one of them: `forgeyard scheduler explain-job` says what it wants."""
    requested: Resources = NOTHING
    """What all that count ask for together."""
    wants: tuple[str, ...] = ()
    """What each of them must find on its runner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The newest demand, as people are told of it."""

    demand_id: str = ""
    taken_at: int = 0
    classes: tuple[Waiting, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What came of a decision."""

    number: int
    launched: tuple[str, ...]
    drained: tuple[str, ...]
    kept: tuple[str, ...]
    health: FleetHealth


def commit(
    connection: sa.Connection,
    view: FleetView,
    decision: FleetDecision,
    *,
    partition: str,
    demand: Demand,
    allocation: Allocation,
    version: int,
    rng: random.Random,
) -> Committed:
    """Write down a decision that was made on this version of the allocation.

    Raises:
        Conflict: another fleet has launched or drained meanwhile, or this one was changed.
    """
    acts = bool(decision.launch or decision.drain or decision.keep)
    _take_turn(connection, partition, version, acts=acts)
    now = database_now(connection)
    fleet = _lock(connection, view, now=now)
    _publish(connection, partition, demand, allocation, now=now)
    launch = _bootable(connection, view, decision)[: _room(connection, view)]
    launched = machines.intend(connection, fleet, view.priced, launch, now=now, rng=rng)
    drained = tuple(
        one for one in decision.drain if _drain(connection, view, one.instance_id, one.reason)
    )
    kept = tuple(
        one for one in decision.keep if machine_life.keep(connection, one, why="needed after all")
    )
    _count_spend(connection, view, now=now)
    fleet_history.note(connection, view.fleet_id, needed=decision.needed, now=now)
    health, why = _health(connection, view, now=now)
    number = _record(connection, fleet, decision, demand, launched=launched, now=now)
    own = _fleets.c.fleet_id == view.fleet_id
    connection.execute(
        sa.update(_fleets)
        .where(own)
        .values(decisions=number, tended_at=now, health=health.value, health_reason=why)
    )
    return Committed(
        number=number,
        launched=tuple(launched),
        drained=tuple(one.instance_id for one in drained),
        kept=kept,
        health=health,
    )


def _take_turn(connection: sa.Connection, partition: str, version: int, *, acts: bool) -> None:
    """Lock the allocation, and insist that nobody acted since it was read."""
    row = {"partition": partition}
    changes.upsert(connection, _allocations, row, changes={"version": _allocations.c.version})
    own = _allocations.c.partition == partition
    query = sa.select(_allocations.c.version).where(own).with_for_update()
    found = connection.execute(query).scalar_one()
    if found != version:
        raise Conflict("another fleet has decided meanwhile", field="version", value=found)
    if acts:
        connection.execute(sa.update(_allocations).where(own).values(version=version + 1))


def _lock(connection: sa.Connection, view: FleetView, *, now: int) -> Row:
    """Lock a fleet, and insist that it and its bounds still are what was decided about."""
    query = sa.select(_fleets).where(_fleets.c.fleet_id == view.fleet_id).with_for_update()
    row = dict(connection.execute(query).mappings().one())
    override = fleet_reading.override_of(connection, view.fleet_id, now=now)
    same = row["state"] == view.state.value and row["spec"] == codec.encode(view.spec)
    if not same or override != view.override:
        raise Conflict("the fleet was changed meanwhile", field="fleet", value=view.fleet_id)
    if rollouts.stage(connection, view.fleet_id) != view.rollout:
        raise Conflict("its rollout has come further", field="fleet", value=view.fleet_id)
    return row


def _bootable(
    connection: sa.Connection, view: FleetView, decision: FleetDecision
) -> Sequence[Launch]:
    """Leave out machines whose image has been struck out meanwhile (IMG-019)."""
    if not decision.launch:
        return ()
    blocked, own = image_standing.blocked(connection), view.spec.capacity.image
    return [one for one in decision.launch if (one.image or own) not in blocked]


def _room(connection: sa.Connection, view: FleetView) -> int:
    """Tell how many more machines may exist, counted anew from the rows (FLT-008, FLT-070)."""
    own = _instances.c.fleet_id == view.fleet_id
    sick = _instances.c.state == CapacityInstanceState.QUARANTINED.value
    query = sa.select(
        sa.func.count(), sa.func.coalesce(sa.func.sum(sa.case((sick, 1), else_=0)), 0)
    ).where(own, _instances.c.may_exist == 1)
    exist, quarantined = connection.execute(query).one()
    override = view.override
    most = view.spec.scaling.max
    if override is not None and override.max is not None:
        most = override.max
    apart = min(int(quarantined), view.spec.scaling.quarantined)
    return max(0, most - (int(exist) - apart))


def _drain(connection: sa.Connection, view: FleetView, instance_id: str, reason: str) -> bool:
    return machine_life.drain(
        connection,
        instance_id,
        reason=reason,
        why=f"fleet {view.spec.name} lets it go: {reason}",
        within=view.spec.scaling.down.drain_within,
    )


def _publish(
    connection: sa.Connection,
    partition: str,
    demand: Demand,
    allocation: Allocation,
    *,
    now: int,
) -> None:
    """Let people see the newest demand, and who serves it."""
    connection.execute(
        sa.update(_allocations)
        .where(_allocations.c.partition == partition)
        .values(at=now, demand=codec.encode(_shown(demand)), allocation=codec.encode(allocation))
    )


def _shown(demand: Demand) -> Shown:
    return Shown(
        demand_id=demand.demand_id,
        taken_at=demand.taken_at,
        classes=tuple(
            Waiting(
                requirement_class=one.requirement_class,
                count=one.count,
                excluded=one.excluded,
                oldest_wait_ms=one.oldest_wait,
                priority=one.priority.value,
                example=one.example.job_id,
                requested=one.requested,
                wants=wanted_texts(one.example),
            )
            for one in demand.classes
        ),
    )


def _count_spend(connection: sa.Connection, view: FleetView, *, now: int) -> None:
    """Add what the machines that may exist have cost since this was done last, by estimate."""
    day, hourly = now // DAY_MS, sum(one.cost for one in view.instances if one.may_exist)
    row = {"fleet_id": view.fleet_id, "day": day, "counted_at": now}
    since = now - _spend.c.counted_at
    changes.upsert(
        connection,
        _spend,
        row,
        changes={"micros": _spend.c.micros + (since * hourly).op("/")(HOUR_MS), "counted_at": now},
    )


def _health(connection: sa.Connection, view: FleetView, *, now: int) -> tuple[FleetHealth, str]:
    """Judge whether a fleet can do what is wanted of it (FRC-023, FRC-038)."""
    broken = [one for one in view.closed if not one.offering]
    if broken:
        return FleetHealth.PROVIDER_DEGRADED, broken[0].reason
    closed = {one.offering: one.reason for one in view.closed}
    if view.spec.offerings and all(one.name in closed for one in view.spec.offerings):
        return FleetHealth.CAPACITY_CONSTRAINED, next(iter(closed.values()))
    sick = connection.execute(_SICK, {"own": view.fleet_id, "since": now - HOUR_MS}).all()
    if len(sick) >= SICK_STARTS:
        said = f"{len(sick)} did not come up: {sick[0][0]}"
        is_any_well = any(one.healthy_at is not None and one.is_healthy for one in view.instances)
        return FleetHealth.BOOTSTRAP_DEGRADED if is_any_well else FleetHealth.UNHEALTHY, said
    return FleetHealth.HEALTHY, ""


_SICK = (
    sa.select(_instances.c.failure)
    .where(
        _instances.c.fleet_id == sa.bindparam("own"),
        _instances.c.requested_at > sa.bindparam("since"),
        _instances.c.failure.is_not(None),
        _instances.c.healthy_at.is_(None),
    )
    .order_by(_instances.c.number.desc())
)


def _record(
    connection: sa.Connection,
    fleet: Row,
    decision: FleetDecision,
    demand: Demand,
    *,
    launched: Sequence[str],
    now: int,
) -> int:
    """Keep a decision that says anything new; return the number of the newest one kept."""
    last = connection.execute(
        sa.select(_decisions.c.decision).where(
            _decisions.c.fleet_id == fleet["fleet_id"], _decisions.c.number == fleet["decisions"]
        )
    ).scalar_one_or_none()
    written = codec.encode(decision)
    if last == written and not launched and not decision.drain:
        return int(fleet["decisions"])
    number = int(fleet["decisions"]) + 1
    row = {
        "fleet_id": fleet["fleet_id"],
        "number": number,
        "at": now,
        "wanted": decision.wanted,
        "usable": decision.usable,
        "launched": len(launched),
        "drained": len(decision.drain),
        "demand_id": demand.demand_id,
        "decision": written,
    }
    connection.execute(sa.insert(_decisions), [row])
    return number


def finish_deletion(connection: sa.Connection, fleet_id: str) -> bool:
    """Forget a fleet that is being deleted and of which nothing may exist (FLT-019)."""
    query = sa.select(_fleets).where(_fleets.c.fleet_id == fleet_id).with_for_update()
    row = connection.execute(query).mappings().one_or_none()
    if row is None or row["state"] != FleetState.DELETING.value or row["live"] is None:
        return False
    left = sa.select(_instances.c.instance_id).where(
        _instances.c.fleet_id == fleet_id, _instances.c.ended_at.is_(None)
    )
    if connection.execute(left.limit(1)).first() is not None:
        return False
    now = database_now(connection)
    own = _fleets.c.fleet_id == fleet_id
    connection.execute(sa.update(_fleets).where(own).values(live=None, deleted_at=now))
    return True


def untended(connection: sa.Connection) -> list[tuple[str, str]]:
    """List fleets that nobody has decided about of late, each with its name."""
    before = database_now(connection) - UNTENDED_MS
    query = (
        sa.select(_fleets.c.fleet_id, _fleets.c.name)
        .where(_fleets.c.live == 1, _fleets.c.tended_at < before)
        .order_by(_fleets.c.fleet_id)
    )
    return [(row.fleet_id, row.name) for row in connection.execute(query)]
