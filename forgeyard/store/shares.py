"""Scopes as operators declare them: who shares what with whom, up to which limits, and pauses.

A path names a scope: `acme` a tenant, `acme/core/web/main` a queue, `pool:mac` the runners of a
pool, and `everything` the root above all of them. Every change is audited and wakes the scheduler.
"""

import difflib
import random
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from forgeyard.errors import Conflict, InvalidRequest, NotFound, TooLarge
from forgeyard.scheduler.scopes import POOL, ROOT, Usage
from forgeyard.store import changes, scopes, tables
from forgeyard.store.births import draw_id
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now

EVERYTHING = "everything"
DEFAULT_QUEUE = "default/default/default/default"
MOST_SCOPES = 10_000
"""Every cycle looks at all of them."""
_KINDS = ("tenant", "organization", "project", "queue")
_LEVELS = {"tenant": 0, "organization": 1, "project": 2, "queue": 4}
_PREFIXES = {"tenant": "tnt", "organization": "org", "project": "prj", "queue": "que"}
_NEAR = 3
_scopes = tables.scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What an operator may set of a scope; a limit of `None` is none."""

    weight: int = 1
    max_jobs: int | None = None
    max_cpu_milli: int | None = None
    max_memory_bytes: int | None = None
    burst_percent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Who wants a change, through which channel, and why; all three are audited."""

    actor: str
    channel: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeView:
    """A scope: its shares, whether it is paused, and what its jobs hold now."""

    path: str
    scope_id: str
    kind: str
    version: int
    shares: Shares
    paused: bool
    note: str
    used: Usage


def list_scopes(connection: sa.Connection, *, tenant: str | None = None) -> tuple[ScopeView, ...]:
    """List every scope by its path, the root first; where one is named, a tenant's alone."""
    rows, used = by_path(connection), scopes.usage(connection)
    ordered = sorted(rows, key=lambda path: (path != EVERYTHING, path.startswith(POOL), path))
    return tuple(
        _view(path, rows[path], used)
        for path in ordered
        if tenant is None or path.split("/")[0] == tenant
    )


def by_path(connection: sa.Connection) -> dict[str, Row]:
    """Read every scope, by its path."""
    query = sa.select(_scopes).order_by(_scopes.c.level, _scopes.c.name)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    paths: dict[str, str] = {}
    for row in rows:
        outer = paths.get(row["parent_id"] or "", EVERYTHING)
        if row["scope_id"] == ROOT:
            paths[ROOT] = EVERYTHING
        elif row["kind"] == POOL:
            paths[row["scope_id"]] = f"{POOL}:{row['name']}"
        else:
            inside = "" if outer == EVERYTHING else f"{outer}/"
            paths[row["scope_id"]] = f"{inside}{row['name']}"
    return {paths[row["scope_id"]]: row for row in rows}


def show(connection: sa.Connection, path: str) -> ScopeView:
    """Show one scope.

    Raises:
        NotFound: nothing has this path; near ones are named.
    """
    return _view(path, _find(connection, path), scopes.usage(connection))


def queue_of(connection: sa.Connection, path: str | None) -> tuple[str, str, str, str]:
    """Find the ids of a queue and of the scopes around it, outermost first.

    Raises:
        NotFound: no queue has this path; near ones are named.
    """
    if path is None:
        return ("tnt_default", "org_default", "prj_default", "que_default")
    known = by_path(connection)
    queue = known.get(path)
    if queue is None or queue["kind"] != "queue":
        queues = {name: row for name, row in known.items() if row["kind"] == "queue"}
        raise _missing("queue", path, queues)
    by_id = {row["scope_id"]: row for row in known.values()}
    project = by_id[queue["parent_id"]]
    organization = by_id[project["parent_id"]]
    return (
        organization["parent_id"],
        organization["scope_id"],
        project["scope_id"],
        queue["scope_id"],
    )


