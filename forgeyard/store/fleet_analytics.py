"""What fleets did in a window of time, read from the rows that tell of it; nothing is kept for it.

A window, and numbers of machines, jobs and decisions, bound each statement. Leases are merged by
the database: machines come back with the time in which they had at least one.
"""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import InvalidRequest
from forgeyard.fleet.analytics import Analytics, Decided, MachineTimes, Seen, analyse
from forgeyard.model.capacity import CapacityInstanceState, ScaleReason
from forgeyard.model.fleet import DAY_MS, Offering
from forgeyard.model.transitions import LIVE_LEASE_STATES, LeaseState
from forgeyard.store import codec, fleet_tables, fleets, tables
from forgeyard.store.changes import INSTANCE, Row
from forgeyard.store.engine import database_now

USUAL_MS: Final = DAY_MS
LONGEST_MS: Final = 31 * DAY_MS
LEEWAY_MS: Final = 3600 * 1000
"""So much older than the longest window one may be: the clock of who asks is another one."""
MOST_MACHINES: Final = 5_000
MOST_WAITS: Final = 20_000
MOST_DECISIONS: Final = 20_000
LATE_MS: Final = 3600 * 1000
"""A lease ends at most so long after its time was up."""
S = CapacityInstanceState


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnalytics:
    """What a fleet did, and what it is about; costs are no bill."""

    fleet: str
    currency: str
    is_partial: bool
    """There were more machines than are looked at: the newest ones count."""
    figures: Analytics


def read_analytics(
    connection: sa.Connection, name_or_id: str, *, since: int | None = None
) -> FleetAnalytics:
    """Derive what a fleet did from an instant on, the last day unless told.

    Raises:
        NotFound: there is no such fleet.
        InvalidRequest: that instant is to come, or too long ago.
    """
    fleet = fleets.view(fleets.find(connection, name_or_id))
    now = database_now(connection)
    since = now - USUAL_MS if since is None else since
    if not now - LONGEST_MS - LEEWAY_MS <= since < now:
        raise InvalidRequest(
            "the window must begin in the past, not too long ago",
            field="since",
            value=since,
            allowed=f"{now - LONGEST_MS} to {now - 1}: the last {LONGEST_MS // DAY_MS} days",
        )
    given: dict[str, object] = {"own": fleet.fleet_id, "since": since, "now": now}
    rows = [dict(row) for row in connection.execute(_MACHINES, given).mappings()]
    decisions = [Decided(**row) for row in connection.execute(_DECISIONS, given).mappings()]
    seen = Seen(
        since=since,
        until=now,
        machines=tuple(_times(row) for row in rows[:MOST_MACHINES]),
        decisions=tuple(reversed(decisions)),
        waits=tuple(connection.execute(_WAITS, given).scalars()),
    )
    return FleetAnalytics(
        fleet=fleet.name,
        currency=fleet.spec.guardrail.currency,
        is_partial=len(rows) > MOST_MACHINES,
        figures=analyse(seen),
    )


def _times(row: Row) -> MachineTimes:
    offering = codec.decode(Offering, row["offering"])
    return MachineTimes(
        market=offering.market,
        cost=offering.cost,
        is_for_demand=row["reason"] == ScaleReason.QUEUED_DEMAND,
        requested_at=row["requested_at"],
        ready_at=row["healthy_at"],
        left_at=row["left_at"],
        ended_at=row["ended_at"],
        interrupted_at=row["interrupted_at"],
        has_failed=row["failure"] is not None,
        busy=int(row["busy"]),
    )


_Instant = sa.ColumnElement[int]


def _later(one: _Instant, other: _Instant) -> _Instant:
    return sa.case((one > other, one), else_=other)


def _earlier(one: _Instant, other: _Instant) -> _Instant:
    return sa.case((one < other, one), else_=other)


