"""Events leave in sequence, once per relay, and a stream never has two holders."""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from forgeyard.store import changes, outbox, tables
from forgeyard.store.engine import database_now, read, write
from tests.builders import PARTITION

pytestmark = pytest.mark.integration

MINUTE = 60_000


def emit(engine: sa.Engine, *streams: str) -> list[str]:
    """Append one event to each of the streams, each in a transaction of its own."""
    ids: list[str] = []
    for stream in streams:
        with write(engine) as connection:
            now = database_now(connection)
            ids.append(
                changes.emit(connection, stream=stream, kind="lease.granted", payload={}, now=now)
            )
    return ids


def claim(engine: sa.Engine, limit: int = 10, **changed: int) -> list[tuple[str, int]]:
    """Claim for a minute; return the streams and sequences."""
    with write(engine) as connection:
        rows = outbox.claim(connection, limit=limit, **{"for_ms": MINUTE, **changed})
    return [(row["stream"], row["sequence"]) for row in rows]


def deliver(engine: sa.Engine, *event_ids: str) -> None:
    with write(engine) as connection:
        outbox.delivered(connection, event_ids)


def fail(engine: sa.Engine, *event_ids: str) -> None:
    with write(engine) as connection:
        outbox.failed(connection, event_ids)


def age(engine: sa.Engine, milliseconds: int) -> None:
    """Let time pass for every event."""
    table = tables.outbox
    with write(engine) as connection:
        connection.execute(
            sa.update(table).values(
                created_at=table.c.created_at - milliseconds,
                claimed_until=table.c.claimed_until - milliseconds,
            )
        )


@pytest.mark.requirement("DSP-004")
def test_a_stream_is_claimed_whole_and_in_sequence(engine: sa.Engine) -> None:
    emit(engine, "a", "b", "a", "a")
    assert claim(engine) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    assert claim(engine) == []


def test_a_limit_counts_streams(engine: sa.Engine) -> None:
    emit(engine, "a", "b", "a")
    assert claim(engine, limit=1) == [("a", 1), ("a", 2)]
    assert claim(engine, limit=1) == [("b", 1)]


def test_what_was_delivered_is_never_claimed_again(engine: sa.Engine) -> None:
    first, _second = emit(engine, "a", "a")
    claim(engine)
    deliver(engine, first)
    age(engine, 2 * MINUTE)
    assert claim(engine) == [("a", 2)]


def test_a_stream_with_a_held_event_is_left_alone(engine: sa.Engine) -> None:
    (first,) = emit(engine, "a")
    claim(engine)
    emit(engine, "a")
    assert claim(engine) == []
    deliver(engine, first)
    assert claim(engine) == [("a", 2)]


def test_giving_back_only_the_first_event_keeps_the_stream_closed(engine: sa.Engine) -> None:
    first, second = emit(engine, "a", "a")
    claim(engine)
    fail(engine, first)
    assert claim(engine) == []
    fail(engine, second)
    assert claim(engine) == [("a", 1), ("a", 2)]


def test_a_claim_that_ran_out_is_taken_over(engine: sa.Engine) -> None:
    emit(engine, "a")
    claim(engine)
    age(engine, MINUTE + 1)
    assert claim(engine) == [("a", 1)]


def test_only_old_events_are_claimed_if_asked(engine: sa.Engine) -> None:
    emit(engine, "old")
    age(engine, 6_000)
    emit(engine, "new")
    assert claim(engine, older_than_ms=5_000) == [("old", 1)]


def test_a_stream_that_cannot_be_delivered_lets_the_others_pass(engine: sa.Engine) -> None:
    (bad,) = emit(engine, "bad")
    emit(engine, "good")
    assert claim(engine, limit=1) == [("bad", 1)]
    fail(engine, bad)
    assert claim(engine, limit=1) == [("good", 1)]
    assert claim(engine, limit=1) == [("bad", 1)]


def test_lag_is_the_age_of_the_oldest_undelivered_event(engine: sa.Engine) -> None:
    with read(engine) as connection:
        assert outbox.lag_ms(connection) == 0
    (first,) = emit(engine, "a")
    age(engine, 5_000)
    emit(engine, "b")
    with read(engine) as connection:
        assert 5_000 <= outbox.lag_ms(connection) < 60_000
    deliver(engine, first)
    with read(engine) as connection:
        assert outbox.lag_ms(connection) < 5_000