def queue_for(
    connection: sa.Connection, path: str | None, *, tenant_id: str | None
) -> tuple[str, str, str, str]:
    """Find a queue for somebody whom a tenant may bound: the others' are as if there were none.

    Raises:
        NotFound: no queue of theirs has this path; near ones are named.
    """
    if tenant_id is None:
        return queue_of(connection, path)
    known, wanted = by_path(connection), path or DEFAULT_QUEUE
    (tenant,) = (name for name, row in known.items() if row["scope_id"] == tenant_id)
    if wanted.split("/")[0] != tenant:
        theirs = {name: row for name, row in known.items() if name.split("/")[0] == tenant}
        raise _missing("queue", wanted, {x: y for x, y in theirs.items() if y["kind"] == "queue"})
    return queue_of(connection, wanted)


def path_of(connection: sa.Connection, scope_ids: Collection[str]) -> str:
    """Write the path of a queue from its own id and those of the scopes around it."""
    query = sa.select(_scopes.c.name).where(_scopes.c.scope_id.in_(scope_ids))
    return "/".join(connection.execute(query.order_by(_scopes.c.level)).scalars())


def create(
    connection: sa.Connection,
    path: str,
    shares: Shares,
    *,
    intent: Intent,
    rng: random.Random,
) -> None:
    """Declare a scope inside one that exists.

    Raises:
        NotFound: the scope around it does not exist.
        Conflict: it exists already.
        InvalidRequest: nothing can be declared at this path.
        TooLarge: there are too many scopes.
    """
    kind, outer, name = _place_of(path)
    parent = _locked(connection, _find(connection, outer))
    known = by_path(connection)
    if path in known:
        raise _exists(path, known[path])
    if len(known) >= MOST_SCOPES:
        raise TooLarge("there are too many scopes", field="path", allowed=f"{MOST_SCOPES} at most")
    now = database_now(connection)
    row = {
        "scope_id": draw_id(_PREFIXES[kind], now=now, rng=rng),
        "level": _LEVELS[kind],
        "kind": kind,
        "name": name,
        "parent_id": parent["scope_id"],
        **asdict(shares),
    }
    connection.execute(sa.insert(_scopes).values(row))
    after = changes.digest(_of_operators({**row, "paused": 0, "note": None}))
    _tell(connection, "scope.create", path, intent, said=_said(shares), after=after, now=now)


def create_with_parents(
    connection: sa.Connection,
    path: str,
    shares: Shares,
    *,
    intent: Intent,
    rng: random.Random,
) -> None:
    """Declare a scope, and before it every scope around it that does not exist, with one share.

    Raises:
        Conflict: it exists already.
        InvalidRequest: nothing can be declared at this path.
        TooLarge: there are too many scopes.
    """
    _place_of(path)
    names, known = path.split("/"), by_path(connection)
    for length in range(1, len(names)):
        outer = "/".join(names[:length])
        if outer not in known:
            create(connection, outer, Shares(), intent=intent, rng=rng)
    create(connection, path, shares, intent=intent, rng=rng)


def change(
    connection: sa.Connection,
    path: str,
    shares: Shares,
    *,
    expected_version: int,
    intent: Intent,
) -> None:
    """Set the shares of a scope that is still as the caller has seen it.

    Raises:
        NotFound: nothing has this path.
        Conflict: it has changed meanwhile.
    """
    row = _locked(connection, _find(connection, path))
    if row["version"] != expected_version:
        raise Conflict(
            f"{path} is at version {row['version']}, not {expected_version}",
            field="expected_version",
            value=expected_version,
            allowed=f"{row['version']}, once you have read that",
        )
    _write(connection, row, asdict(shares), path=path, intent=intent, said=_said(shares))


def pause(connection: sa.Connection, path: str, *, note: str, intent: Intent) -> None:
    """Let no job of a scope start until it is resumed; what runs goes on.

    Raises:
        NotFound: nothing has this path.
    """
    row = _locked(connection, _find(connection, path))
    paused = {"paused": 1, "note": note}
    _write(connection, row, paused, path=path, intent=intent, said=note, action="scope.pause")


