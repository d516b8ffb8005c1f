"""Whether this store is the newest there was, or an older copy that somebody has put back.

The store leaves marks: with every beat of the renewal service and with every plan. Whoever is told
one keeps it outside the database: agents in their journals, upkeep and the scheduler's loop in
Temporal. A witness that knows a mark which this database has never made proves that part of what
happened is missing here. Then the store is held: nothing is placed, nothing lapses, nothing is
deleted and nobody is told no, until an operator confirms that this is the store from now on.
"""

import logging
import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import StoreHeld
from forgeyard.store import changes, tables
from forgeyard.store.engine import database_now, read, write

NAME = "store"
MARKS_KEPT = 50_000
"""An older mark than these proves nothing: at the pace of beats they reach back for days."""
ADVICE = "see `forgeyard store status`, then `forgeyard store confirm --reason WHY`"
_lineage, _marks, _claims = tables.lineage, tables.store_marks, tables.store_claims
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Why the store is held: what was noticed, when and by whom."""

    at: int
    reason: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A mark as a witness keeps it; to everybody else its text is opaque."""

    store_id: str
    era: int
    value: int
    token: str

    @property
    def text(self) -> str:
        """Write it the way `parsed` reads it."""
        return f"{self.store_id}.{self.era}.{self.value}.{self.token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What the store knows of itself; before its first mark it has no identity."""

    store_id: str = ""
    era: int = 0
    hold: Hold | None = None
    newest: Mark | None = None

    @property
    def mark(self) -> str:
        """Give the newest mark to a witness; while held nothing that it may keep."""
        return "" if self.newest is None or self.hold is not None else self.newest.text


def parsed(said: str) -> Mark | None:
    """Read what a witness kept; anything else than a mark is none."""
    parts = said.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdecimal() for part in parts[1:3]):
        return None
    store_id, era, value, token = parts
    return Mark(store_id=store_id, era=int(era), value=int(value), token=token)


def current(connection: sa.Connection) -> Lineage:
    """Read what the store knows of itself, and its newest mark."""
    row = connection.execute(_CURRENT).mappings().one_or_none()
    if row is None:
        return Lineage()
    store_id, era, value = row["store_id"], row["era"], row["value"]
    hold, mark = None, None
    if row["held_at"] is not None:
        hold = Hold(at=row["held_at"], reason=row["held_reason"] or "", by=row["held_by"] or "")
    if value is not None:
        mark = Mark(store_id=store_id, era=era, value=value, token=row["token"])
    return Lineage(store_id=store_id, era=era, hold=hold, newest=mark)


_CURRENT = sa.select(_lineage, _marks.c.value, _marks.c.token).outerjoin(
    _marks, _marks.c.value == sa.select(sa.func.max(_marks.c.value)).scalar_subquery()
)
STANDING: Final[tuple[sa.ColumnElement[int], ...]] = (
    sa.func.coalesce(sa.select(_lineage.c.era).scalar_subquery(), 0).label("era"),
    sa.select(_lineage.c.held_at).scalar_subquery().label("held_at"),
)
"""The era and since when the store is held, as part of another query."""
_HELD = sa.select(_lineage.c.held_at).where(_lineage.c.held_at.is_not(None))


def is_held(connection: sa.Connection) -> bool:
    """Tell whether an operator has to confirm this store before anything is decided."""
    return connection.execute(_HELD).first() is not None


def why_held(connection: sa.Connection) -> str:
    """Tell in one sentence why the store is held; empty if it is not."""
    hold = current(connection).hold
    return "" if hold is None else refusal(hold).message


def demand_free(connection: sa.Connection) -> None:
    """Pass only while the store is not held.

    Raises:
        StoreHeld: it is.
    """
    hold = current(connection).hold if is_held(connection) else None
    if hold is not None:
        raise refusal(hold)


def refusal(hold: Hold) -> StoreHeld:
    """Say why something has to wait, and for what."""
    return StoreHeld(f"the store is held: {hold.reason}", field="store", allowed=ADVICE)


def leave_mark(connection: sa.Connection, *, rng: random.Random) -> None:
    """Make the next mark; call it last, for marks are made one after the other."""
    first = {"name": NAME, "store_id": f"str_{rng.getrandbits(80):020x}"}
    changes.upsert(connection, _lineage, first, changes={})
    connection.execute(sa.select(_lineage.c.name).with_for_update()).all()
    newest = connection.execute(sa.select(sa.func.max(_marks.c.value))).scalar_one() or 0
    row = {"token": f"{rng.getrandbits(64):016x}", "at": database_now(connection)}
    connection.execute(sa.insert(_marks).values(value=newest + 1, **row))
    connection.execute(sa.delete(_marks).where(_marks.c.value <= newest - MARKS_KEPT))


