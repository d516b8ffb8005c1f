"""Fleets as people are shown them: machines, bounds in force, decisions, demand, cost by estimate.

Nothing here changes a row or locks one.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import NotFound
from forgeyard.fleet.view import Allocation, FleetDecision, Unserved
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.fleet import DAY_MS, CapacityClass, Market, Offering, Override
from forgeyard.model.protocol import WarmUpOutcome
from forgeyard.model.transitions import LIVE_LEASE_STATES
from forgeyard.store import codec, fleet_tables, fleets, prices, tables
from forgeyard.store.batch import Query
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now
from forgeyard.store.fleet_decisions import Shown, Waiting
from forgeyard.store.fleets import FleetRecord
from forgeyard.store.prices import OfferingPrice

MOST_MACHINES: Final = 1_000
"""Shown of one fleet."""
MOST_DECISIONS: Final = 200
_fleets, _instances = fleet_tables.fleets, fleet_tables.capacity_instances
_decisions, _breakers = fleet_tables.fleet_decisions, fleet_tables.provider_breakers
_overrides, _reservations = fleet_tables.fleet_overrides, fleet_tables.fleet_reservations
_spend, _allocations = fleet_tables.fleet_spend, fleet_tables.fleet_allocations
_runners, _leases = tables.runners, tables.leases
_STAMPS: Final = (
    *("requested_at", "running_at", "enrolled_at", "healthy_at"),
    *("drained_at", "ending_at", "ended_at"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutOffering:
    """What is not asked of a provider before an instant; an empty offering is all of them."""

    offering: str
    until: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """What a fleet decided, and why it did no more and no less."""

    number: int
    at: int
    demand_id: str
    decision: FleetDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStanding:
    """A fleet with all that is in force of it; costs are millionths of its currency."""

    fleet: FleetRecord
    machines: Mapping[CapacityInstanceState, int]
    """Those that have not ended, by state."""
    override: Override | None
    reservations: int
    """How many have not ended."""
    shut: tuple[ShutOffering, ...]
    provider_frozen: bool
    hourly: int
    """What everything that may exist costs for an hour, by estimate."""
    spent_today: int
    """Since midnight in UTC, by estimate, as of the last decision."""
    last: DecisionRecord | None
    prices: tuple[OfferingPrice, ...]
    """What new machines are reckoned with."""
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRecord:
    """One machine of a fleet; instants are epoch milliseconds."""

    instance_id: str
    runner_name: str
    runner_id: str | None
    state: CapacityInstanceState
    since: int
    """When the last step of its life was seen."""
    due_at: int | None
    """When this state has lasted too long."""
    requested_at: int
    reason: str
    made_for: str
    offering: str
    machine: str
    region: str
    zone: str
    market: Market
    cost: int
    image: str
    provider: str
    provider_ref: str | None
    leases: int
    runner_state: str | None
    admission: str | None
    admission_reason: str | None
    may_exist: bool
    pinned_until: int | None
    pin_reason: str | None
    drain_reason: str | None
    interrupted_at: int | None
    leaves_at: int | None
    """When its provider takes it away, if it has said so."""
    warmup: WarmUpOutcome | None
    """How its warm-up went, once that has ended."""
    failure: str | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingDemand:
    """The last demand that anybody decided about, and which fleet serves how much of it."""

    demand_id: str = ""
    taken_at: int = 0
    classes: tuple[Waiting, ...] = ()
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """By the name of the fleet, then by class."""
    unserved: tuple[Unserved, ...] = ()


def standings(connection: sa.Connection) -> tuple[FleetStanding, ...]:
    """Show every fleet that is not deleted, by name."""
    return _standings(connection, fleets.list_all(connection))


def standing(connection: sa.Connection, name_or_id: str) -> FleetStanding:
    """Show one fleet.

    Raises:
        NotFound: there is no such fleet.
    """
    found = fleets.view(fleets.find(connection, name_or_id))
    return _standings(connection, (found,))[0]


def _standings(
    connection: sa.Connection, found: tuple[FleetRecord, ...]
) -> tuple[FleetStanding, ...]:
    now = database_now(connection)
    ids = [one.fleet_id for one in found]
    given: dict[str, object] = {"ids": ids, "now": now, "day": now // DAY_MS}
    rows = partial(_by_fleet, connection, given=given)
    counted, overrides, booked = rows(_COUNTED), rows(_OVERRIDDEN), rows(_BOOKED)
    spent, last = rows(_SPENT), rows(_LAST)
    kept = prices.Prices(connection, ids)
    breakers = [dict(row) for row in connection.execute(_OPEN, {"now": now}).mappings()]
    return tuple(
        FleetStanding(
            fleet=one,
            machines=_states(counted[one.fleet_id]),
            override=_override(overrides[one.fleet_id]),
            reservations=sum(row["total"] for row in booked[one.fleet_id]),
            shut=tuple(_shut(row) for row in breakers if _is_about(row, one, now=now)),
            provider_frozen=any(
                row["frozen"] and row["provider"] == one.spec.provider for row in breakers
            ),
            hourly=sum(_cost(row) * row["existing"] for row in counted[one.fleet_id]),
            spent_today=sum(row["micros"] for row in spent[one.fleet_id]),
            last=next((_decision(row) for row in last[one.fleet_id]), None),
            prices=kept.told(one.fleet_id, one.spec, now=now),
            now=now,
        )
        for one in found
    )


def _by_fleet(
    connection: sa.Connection,
    query: Query,
    *,
    given: Mapping[str, object],
) -> Mapping[str, list[Row]]:
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in connection.execute(query, given).mappings():
        found[row["fleet_id"]].append(dict(row))
    return found


def _states(rows: list[Row]) -> dict[CapacityInstanceState, int]:
    counts: dict[CapacityInstanceState, int] = {}
    for row in rows:
        state = CapacityInstanceState(row["state"])
        counts[state] = counts.get(state, 0) + int(row["total"])
    return counts


def _cost(row: Row) -> int:
    return codec.decode_part(int, row["offering"], "cost")


def _override(rows: list[Row]) -> Override | None:
    return codec.decode(Override, rows[-1]["override"]) if rows else None


def _is_about(row: Row, fleet: FleetRecord, *, now: int) -> bool:
    return (
        row["provider"] == fleet.spec.provider
        and row["fleet_id"] in ("", fleet.fleet_id)
        and row["open_until"] > now
    )


def _shut(row: Row) -> ShutOffering:
    reason = f"{row['code']}: {row['text']}"
    return ShutOffering(offering=row["offering"], until=row["open_until"], reason=reason)


def _decision(row: Row) -> DecisionRecord:
    return DecisionRecord(
        number=row["number"],
        at=row["at"],
        demand_id=row["demand_id"],
        decision=codec.decode(FleetDecision, row["decision"]),
    )


def decisions(
    connection: sa.Connection, name_or_id: str, *, limit: int
) -> tuple[DecisionRecord, ...]:
    """List what a fleet decided, the newest first.

    Raises:
        NotFound: there is no such fleet.
    """
    fleet_id = fleets.find(connection, name_or_id)["fleet_id"]
    query = (
        sa.select(_decisions)
        .where(_decisions.c.fleet_id == fleet_id)
        .order_by(_decisions.c.number.desc())
        .limit(min(limit, MOST_DECISIONS))
    )
    return tuple(_decision(dict(row)) for row in connection.execute(query).mappings())


def machines(connection: sa.Connection, name_or_id: str) -> tuple[MachineRecord, ...]:
    """List the machines of a fleet: those that have not ended, then the last ones that have.

    Raises:
        NotFound: there is no such fleet.
    """
    fleet_id = fleets.find(connection, name_or_id)["fleet_id"]
    ended = _instances.c.ended_at
    query = (
        _MACHINES.where(_instances.c.fleet_id == fleet_id)
        .order_by(sa.func.coalesce(ended, 0) > 0, ended.desc(), _instances.c.number)
        .limit(MOST_MACHINES)
    )
    found = [dict(row) for row in connection.execute(query).mappings()]
    return _machines(connection, found)


def machine(connection: sa.Connection, instance_id: str) -> MachineRecord:
    """Show one machine.

    Raises:
        NotFound: there is no such machine.
    """
    query = _MACHINES.where(_instances.c.instance_id == instance_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFound(f"no machine {instance_id}", field="instance", value=instance_id)
    return _machines(connection, [dict(row)])[0]


def _machines(connection: sa.Connection, rows: Sequence[Row]) -> tuple[MachineRecord, ...]:
    ids = [row["runner_id"] for row in rows if row["runner_id"] is not None]
    live = [state.value for state in LIVE_LEASE_STATES]
    held = {
        row.runner_id: int(row.total)
        for row in connection.execute(_HELD, {"ids": ids, "live": live})
    }
    return tuple(_machine(row, held.get(row["runner_id"], 0)) for row in rows)


def _machine(row: Row, leases: int) -> MachineRecord:
    offering = codec.decode(Offering, row["offering"])
    return MachineRecord(
        **{name: row[name] for name in _PLAIN},
        state=CapacityInstanceState(row["state"]),
        since=max(row[name] or 0 for name in _STAMPS),
        offering=offering.name,
        machine=offering.machine,
        region=offering.region,
        zone=offering.zone,
        market=offering.market,
        cost=offering.cost,
        image=codec.decode(CapacityClass, row["capacity"]).image,
        leases=leases,
        warmup=codec.decode(WarmUpOutcome, row["warmup"]) if row["warmup"] else None,
        may_exist=bool(row["may_exist"]),
    )


_PLAIN: Final = (
    *("instance_id", "runner_name", "runner_id", "due_at", "requested_at", "reason", "made_for"),
    *("provider", "provider_ref", "runner_state", "admission", "admission_reason"),
    *("pinned_until", "pin_reason", "drain_reason", "interrupted_at", "leaves_at"),
    *("failure", "detail"),
)


def demand(connection: sa.Connection, partition: str) -> WaitingDemand:
    """Show the demand that was last decided about, and who serves it; empty if nobody ever did."""
    query = sa.select(_allocations).where(_allocations.c.partition == partition)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return WaitingDemand()
    written = codec.decode(Shown, row["demand"])
    allocation = codec.decode(Allocation, row["allocation"])
    names = {fleet_id: name for fleet_id, name in connection.execute(_NAMES)}
    return WaitingDemand(
        demand_id=written.demand_id,
        taken_at=written.taken_at,
        classes=written.classes,
        shares={names.get(own, own): dict(share) for own, share in allocation.shares.items()},
        unserved=allocation.unserved,
    )


_ids: sa.BindParameter[str] = sa.bindparam("ids", expanding=True)
_NAMES = sa.select(_fleets.c.fleet_id, _fleets.c.name)
_COUNTED = (
    sa.select(
        _instances.c.fleet_id,
        _instances.c.state,
        _instances.c.offering,
        sa.func.count().label("total"),
        sa.func.sum(_instances.c.may_exist).label("existing"),
    )
    .where(_instances.c.fleet_id.in_(_ids), _instances.c.ended_at.is_(None))
    .group_by(_instances.c.fleet_id, _instances.c.state, _instances.c.offering)
)
_OVERRIDDEN = (
    sa.select(_overrides.c.fleet_id, _overrides.c.override)
    .where(
        _overrides.c.fleet_id.in_(_ids),
        _overrides.c.ended_at.is_(None),
        _overrides.c.expires_at > sa.bindparam("now"),
    )
    .order_by(_overrides.c.override_id)
)
_BOOKED = (
    sa.select(_reservations.c.fleet_id, sa.func.count().label("total"))
    .where(
        _reservations.c.fleet_id.in_(_ids),
        _reservations.c.cancelled_at.is_(None),
        _reservations.c.ends_at > sa.bindparam("now"),
    )
    .group_by(_reservations.c.fleet_id)
)
_SPENT = sa.select(_spend.c.fleet_id, _spend.c.micros).where(
    _spend.c.fleet_id.in_(_ids), _spend.c.day == sa.bindparam("day")
)
_LAST = (
    sa.select(_decisions)
    .join(_fleets, _fleets.c.fleet_id == _decisions.c.fleet_id)
    .where(_decisions.c.fleet_id.in_(_ids), _decisions.c.number == _fleets.c.decisions)
)
_OPEN = (
    sa.select(_breakers)
    .where((_breakers.c.open_until > sa.bindparam("now")) | (_breakers.c.frozen == 1))
    .order_by(_breakers.c.provider, _breakers.c.fleet_id, _breakers.c.offering)
)
_MACHINES = sa.select(
    _instances,
    _runners.c.state.label("runner_state"),
    _runners.c.admission,
    _runners.c.admission_reason,
).join(_runners, _runners.c.runner_id == _instances.c.runner_id, isouter=True)
_HELD = (
    sa.select(_leases.c.runner_id, sa.func.count().label("total"))
    .where(
        _leases.c.runner_id.in_(_ids),
        _leases.c.state.in_(sa.bindparam("live", expanding=True)),
    )
    .group_by(_leases.c.runner_id)
)
