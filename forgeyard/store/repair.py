"""Making reservations agree with leases again: exactly one for every live lease, none else.

Devices that are held for no live lease are freed; what a live one holds only its agent could tell.

Every transition keeps them equal in its own transaction, so this finds something only after a bug
or a hand in the database. It looks without locks and judges again under the runner's.
"""

from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.model.transitions import LIVE_LEASE_STATES
from forgeyard.store import changes, devices, tables
from forgeyard.store.amounts import DIMENSIONS
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now, now_ms, read, write
from forgeyard.store.sessions import lock_runner

_jobs, _leases = tables.jobs, tables.leases
_reservations, _runners = tables.reservations, tables.runners
_LIVE = [state.value for state in LIVE_LEASE_STATES]
_REPAIRS_PER_CALL = 20


def repair(engine: sa.Engine) -> int:
    """Repair the runners whose reservations are wrong, each in its own transaction; count them."""
    with read(engine) as connection:
        wrong = [found.runner_id for found in discrepancies(connection)]
        wrong += sorted({runner_id for runner_id, _ in devices.strays(connection)} - {*wrong})
    repaired = 0
    for runner_id in wrong[:_REPAIRS_PER_CALL]:
        with write(engine) as connection:
            repaired += _repair_runner(connection, runner_id)
    return repaired


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrepancy:
    """A runner whose books do not balance, and the first amount in which they do not."""

    runner_id: str
    name: str
    dimension: str
    reserved: int
    """What the runner's row says."""
    booked: int
    """What its reservations add up to."""
    held: int
    """What the jobs of its live leases need."""


def discrepancies(connection: sa.Connection) -> list[Discrepancy]:
    """List the runners whose reserved amounts are not what the jobs of their live leases need."""
    live = (
        sa.select(_leases.c.runner_id, *(_jobs.c[name] for name in DIMENSIONS))
        .join(_jobs, _jobs.c.job_id == _leases.c.job_id)
        .where(_leases.c.state.in_(_LIVE))
        .subquery()
    )
    wanted, counted = _sums(live), _sums(_reservations)
    sums = [
        (
            _runners.c[f"reserved_{name}"].label(f"reserved_{name}"),
            sa.func.coalesce(counted.c[name], 0).label(f"booked_{name}"),
            sa.func.coalesce(wanted.c[name], 0).label(f"held_{name}"),
        )
        for name in DIMENSIONS
    ]
    query = (
        sa.select(
            _runners.c.runner_id, _runners.c.name, *(part for three in sums for part in three)
        )
        .outerjoin(wanted, wanted.c.runner_id == _runners.c.runner_id)
        .outerjoin(counted, counted.c.runner_id == _runners.c.runner_id)
        .where(sa.or_(*(side != reserved for reserved, *sides in sums for side in sides)))
        .order_by(_runners.c.runner_id)
    )
    return [_discrepancy(dict(row)) for row in connection.execute(query).mappings()]


def _discrepancy(row: Row) -> Discrepancy:
    parts = ("reserved", "booked", "held")
    wrong = next(name for name in DIMENSIONS if len({row[f"{one}_{name}"] for one in parts}) > 1)
    amounts = {one: int(row[f"{one}_{wrong}"]) for one in parts}
    return Discrepancy(runner_id=row["runner_id"], name=row["name"], dimension=wrong, **amounts)


def _sums(rows: sa.FromClause) -> sa.Subquery:
    totals = (sa.func.sum(rows.c[name]).label(name) for name in DIMENSIONS)
    return sa.select(rows.c.runner_id, *totals).group_by(rows.c.runner_id).subquery()


def _repair_runner(connection: sa.Connection, runner_id: str) -> bool:
    before = lock_runner(connection, runner_id)
    stray = devices.free_strays(connection, runner_id)
    after = recount(connection, runner_id)
    wrong = {name: value for name, value in after.items() if before[name] != value}
    if not wrong and not stray:
        return False
    changed = {**wrong, "changed_at": now_ms()}
    connection.execute(sa.update(_runners).where(_runners.c.runner_id == runner_id).values(changed))
    freed = [f"devices of {lease_id} freed" for lease_id in stray]
    corrected = [f"{name} {before[name]} → {value}" for name, value in wrong.items()]
    changes.audit(
        connection,
        actor="system",
        channel="store",
        action="reservation.repaired",
        target=runner_id,
        detail=", ".join([*corrected, *freed]),
        now=database_now(connection),
    )
    return True


def recount(connection: sa.Connection, runner_id: str) -> dict[str, int]:
    """Set right the reservations of a locked runner, and sum what its live leases hold.

    A lease ends in the same transaction that locks its runner, so what is read here stands.
    """
    alive = (
        sa.select(_leases.c.lease_id, _jobs.c.job_id, *(_jobs.c[name] for name in DIMENSIONS))
        .join(_jobs, _jobs.c.job_id == _leases.c.job_id)
        .where(_leases.c.runner_id == runner_id, _leases.c.state.in_(_LIVE))
    )
    wanted = {row["lease_id"]: row for row in connection.execute(alive).mappings()}
    mine = _reservations.c.runner_id == runner_id
    here = set(connection.execute(sa.select(_reservations.c.lease_id).where(mine)).scalars())
    if here - wanted.keys():
        dead = _reservations.c.lease_id.in_(here - wanted.keys())
        connection.execute(sa.delete(_reservations).where(dead))
    missing = [
        {"lease_id": lease_id, "runner_id": runner_id, **{name: row[name] for name in DIMENSIONS}}
        for lease_id, row in wanted.items()
        if lease_id not in here
    ]
    if missing:
        connection.execute(sa.insert(_reservations), missing)
    return {f"reserved_{name}": sum(row[name] for row in wanted.values()) for name in DIMENSIONS}
