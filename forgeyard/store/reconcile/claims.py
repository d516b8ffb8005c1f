"""What leases hold beside reservations: devices, exclusivity keys, and room kept for jobs.

Each is taken and given back with its lease. What a live lease holds of devices only its agent could
tell, so that alone is never made again.
"""

from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from forgeyard.model.equipment import WHOLE
from forgeyard.model.transitions import JobState
from forgeyard.scheduler.findings import Finding, FindingKind, FindingOutcome
from forgeyard.scheduler.holds import HoldKind
from forgeyard.store import bulk, changes, devices, release, scopes, tables, wishes
from forgeyard.store.changes import Row
from forgeyard.store.reconcile import books
from forgeyard.store.reconcile.books import LIVE
from forgeyard.store.reconcile.look import Comparison, Look

_devices, _keys, _room = tables.device_holds, tables.key_holds, tables.held_room
_jobs, _leases, _runners = tables.jobs, tables.leases, tables.runners
_NO_KEYS = '"keys":[]'
"""How a job that asks for no key says so; no other needs to be read."""


def _stray_devices(connection: sa.Connection, look: Look) -> list[Finding]:
    return [
        Finding(
            kind=FindingKind.DEVICE_STRAY,
            entity=lease_id,
            within=runner_id,
            found=f"holds devices of {runner_id}",
            expected="none: it does not live there",
        )
        for runner_id, lease_id in devices.strays(connection, look.within)
    ]


def _free_devices(connection: sa.Connection, found: Sequence[Finding], _look: Look) -> None:
    devices.free_strays(connection, found[0].within)
    changes.wake_all_waiting(connection, reason="devices were freed")


def overfull_devices(connection: sa.Connection, _look: Look) -> list[Finding]:
    """Find devices of which leases hold more than there is."""
    total = sa.func.sum(_devices.c.share)
    query = (
        sa.select(_devices.c.runner_id, _devices.c.device_id, total)
        .group_by(_devices.c.runner_id, _devices.c.device_id)
        .having(total > WHOLE)
        .order_by(_devices.c.runner_id, _devices.c.device_id)
    )
    return [
        Finding(
            kind=FindingKind.DEVICE_OVERFULL,
            entity=device_id,
            within=runner_id,
            found=f"{share} thousandths are held",
            expected=f"{WHOLE} at most",
        )
        for runner_id, device_id, share in connection.execute(query)
    ]


def _find_keys(connection: sa.Connection, look: Look) -> list[Finding]:
    held = _held_keys(connection)
    return [*_stray_keys(held, look), *_missing_keys(connection, held, look)]


def _held_keys(connection: sa.Connection) -> dict[str, tuple[str, bool]]:
    """Tell which lease holds each key that is held, and whether that lease lives."""
    alive = sa.case((_leases.c.state.in_(LIVE), 1), else_=0)
    query = sa.select(_keys.c.key_name, _keys.c.lease_id, sa.func.coalesce(alive, 0)).outerjoin(
        _leases, _leases.c.lease_id == _keys.c.lease_id
    )
    return {key: (lease_id, bool(live)) for key, lease_id, live in connection.execute(query)}


def _stray_keys(held: Mapping[str, tuple[str, bool]], look: Look) -> Iterable[Finding]:
    return [
        Finding(
            kind=FindingKind.KEY_STRAY,
            entity=key,
            within=lease_id,
            found=f"held by {lease_id}",
            expected="free: that lease has ended",
        )
        for key, (lease_id, alive) in sorted(held.items())
        if not alive and look.within in (None, lease_id)
    ]


def _missing_keys(
    connection: sa.Connection, held: Mapping[str, tuple[str, bool]], look: Look
) -> Iterable[Finding]:
    for row in _wanting(connection, look):
        lease_id = row["lease_id"]
        for key in wishes.find(row["wishes"]).keys:
            holder, alive = held.get(key, ("", False))
            if holder != lease_id:
                yield Finding(
                    kind=FindingKind.KEY_MISSING,
                    entity=key,
                    within=lease_id,
                    found=f"held by {holder}" if holder else "free",
                    expected=f"held by {lease_id}",
                    # Two that live have been given one key: only the end of one mends that.
                    outcome=FindingOutcome.REPORTED if alive else FindingOutcome.FOUND,
                )