def resume(connection: sa.Connection, path: str, *, intent: Intent) -> None:
    """Let the jobs of a scope start again.

    Raises:
        NotFound: nothing has this path.
    """
    row = _locked(connection, _find(connection, path))
    resumed = {"paused": 0, "note": None}
    _write(connection, row, resumed, path=path, intent=intent, action="scope.resume")


def _find(connection: sa.Connection, path: str) -> Row:
    known = by_path(connection)
    if path not in known:
        raise _missing("scope", path, known)
    return known[path]


def _missing(what: str, path: str, known: Mapping[str, Row]) -> NotFound:
    # Whoever knows a tenant need not be of another one.
    beside = [name for name in known if name.split("/")[0] == path.split("/")[0]]
    known = {name: known[name] for name in beside} or known
    near = difflib.get_close_matches(path, known, n=_NEAR, cutoff=0.5)
    return NotFound(
        f"there is no {what} {path!r}",
        field=what,
        value=path,
        allowed=", ".join(near or sorted(known)[:_NEAR]),
    )


def _exists(path: str, row: Row) -> Conflict:
    return Conflict(
        f"{path} exists already, at version {row['version']}",
        field="expected_version",
        value=0,
        allowed=f"{row['version']}, to change it",
    )


def _place_of(path: str) -> tuple[str, str, str]:
    """Tell of what kind a new scope is, in which one it lies, and its own name."""
    *outer, name = path.split("/")
    if path == EVERYTHING or path.startswith(f"{POOL}:") or len(outer) >= len(_KINDS):
        raise InvalidRequest(
            f"{path!r} cannot be declared as a scope",
            field="path",
            value=path,
            allowed="TENANT, TENANT/ORGANIZATION, …/PROJECT or …/QUEUE",
        )
    return _KINDS[len(outer)], "/".join(outer) or EVERYTHING, name


def _locked(connection: sa.Connection, row: Row) -> Row:
    """Lock a scope and read it anew."""
    query = sa.select(_scopes).where(_scopes.c.scope_id == row["scope_id"]).with_for_update()
    return dict(connection.execute(query).mappings().one())


def _write(
    connection: sa.Connection,
    row: Row,
    values: Mapping[str, object],
    *,
    path: str,
    intent: Intent,
    action: str = "scope.set",
    said: str = "",
) -> None:
    """Change a locked scope, and tell of it."""
    changed = {**values, "version": row["version"] + 1}
    query = sa.update(_scopes).where(_scopes.c.scope_id == row["scope_id"])
    connection.execute(query.values(changed))
    before, after = (changes.digest(_of_operators(one)) for one in (row, {**row, **changed}))
    now = database_now(connection)
    _tell(connection, action, path, intent, said=said, before=before, after=after, now=now)


def _of_operators(row: Row) -> dict[str, object]:
    """Pick what operators set of a scope."""
    return {name: row[name] for name in (*Shares.__slots__, "paused", "note")}


def _tell(
    connection: sa.Connection,
    action: str,
    path: str,
    intent: Intent,
    *,
    said: str,
    before: str | None = None,
    after: str,
    now: int,
) -> None:
    """Audit a change and wake whoever may have waited for it."""
    changes.audit(
        connection,
        actor=intent.actor,
        channel=intent.channel,
        action=action,
        target=path,
        detail=f"{said}: {intent.reason}" if said else intent.reason,
        before=before,
        after=after,
        now=now,
    )
    changes.wake_all_waiting(connection, reason=f"{action} {path}")


def _said(shares: Shares) -> str:
    return ", ".join(f"{name} {value}" for name, value in asdict(shares).items() if value)


def _view(path: str, row: Row, used: Mapping[str, Usage]) -> ScopeView:
    return ScopeView(
        path=path,
        scope_id=row["scope_id"],
        kind=row["kind"],
        version=row["version"],
        shares=Shares(**{name: row[name] for name in Shares.__slots__}),
        paused=bool(row["paused"]),
        note=row["note"] or "",
        used=used.get(row["scope_id"], Usage()),
    )
