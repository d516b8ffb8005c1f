"""The audit trail as a chain: each line is sealed by a hash over it and over the seal before it.

A line is written in the transaction of the change that it tells of, and waits for nobody; it is
sealed some seconds later, in a transaction that takes turns with nothing but other sealing. So no
placement and no request ever waits for the trail. What is sealed cannot be changed, taken out or
put elsewhere without a trace; that the end was cut off shows against a head that was kept.
"""

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa

from forgeyard.store import bulk, tables
from forgeyard.store.changes import Row

_LOCK: Final = 0x466F726765  # any number that nobody else locks
_WINDOW: Final = 10_000
"""How far below the newest sealed line one may still be found that was committed late."""
_AT_ONCE: Final = 2_000
MOST_FAULTS: Final = 100
_audit, _chain = tables.audit, tables.audit_chain
_COVERED: Final = (
    *("audit_id", "at", "actor", "principal", "channel", "action", "target", "detail"),
    *("before_digest", "after_digest"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A place in the chain; `hash` says all that came before it."""

    seq: int
    hash: str


ORIGIN: Final = Head(seq=0, hash=f"sha256:{'0' * 64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """Who did what, why, and with whose token; `seq` is its place in the chain once it has one."""

    audit_id: int
    seq: int | None
    at: int
    actor: str
    """As claimed."""
    principal: str
    """Whose token it was; empty if the system acted by itself."""
    channel: str
    action: str
    target: str
    detail: str
    before_digest: str | None
    after_digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Some lines, the newest first; `next` is the `before` of the following page."""

    lines: tuple[AuditLine, ...]
    next: int | None


class FaultKind(StrEnum):
    """What is wrong with a place in the chain."""

    LINE_GONE = "line_gone"
    CHANGED = "changed"
    """The line, or its place, is not what was sealed."""
    SEAL_GONE = "seal_gone"
    HEAD_GONE = "head_gone"
    """A head that was kept is not in the chain: its end was cut off, or it was written anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is not as it was."""

    kind: FaultKind
    seq: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What going through the whole chain has found; without faults it is as it was written."""

    sealed: int
    unsealed: int
    """Lines that are too young to be sealed, or that no API process was there to seal."""
    head: Head
    faults: tuple[Fault, ...]


def list_lines(
    connection: sa.Connection,
    *,
    limit: int,
    before: int | None = None,
    action: str | None = None,
    target: str | None = None,
) -> AuditPage:
    """List lines, the newest first, below the cursor `before`."""
    joined = _audit.outerjoin(_chain, _chain.c.audit_id == _audit.c.audit_id)
    query = sa.select(_audit, _chain.c.seq).select_from(joined)
    if before is not None:
        query = query.where(_audit.c.audit_id < before)
    if action is not None:
        query = query.where(_audit.c.action.startswith(action, autoescape=True))
    if target is not None:
        query = query.where(_audit.c.target == target)
    query = query.order_by(_audit.c.audit_id.desc()).limit(limit + 1)
    rows = list(connection.execute(query).mappings())
    lines = tuple(
        AuditLine(**{name: row[name] for name in AuditLine.__slots__}) for row in rows[:limit]
    )
    return AuditPage(lines=lines, next=lines[-1].audit_id if len(rows) > limit else None)


def head(connection: sa.Connection) -> Head:
    """Read the newest place in the chain."""
    query = sa.select(_chain.c.seq, _chain.c.hash).order_by(_chain.c.seq.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return ORIGIN if row is None else Head(seq=row.seq, hash=row.hash)


def seal_recent(connection: sa.Connection) -> int:
    """Seal what was written of late; return how many lines that was."""
    newest = connection.execute(sa.select(sa.func.max(_chain.c.audit_id))).scalar_one() or 0
    return _seal(connection, above=newest - _WINDOW)


def seal_all(connection: sa.Connection) -> int:
    """Seal whatever is not sealed yet, however old; return how many lines that was."""
    return _seal(connection, above=0)


def _seal(connection: sa.Connection, *, above: int) -> int:
    if not _take_turn(connection):
        return 0
    query = _unsealed(sa.select(_audit)).where(_audit.c.audit_id > above)
    query = query.order_by(_audit.c.audit_id).limit(_AT_ONCE)
    last, seals = head(connection), list[Row]()
    for line in connection.execute(query).mappings():
        last = Head(seq=last.seq + 1, hash=_hash(last, dict(line)))
        seals.append({"seq": last.seq, "audit_id": line["audit_id"], "hash": last.hash})
    bulk.insert(connection, _chain, seals)
    return len(seals)


def _take_turn(connection: sa.Connection) -> bool:
    """Be the only one that seals until the transaction ends; on SQLite every writer is alone."""
    if connection.dialect.name != "postgresql":
        return True
    query = sa.select(sa.func.pg_try_advisory_xact_lock(_LOCK))
    return bool(connection.execute(query).scalar_one())


def _unsealed(query: sa.Select[Any]) -> sa.Select[Any]:
    sealed = sa.exists().where(_chain.c.audit_id == _audit.c.audit_id)
    return query.where(~sealed)


def _hash(before: Head, line: Row) -> str:
    said = [before.seq + 1, before.hash, *(line[name] for name in _COVERED)]
    text = json.dumps(said, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def verify(connection: sa.Connection, kept: Collection[Head] = ()) -> Verified:
    """Go through the whole chain; heads that were kept elsewhere have to be in it."""
    faults, last, count = list[Fault](), ORIGIN, 0
    missing = {(one.seq, one.hash) for one in kept}
    for row in _links(connection):
        count += 1
        if len(faults) < MOST_FAULTS:
            faults.extend(_faults(last, row))
        # Goes on from what stands there, so that one fault is not told of every later line.
        last = Head(seq=row["seq"], hash=row["seal"])
        missing -= {(last.seq, last.hash), (0, last.hash)}
    unsealed = connection.execute(_unsealed(sa.select(sa.func.count()).select_from(_audit)))
    faults += [
        Fault(
            kind=FaultKind.HEAD_GONE,
            seq=seq,
            text=f"{value} was the head at {seq or 'some time'}, and is not in the chain",
        )
        for seq, value in sorted(missing)
    ]
    return Verified(sealed=count, unsealed=unsealed.scalar_one(), head=last, faults=tuple(faults))


def _links(connection: sa.Connection) -> Iterator[Row]:
    """Read the chain in order, each seal with its line, some at a time."""
    joined = _chain.outerjoin(_audit, _audit.c.audit_id == _chain.c.audit_id)
    columns = (_chain.c.seq, _chain.c.audit_id.label("of"), _chain.c.hash.label("seal"), _audit)
    query = sa.select(*columns).select_from(joined).order_by(_chain.c.seq).limit(_AT_ONCE)
    after = 0
    while rows := list(connection.execute(query.where(_chain.c.seq > after)).mappings()):
        yield from (dict(row) for row in rows)
        after = rows[-1]["seq"]


def _faults(last: Head, row: Row) -> Iterator[Fault]:
    """Tell what is wrong with one link; after a gap nothing can be said of the next one's place."""
    seq = row["seq"]
    if seq != last.seq + 1:
        text = f"the seals {last.seq + 1} to {seq - 1} are gone"
        yield Fault(kind=FaultKind.SEAL_GONE, seq=last.seq + 1, text=text)
    elif row["audit_id"] is None:
        text = f"line {row['of']} is gone"
        yield Fault(kind=FaultKind.LINE_GONE, seq=seq, text=text)
    elif _hash(last, row) != row["seal"]:
        text = f"line {row['of']}, or its place, is not what was sealed"
        yield Fault(kind=FaultKind.CHANGED, seq=seq, text=text)
