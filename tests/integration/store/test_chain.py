"""S20: the audit trail only grows, and whatever is done to it all the same is found."""

import threading
from collections.abc import Callable, Sequence

import pytest
import sqlalchemy as sa

from forgeyard.store import chain, changes, shares, tables
from forgeyard.store.chain import FaultKind, Head, Verified
from forgeyard.store.engine import read, write
from forgeyard.store.shares import Shares
from tests.builders import RNG
from tests.callers import INTENT
from tests.unguarded import unguarded

pytestmark = pytest.mark.integration
LINES = 12
_audit, _chain = tables.audit, tables.audit_chain


def note(engine: sa.Engine, *targets: str) -> None:
    """Write lines, each in a transaction of its own."""
    for target in targets:
        with write(engine, principal="user:alice") as connection:
            changes.audit(
                connection,
                actor="alice",
                channel="api",
                action="policy.set",
                target=target,
                detail="because",
                now=7,
            )


def sealed(engine: sa.Engine, lines: int = LINES) -> Head:
    """Write lines and seal them; return the head."""
    note(engine, *(f"policy {number}" for number in range(lines)))
    with write(engine) as connection:
        assert chain.seal_recent(connection) == lines
        return chain.head(connection)


def verified(engine: sa.Engine, *kept: Head) -> Verified:
    with read(engine) as connection:
        return chain.verify(connection, kept)


def tamper(engine: sa.Engine, *statements: str) -> None:
    """Do what an owner of the database can who first takes the triggers away."""
    with write(engine) as connection, unguarded(connection):
        for statement in statements:
            connection.execute(sa.text(statement))


def line_at(engine: sa.Engine, seq: int) -> int:
    with read(engine) as connection:
        query = sa.select(_chain.c.audit_id).where(_chain.c.seq == seq)
        return int(connection.execute(query).scalar_one())


@pytest.mark.parametrize("table", ["audit", "audit_chain"])
@pytest.mark.parametrize(
    "statement", ["UPDATE {} SET audit_id = audit_id + 1000", "DELETE FROM {}", "TRUNCATE {}"]
)
def test_the_database_refuses_whoever_changes_or_deletes_a_line(
    engine: sa.Engine, table: str, statement: str
) -> None:
    sealed(engine)
    if engine.dialect.name == "sqlite" and "TRUNCATE" in statement:
        pytest.skip("SQLite knows no TRUNCATE")
    with pytest.raises(Exception, match="only grows"), write(engine) as c:
        c.execute(sa.text(statement.format(table)))
    assert verified(engine).faults == ()


def test_what_was_written_is_as_it_was(engine: sa.Engine) -> None:
    head = sealed(engine)
    note(engine, "one more")
    found = verified(engine, head, Head(seq=0, hash=head.hash))
    assert (found.sealed, found.unsealed, found.faults) == (LINES, 1, ())
    assert found.head == head


TAMPERING = {
    "edited": ("UPDATE audit SET detail = 'nothing' WHERE audit_id = {fifth}",),
    "another principal": ("UPDATE audit SET principal = 'user:bob' WHERE audit_id = {fifth}",),
    "deleted": ("DELETE FROM audit WHERE audit_id = {fifth}",),
    "deleted with its seal": (
        "DELETE FROM audit WHERE audit_id = {fifth}",
        "DELETE FROM audit_chain WHERE seq = 5",
    ),
    "deleted at the beginning": (
        "DELETE FROM audit WHERE audit_id = {first}",
        "DELETE FROM audit_chain WHERE seq = 1",
    ),
    "reordered": (
        "UPDATE audit_chain SET audit_id = -1 WHERE seq = 5",
        "UPDATE audit_chain SET audit_id = {fifth} WHERE seq = 6",
        "UPDATE audit_chain SET audit_id = {sixth} WHERE seq = 5",
    ),
    "moved up": (
        "DELETE FROM audit_chain WHERE seq = 5",
        "UPDATE audit_chain SET seq = seq - 1 WHERE seq = 6",
    ),
}
KINDS = {
    "edited": {FaultKind.CHANGED},
    "another principal": {FaultKind.CHANGED},
    "deleted": {FaultKind.LINE_GONE},
    "deleted with its seal": {FaultKind.SEAL_GONE},
    "deleted at the beginning": {FaultKind.SEAL_GONE},
    "reordered": {FaultKind.CHANGED},
    "moved up": {FaultKind.CHANGED, FaultKind.SEAL_GONE},
}


