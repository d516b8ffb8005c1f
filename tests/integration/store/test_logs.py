"""Logs hold every chunk once, in order, up to a limit that is announced."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from forgeyard.errors import InvalidRequest, NotFound, TooLarge
from forgeyard.model.protocol import MAX_LOG_CHUNK, Complete, Outcome
from forgeyard.store import leases, logs, tables
from forgeyard.store.engine import read, write
from tests.builders import (
    LEASE_POLICY,
    Granted,
    a_job_spec,
    grant,
    jobs_of,
    register_runner,
    submit_run,
)

pytestmark = pytest.mark.integration

LIMIT = 1_000


class Printing:
    """A run with one running attempt for each of its jobs."""

    def __init__(self, engine: sa.Engine, *names: str) -> None:
        self.engine = engine
        self.attempts: dict[str, str] = {}
        self.leases: dict[str, Granted] = {}
        with write(engine) as connection:
            self.run_id = submit_run(connection, *(a_job_spec(name) for name in names))
            runner = register_runner(connection)
            for name, job in jobs_of(connection, self.run_id).items():
                self.leases[name] = grant(connection, job["job_id"], runner)
                self.attempts[name] = self.leases[name].attempt_id

    def say(self, job: str, sequence: int, text: str, limit: int = LIMIT) -> None:
        with write(self.engine) as connection:
            attempt_id = self.attempts[job]
            logs.append(connection, attempt_id, sequence, "step", text.encode(), limit=limit)

    def heard(self, after: str | None = None, limit: int = 100, **only: str) -> logs.LogPage:
        with read(self.engine) as connection:
            return logs.read_run(connection, self.run_id, after, limit, **only)

    def log(self, job: str, after: int = -1) -> list[str]:
        with read(self.engine) as connection:
            chunks = logs.read(connection, self.attempts[job], after)
        return [chunk.data.decode() for chunk in chunks]

    def finish(self, job: str) -> None:
        """End a job well, as its agent does."""
        lease = self.leases[job]
        holder = lease.holder
        report = Complete(
            session_id=holder.session_id, epoch=holder.epoch, outcome=Outcome.SUCCEEDED
        )
        with write(self.engine) as connection:
            leases.accept(connection, lease.lease_id, holder, policy=LEASE_POLICY)
            leases.complete(connection, lease.lease_id, report, policy=LEASE_POLICY)

    def follow(self, limit: int, rng: random.Random | None = None) -> list[tuple[str, str]]:
        """Read page by page until nothing comes."""
        page, said = self.heard(None, limit), list[tuple[str, str]]()
        while page.chunks:
            said += [(chunk.job, chunk.data.decode()) for chunk in page.chunks]
            page = self.heard(page.next, rng.randint(1, 4) if rng else limit)
        return said


def texts(page: logs.LogPage) -> list[str]:
    return [chunk.data.decode() for chunk in page.chunks]


def test_a_chunk_sent_twice_is_stored_once(engine: sa.Engine) -> None:
    run = Printing(engine, "a")
    for sequence, text in ((0, "one"), (1, "two"), (0, "one"), (1, "other")):
        run.say("a", sequence, text)
    assert run.log("a") == ["one", "two"]
    assert run.log("a", after=0) == ["two"]
    with read(engine) as connection:
        stored = connection.execute(sa.select(tables.attempts.c.log_bytes)).scalar_one()
    assert stored == 6


def test_a_log_at_its_limit_says_so_once_and_drops_the_rest(engine: sa.Engine) -> None:
    run = Printing(engine, "a")
    run.say("a", 0, "x" * 600)
    run.say("a", 1, "y" * 600)
    run.say("a", 2, "z")
    run.say("a", 1, "y" * 600)
    first, second = run.log("a")
    assert first == "x" * 600
    assert second == "y" * 400 + "\n[log truncated after 1,000 bytes]\n"


def test_a_log_may_be_exactly_as_long_as_allowed(engine: sa.Engine) -> None:
    run = Printing(engine, "a")
    run.say("a", 0, "x" * LIMIT)
    run.say("a", 1, "")
    assert run.log("a") == ["x" * LIMIT]
    run.say("a", 2, "y")
    assert len(run.log("a")) == 2


def test_a_chunk_beyond_the_protocol_is_refused(engine: sa.Engine) -> None:
    run = Printing(engine, "a")
    with pytest.raises(TooLarge):
        run.say("a", 0, "x" * (MAX_LOG_CHUNK + 1), limit=2**30)
    with pytest.raises(InvalidRequest):
        run.say("a", -1, "x")
    with write(engine) as connection, pytest.raises(NotFound):
        logs.append(connection, "att_none", 0, "step", b"x", limit=LIMIT)
    assert run.log("a") == []


def test_a_run_is_read_merged_with_the_names_of_its_jobs(engine: sa.Engine) -> None:
    run = Printing(engine, "a", "b")
    with write(engine) as connection:
        for at, (job, sequence) in enumerate((("a", 0), ("b", 0), ("a", 1), ("b", 1))):
            connection.execute(
                sa.insert(tables.log_chunks).values(
                    attempt_id=run.attempts[job],
                    sequence=sequence,
                    step="",
                    at=at,
                    data=f"{job}{sequence}".encode(),
                )
            )
        connection.execute(sa.update(tables.attempts).values(log_bytes=4))
    page = run.heard()
    assert texts(page) == ["a0", "b0", "a1", "b1"]
    assert [(chunk.job, chunk.attempt) for chunk in page.chunks[:2]] == [("a", 1), ("b", 1)]
    assert texts(run.heard(job="b")) == ["b0", "b1"]
    assert run.follow(3) == [("a", "a0"), ("b", "b0"), ("a", "a1"), ("b", "b1")]


def test_following_page_by_page_misses_and_repeats_nothing(engine: sa.Engine) -> None:
    run = Printing(engine, *"abc")
    rng = random.Random(5)
    for sequence in range(7):
        for job in rng.sample("abc", 3):
            run.say(job, sequence, f"{job}{sequence}")
    said = run.follow(2, rng)
    assert sorted(said) == sorted((job, f"{job}{n}") for job in "abc" for n in range(7))
    for job in "abc":
        assert [text for name, text in said if name == job] == [f"{job}{n}" for n in range(7)]


def test_a_follower_sees_what_commits_late(postgresql_engine: sa.Engine) -> None:
    run = Printing(postgresql_engine, "a", "b")
    with write(postgresql_engine) as late:
        logs.append(late, run.attempts["a"], 0, "", b"early in time, late to commit", limit=LIMIT)
        run.say("b", 0, "in between")
        page = run.heard()
        assert texts(page) == ["in between"]
    assert texts(run.heard(page.next)) == ["early in time, late to commit"]


def test_appending_side_by_side_keeps_count(engine: sa.Engine) -> None:
    run = Printing(engine, "a", "b")
    with ThreadPoolExecutor(4) as pool:
        calls = [(job, n) for n in range(12) for job in ("a", "b", "a")]
        list(pool.map(lambda call: run.say(call[0], call[1], "x" * 10), calls))
    assert [len(run.log(job)) for job in ("a", "b")] == [12, 12]
    with read(engine) as connection:
        assert set(connection.execute(sa.select(tables.attempts.c.log_bytes)).scalars()) == {120}


def test_a_clock_set_back_does_not_reorder_an_attempt(engine: sa.Engine) -> None:
    run = Printing(engine, "a")
    run.say("a", 0, "first")
    with write(engine) as connection:
        connection.execute(sa.update(tables.log_chunks).values(at=2**50))
    run.say("a", 1, "second")
    assert [text for _job, text in run.follow(1)] == ["first", "second"]


def test_a_log_has_ended_with_its_job_and_with_its_run(engine: sa.Engine) -> None:
    run = Printing(engine, "a", "b")
    run.say("a", 0, "hello")
    assert not run.heard().ended
    run.finish("a")
    assert not run.heard(limit=1, job="a").ended  # it might go on
    assert run.heard(job="a").ended
    assert not run.heard().ended
    run.finish("b")
    page = run.heard()
    assert (texts(page), page.ended) == (["hello"], True)
    assert run.heard(page.next) == logs.LogPage(chunks=(), next=page.next, ended=True)


def test_a_run_or_job_that_does_not_exist_is_not_found(sqlite_engine: sa.Engine) -> None:
    run = Printing(sqlite_engine, "a")
    with pytest.raises(NotFound):
        run.heard(job="b")
    with pytest.raises(InvalidRequest):
        run.heard("no cursor")
    run.run_id = "run_none"
    with pytest.raises(NotFound):
        run.heard()
