"""Events on their way from the transaction that made them to whoever acts on them.

A relay claims whole streams for a while, sends in sequence and reports what was delivered. No lock
is held over a send: a claim that runs out is taken over, so receivers must recognise duplicates.
Two relays never hold the same stream at once.
"""

import sqlite3
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.store import tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now, now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedWake:
    """A wake that nobody has told the loop about yet."""

    generation: int
    reason: str


def claim(
    connection: sa.Connection,
    *,
    limit: int,
    for_ms: int,
    older_than_ms: int = 0,
) -> list[Row]:
    """Take every undelivered event of up to `limit` streams, each stream in sequence.

    A stream with an event that somebody still holds is left alone. Streams that were tried least
    come first, then the oldest, so that one that cannot be delivered does not hold up the others.
    """
    heads = _lock_heads(connection, limit, older_than_ms)
    if not heads:
        return []
    # A second statement sees what was appended or claimed before the heads were locked.
    rows = [dict(row) for row in connection.execute(_OPEN, {"streams": heads}).mappings()]
    now = database_now(connection)
    held = {row["stream"] for row in rows if row["claimed_until"] > now}
    place = {stream: index for index, stream in enumerate(heads)}
    claimed = sorted(
        (row for row in rows if row["stream"] not in held), key=lambda row: place[row["stream"]]
    )
    until = now + for_ms
    connection.execute(_HOLD, {"events": [row["event_id"] for row in claimed], "until": until})
    return [{**row, "claimed_until": until} for row in claimed]


def is_claimable(connection: sa.Connection, *, older_than_ms: int = 0) -> bool:
    """Look whether a claim may find anything, without writing."""
    return connection.execute(_CLAIMABLE, {"age": older_than_ms}).first() is not None


_outbox, _earlier = tables.outbox, tables.outbox.alias("earlier")
_CLAIMABLE = (
    sa.select(_outbox.c.event_id)
    .where(
        _outbox.c.delivered_at.is_(None),
        _outbox.c.claimed_until <= now_ms(),
        _outbox.c.created_at <= now_ms() - sa.bindparam("age", type_=sa.BigInteger()),
    )
    .limit(1)
)


@contextmanager
def watching(engine: sa.Engine) -> Generator[Callable[[], bool]]:
    """Give a question cheap enough for every few milliseconds: was an event appended since?

    It is a hint: on PostgreSQL the answer is always no, and the asker looks after its period.
    """
    path = engine.url.database
    if engine.dialect.name != "sqlite" or not path:
        yield lambda: False
        return
    own = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    seen: object = None

    def appended() -> bool:
        nonlocal seen
        try:
            newest: object = own.execute("SELECT max(rowid) FROM outbox").fetchone()
        except sqlite3.Error:
            return False
        before, seen = seen, newest
        return before is not None and before != newest

    try:
        yield appended
    finally:
        own.close()


def delivered(connection: sa.Connection, event_ids: Collection[str]) -> None:
    """Record that the events arrived; they are never sent again."""
    _lock_in_sequence(connection, event_ids)
    given = {"events": sorted(event_ids), "now": database_now(connection)}
    connection.execute(_DELIVERED, given)


def failed(connection: sa.Connection, event_ids: Collection[str]) -> None:
    """Give the events back and count the try; a relay that stops in a stream names the rest too."""
    _lock_in_sequence(connection, event_ids)
    connection.execute(_FAILED, {"events": sorted(event_ids)})


def _lock_in_sequence(connection: sa.Connection, event_ids: Collection[str]) -> None:
    """Take a stream's head first, as a claim does: else they could wait for each other."""
    connection.execute(_IN_SEQUENCE, {"events": sorted(event_ids)}).all()


