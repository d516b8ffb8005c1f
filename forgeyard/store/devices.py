"""Devices that leases hold: taken with the lease, given back with it, refused twice by an index.

Whoever grants holds the runner's lock, and every device belongs to one runner; so what is read
under that lock stands, and runner and device are had together or not at all (DEV-006).
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import lru_cache

import sqlalchemy as sa

from forgeyard.errors import Corrupt
from forgeyard.model.capability import Capabilities
from forgeyard.model.equipment import DeviceShare, Equipment
from forgeyard.model.transitions import LIVE_LEASE_STATES
from forgeyard.store import batch, bulk, codec, tables

_holds, _leases, _runners = tables.device_holds, tables.leases, tables.runners
_SUMS = sa.select(
    _holds.c.runner_id, _holds.c.device_id, sa.func.sum(_holds.c.share).label("share")
).group_by(_holds.c.runner_id, _holds.c.device_id)
_LIVE = [state.value for state in LIVE_LEASE_STATES]


def load(connection: sa.Connection) -> dict[str, dict[str, int]]:
    """Tell how much is held of every device of which something is, by runner."""
    return _summed((runner, device, share) for runner, device, share in connection.execute(_SUMS))


def _summed(rows: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for runner_id, device_id, share in rows:
        found.setdefault(runner_id, {})[device_id] = int(share)
    return found


def standing(
    connection: sa.Connection, runner_ids: Collection[str]
) -> tuple[dict[str, Equipment], dict[str, dict[str, int]]]:
    """Read what some runners have and what is held of it; the caller holds their locks.

    One whose report cannot be read has nothing to give.
    """
    texts = {"runner_ids": batch.rows_text(sorted(runner_ids))}
    found = batch.ask(connection, _standing(connection.dialect), texts)
    equipment: dict[str, Equipment] = {}
    for row in found["reports"]:
        with suppress(Corrupt):
            equipment[row["runner_id"]] = _equipment(row["capabilities"])
    names = ("runner_id", "device_id", "share")
    return equipment, _summed(tuple(row[name] for name in names) for row in found["holds"])


@lru_cache(maxsize=32)
def _standing(dialect: sa.Dialect) -> batch.Batch:
    reports = sa.select(_runners.c.runner_id, _runners.c.capabilities).where(
        batch.among(dialect, _runners.c.runner_id, "runner_ids")
    )
    on_them = batch.among(dialect, _holds.c.runner_id, "runner_ids")
    return batch.questions_of(dialect, {"reports": reports, "holds": _SUMS.where(on_them)})


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
