import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from forgeyard.model.capability import Requirements, ToolchainRequirement
from forgeyard.model.job import Condition, FailureClass, JobSpec, Timeouts
from forgeyard.model.protocol import Complete, Outcome
from forgeyard.model.transitions import JobState
from forgeyard.model.units import Millis
from forgeyard.store import changes, jobs, leases, tables
from forgeyard.store.changes import JOB, RUN, DeadlineKind
from forgeyard.store.engine import database_now, write
from tests.builders import (
    LEASE_POLICY,
    a_job_spec,
    deadlines_of,
    end_job,
    grant,
    job_states,
    jobs_of,
    register_runner,
    submit_run,
)

pytestmark = pytest.mark.integration

A_AND_B = (a_job_spec("a"), a_job_spec("b"))


def after_both(condition: Condition) -> JobSpec:
    return a_job_spec("c", needs=("a", "b"), condition=condition)


def run_state(connection: sa.Connection, run_id: str) -> str:
    return str(changes.find(connection, RUN, run_id)["state"])


def test_success_reported_by_an_agent_promotes_the_dependents(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection, a_job_spec("a"), a_job_spec("b", needs=("a",)))
        job_id = jobs_of(connection, run_id)["a"]["job_id"]
        granted = grant(connection, job_id, register_runner(connection))
        leases.accept(connection, granted.lease_id, granted.holder, policy=LEASE_POLICY)
        before = connection.execute(sa.select(tables.wakes.c.generation)).scalar_one()
        done = Complete(
            session_id=granted.holder.session_id, epoch=granted.epoch, outcome=Outcome.SUCCEEDED
        )
        leases.complete(connection, granted.lease_id, done, policy=LEASE_POLICY)
        assert job_states(connection, run_id) == {"a": "succeeded", "b": "eligible"}
        after = connection.execute(sa.select(tables.wakes.c.generation)).scalar_one()
        assert after > before


def test_a_job_waits_for_the_last_of_its_needs(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection, *A_AND_B, after_both(Condition.SUCCESS))
        end_job(connection, run_id, "a")
        assert job_states(connection, run_id)["c"] == "pending"
        end_job(connection, run_id, "b")
        assert job_states(connection, run_id)["c"] == "eligible"


def test_a_promoted_job_gets_its_queue_deadline(engine: sa.Engine) -> None:
    impatient = a_job_spec("b", needs=("a",), timeouts=Timeouts(queue=Millis(7_000)))
    with write(engine) as connection:
        run_id = submit_run(connection, a_job_spec("a"), impatient)
        end_job(connection, run_id, "a")
        found = jobs_of(connection, run_id)
        due = {DeadlineKind.QUEUE: found["b"]["eligible_at"] + 7_000}
        assert deadlines_of(connection, found["b"]["job_id"]) == due
        assert deadlines_of(connection, found["a"]["job_id"]) == {}


@pytest.mark.parametrize(
    ("condition", "ends", "expected"),
    [
        (Condition.SUCCESS, ("succeeded", "succeeded"), "eligible"),
        (Condition.SUCCESS, ("succeeded", "failed"), "skipped"),
        (Condition.SUCCESS, ("succeeded", "skipped"), "skipped"),
        (Condition.SUCCESS, ("succeeded", "cancelled"), "skipped"),
        (Condition.SUCCESS, ("timed_out", "succeeded"), "skipped"),
        (Condition.FAILURE, ("succeeded", "succeeded"), "skipped"),
        (Condition.FAILURE, ("succeeded", "failed"), "eligible"),
        (Condition.FAILURE, ("timed_out", "succeeded"), "eligible"),
        (Condition.FAILURE, ("succeeded", "cancelled"), "eligible"),
        (Condition.FAILURE, ("skipped", "succeeded"), "skipped"),
        (Condition.ALWAYS, ("failed", "skipped"), "eligible"),
        (Condition.ALWAYS, ("succeeded", "succeeded"), "eligible"),
    ],
)
def test_a_condition_is_judged_once_all_needs_have_ended(
    sqlite_engine: sa.Engine, condition: Condition, ends: Sequence[str], expected: str
) -> None:
    with write(sqlite_engine) as connection:
        run_id = submit_run(connection, *A_AND_B, after_both(condition))
        for name, end in zip("ab", ends, strict=True):
            end_job(connection, run_id, name, JobState(end))
        assert job_states(connection, run_id)["c"] == expected


def test_a_forgiven_failure_counts_as_success_for_dependents_and_the_run(
    engine: sa.Engine,
) -> None:
    with write(engine) as connection:
        run_id = submit_run(
            connection,
            a_job_spec("a", continue_on_error=True),
            a_job_spec("b", needs=("a",)),
            a_job_spec("tidy", needs=("a",), condition=Condition.FAILURE),
        )
        end_job(connection, run_id, "a", JobState.FAILED)
        expected = {"a": "failed", "b": "eligible", "tidy": "eligible"}
        assert job_states(connection, run_id) == expected
        end_job(connection, run_id, "b")
        end_job(connection, run_id, "tidy")
        assert run_state(connection, run_id) == "succeeded"


