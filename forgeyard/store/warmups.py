"""What a new machine of a fleet is to have at hand before its jobs ask for it, and how that went.

Advice and nothing more: a runner is admitted without it, gets jobs meanwhile, and is as good as
any other if nothing comes of it (FOP-031 to FOP-034). What it may fetch are dependency caches of
its own trust class, as its jobs might.
"""

from collections import Counter
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import Conflict, NotFound, StaleRejected
from forgeyard.model.enrolment import Admission
from forgeyard.model.fleet import FleetSpec, WarmUp
from forgeyard.model.ids import Digest
from forgeyard.model.protocol import WarmArchive, WarmUpOutcome, WarmUpPlan
from forgeyard.model.units import Millis
from forgeyard.store import blobs, codec, distrust, fleet_tables, tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now

MOST_ARCHIVES: Final = 64
"""Of one warm-up."""
MOST_LOOKED_AT: Final = 512
_instances, _fleets = fleet_tables.capacity_instances, fleet_tables.fleets
_runners, _caches = tables.runners, tables.caches
_COLD: Final = (
    sa.select(_fleets.c.spec)
    .join(_instances, _instances.c.fleet_id == _fleets.c.fleet_id)
    .where(
        _instances.c.runner_name == sa.bindparam("name"),
        _instances.c.warmed_at.is_(None),
        _instances.c.ended_at.is_(None),
    )
)
_OWN: Final = (
    sa.select(
        _runners.c.trust,
        _runners.c.admission,
        _fleets.c.spec,
        _fleets.c.name.label("fleet"),
        _instances.c.instance_id,
        _instances.c.warmed_at,
    )
    .join(_instances, _instances.c.runner_name == _runners.c.name)
    .join(_fleets, _fleets.c.fleet_id == _instances.c.fleet_id)
    .where(_runners.c.session_id == sa.bindparam("own"), _instances.c.ended_at.is_(None))
)


def is_wanted(connection: sa.Connection, runner_name: str) -> bool:
    """Tell whether a runner is on a machine of a fleet that has not been warmed up yet."""
    found = connection.execute(_COLD, {"name": runner_name}).scalar_one_or_none()
    return found is not None and bool(_wish(found).caches)


def _wish(spec: str) -> WarmUp:
    return codec.decode(FleetSpec, spec).warmup


def plan(connection: sa.Connection, session_id: str) -> WarmUpPlan:
    """Say what the machine of a session is to fetch; nothing if it is of no fleet that says so.

    Raises:
        StaleRejected: the session has ended.
        Conflict: its runner is not admitted: then nothing is its to fetch.
    """
    row = _of_session(connection, session_id)
    if row is None:
        return WarmUpPlan(within=Millis(0))
    wish = _wish(row["spec"])
    within = Millis(wish.within)
    return WarmUpPlan(within=within, archives=_archives(connection, row["trust"], wish))


def _of_session(connection: sa.Connection, session_id: str) -> Row | None:
    sessions = tables.sessions
    current = sa.select(_runners.c.admission).where(_runners.c.session_id == session_id)
    admission = connection.execute(current).scalar_one_or_none()
    if admission is None:
        known = sa.select(sessions.c.session_id).where(sessions.c.session_id == session_id)
        kind = StaleRejected if connection.execute(known).first() else NotFound
        raise kind("there is no such session now", field="session_id", value=session_id)
    if admission != Admission.VERIFIED:
        raise Conflict("this runner is not admitted yet", field="admission", value=admission)
    found = connection.execute(_OWN, {"own": session_id}).mappings().one_or_none()
    return None if found is None else dict(found)


def _archives(connection: sa.Connection, trust: str, wish: WarmUp) -> tuple[WarmArchive, ...]:
    """Pick the newest of each name, then the second newest, as far as the bytes reach."""
    query = (
        sa.select(_caches)
        .where(_caches.c.trust == trust, _caches.c.name.in_(wish.caches))
        .order_by(_caches.c.used_at.desc(), _caches.c.cache_key)
        .limit(MOST_LOOKED_AT)
    )
    turns: Counter[str] = Counter()
    ranked: list[tuple[int, Row]] = []
    for row in connection.execute(query).mappings():
        if not distrust.covers(connection, row["runner_id"], row["created_at"]):
            turns[row["name"]] += 1
            ranked.append((turns[row["name"]], dict(row)))
    ranked.sort(key=lambda one: one[0])
    chosen: list[WarmArchive] = []
    left: int = wish.at_most
    for _, one in ranked:
        if one["size_bytes"] <= left and len(chosen) < MOST_ARCHIVES:
            left -= one["size_bytes"]
            key, digest = Digest(one["cache_key"]), Digest(one["digest"])
            chosen.append(WarmArchive(key=key, digest=digest, size=one["size_bytes"]))
    return tuple(chosen)


def demand_planned(connection: sa.Connection, session_id: str, digest: str) -> None:
    """Insist that an archive is of the warm-up of a session; it is kept for a while then.

    Raises:
        NotFound: it is not, or it is not there any more.
        StaleRejected: the session has ended.
        Conflict: its runner is not admitted.
    """
    planned = {one.digest for one in plan(connection, session_id).archives}
    if digest not in planned or blobs.touch(connection, digest) is None:
        raise NotFound("no archive of this warm-up", field="digest", value=digest)


def record(
    connection: sa.Connection, session_id: str, outcome: WarmUpOutcome
) -> tuple[str, str] | None:
    """Write down how the warm-up of a machine went: the first word counts.

    Returns the names of its fleet and of how it went, if that was news.

    Raises:
        StaleRejected: the session has ended.
        Conflict: its runner is not admitted.
    """
    row = _of_session(connection, session_id)
    if row is None or row["warmed_at"] is not None:
        return None
    own = _instances.c.instance_id == row["instance_id"]
    done = connection.execute(
        sa.update(_instances)
        .where(own, _instances.c.warmed_at.is_(None))
        .values(warmed_at=database_now(connection), warmup=codec.encode(outcome))
    )
    how = "incomplete" if outcome.missing or outcome.problem else "complete"
    return (str(row["fleet"]), how) if done.rowcount else None
