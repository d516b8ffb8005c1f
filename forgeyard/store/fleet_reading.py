"""What the plan of a fleet may know: demand, machines, intents and bounds, at one instant.

One transaction reads it all, so that nothing is bought for a job that has a runner by now. What
may exist counts, whatever its state; what was seen to be gone does not.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy as sa

from forgeyard.fleet.view import Closed, FleetView, InstanceView
from forgeyard.model.capacity import CapacityInstanceState, ScaleDownReason
from forgeyard.model.fleet import (
    CapacityReservation,
    FleetSpec,
    FleetState,
    Offering,
    Override,
)
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.runner import RunnerHealth, RunnerState
from forgeyard.model.transitions import LIVE_LEASE_STATES
from forgeyard.scheduler.snapshot import DEFAULT_POOL, SchedulingRunner, Snapshot
from forgeyard.scheduler.standing import SchedulingPool
from forgeyard.store import (
    codec,
    fleet_tables,
    image_standing,
    machines,
    pools,
    prices,
    rollouts,
    snapshot,
    tables,
)
from forgeyard.store.changes import Row
from forgeyard.store.parked_classes import ALL_OPEN

JOBS_READ: Final = 20_000
"""Of the jobs that wait, so many are looked at; the rest has to wait for its turn."""
HOUR_MS: Final = 3600 * 1000
DAY_MS: Final = 24 * HOUR_MS
DEFAULT: Final = "default"
"""The name of the pool of runners that nobody put elsewhere."""
S = CapacityInstanceState
_fleets, _instances = fleet_tables.fleets, fleet_tables.capacity_instances
_LIVE = tuple(state.value for state in LIVE_LEASE_STATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Everything that the decisions of all fleets are made from."""

    snapshot: Snapshot
    policy: SchedulingPolicy
    fleets: tuple[FleetView, ...]
    allocation_version: int
    """Whoever launches or drains adds one; a decision on an older one is void."""

    @property
    def now(self) -> int:
        """Tell when this was read, by the database's clock."""
        return self.snapshot.taken_at

    def fleet(self, fleet_id: str) -> FleetView | None:
        """Find a fleet among those that live."""
        return next((one for one in self.fleets if one.fleet_id == fleet_id), None)


def read(connection: sa.Connection, partition: str, policy: SchedulingPolicy) -> Reading:
    """Read demand and fleets together."""
    version = allocation_version(connection, partition)
    wide = replace(policy, batch=JOBS_READ)
    found = snapshot.load(connection, partition, wide, limit=JOBS_READ, standing=ALL_OPEN)
    return Reading(
        snapshot=found,
        policy=wide,
        fleets=views(connection, found.runners, wide, now=found.taken_at),
        allocation_version=version,
    )


def allocation_version(connection: sa.Connection, partition: str) -> int:
    """Tell how often fleets of a partition have launched or drained."""
    table = fleet_tables.fleet_allocations
    query = sa.select(table.c.version).where(table.c.partition == partition)
    return connection.execute(query).scalar_one_or_none() or 0


def views(
    connection: sa.Connection,
    runners: Iterable[SchedulingRunner],
    policy: SchedulingPolicy,
    *,
    now: int,
) -> tuple[FleetView, ...]:
    """Read every fleet that lives."""
    query = sa.select(_fleets).where(_fleets.c.live == 1).order_by(_fleets.c.fleet_id)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    ids = [row["fleet_id"] for row in rows]
    found = pools.load(connection, policy, now=now)
    parts = _Parts(
        connection,
        ids,
        {one.runner_id: one for one in runners},
        {one.name: one for one in found.values()},
        now=now,
    )
    return tuple(parts.view(row) for row in rows)