class Relays:
    """Several relays on one outbox, who write down what each of them held and sent."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.all_written = threading.Event()
        self.sent: defaultdict[str, list[int]] = defaultdict(list)
        self.held_by_two: list[str] = []
        self._held: set[str] = set()
        self._guard = threading.Lock()

    def run(self) -> None:
        """Claim, send and deliver until everything that will ever be written is gone."""
        while True:
            nothing_follows = self.all_written.is_set()
            with write(self.engine) as connection:
                rows = outbox.claim(connection, limit=2, for_ms=MINUTE)
            mine = {row["stream"] for row in rows}
            with self._guard:
                self.held_by_two.extend(mine & self._held)
                self._held |= mine
                for row in rows:
                    self.sent[row["stream"]].append(row["sequence"])
            with self._guard:  # before the transaction that lets others in
                self._held -= mine
            deliver(self.engine, *(row["event_id"] for row in rows))
            if nothing_follows and not rows:
                return


@pytest.mark.requirement("DSP-004")
def test_relays_side_by_side_never_hold_a_stream_together(engine: sa.Engine) -> None:
    streams = [f"s{n}" for n in range(6)]
    relays = Relays(engine)
    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(relays.run) for _ in range(4)]
        writers = [pool.submit(emit, engine, *streams[half::2] * 4) for half in range(2)]
        for done in writers:
            done.result()
        relays.all_written.set()
        for done in running:
            done.result()
    assert relays.held_by_two == []
    assert relays.sent == {stream: [1, 2, 3, 4] for stream in streams}


def test_a_claim_in_progress_keeps_newer_events_of_its_stream(
    postgresql_engine: sa.Engine,
) -> None:
    emit(postgresql_engine, "a")
    with write(postgresql_engine) as connection:
        assert len(outbox.claim(connection, limit=10, for_ms=MINUTE)) == 1
        emit(postgresql_engine, "a", "b")  # commits before the claim does
        assert claim(postgresql_engine) == [("b", 1)]
    assert claim(postgresql_engine) == []


def wake(engine: sa.Engine, reason: str = "a job") -> None:
    with write(engine) as connection:
        changes.wake(connection, PARTITION, reason=reason)


def claim_wake(engine: sa.Engine, gap: int = 0) -> tuple[int, str] | None:
    with write(engine) as connection:
        claimed = outbox.claim_wake(connection, PARTITION, min_gap_ms=gap)
    return None if claimed is None else (claimed.generation, claimed.reason)


def wait(engine: sa.Engine, gap: int) -> int | None:
    with read(engine) as connection:
        return outbox.wake_wait_ms(connection, PARTITION, min_gap_ms=gap)


@pytest.mark.requirement("FAR-036")
def test_many_wakes_are_one_signal(engine: sa.Engine) -> None:
    assert claim_wake(engine) is None
    for reason in ("first", "second", "third"):
        wake(engine, reason)
    assert claim_wake(engine) == (3, "third")
    assert claim_wake(engine) is None


def test_a_wake_soon_after_a_signal_waits(engine: sa.Engine) -> None:
    wake(engine)
    assert wait(engine, MINUTE) == 0
    assert claim_wake(engine, MINUTE) == (1, "a job")
    assert wait(engine, MINUTE) is None
    wake(engine)
    assert claim_wake(engine, MINUTE) is None
    left = wait(engine, MINUTE)
    assert left is not None
    assert 0 < left <= MINUTE
    assert claim_wake(engine, 0) == (2, "a job")


def test_a_wake_that_was_not_signalled_comes_again(engine: sa.Engine) -> None:
    wake(engine)
    claim_wake(engine)
    with write(engine) as connection:
        outbox.unclaim_wake(connection, PARTITION, 1)
    assert claim_wake(engine, MINUTE) == (1, "a job")


def test_giving_back_an_old_wake_does_not_undo_a_newer_signal(engine: sa.Engine) -> None:
    wake(engine)
    claim_wake(engine)
    wake(engine)
    assert claim_wake(engine) == (2, "a job")
    with write(engine) as connection:
        outbox.unclaim_wake(connection, PARTITION, 1)
    assert claim_wake(engine) is None


def test_one_of_many_relays_gets_a_wake(engine: sa.Engine) -> None:
    wake(engine)
    with ThreadPoolExecutor(4) as pool:
        claims = list(pool.map(lambda _number: claim_wake(engine), range(8)))
    assert sorted(claim for claim in claims if claim) == [(1, "a job")]