def heed(
    connection: sa.Connection,
    said: str,
    *,
    witness: str,
    session_id: str = "",
    lease_ids: Collection[str] = (),
) -> Lineage:
    """Compare what a witness knows with what is here, and hold the store if something is missing.

    A session or a lease of which there is no trace is proof as well, from whoever shows a mark of
    this very store. What was known before a restore that an operator has confirmed proves nothing.
    """
    here = current(connection)
    missing = _missing(connection, here, said, session_id=session_id, lease_ids=lease_ids)
    if missing is None:
        return here
    return hold(connection, reason=missing, by=witness, actor="system", channel="store")


def ask(
    engine: sa.Engine,
    said: str,
    *,
    witness: str,
    session_id: str = "",
    lease_ids: Collection[str] = (),
) -> Lineage:
    """Heed a witness in transactions of its own; one that writes only if something is missing."""
    with read(engine) as connection:
        here = current(connection)
        if _missing(connection, here, said, session_id=session_id, lease_ids=lease_ids) is None:
            return here
    with write(engine) as connection:
        return heed(connection, said, witness=witness, session_id=session_id, lease_ids=lease_ids)


def _missing(
    connection: sa.Connection,
    here: Lineage,
    said: str,
    *,
    session_id: str,
    lease_ids: Collection[str],
) -> str | None:
    """Say what a witness knows and this store does not, unless it is known to miss something."""
    mark = parsed(said)
    if here.hold is not None or mark is None:
        return None
    if mark.store_id != here.store_id or mark.era < here.era:
        return None
    return _missing_mark(connection, here, mark) or _missing_rows(connection, session_id, lease_ids)


def _missing_mark(connection: sa.Connection, here: Lineage, mark: Mark) -> str | None:
    """Say what of a mark is not here, if anything."""
    if mark.era > here.era:
        return f"a restore was confirmed at {mark.era} of which this store knows nothing"
    newest = 0 if here.newest is None else here.newest.value
    if mark.value > newest:
        return f"mark {mark.value} was seen, and the newest of this store is {newest}"
    query = sa.select(_marks.c.token).where(_marks.c.value == mark.value)
    token = connection.execute(query).scalar_one_or_none()
    if token is not None and token != mark.token:
        return f"mark {mark.value} was seen, and that of this store is another"
    return None


def _missing_rows(
    connection: sa.Connection, session_id: str, lease_ids: Collection[str]
) -> str | None:
    """Say which session or lease is not here, not even as one that has ended."""
    sessions = tables.sessions
    if session_id:
        query = sa.select(sessions.c.session_id).where(sessions.c.session_id == session_id)
        if connection.execute(query).first() is None:
            return f"session {session_id} was opened, and this store knows nothing of it"
    unknown = sorted(set(lease_ids) - known_leases(connection, lease_ids))
    return (
        f"lease {unknown[0]} was granted, and this store knows nothing of it" if unknown else None
    )


def known_leases(connection: sa.Connection, lease_ids: Collection[str]) -> set[str]:
    """Pick the leases that there are, whatever their state."""
    leases = tables.leases
    if not lease_ids:
        return set()
    query = sa.select(leases.c.lease_id).where(leases.c.lease_id.in_(sorted(set(lease_ids))))
    return set(connection.execute(query).scalars())


def hold(connection: sa.Connection, *, reason: str, by: str, actor: str, channel: str) -> Lineage:
    """Hold the store from now on; one that is held already stays as it is."""
    now = database_now(connection)
    held = {"held_at": now, "held_reason": reason, "held_by": by}
    free = _lineage.c.held_at.is_(None)
    if connection.execute(sa.update(_lineage).where(free).values(held)).rowcount:
        detail = f"{by}: {reason}"
        changes.audit(
            connection,
            actor=actor,
            channel=channel,
            action="store.held",
            target=NAME,
            detail=detail,
            now=now,
        )
        logger.critical("the store is held: %s; %s", detail, ADVICE)
    return current(connection)


def claim(connection: sa.Connection, session_id: str, lease_ids: Collection[str]) -> None:
    """Note for which leases an agent says that it works; nothing once the hold has ended.

    Whoever asks may have heard of the hold a while ago; one that ends now waits for this to end.
    """
    if connection.execute(_HELD.with_for_update(read=True)).first() is None:
        return
    now = database_now(connection)
    for lease_id in sorted(set(lease_ids)):
        row = {"session_id": session_id, "at": now}
        changes.upsert(connection, _claims, {"lease_id": lease_id, **row}, changes=row)