class _Parts:
    """What belongs to fleets, read once for all of them."""

    def __init__(
        self,
        connection: sa.Connection,
        ids: Sequence[str],
        runners: Mapping[str, SchedulingRunner],
        places: Mapping[str, SchedulingPool],
        *,
        now: int,
    ) -> None:
        self._now = now
        self._pools = places
        self._runners = runners
        self._instances = _grouped(connection, _INSTANCES, ids, since=now - HOUR_MS)
        self._runner_rows = _runner_rows(connection, self._instances)
        self._leases = {
            row.runner_id: int(row.leases) for row in connection.execute(_LEASES, {"live": _LIVE})
        }
        self._overrides = _grouped(connection, _OVERRIDES, ids, now=now)
        self._reservations = _grouped(connection, _RESERVATIONS, ids, now=now)
        self._wanted = _grouped(connection, _DECISIONS, ids, since=now - DAY_MS)
        self._spend = _grouped(connection, _SPEND, ids, day=now // DAY_MS)
        self._breakers = [
            dict(row) for row in connection.execute(_BREAKERS, {"now": now}).mappings()
        ]
        self._futile = _futile(connection, now=now)
        self._blocked = image_standing.blocked(connection)
        self._stages = rollouts.stages(connection)
        self._prices = prices.Prices(connection, ids)

    def view(self, row: Row) -> FleetView:
        """Put one fleet together."""
        fleet_id, now = row["fleet_id"], self._now
        spec = codec.decode(FleetSpec, row["spec"])
        rows = self._instances[fleet_id]
        window = spec.scaling.down.window
        futile = self._futile.get(fleet_id, {})
        return FleetView(
            fleet_id=fleet_id,
            spec=spec,
            pool=self._pools.get(spec.pool or DEFAULT, DEFAULT_POOL),
            state=FleetState(row["state"]),
            override=_together(self._overrides[fleet_id]),
            reservations=tuple(_reservations(self._reservations[fleet_id], now=now)),
            instances=tuple(self._instance(one, spec) for one in rows if one["ended_at"] is None),
            closed=tuple(self._closed(row)),
            provider_frozen=self._is_frozen(row["provider"]),
            launches=tuple(
                one["requested_at"] for one in rows if one["requested_at"] > now - HOUR_MS
            ),
            wanted=_within(self._wanted[fleet_id], since=now - window),
            spent_today=sum(one["micros"] for one in self._spend[fleet_id]),
            futile=frozenset(
                kind for kind, count in futile.items() if count >= spec.scaling.up.futile_after
            ),
            blocked_images=self._blocked,
            rollout=self._stages.get(fleet_id),
            prices=self._prices.current(fleet_id, spec, now=now),
        )

    def _instance(self, row: Row, spec: FleetSpec) -> InstanceView:
        offering = codec.decode(Offering, row["offering"])
        runner = self._runner_rows.get(row["runner_id"])
        leases = self._leases.get(row["runner_id"], 0)
        taking = self._runners.get(row["runner_id"] or "")
        drain = row["drain_reason"]
        return InstanceView(
            instance_id=row["instance_id"],
            state=CapacityInstanceState(row["state"]),
            offering=offering.name,
            runner_id=row["runner_id"] or "",
            market=offering.market,
            zone=offering.zone,
            region=offering.region,
            image=row["seen_image"] or row["image"],
            cost=offering.cost,
            requested_at=row["requested_at"],
            healthy_at=row["healthy_at"],
            idle_since=None if leases or runner is None else _idle_since(row, runner),
            leases=leases,
            jobs_ended=_jobs_ended(runner, spec),
            free=taking.free if taking and taking.state is RunnerState.ONLINE else None,
            pinned_until=row["pinned_until"],
            made_for=row["made_for"],
            draining_for=None if drain is None else ScaleDownReason(drain),
            interrupted=row["interrupted_at"] is not None,
            is_healthy=runner is None or _is_well(runner),
            may_exist=bool(row["may_exist"]),
        )

    def _closed(self, row: Row) -> Iterable[Closed]:
        for one in self._breakers:
            if one["provider"] != row["provider"] or one["open_until"] <= self._now:
                continue
            if one["fleet_id"] in ("", row["fleet_id"]):
                yield Closed(
                    offering=one["offering"],
                    until=one["open_until"],
                    reason=f"{one['code']}: {one['text']}",
                )

    def _is_frozen(self, provider: str) -> bool:
        return any(one["provider"] == provider and one["frozen"] for one in self._breakers)


def _within(rows: Sequence[Row], *, since: int) -> tuple[tuple[int, int], ...]:
    """List what was wanted since an instant, beginning with what was wanted then already."""
    before = [(since, row["wanted"]) for row in rows if row["at"] <= since]
    after = [(row["at"], row["wanted"]) for row in rows if row["at"] > since]
    return (*before[-1:], *after)


def _grouped(
    connection: sa.Connection,
    query: sa.Select[*tuple[object, ...]],
    ids: Sequence[str],
    **given: object,
) -> Mapping[str, list[Row]]:
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in connection.execute(query, {"ids": list(ids), **given}).mappings():
        found[row["fleet_id"]].append(dict(row))
    return found


def _runner_rows(
    connection: sa.Connection, instances: Mapping[str, list[Row]]
) -> dict[str | None, Row]:
    ids = [row["runner_id"] for rows in instances.values() for row in rows if row["runner_id"]]
    found = connection.execute(_RUNNERS, {"ids": ids}).mappings()
    return {row["runner_id"]: dict(row) for row in found}


def _is_well(runner: Row) -> bool:
    """Tell whether a runner is there and says that it can work."""
    state, health = RunnerState(runner["state"]), RunnerHealth(runner["health"])
    return state is not RunnerState.OFFLINE and health is not RunnerHealth.UNHEALTHY


def _jobs_ended(runner: Row | None, spec: FleetSpec) -> int:
    """Tell how many jobs a runner has had, where they are counted."""
    if runner is None or runner["jobs_left"] is None:
        return 0
    left: int = runner["jobs_left"]
    return machines.most_jobs(spec) - left


def _idle_since(instance: Row, runner: Row) -> int:
    """Tell since when a runner has had nothing to do: since it came, or since its last lease."""
    came: int = instance["healthy_at"] or runner["registered_at"]
    freed: int = runner["freed_at"]
    return max(came, freed)


def override_of(connection: sa.Connection, fleet_id: str, *, now: int) -> Override | None:
    """Read what is in force of the overrides of a fleet, taken together."""
    return _together(_grouped(connection, _OVERRIDES, [fleet_id], now=now)[fleet_id])


def _together(rows: Sequence[Row]) -> Override | None:
    """Take overrides together: the newest that says anything about a bound counts for it."""
    told = [codec.decode(Override, row["override"]) for row in rows]
    if not told:
        return None
    mins = [one.min for one in told if one.min is not None]
    maxs = [one.max for one in told if one.max is not None]
    return Override(
        min=mins[-1] if mins else None,
        max=maxs[-1] if maxs else None,
        expires_at=min(one.expires_at for one in told),
    )


def _reservations(rows: Sequence[Row], *, now: int) -> Iterable[CapacityReservation]:
    for row in rows:
        one = codec.decode(CapacityReservation, row["reservation"])
        if one.starts_at - one.lead <= now < one.ends_at:
            yield one


def _futile(connection: sa.Connection, *, now: int) -> dict[str, dict[str, int]]:
    """Count machines that came up well for jobs of a class of which none was ever given a job.

    A class that still waits although so many have come for it fits none of them (FLT-079). Where
    one of them has worked it fits, and the others only came too late.
    """
    found: dict[str, dict[str, int]] = {}
    for fleet_id, kind, count in connection.execute(_FUTILE, {"since": now - HOUR_MS}):
        found.setdefault(fleet_id, {})[kind] = count
    return found


_runners, _leases = tables.runners, tables.leases
_ids: sa.BindParameter[str] = sa.bindparam("ids", expanding=True)
_INSTANCES = (
    sa.select(_instances)
    .where(
        _instances.c.fleet_id.in_(_ids),
        _instances.c.ended_at.is_(None) | (_instances.c.requested_at > sa.bindparam("since")),
    )
    .order_by(_instances.c.number)
)
_RUNNERS = sa.select(_runners).where(_runners.c.runner_id.in_(_ids))
_LEASES = (
    sa.select(_leases.c.runner_id, sa.func.count().label("leases"))
    .where(_leases.c.state.in_(sa.bindparam("live", expanding=True)))
    .group_by(_leases.c.runner_id)
)
_OVERRIDES = (
    sa.select(fleet_tables.fleet_overrides)
    .where(
        fleet_tables.fleet_overrides.c.fleet_id.in_(_ids),
        fleet_tables.fleet_overrides.c.ended_at.is_(None),
        fleet_tables.fleet_overrides.c.expires_at > sa.bindparam("now"),
    )
    .order_by(fleet_tables.fleet_overrides.c.override_id)
)
_RESERVATIONS = (
    sa.select(fleet_tables.fleet_reservations)
    .where(
        fleet_tables.fleet_reservations.c.fleet_id.in_(_ids),
        fleet_tables.fleet_reservations.c.cancelled_at.is_(None),
        fleet_tables.fleet_reservations.c.ends_at > sa.bindparam("now"),
    )
    .order_by(fleet_tables.fleet_reservations.c.reservation_id)
)
_DECISIONS = (
    sa.select(
        fleet_tables.fleet_decisions.c.fleet_id,
        fleet_tables.fleet_decisions.c.at,
        fleet_tables.fleet_decisions.c.wanted,
    )
    .where(
        fleet_tables.fleet_decisions.c.fleet_id.in_(_ids),
        fleet_tables.fleet_decisions.c.at > sa.bindparam("since"),
    )
    .order_by(fleet_tables.fleet_decisions.c.number)
)
_SPEND = sa.select(fleet_tables.fleet_spend).where(
    fleet_tables.fleet_spend.c.fleet_id.in_(_ids),
    fleet_tables.fleet_spend.c.day == sa.bindparam("day"),
)
_BREAKERS = sa.select(fleet_tables.provider_breakers).where(
    (fleet_tables.provider_breakers.c.open_until > sa.bindparam("now"))
    | (fleet_tables.provider_breakers.c.frozen == 1)
)
_WORKED = (_runners.c.freed_at > 0) | sa.exists().where(_leases.c.runner_id == _runners.c.runner_id)
_FUTILE = (
    sa.select(_instances.c.fleet_id, _instances.c.made_for, sa.func.count())
    .join(_runners, _runners.c.runner_id == _instances.c.runner_id)
    .where(_instances.c.made_for != "", _instances.c.healthy_at > sa.bindparam("since"))
    .group_by(_instances.c.fleet_id, _instances.c.made_for)
    .having(sa.func.sum(sa.case((_WORKED, 1), else_=0)) == 0)
)