_NAMED = _outbox.c.event_id.in_(sa.bindparam("events", expanding=True))
_UNDELIVERED = _outbox.c.delivered_at.is_(None)
_OPEN = (
    sa.select(_outbox)
    .where(_outbox.c.stream.in_(sa.bindparam("streams", expanding=True)), _UNDELIVERED)
    .order_by(_outbox.c.stream, _outbox.c.sequence)
)
_DELIVERED = sa.update(_outbox).where(_NAMED, _UNDELIVERED).values(delivered_at=sa.bindparam("now"))
_FAILED = (
    sa.update(_outbox)
    .where(_NAMED, _UNDELIVERED)
    .values(claimed_until=0, tries=_outbox.c.tries + 1)
)
_IN_SEQUENCE = (
    sa.select(_outbox.c.event_id)
    .where(_NAMED)
    .order_by(_outbox.c.stream, _outbox.c.sequence)
    .with_for_update()
)
_HOLD = sa.update(_outbox).where(_NAMED).values(claimed_until=sa.bindparam("until"))


def lag_ms(connection: sa.Connection) -> int:
    """Tell how old the oldest undelivered event is; 0 if there is none."""
    outbox = tables.outbox
    oldest = sa.select(sa.func.min(outbox.c.created_at)).where(outbox.c.delivered_at.is_(None))
    created_at = connection.execute(oldest).scalar_one()
    return 0 if created_at is None else max(0, database_now(connection) - created_at)


def undelivered(connection: sa.Connection) -> int:
    """Count the events that have not arrived."""
    outbox = tables.outbox
    query = sa.select(sa.func.count()).where(outbox.c.delivered_at.is_(None))
    return int(connection.execute(query).scalar_one())


def _lock_heads(connection: sa.Connection, limit: int, older_than_ms: int) -> Sequence[str]:
    """Lock the first undelivered event of each free stream: whoever has it has the stream."""
    now = database_now(connection)
    given = {"now": now, "until": now - older_than_ms, "most": limit}
    return connection.execute(_HEADS, given).scalars().all()


_BEHIND = sa.exists().where(
    _earlier.c.stream == _outbox.c.stream,
    _earlier.c.sequence < _outbox.c.sequence,
    _earlier.c.delivered_at.is_(None),
)
_HEADS = (
    sa.select(_outbox.c.stream)
    .where(
        _outbox.c.delivered_at.is_(None),
        _outbox.c.claimed_until <= sa.bindparam("now"),
        _outbox.c.created_at <= sa.bindparam("until"),
        ~_BEHIND,
    )
    .order_by(_outbox.c.tries, _outbox.c.created_at, _outbox.c.event_id)
    .limit(sa.bindparam("most", type_=sa.Integer()))
    # Named, for PostgreSQL would lock the rows of the subquery's table as well.
    .with_for_update(skip_locked=True, of=_outbox)
)


def claim_wake(connection: sa.Connection, partition: str, *, min_gap_ms: int) -> ClaimedWake | None:
    """Take the newest wake that was not signalled, if the last signal is `min_gap_ms` ago."""
    row = connection.execute(_CLAIM_WAKE, {"own": partition, "gap": min_gap_ms}).one_or_none()
    return None if row is None else ClaimedWake(generation=row.generation, reason=row.reason)


_wakes = tables.wakes
_WAITING = (
    _wakes.c.partition == sa.bindparam("own"),
    _wakes.c.generation > _wakes.c.signalled,
)
_CLAIM_WAKE = (
    sa.update(_wakes)
    .where(
        *_WAITING,
        _wakes.c.signalled_at <= now_ms() - sa.bindparam("gap", type_=sa.BigInteger()),
    )
    .values(signalled=_wakes.c.generation, signalled_at=now_ms())
    .returning(_wakes.c.generation, _wakes.c.reason)
)
_SIGNALLED_AT = sa.select(_wakes.c.signalled_at).where(*_WAITING)


def unclaim_wake(connection: sa.Connection, partition: str, generation: int) -> None:
    """Give back a wake that could not be signalled, unless a newer one was."""
    wakes = tables.wakes
    connection.execute(
        sa.update(wakes)
        .where(wakes.c.partition == partition, wakes.c.signalled == generation)
        .values(signalled=generation - 1, signalled_at=0)
    )


def wake_wait_ms(connection: sa.Connection, partition: str, *, min_gap_ms: int) -> int | None:
    """Tell in how many milliseconds the waiting wake may be claimed; None if there is none."""
    signalled_at = connection.execute(_SIGNALLED_AT, {"own": partition}).scalar_one_or_none()
    if signalled_at is None:
        return None
    return max(0, int(signalled_at) + min_gap_ms - database_now(connection))