_instances, _history = fleet_tables.capacity_instances, tables.history
_leases, _jobs, _decisions = tables.leases, tables.jobs, fleet_tables.fleet_decisions
_own = sa.bindparam("own", type_=sa.Text)
_since: sa.BindParameter[int] = sa.bindparam("since", type_=sa.BigInteger)
_now: sa.BindParameter[int] = sa.bindparam("now", type_=sa.BigInteger)
_LEFT = (
    # Draining is work still: a machine leaves with what follows on that.
    sa.select(sa.func.min(_history.c.at))
    .where(
        _history.c.entity_id == _instances.c.instance_id,
        _history.c.run_id.is_(None),
        _history.c.kind == INSTANCE.name,
        _history.c.before.in_((S.HEALTHY.value, S.DRAINING.value)),
        _history.c.after.in_((S.FAILED.value, S.QUARANTINED.value, S.TERMINATING.value)),
    )
    .scalar_subquery()
)
_FOUND = (
    sa.select(_instances, _LEFT.label("left_at"))
    .where(
        _instances.c.fleet_id == _own,
        _instances.c.ended_at.is_(None) | (_instances.c.ended_at >= _since),
    )
    .order_by(_instances.c.number.desc())
    .limit(MOST_MACHINES + 1)
    .cte("found")
)
_LIVE = _leases.c.state.in_([state.value for state in LIVE_LEASE_STATES])
_OVER = _leases.c.state.in_([x.value for x in LeaseState if x not in LIVE_LEASE_STATES])
_RECENT = _LIVE | (_OVER & (_leases.c.expires_at >= _since - LATE_MS))
"""What an index finds without reading all the leases that ever were."""
_BEGUN = _later(_later(_leases.c.offered_at, _FOUND.c.healthy_at), _since)
_OVER_AT = _earlier(
    sa.func.coalesce(_leases.c.ended_at, _now),
    sa.func.coalesce(_FOUND.c.left_at, _FOUND.c.ended_at, _now),
)
_HELD = (
    sa.select(_FOUND.c.instance_id, _BEGUN.label("begun"), _OVER_AT.label("over"))
    .join(_leases, _leases.c.runner_id == _FOUND.c.runner_id)
    .where(_RECENT, _FOUND.c.healthy_at.is_not(None), _BEGUN < _OVER_AT)
    .cte("held")
)
_COVERED = sa.func.max(_HELD.c.over).over(
    partition_by=_HELD.c.instance_id, order_by=(_HELD.c.begun, _HELD.c.over), rows=(None, -1)
)
_ADDED = sa.select(_HELD.c.instance_id, _HELD.c.begun, _HELD.c.over, _COVERED.label("covered")).cte(
    "added"
)
_FROM = _later(_ADDED.c.begun, sa.func.coalesce(_ADDED.c.covered, _ADDED.c.begun))
_BUSY = (
    sa.select(
        _ADDED.c.instance_id,
        sa.func.sum(sa.case((_ADDED.c.over > _FROM, _ADDED.c.over - _FROM), else_=0)).label("busy"),
    )
    .group_by(_ADDED.c.instance_id)
    .cte("busy")
)
_MACHINES = (
    sa.select(_FOUND, sa.func.coalesce(_BUSY.c.busy, 0).label("busy"))
    .join(_BUSY, _BUSY.c.instance_id == _FOUND.c.instance_id, isouter=True)
    .order_by(_FOUND.c.number.desc())
)
_TAKEN = (
    sa.select(_leases.c.job_id, _leases.c.epoch)
    .join(_instances, _instances.c.runner_id == _leases.c.runner_id)
    .where(
        _instances.c.fleet_id == _own,
        _RECENT,
        _leases.c.offered_at >= _since,
        _leases.c.accepted_at.is_not(None),
    )
    .order_by(_leases.c.offered_at.desc())
    .limit(MOST_WAITS)
    .cte("taken")
)
_WAITS = (
    sa.select(_jobs.c.leased_at - _jobs.c.eligible_at)
    .join(_TAKEN, sa.and_(_TAKEN.c.job_id == _jobs.c.job_id, _TAKEN.c.epoch == _jobs.c.epoch))
    .where(_jobs.c.leased_at >= _jobs.c.eligible_at)
)
_DECISIONS = (
    sa.select(_decisions.c.at, _decisions.c.wanted, _decisions.c.usable, _decisions.c.launched)
    .where(_decisions.c.fleet_id == _own, _decisions.c.at >= _since)
    .order_by(_decisions.c.number.desc())
    .limit(MOST_DECISIONS)
)