@pytest.mark.parametrize("what", list(TAMPERING))
def test_whatever_is_done_to_a_sealed_line_is_found(engine: sa.Engine, what: str) -> None:
    sealed(engine)
    first, fifth, sixth = (line_at(engine, seq) for seq in (1, 5, 6))
    statements = [one.format(first=first, fifth=fifth, sixth=sixth) for one in TAMPERING[what]]
    tamper(engine, *statements)
    found = verified(engine)
    assert {fault.kind for fault in found.faults} == KINDS[what]
    assert all(fault.seq in (1, 5, 6) for fault in found.faults)


def test_a_cut_off_end_shows_against_a_head_that_was_kept(engine: sa.Engine) -> None:
    head = sealed(engine)
    last = [line_at(engine, seq) for seq in (LINES - 1, LINES)]
    tamper(
        engine,
        f"DELETE FROM audit_chain WHERE seq > {LINES - 2}",
        f"DELETE FROM audit WHERE audit_id IN ({last[0]}, {last[1]})",
    )
    assert verified(engine).faults == (), "the chain alone cannot know"
    for kept in (head, Head(seq=0, hash=head.hash)):
        (fault,) = verified(engine, kept).faults
        assert fault.kind is FaultKind.HEAD_GONE


def test_a_chain_that_was_written_anew_shows_against_a_head_that_was_kept(
    engine: sa.Engine,
) -> None:
    head = sealed(engine)
    tamper(
        engine,
        "UPDATE audit SET detail = 'nothing'",
        "DELETE FROM audit_chain",
    )
    with write(engine) as connection:
        assert chain.seal_all(connection) == LINES
    assert verified(engine).faults == ()
    (fault,) = verified(engine, head).faults
    assert (fault.kind, fault.seq) == (FaultKind.HEAD_GONE, head.seq)


def test_a_line_that_is_committed_late_is_sealed_all_the_same(postgresql_engine: sa.Engine) -> None:
    """Its number is lower than those that were sealed before it."""
    with write(postgresql_engine) as slow:
        changes.audit(
            slow, actor="a", channel="api", action="run.cancel", target="late", detail="", now=7
        )
        note(postgresql_engine, "early")
        with write(postgresql_engine) as connection:
            assert chain.seal_recent(connection) == 1
    with write(postgresql_engine) as connection:
        assert chain.seal_recent(connection) == 1
    found = verified(postgresql_engine)
    assert (found.sealed, found.unsealed, found.faults) == (2, 0, ())


def test_many_write_at_once_and_none_waits_for_another(postgresql_engine: sa.Engine) -> None:
    """A line that is not committed yet holds up neither others nor the sealing of theirs."""
    with write(postgresql_engine) as slow:
        changes.audit(
            slow, actor="a", channel="api", action="run.cancel", target="slow", detail="", now=7
        )
        _at_once([lambda n=n: note(postgresql_engine, f"policy {n}") for n in range(4)])
        with write(postgresql_engine) as connection:
            assert chain.seal_recent(connection) == 4


def test_sealers_that_meet_take_turns(engine: sa.Engine) -> None:
    note(engine, *(f"policy {number}" for number in range(LINES)))
    counts: list[int] = []

    def seal() -> None:
        with write(engine) as connection:
            counts.append(chain.seal_recent(connection))

    _at_once([seal] * 4)
    assert sum(counts) == LINES
    assert verified(engine).faults == ()


def _at_once(calls: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_pages_of_lines_begin_with_the_newest(engine: sa.Engine) -> None:
    sealed(engine)
    note(engine, "not sealed yet")
    with read(engine) as connection:
        page = chain.list_lines(connection, limit=5)
        rest = chain.list_lines(connection, limit=500, before=page.next)
        policies = chain.list_lines(connection, limit=500, action="policy", target="policy 3")
        none = chain.list_lines(connection, limit=500, action="run")
    assert (page.lines[0].target, page.lines[0].seq) == ("not sealed yet", None)
    assert (page.lines[1].seq, page.lines[1].principal) == (LINES, "user:alice")
    assert len(page.lines) + len(rest.lines) == LINES + 1
    assert rest.next is None
    assert [line.target for line in policies.lines] == ["policy 3"]
    assert none.lines == ()


def test_a_line_names_what_was_before_and_what_is_after(engine: sa.Engine) -> None:
    with write(engine) as connection:
        shares.create(connection, "acme", Shares(weight=3), intent=INTENT, rng=RNG)
        shares.pause(connection, "acme", note="stop", intent=INTENT)
        shares.resume(connection, "acme", intent=INTENT)
        query = sa.select(_audit.c.before_digest, _audit.c.after_digest)
        created, paused, resumed = connection.execute(query.order_by(_audit.c.audit_id))
    assert created.before_digest is None
    assert created.after_digest == paused.before_digest
    assert paused.after_digest == resumed.before_digest != paused.before_digest
    assert resumed.after_digest == created.after_digest, "it is as it was"
