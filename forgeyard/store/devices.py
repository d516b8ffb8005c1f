"""Devices that leases hold: taken with the lease, given back with it, refused twice by an index.

Whoever grants holds the runner's lock, and every device belongs to one runner; so what is read
under that lock stands, and runner and device are had together or not at all (DEV-006).
"""

from collections.abc import Collection
from functools import lru_cache

import sqlalchemy as sa

from forgeyard.errors import Corrupt
from forgeyard.model.capability import Capabilities
from forgeyard.model.equipment import DeviceShare, Equipment
from forgeyard.model.transitions import LIVE_LEASE_STATES
from forgeyard.store import bulk, codec, tables

_holds, _leases, _runners = tables.device_holds, tables.leases, tables.runners
_SUMS = sa.select(_holds.c.runner_id, _holds.c.device_id, sa.func.sum(_holds.c.share)).group_by(
    _holds.c.runner_id, _holds.c.device_id
)
_LIVE = [state.value for state in LIVE_LEASE_STATES]


def load(connection: sa.Connection) -> dict[str, dict[str, int]]:
    """Tell how much is held of every device of which something is, by runner."""
    return _summed(connection, _SUMS)


def held_on(connection: sa.Connection, runner_ids: Collection[str]) -> dict[str, dict[str, int]]:
    """Tell the same of some runners, whose locks the caller holds."""
    on_them = bulk.among(connection, _holds.c.runner_id, runner_ids)
    return _summed(connection, _SUMS.where(on_them))


def _summed(
    connection: sa.Connection, query: sa.Select[str, str, int]
) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for runner_id, device_id, share in connection.execute(query):
        found.setdefault(runner_id, {})[device_id] = int(share)
    return found


def equipment_of(connection: sa.Connection, runner_ids: Collection[str]) -> dict[str, Equipment]:
    """Read what some runners have; one that cannot be read has nothing to give."""
    query = sa.select(_runners.c.runner_id, _runners.c.capabilities).where(
        bulk.among(connection, _runners.c.runner_id, runner_ids)
    )
    found: dict[str, Equipment] = {}
    for runner_id, report in connection.execute(query):
        try:
            found[runner_id] = _equipment(report)
        except Corrupt:
            continue
    return found


@lru_cache(maxsize=4096)
def _equipment(report: str) -> Equipment:
    """Read a report once; many runners send the same."""
    return codec.decode(Capabilities, report).equipment


def give_back(connection: sa.Connection, lease_id: str) -> None:
    """Free the devices of a lease that ended; a second time there is nothing to free."""
    connection.execute(_GIVE_BACK, {"lease": lease_id})


_GIVE_BACK = sa.delete(_holds).where(_holds.c.lease_id == sa.bindparam("lease"))


def of_leases(
    connection: sa.Connection, lease_ids: Collection[str]
) -> dict[str, tuple[DeviceShare, ...]]:
    """Tell which devices some leases hold, in the order of their names."""
    if not lease_ids:
        return {}
    query = (
        sa.select(_holds.c.lease_id, _holds.c.device_id, _holds.c.share)
        .where(bulk.among(connection, _holds.c.lease_id, lease_ids))
        .order_by(_holds.c.lease_id, _holds.c.device_id)
    )
    found: dict[str, tuple[DeviceShare, ...]] = {}
    for lease_id, device_id, share in connection.execute(query):
        one = DeviceShare(device_id=device_id, share=share)
        found[lease_id] = (*found.get(lease_id, ()), one)
    return found


def strays(connection: sa.Connection, runner_id: str | None = None) -> list[tuple[str, str]]:
    """List the runners and leases whose devices are held although the lease does not live there."""
    mine = _STRAYS if runner_id is None else _STRAYS.where(_holds.c.runner_id == runner_id)
    return [(runner, lease) for runner, lease in connection.execute(mine)]


_ALIVE = sa.exists().where(
    _leases.c.lease_id == _holds.c.lease_id,
    _leases.c.runner_id == _holds.c.runner_id,
    _leases.c.state.in_(_LIVE),
)
_STRAYS = (
    sa.select(_holds.c.runner_id, _holds.c.lease_id).where(~_ALIVE).distinct().order_by("runner_id")
)


def free_strays(connection: sa.Connection, runner_id: str) -> list[str]:
    """Free what no living lease of a locked runner holds; name the leases that held it."""
    stray = [lease_id for _, lease_id in strays(connection, runner_id)]
    if stray:
        mine = _holds.c.runner_id == runner_id
        connection.execute(sa.delete(_holds).where(mine, _holds.c.lease_id.in_(stray)))
    return stray
