"""Pools: who owns them, whom they serve, when they are closed, and which runners are in them.

A pool is a scope of its own level, whose row is locked before anything of it changes and before a
placement into it becomes a lease. Every change is a new version, which voids what was planned.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.errors import Conflict, InvalidRequest, NotFound
from forgeyard.model.capability import TrustClass
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Millis
from forgeyard.scheduler.scopes import ROOT
from forgeyard.scheduler.standing import SchedulingPool, Sharing
from forgeyard.store import bulk, changes, generations, shares, tables
from forgeyard.store.births import draw_id
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now
from forgeyard.store.sessions import lock_runner
from forgeyard.store.shares import Intent

LEVEL = 3
OPEN, DRAINING = "open", "draining"
_pools, _scopes, _runners = tables.pools, tables.scopes, tables.runners
_windows = tables.maintenance_windows
_owner = _scopes.alias("owner")
_OWNED = sa.select(
    _pools, _owner.c.kind.label("owner_kind"), _owner.c.name.label("owner_name")
).join(_owner, _owner.c.scope_id == _pools.c.owner_id, isouter=True)
_NEAR = (
    sa.select(_windows)
    .where(_windows.c.ends_at > sa.bindparam("now"), _windows.c.starts_at <= sa.bindparam("soon"))
    .order_by(_windows.c.starts_at.desc(), _windows.c.window_id)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """What an operator says about a pool."""

    owner: str | None = None
    """The scope whose jobs it serves: its id, or the path of names from its tenant on."""
    trust: TrustClass | None = None
    sharing: Sharing = Sharing.SHARED
    spillover: bool = False


def load(
    connection: sa.Connection, policy: SchedulingPolicy, *, now: int
) -> dict[str, SchedulingPool]:
    """Read every pool as a cycle sees it at this instant."""
    closing = _closing(connection, policy, now=now)
    return {
        row["pool_id"]: _pool(dict(row), closing.get(row["pool_id"]))
        for row in connection.execute(_OWNED).mappings()
    }


def _closing(
    connection: sa.Connection, policy: SchedulingPolicy, *, now: int
) -> dict[str, tuple[Millis, str]]:
    """Find the next maintenance of each pool, if it is near; a pool is closed while it lasts."""
    span = {"now": now, "soon": now + policy.maintenance_lead}
    return {
        row["pool_id"]: (Millis(max(0, row["starts_at"] - now)), row["reason"])
        for row in connection.execute(_NEAR, span).mappings()
    }


def _pool(row: Row, closing: tuple[Millis, str] | None) -> SchedulingPool:
    closes_in, why = closing or (None, row["reason"] or "")
    return SchedulingPool(
        pool_id=row["pool_id"],
        name=row["name"],
        version=row["version"],
        owner_id=row["owner_id"],
        owner=f"{row['owner_kind']} {row['owner_name']}" if row["owner_id"] else "",
        trust=None if row["trust"] is None else TrustClass(row["trust"]),
        sharing=Sharing(row["sharing"]),
        spillover=bool(row["spillover"]),
        draining=row["state"] == DRAINING,
        closes_in=closes_in,
        reason=(row["reason"] or why) if row["state"] == DRAINING else why,
    )


def versions(connection: sa.Connection, pool_ids: Collection[str]) -> Mapping[str, int]:
    """Tell the versions of pools whose scopes the caller has locked."""
    named = bulk.among(connection, _pools.c.pool_id, pool_ids)
    query = sa.select(_pools.c.pool_id, _pools.c.version).where(named)
    return {pool_id: version for pool_id, version in connection.execute(query)}


def create(
    connection: sa.Connection, name: str, rules: PoolRules, intent: Intent, *, rng: random.Random
) -> str:
    """Make a pool; return its id.

    Raises:
        Conflict: there is one of this name.
        NotFound: its owner is no scope.
        InvalidRequest: it is reserved for nobody.
    """
    now = database_now(connection)
    pool_id = draw_id("pol", now=now, rng=rng)
    row = {"pool_id": pool_id, "name": name, "created_at": now, **_ruled(connection, rules)}
    changes.upsert(connection, _pools, row, changes={}, keys=("name",))
    if _find(connection, name)["pool_id"] != pool_id:
        raise Conflict(f"there is a pool {name}", field="name", value=name, allowed="another name")
    scope = {"scope_id": pool_id, "level": LEVEL, "kind": "pool", "name": name, "parent_id": ROOT}
    connection.execute(sa.insert(_scopes).values(scope))
    after = changes.digest(_ruled(connection, rules))
    _told(connection, "pool.create", pool_id, intent, _said(rules), after=after)
    return pool_id


def change(connection: sa.Connection, name_or_id: str, rules: PoolRules, intent: Intent) -> None:
    """Say anew whom a pool serves; running jobs go on.

    Raises:
        NotFound: there is no such pool or owner.
        InvalidRequest: it is reserved for nobody.
    """
    pool = _lock(connection, name_or_id)
    ruled = _ruled(connection, rules)
    _update(connection, pool, ruled)
    before, after = changes.digest({name: pool[name] for name in ruled}), changes.digest(ruled)
    said = _said(rules)
    _told(connection, "pool.set", pool["pool_id"], intent, said, before=before, after=after)


def drain(connection: sa.Connection, name_or_id: str, intent: Intent) -> None:
    """Let the runners of a pool finish what they have and take nothing more (RUN-002).

    Raises:
        NotFound: there is no such pool.
    """
    pool = _lock(connection, name_or_id)
    _update(connection, pool, {"state": DRAINING, "reason": intent.reason})
    _told(connection, "pool.drain", pool["pool_id"], intent)


def undrain(connection: sa.Connection, name_or_id: str, intent: Intent) -> None:
    """Let the runners of a pool take work again.

    Raises:
        NotFound: there is no such pool.
    """
    pool = _lock(connection, name_or_id)
    _update(connection, pool, {"state": OPEN, "reason": None})
    _told(connection, "pool.undrain", pool["pool_id"], intent)


def assign(connection: sa.Connection, runner: str, name_or_id: str, intent: Intent) -> None:
    """Put a runner into a pool, whatever it asked for; its running jobs go on (ELG-042).

    Raises:
        NotFound: there is no such runner or pool.
    """
    named = sa.or_(_runners.c.name == runner, _runners.c.runner_id == runner)
    found = connection.execute(sa.select(_runners).where(named)).mappings().one_or_none()
    if found is None:
        raise NotFound(f"no runner {runner}", field="runner", value=runner)
    pool = _find(connection, name_or_id)
    # Both pools first: whoever grants locks scopes before runners.
    _lock_scopes(connection, (pool["pool_id"], found["pool_id"]))
    lock_runner(connection, found["runner_id"])
    connection.execute(
        sa.update(_runners)
        .where(_runners.c.runner_id == found["runner_id"])
        .values(pool_id=pool["pool_id"], changed_at=database_now(connection))
    )
    _told(connection, "pool.assign", found["runner_id"], intent, f"to {pool['name']}")


def add_window(
    connection: sa.Connection,
    name_or_id: str,
    *,
    starts_at: int,
    ends_at: int,
    intent: Intent,
    partition: str,
    rng: random.Random,
) -> str:
    """Close a pool for maintenance from one instant to another; return the window's id (RUN-004).

    Raises:
        NotFound: there is no such pool.
        InvalidRequest: it ends before it starts, or is over.
    """
    now = database_now(connection)
    if not (starts_at < ends_at and now < ends_at):
        raise InvalidRequest(
            "a maintenance window ends after it starts, and not in the past",
            field="ends_at",
            value=ends_at,
            allowed=f"more than {max(starts_at, now)}",
        )
    pool = _lock(connection, name_or_id)
    window_id = draw_id("mwn", now=now, rng=rng)
    window = {"window_id": window_id, "pool_id": pool["pool_id"], "starts_at": starts_at}
    said = {"ends_at": ends_at, "reason": intent.reason, "actor": intent.actor}
    connection.execute(sa.insert(_windows).values({**window, **said}))
    kind = changes.DeadlineKind.MAINTENANCE
    changes.set_deadline(connection, kind, window_id, partition=partition, due_at=ends_at)
    _update(connection, pool, {})
    _told(connection, "pool.maintenance_add", pool["pool_id"], intent, window_id)
    return window_id


def cancel_window(connection: sa.Connection, window_id: str, intent: Intent) -> None:
    """Open a pool again, or never close it.

    Raises:
        NotFound: there is no such window.
    """
    query = sa.select(_windows.c.pool_id).where(_windows.c.window_id == window_id)
    pool_id = connection.execute(query).scalar()
    if pool_id is None:
        raise NotFound(f"no maintenance {window_id}", field="window_id", value=window_id)
    pool = _lock(connection, pool_id)
    connection.execute(sa.delete(_windows).where(_windows.c.window_id == window_id))
    changes.clear_deadlines(connection, window_id, changes.DeadlineKind.MAINTENANCE)
    _update(connection, pool, {})
    _told(connection, "pool.maintenance_cancel", pool_id, intent, window_id)


def _ruled(connection: sa.Connection, rules: PoolRules) -> dict[str, object]:
    if rules.owner is None and rules.sharing is Sharing.RESERVED:
        raise InvalidRequest(
            "a reserved pool needs an owner", field="owner", allowed="the scope that it is for"
        )
    return {
        "owner_id": None if rules.owner is None else _owner_id(connection, rules.owner),
        "trust": None if rules.trust is None else rules.trust.value,
        "sharing": rules.sharing.value,
        "spillover": int(rules.spillover),
    }


def _owner_id(connection: sa.Connection, said: str) -> str:
    known = shares.by_path(connection)
    ids = {row["scope_id"] for row in known.values()}
    if said in known:
        return str(known[said]["scope_id"])
    if said not in ids:
        raise NotFound(
            f"no scope {said}",
            field="owner",
            value=said,
            allowed="its id, or tenant/organization/…",
        )
    return said


def _said(rules: PoolRules) -> str:
    parts = (rules.sharing, rules.owner and f"owner {rules.owner}", rules.trust)
    lends = "lends what is idle" if rules.spillover else ""
    return ", ".join(part for part in (*parts, lends) if part)


def _find(connection: sa.Connection, name_or_id: str) -> Row:
    named = sa.or_(_pools.c.name == name_or_id, _pools.c.pool_id == name_or_id)
    row = connection.execute(sa.select(_pools).where(named)).mappings().first()
    if row is None:
        raise NotFound(f"no pool {name_or_id}", field="pool", value=name_or_id)
    return dict(row)


def _lock(connection: sa.Connection, name_or_id: str) -> Row:
    """Lock a pool's scope, then read the pool."""
    pool_id = _find(connection, name_or_id)["pool_id"]
    _lock_scopes(connection, (pool_id,))
    return _find(connection, pool_id)


def _lock_scopes(connection: sa.Connection, pool_ids: Sequence[str]) -> None:
    query = (
        sa.select(_scopes.c.scope_id)
        .where(_scopes.c.scope_id.in_(pool_ids))
        .order_by(_scopes.c.level, _scopes.c.scope_id)
        .with_for_update()
    )
    connection.execute(query)


def _update(connection: sa.Connection, pool: Row, values: Mapping[str, object]) -> None:
    changed = {**values, "version": pool["version"] + 1}
    connection.execute(sa.update(_pools).where(_pools.c.pool_id == pool["pool_id"]).values(changed))


def _told(
    connection: sa.Connection,
    action: str,
    target: str,
    intent: Intent,
    what: str = "",
    *,
    before: str | None = None,
    after: str | None = None,
) -> None:
    """Audit a change, let what could never run be judged again, and wake every loop."""
    changes.audit(
        connection,
        actor=intent.actor,
        channel=intent.channel,
        action=action,
        target=target,
        detail=": ".join(part for part in (what, intent.reason) if part),
        before=before,
        after=after,
        now=database_now(connection),
    )
    generations.bump(connection)
    changes.wake_all_waiting(connection, reason=f"{action}: {intent.reason}")