def _wanting(connection: sa.Connection, look: Look) -> Sequence[Row]:
    """Read the live leases of jobs that ask for keys."""
    query = (
        sa.select(_leases.c.lease_id, _leases.c.job_id, _jobs.c.wishes)
        .join(_jobs, _jobs.c.job_id == _leases.c.job_id)
        .where(
            _leases.c.state.in_(LIVE),
            look.inside(_leases.c.lease_id),
            _jobs.c.wishes != "{}",
            ~_jobs.c.wishes.contains(_NO_KEYS, autoescape=True),
        )
        .order_by(_leases.c.lease_id)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def _lock_keys(connection: sa.Connection, lease_id: str) -> None:
    """Lock a lease with its job, and the root of all scopes, as whoever grants keys has it."""
    known = sa.select(_leases.c.lease_id).where(_leases.c.lease_id == lease_id)
    if connection.execute(known).first() is not None:
        release.lock_lease(connection, lease_id)
    scopes.lock(connection, ())


def _fix_keys(connection: sa.Connection, found: Sequence[Finding], _look: Look) -> None:
    """Free what a dead lease holds; give a live one its keys back, unless another lives on one."""
    lease_id = found[0].within
    stray = [one.entity for one in found if one.kind is FindingKind.KEY_STRAY]
    mine = _keys.c.lease_id == lease_id
    connection.execute(
        sa.delete(_keys).where(mine, bulk.among(connection, _keys.c.key_name, stray))
    )
    missing = [one.entity for one in found if one.kind is FindingKind.KEY_MISSING]
    if missing:
        job_id = changes.find(connection, changes.LEASE, lease_id)["job_id"]
        for key in missing:
            row = {"key_name": key, "lease_id": lease_id, "job_id": job_id}
            changes.upsert(connection, _keys, row, changes={})
    changes.wake_all_waiting(connection, reason="keys were repaired")


def _stray_room(connection: sa.Connection, look: Look) -> list[Finding]:
    """Find held room that has counted for nothing for longer than the next plan may take."""
    over = sa.func.coalesce(_jobs.c.finished_at, _jobs.c.leased_at, _room.c.since_at)
    lapsed = sa.and_(
        _room.c.kind == HoldKind.NOMINATION.value, _room.c.deadline_at < look.impatient
    )
    query = (
        sa.select(_room.c.job_id, _room.c.kind, _room.c.runner_id, _jobs.c.state)
        .outerjoin(_jobs, _jobs.c.job_id == _room.c.job_id)
        .outerjoin(_runners, _runners.c.runner_id == _room.c.runner_id)
        .where(
            look.inside(_room.c.job_id),
            look.of_partition(_room.c.partition),
            sa.or_(
                _jobs.c.job_id.is_(None),
                _runners.c.runner_id.is_(None),
                lapsed,
                sa.and_(_jobs.c.state != JobState.ELIGIBLE.value, over < look.impatient),
            ),
        )
        .order_by(_room.c.job_id)
    )
    return [
        Finding(
            kind=FindingKind.ROOM_STRAY,
            entity=row["job_id"],
            within=row["job_id"],
            found=f"{row['kind']} on {row['runner_id']}, the job is {row['state'] or 'gone'}",
            expected="no room held",
        )
        for row in connection.execute(query).mappings()
    ]


def _lock_room(connection: sa.Connection, job_id: str) -> None:
    query = sa.select(_room.c.job_id).where(_room.c.job_id == job_id)
    connection.execute(query.with_for_update()).all()


def _free_room(connection: sa.Connection, found: Sequence[Finding], _look: Look) -> None:
    connection.execute(sa.delete(_room).where(_room.c.job_id == found[0].within))


DEVICES = Comparison(name="devices", find=_stray_devices, lock=books.lock, fix=_free_devices)
KEYS = Comparison(name="keys", find=_find_keys, lock=_lock_keys, fix=_fix_keys)
ROOM = Comparison(name="held room", find=_stray_room, lock=_lock_room, fix=_free_room)