def test_skipping_spreads_down_the_graph_and_ends_the_run(engine: sa.Engine) -> None:
    chain = [a_job_spec(f"j{n}", needs=(f"j{n - 1}",) if n else ()) for n in range(6)]
    with write(engine) as connection:
        run_id = submit_run(connection, *chain)
        end_job(connection, run_id, "j0", JobState.FAILED)
        states = job_states(connection, run_id)
        assert states == {"j0": "failed", **{f"j{n}": "skipped" for n in range(1, 6)}}
        run = changes.find(connection, RUN, run_id)
        assert (run["state"], run["open_jobs"], run["failed_jobs"]) == ("failed", 0, 1)


def test_a_job_that_needs_two_jobs_skipped_together_is_judged_once(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(
            connection,
            a_job_spec("root"),
            a_job_spec("left", needs=("root",)),
            a_job_spec("right", needs=("root",)),
            a_job_spec("join", needs=("left", "right"), condition=Condition.ALWAYS),
        )
        end_job(connection, run_id, "root", JobState.FAILED)
        assert job_states(connection, run_id)["join"] == "eligible"
        assert jobs_of(connection, run_id)["join"]["waiting_needs"] == 0
        assert changes.find(connection, RUN, run_id)["open_jobs"] == 1


def test_the_last_job_ends_the_run_and_its_deadline(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection, *A_AND_B)
        end_job(connection, run_id, "a")
        assert run_state(connection, run_id) == "queued"
        end_job(connection, run_id, "b")
        run = changes.find(connection, RUN, run_id)
        assert (run["state"], run["open_jobs"]) == ("succeeded", 0)
        assert run["finished_at"] is not None
        assert deadlines_of(connection, run_id) == {}


def test_a_job_keeps_why_it_ended(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        run, job = changes.lock_run_and_job(
            connection, jobs_of(connection, run_id)["build"]["job_id"]
        )
        jobs.finish_job(
            connection,
            run,
            job,
            JobState.TIMED_OUT,
            reason="waited too long",
            now=database_now(connection),
            failure_class=FailureClass.TIMEOUT,
            message="no runner in time",
        )
        ended = jobs_of(connection, run_id)["build"]
        assert (ended["failure_class"], ended["message"]) == ("timeout", "no runner in time")
        assert ended["finished_at"] is not None
        history = tables.history
        query = sa.select(history.c.before, history.c.after, history.c.reason).where(
            history.c.entity_id == ended["job_id"]
        )
        told = connection.execute(query.order_by(history.c.history_id.desc())).first()
        assert told == ("eligible", "timed_out", "waited too long")


def test_finishing_with_a_row_that_changed_meanwhile_conflicts(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        stale = jobs_of(connection, run_id)["build"]
        run = changes.find(connection, RUN, run_id)
        end_job(connection, run_id, "build")
        with pytest.raises(changes.Conflict):
            jobs.finish_job(connection, run, stale, JobState.CANCELLED, reason="late", now=0)


def test_a_job_that_waits_for_its_retry_becomes_eligible_again(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        job = jobs_of(connection, run_id)["build"]
        for state in (JobState.LEASED, JobState.PREPARING, JobState.RETRY_WAITING):
            job = changes.move(connection, JOB, job, state, reason="test", now=1)
        changes.set_deadline(
            connection, DeadlineKind.RETRY, job["job_id"], partition="default", due_at=2
        )
        run = changes.find(connection, RUN, run_id)
        jobs.make_eligible(connection, run, job, reason="the delay is over", now=3)
        again = jobs_of(connection, run_id)["build"]
        assert (again["state"], again["eligible_at"]) == ("eligible", 3)
        assert set(deadlines_of(connection, job["job_id"])) == {DeadlineKind.QUEUE}


def test_needs_that_end_at_the_same_time_promote_once(engine: sa.Engine) -> None:
    names = [f"j{n}" for n in range(4)]
    with write(engine) as connection:
        needing = a_job_spec("join", needs=tuple(names))
        run_id = submit_run(connection, *map(a_job_spec, names), needing)
    start = threading.Barrier(len(names))

    def end(name: str) -> None:
        start.wait()
        with write(engine) as connection:
            end_job(connection, run_id, name)

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(end, names))
    with write(engine) as connection:
        join = jobs_of(connection, run_id)["join"]
        assert (join["state"], join["waiting_needs"]) == ("eligible", 0)
        history = tables.history
        of_join = sa.select(history.c.after).where(history.c.entity_id == join["job_id"])
        told = of_join.order_by(history.c.history_id)
        assert connection.execute(told).scalars().all() == ["pending", "eligible"]


def test_a_thousand_jobs_are_promoted_by_one(engine: sa.Engine) -> None:
    many = [a_job_spec(f"j{n}", needs=("root",)) for n in range(999)]
    with write(engine) as connection:
        run_id = submit_run(connection, a_job_spec("root"), *many)
    with write(engine) as connection:
        end_job(connection, run_id, "root")
        states = list(job_states(connection, run_id).values())
        assert states.count("eligible") == 999


def tool(name: str) -> ToolchainRequirement:
    return ToolchainRequirement(name=name)


def test_jobs_share_a_class_exactly_when_they_want_the_same() -> None:
    one = a_job_spec("one", requires=Requirements(toolchains=(tool("a"), tool("b"))))
    two = a_job_spec("two", run="false", requires=Requirements(toolchains=(tool("b"), tool("a"))))
    other = a_job_spec("one", requires=Requirements(toolchains=(tool("a"),)))
    assert jobs.requirement_class(one) == jobs.requirement_class(two)
    assert jobs.requirement_class(one) != jobs.requirement_class(other)
