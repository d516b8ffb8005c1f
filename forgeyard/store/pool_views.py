"""Pools as people are shown them; nothing here changes a row or locks one."""

from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.errors import NotFound
from forgeyard.store import tables
from forgeyard.store.changes import Row

_pools, _scopes, _runners = tables.pools, tables.scopes, tables.runners
_windows = tables.maintenance_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowView:
    """When a pool is or will be closed for maintenance."""

    window_id: str
    pool_id: str
    starts_at: int
    ends_at: int
    reason: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """A pool, the names of its runners, and of those that only ask to be in it."""

    pool_id: str
    name: str
    state: str
    reason: str | None
    owner_id: str | None
    owner: str | None
    trust: str | None
    sharing: str
    spillover: bool
    runners: tuple[str, ...]
    wished_by: tuple[str, ...]
    maintenance: tuple[WindowView, ...]
    created_at: int


def pools(connection: sa.Connection) -> tuple[PoolView, ...]:
    """List every pool, by name."""
    owner = _scopes.alias("owner")
    query = (
        sa.select(_pools, (owner.c.kind + " " + owner.c.name).label("owner"))
        .join(owner, owner.c.scope_id == _pools.c.owner_id, isouter=True)
        .order_by(_pools.c.name)
    )
    members = sa.select(_runners.c.name, _runners.c.pool_id, _runners.c.pool_wish)
    members = members.where(_runners.c.retired_at.is_(None)).order_by(_runners.c.name)
    runners = connection.execute(members).mappings().all()
    ordered = sa.select(_windows).order_by(_windows.c.starts_at, _windows.c.window_id)
    windows = [_window(dict(row)) for row in connection.execute(ordered).mappings()]
    return tuple(
        PoolView(
            **{name: row[name] for name in _PLAIN},
            spillover=bool(row["spillover"]),
            runners=tuple(one["name"] for one in runners if one["pool_id"] == row["pool_id"]),
            wished_by=tuple(
                one["name"]
                for one in runners
                if one["pool_wish"] == row["name"] and one["pool_id"] != row["pool_id"]
            ),
            maintenance=tuple(one for one in windows if one.pool_id == row["pool_id"]),
        )
        for row in connection.execute(query).mappings()
    )


_DERIVED = {"spillover", "runners", "wished_by", "maintenance"}
_PLAIN = tuple(name for name in PoolView.__slots__ if name not in _DERIVED)


def pool(connection: sa.Connection, name_or_id: str) -> PoolView:
    """Show one pool.

    Raises:
        NotFound: there is none of this name or id.
    """
    found = (one for one in pools(connection) if name_or_id in (one.name, one.pool_id))
    one = next(found, None)
    if one is None:
        raise NotFound(f"no pool {name_or_id}", field="pool", value=name_or_id)
    return one


def window(connection: sa.Connection, window_id: str) -> WindowView:
    """Show one maintenance window that is known to be there."""
    query = sa.select(_windows).where(_windows.c.window_id == window_id)
    return _window(dict(connection.execute(query).mappings().one()))


def _window(row: Row) -> WindowView:
    return WindowView(**{name: row[name] for name in WindowView.__slots__})
