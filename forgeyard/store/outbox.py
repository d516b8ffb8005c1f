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
    outbox = tables.outbox
    # A second statement sees what was appended or claimed before the heads were locked.
    query = (
        sa.select(outbox)
        .where(outbox.c.stream.in_(heads), outbox.c.delivered_at.is_(None))
        .order_by(outbox.c.stream, outbox.c.sequence)
    )
    rows = [dict(row) for row in connection.execute(query).mappings()]
    now = database_now(connection)
    held = {row["stream"] for row in rows if row["claimed_until"] > now}
    place = {stream: index for index, stream in enumerate(heads)}
    claimed = sorted(
        (row for row in rows if row["stream"] not in held), key=lambda row: place[row["stream"]]
    )
    _hold(connection, [row["event_id"] for row in claimed], until=now + for_ms)
    return [{**row, "claimed_until": now + for_ms} for row in claimed]


def is_claimable(connection: sa.Connection, *, older_than_ms: int = 0) -> bool:
    """Look whether a claim may find anything, without writing."""
    outbox = tables.outbox
    query = sa.select(outbox.c.event_id).where(
        outbox.c.delivered_at.is_(None),
        outbox.c.claimed_until <= now_ms(),
        outbox.c.created_at <= now_ms() - older_than_ms,
    )
    return connection.execute(query.limit(1)).first() is not None


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
    outbox = tables.outbox
    _lock_in_sequence(connection, event_ids)
    connection.execute(
        sa.update(outbox)
        .where(outbox.c.event_id.in_(sorted(event_ids)), outbox.c.delivered_at.is_(None))
        .values(delivered_at=database_now(connection))
    )


def failed(connection: sa.Connection, event_ids: Collection[str]) -> None:
    """Give the events back and count the try; a relay that stops in a stream names the rest too."""
    outbox = tables.outbox
    _lock_in_sequence(connection, event_ids)
    connection.execute(
        sa.update(outbox)
        .where(outbox.c.event_id.in_(sorted(event_ids)), outbox.c.delivered_at.is_(None))
        .values(claimed_until=0, tries=outbox.c.tries + 1)
    )


def _lock_in_sequence(connection: sa.Connection, event_ids: Collection[str]) -> None:
    """Take a stream's head first, as a claim does: else they could wait for each other."""
    outbox = tables.outbox
    query = sa.select(outbox.c.event_id).where(outbox.c.event_id.in_(sorted(event_ids)))
    in_sequence = query.order_by(outbox.c.stream, outbox.c.sequence)
    connection.execute(in_sequence.with_for_update()).all()


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
    outbox, earlier = tables.outbox, tables.outbox.alias("earlier")
    now = database_now(connection)
    behind = sa.exists().where(
        earlier.c.stream == outbox.c.stream,
        earlier.c.sequence < outbox.c.sequence,
        earlier.c.delivered_at.is_(None),
    )
    query = sa.select(outbox.c.stream).where(
        outbox.c.delivered_at.is_(None),
        outbox.c.claimed_until <= now,
        outbox.c.created_at <= now - older_than_ms,
        ~behind,
    )
    query = query.order_by(outbox.c.tries, outbox.c.created_at, outbox.c.event_id).limit(limit)
    # Named, for PostgreSQL would lock the rows of the subquery's table as well.
    return connection.execute(query.with_for_update(skip_locked=True, of=outbox)).scalars().all()


def _hold(connection: sa.Connection, event_ids: Sequence[str], *, until: int) -> None:
    outbox = tables.outbox
    connection.execute(
        sa.update(outbox).where(outbox.c.event_id.in_(event_ids)).values(claimed_until=until)
    )


def claim_wake(connection: sa.Connection, partition: str, *, min_gap_ms: int) -> ClaimedWake | None:
    """Take the newest wake that was not signalled, if the last signal is `min_gap_ms` ago."""
    wakes = tables.wakes
    row = connection.execute(
        sa.update(wakes)
        .where(
            wakes.c.partition == partition,
            wakes.c.generation > wakes.c.signalled,
            wakes.c.signalled_at <= now_ms() - min_gap_ms,
        )
        .values(signalled=wakes.c.generation, signalled_at=now_ms())
        .returning(wakes.c.generation, wakes.c.reason)
    ).one_or_none()
    return None if row is None else ClaimedWake(generation=row.generation, reason=row.reason)


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
    wakes = tables.wakes
    query = sa.select(wakes.c.signalled_at).where(
        wakes.c.partition == partition, wakes.c.generation > wakes.c.signalled
    )
    signalled_at = connection.execute(query).scalar_one_or_none()
    if signalled_at is None:
        return None
    return max(0, int(signalled_at) + min_gap_ms - database_now(connection))
