"""How many machines fleets want and have, as numbers for whoever watches from outside."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from forgeyard.fleet.view import Clamp, ClampKind
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.fleet import FleetHealth
from forgeyard.store import codec, fleet_tables

_fleets, _instances = fleet_tables.fleets, fleet_tables.capacity_instances
_decisions = fleet_tables.fleet_decisions
S = CapacityInstanceState
_COMING: Final = (S.REQUESTED, S.PROVISIONING, S.BOOTSTRAPPING, S.ENROLLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFigures:
    """One fleet: what it is called, and how many machines it wants and has."""

    fleet: str
    provider: str
    capacity_class: str
    desired: int = 0
    """In its last decision."""
    ready: int = 0
    provisioning: int = 0
    """Wanted, and not ready yet."""
    held_back: int = 0
    """So many more the last decision would have wanted or made, but for the maximum."""
    health: FleetHealth = FleetHealth.HEALTHY


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounded:
    """The part of a stored decision that is counted."""

    clamps: tuple[Clamp, ...] = ()


def read_figures(connection: sa.Connection) -> tuple[FleetFigures, ...]:
    """Count the machines of every fleet that is not deleted."""
    counts: defaultdict[str, Counter[S]] = defaultdict(Counter)
    for fleet_id, state, total in connection.execute(_COUNTED):
        counts[fleet_id][S(state)] = int(total)
    return tuple(
        FleetFigures(
            fleet=row.name,
            provider=row.provider,
            capacity_class=row.class_id,
            desired=row.wanted or 0,
            ready=counts[row.fleet_id][S.HEALTHY],
            provisioning=sum(counts[row.fleet_id][one] for one in _COMING),
            held_back=_held_back(row.decision),
            health=FleetHealth(row.health),
        )
        for row in connection.execute(_LIVE)
    )


def _held_back(decision: str | None) -> int:
    """Tell by how many machines a maximum lowered a decision, its own or another for now."""
    clamps = () if decision is None else codec.decode(_Bounded, decision).clamps
    bounds = (ClampKind.MAXIMUM, ClampKind.OVERRIDE)
    return max((0, *(one.before - one.after for one in clamps if one.kind in bounds)))


_LIVE = (
    sa.select(
        _fleets.c.fleet_id,
        _fleets.c.name,
        _fleets.c.provider,
        _fleets.c.class_id,
        _fleets.c.health,
        _decisions.c.wanted,
        _decisions.c.decision,
    )
    .join(
        _decisions,
        sa.and_(
            _decisions.c.fleet_id == _fleets.c.fleet_id,
            _decisions.c.number == _fleets.c.decisions,
        ),
        isouter=True,
    )
    .where(_fleets.c.live == 1)
    .order_by(_fleets.c.name)
)
_COUNTED = (
    sa.select(_instances.c.fleet_id, _instances.c.state, sa.func.count())
    .where(_instances.c.ended_at.is_(None))
    .group_by(_instances.c.fleet_id, _instances.c.state)
)
