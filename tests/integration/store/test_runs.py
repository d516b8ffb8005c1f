import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import sqlalchemy as sa

from forgeyard.errors import (
    Conflict,
    IdempotencyMismatch,
    InvalidRequirements,
    NotFound,
)
from forgeyard.model.job import Condition, Timeouts
from forgeyard.model.protocol import Complete, Outcome, Phase, Progress
from forgeyard.model.run import RunSpec
from forgeyard.model.units import Millis
from forgeyard.scheduler.place import Decision, Plan
from forgeyard.store import changes, commit, leases, runs, tables
from forgeyard.store.changes import LEASE, RUN, DeadlineKind, Row
from forgeyard.store.engine import read, write
from tests.builders import (
    LEASE_POLICY,
    PARTITION,
    POLICY,
    RNG,
    Granted,
    a_job_spec,
    a_run_spec,
    a_submission,
    deadlines_of,
    end_job,
    grant,
    job_states,
    jobs_of,
    register_runner,
    submit_run,
)

pytestmark = pytest.mark.integration


def cancel(connection: sa.Connection, run_id: str, reason: str = "not needed") -> str:
    return runs.cancel_run(
        connection, run_id, reason=reason, actor="ann", channel="cli", policy=LEASE_POLICY
    )


def cancel_one(connection: sa.Connection, run_id: str, name: str) -> str:
    return runs.cancel_job(
        connection,
        run_id,
        name,
        reason="not needed",
        actor="ann",
        channel="cli",
        policy=LEASE_POLICY,
    )


def run_of(connection: sa.Connection, run_id: str) -> Row:
    return changes.find(connection, RUN, run_id)


def count(connection: sa.Connection, table: sa.Table) -> int:
    return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def generation(connection: sa.Connection) -> int:
    query = sa.select(tables.wakes.c.generation).where(tables.wakes.c.partition == PARTITION)
    return connection.execute(query).scalar_one_or_none() or 0


def accepted(connection: sa.Connection, job: Row) -> Granted:
    """Give a job to a fresh runner that accepts it."""
    granted = grant(connection, job["job_id"], register_runner(connection, job["name"]))
    leases.accept(connection, granted.lease_id, granted.holder, policy=LEASE_POLICY)
    return granted


def free_of_reservations(connection: sa.Connection) -> bool:
    held = connection.execute(sa.select(tables.runners.c.reserved_slots)).scalars().all()
    return not any(held) and count(connection, tables.reservations) == 0


# Submitting


def test_a_run_begins_queued_and_its_first_jobs_wait_for_runners(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection, a_job_spec("a"), a_job_spec("b", needs=("a",)))
    with read(engine) as connection:
        run = run_of(connection, run_id)
        assert (run["state"], run["open_jobs"], run["failed_jobs"]) == ("queued", 2, 0)
        assert job_states(connection, run_id) == {"a": "eligible", "b": "pending"}
        assert generation(connection) == 1


def test_a_run_and_each_job_that_waits_for_a_runner_have_a_deadline(engine: sa.Engine) -> None:
    spec = a_run_spec(
        a_job_spec("a", timeouts=Timeouts(queue=Millis(5_000))),
        a_job_spec("b", needs=("a",)),
        timeout=60_000,
    )
    with write(engine) as connection:
        run_id = runs.submit(connection, a_submission(spec), policy=LEASE_POLICY, rng=RNG).run_id
        born, found = run_of(connection, run_id)["created_at"], jobs_of(connection, run_id)
        assert deadlines_of(connection, run_id) == {DeadlineKind.RUN: born + 60_000}
        assert deadlines_of(connection, found["a"]["job_id"]) == {DeadlineKind.QUEUE: born + 5_000}
        assert deadlines_of(connection, found["b"]["job_id"]) == {}


def test_a_submission_leaves_a_history_of_everything_it_made(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection, a_job_spec("a"), a_job_spec("b"))
        history = tables.history
        told = connection.execute(
            sa.select(history.c.kind, history.c.before, history.c.after)
            .where(history.c.run_id == run_id)
            .order_by(history.c.history_id)
        )
        assert [tuple(row) for row in told] == [
            ("run", None, "queued"),
            ("job", None, "eligible"),
            ("job", None, "eligible"),
        ]


def test_a_job_that_waits_for_a_failure_but_needs_nothing_is_skipped(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(
            connection,
            a_job_spec("never", condition=Condition.FAILURE),
            a_job_spec("after", needs=("never",)),
            a_job_spec("anyway", needs=("never",), condition=Condition.ALWAYS),
        )
        assert job_states(connection, run_id) == {
            "never": "skipped",
            "after": "skipped",
            "anyway": "eligible",
        }
        assert run_of(connection, run_id)["open_jobs"] == 1


def test_a_run_in_which_nothing_can_ever_run_ends_at_once(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection, a_job_spec("never", condition=Condition.FAILURE))
        assert run_of(connection, run_id)["state"] == "succeeded"
        assert deadlines_of(connection, run_id) == {}


def test_the_same_key_and_body_give_the_same_run(engine: sa.Engine) -> None:
    submission = a_submission(idempotency_key="k", body_digest="sha256:1")
    with write(engine) as connection:
        first = runs.submit(connection, submission, policy=LEASE_POLICY, rng=RNG)
    with write(engine) as connection:
        second = runs.submit(connection, submission, policy=LEASE_POLICY, rng=RNG)
        assert count(connection, tables.runs) == 1
    assert (first.created, second.created) == (True, False)
    assert first.run_id == second.run_id


def test_the_same_key_with_another_body_is_refused_and_stores_nothing(engine: sa.Engine) -> None:
    with write(engine) as connection:
        runs.submit(
            connection,
            a_submission(idempotency_key="k", body_digest="sha256:1"),
            policy=LEASE_POLICY,
            rng=RNG,
        )
    other = a_submission(idempotency_key="k", body_digest="sha256:2")
    with pytest.raises(IdempotencyMismatch) as refusal, write(engine) as connection:
        runs.submit(connection, other, policy=LEASE_POLICY, rng=RNG)
    assert refusal.value.field == "Idempotency-Key"
    with read(engine) as connection:
        assert count(connection, tables.runs) == 1


@pytest.mark.case("SP-074")
def test_one_key_used_by_many_at_once_makes_one_run(engine: sa.Engine) -> None:
    submission = a_submission(idempotency_key="k", body_digest="sha256:1")
    made: list[runs.Submitted] = []

    def submit() -> None:
        with write(engine) as connection:
            made.append(runs.submit(connection, submission, policy=LEASE_POLICY, rng=RNG))

    in_parallel(*[submit] * 4)
    assert len(made) == 4
    assert sum(submitted.created for submitted in made) == 1
    assert len({submitted.run_id for submitted in made}) == 1


def test_a_source_that_was_not_uploaded_is_refused_and_stores_nothing(engine: sa.Engine) -> None:
    submission = a_submission(source_digest="sha256:none", idempotency_key="k")
    with pytest.raises(NotFound) as refusal, write(engine) as connection:
        runs.submit(connection, submission, policy=LEASE_POLICY, rng=RNG)
    assert refusal.value.field == "source_digest"
    with read(engine) as connection:
        assert count(connection, tables.runs) == 0
        assert count(connection, tables.idempotency) == 0


def test_submitting_marks_the_source_as_just_used(engine: sa.Engine) -> None:
    with write(engine) as connection:
        blob = {"digest": "sha256:s", "size_bytes": 1, "created_at": 0, "used_at": 0}
        connection.execute(sa.insert(tables.blobs), [blob])
        run_id = submit_run(connection, source_digest="sha256:s")
        used = connection.execute(sa.select(tables.blobs.c.used_at)).scalar_one()
        assert used == run_of(connection, run_id)["created_at"]


@pytest.mark.parametrize(
    ("specs", "field"),
    [
        ((), "jobs"),
        ((a_job_spec("a", needs=("gone",)),), "jobs.a.needs"),
        ((a_job_spec("a", needs=("b",)), a_job_spec("b", needs=("a",))), "jobs.a.needs"),
    ],
)
def test_jobs_that_form_no_graph_are_refused(
    sqlite_engine: sa.Engine, specs: tuple, field: str
) -> None:
    submission = a_submission(RunSpec(name="bad", jobs=specs))
    with pytest.raises(InvalidRequirements) as refusal, write(sqlite_engine) as connection:
        runs.submit(connection, submission, policy=LEASE_POLICY, rng=RNG)
    assert refusal.value.field == field
    with read(sqlite_engine) as connection:
        assert count(connection, tables.runs) == 0


# Cancelling


def test_cancelling_a_run_nobody_works_on_ends_it_at_once(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection, a_job_spec("a"), a_job_spec("b", needs=("a",)))
        assert cancel(connection, run_id) == "cancelled"
        run = run_of(connection, run_id)
        assert (run["state"], run["open_jobs"], run["ending"]) == ("cancelled", 0, "user")
        assert run["finished_at"] is not None
        assert job_states(connection, run_id) == {"a": "cancelled", "b": "cancelled"}
        assert count(connection, tables.deadlines) == 0


def test_cancelling_keeps_the_jobs_that_have_ended(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection, a_job_spec("a"), a_job_spec("b"))
        end_job(connection, run_id, "a")
        cancel(connection, run_id)
        assert job_states(connection, run_id) == {"a": "succeeded", "b": "cancelled"}


def test_cancelling_takes_an_offer_back_and_frees_its_runner(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        job = jobs_of(connection, run_id)["build"]
        granted = grant(connection, job["job_id"], register_runner(connection))
        assert cancel(connection, run_id) == "cancelled"
        assert changes.find(connection, LEASE, granted.lease_id)["state"] == "revoked"
        attempt = connection.execute(sa.select(tables.attempts)).mappings().one()
        assert (attempt["state"], attempt["settled_at"] is not None) == ("cancelled", True)
        assert free_of_reservations(connection)
        told = connection.execute(sa.select(tables.outbox.c.kind)).scalars().all()
        assert "attempt.finished" in told


def test_cancelling_asks_the_agents_and_waits_for_them(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection, a_job_spec("a"), a_job_spec("b", needs=("a",)))
        granted = accepted(connection, jobs_of(connection, run_id)["a"])
        assert cancel(connection, run_id, "wrong branch") == "cancelling"
        found = jobs_of(connection, run_id)
        assert (found["a"]["state"], found["a"]["cancel_reason"]) == ("preparing", "wrong branch")
        assert found["b"]["state"] == "cancelled"
        assert changes.find(connection, LEASE, granted.lease_id)["cancel_requested"] == 1
        assert run_of(connection, run_id)["open_jobs"] == 1


def test_an_agent_that_ignores_a_cancellation_has_bounded_time(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        granted = accepted(connection, jobs_of(connection, run_id)["build"])
        (before,) = deadlines_of(connection, granted.attempt_id).values()
        cancel(connection, run_id)
        (after,) = deadlines_of(connection, granted.attempt_id).values()
        assert after < before


def test_success_that_overtakes_a_cancellation_counts_for_the_job_only(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection, a_job_spec("a"), a_job_spec("b", needs=("a",)))
        granted = accepted(connection, jobs_of(connection, run_id)["a"])
        cancel(connection, run_id)
        done = Complete(
            session_id=granted.holder.session_id, epoch=granted.epoch, outcome=Outcome.SUCCEEDED
        )
        leases.complete(connection, granted.lease_id, done, policy=LEASE_POLICY)
        assert job_states(connection, run_id) == {"a": "succeeded", "b": "cancelled"}
        assert run_of(connection, run_id)["state"] == "cancelled"


def test_cancelling_twice_changes_nothing_more(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        accepted(connection, jobs_of(connection, run_id)["build"])
        assert [cancel(connection, run_id) for _ in range(2)] == ["cancelling", "cancelling"]
        told = connection.execute(sa.select(tables.audit.c.action)).scalars().all()
        assert told.count("run.cancel") == 1


def test_cancelling_says_in_the_audit_who_did_it_and_why(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        cancel(connection, run_id, "wrong branch")
        line = connection.execute(
            sa.select(tables.audit).where(tables.audit.c.action == "run.cancel")
        )
        row = line.mappings().one()
        assert (row["actor"], row["channel"], row["target"]) == ("ann", "cli", run_id)
        assert row["detail"] == "wrong branch"


def test_a_run_that_has_ended_cannot_be_cancelled(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        end_job(connection, run_id, "build")
    with pytest.raises(Conflict), write(engine) as connection:
        cancel(connection, run_id)


def test_an_unknown_run_cannot_be_cancelled(sqlite_engine: sa.Engine) -> None:
    with pytest.raises(NotFound), write(sqlite_engine) as connection:
        cancel(connection, "run_none")


def test_cancelling_one_job_judges_its_dependents_as_after_a_failure(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(
            connection,
            a_job_spec("a"),
            a_job_spec("b", needs=("a",)),
            a_job_spec("tidy", needs=("a",), condition=Condition.FAILURE),
        )
        assert cancel_one(connection, run_id, "a") == "cancelled"
        expected = {"a": "cancelled", "b": "skipped", "tidy": "eligible"}
        assert job_states(connection, run_id) == expected
        assert run_of(connection, run_id)["state"] == "queued"


def test_cancelling_the_last_open_job_fails_the_run(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        cancel_one(connection, run_id, "build")
        assert run_of(connection, run_id)["state"] == "failed"


def test_cancelling_one_running_job_asks_its_agent_once(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        granted = accepted(connection, jobs_of(connection, run_id)["build"])
        running = Progress(
            session_id=granted.holder.session_id, epoch=granted.epoch, phase=Phase.RUNNING
        )
        leases.progress(connection, granted.lease_id, running, policy=LEASE_POLICY)
        states = [cancel_one(connection, run_id, "build") for _ in range(2)]
        assert states == ["running", "running"]
        assert changes.find(connection, LEASE, granted.lease_id)["cancel_requested"] == 1
        told = connection.execute(sa.select(tables.audit.c.action)).scalars().all()
        assert told.count("job.cancel") == 1


def test_a_job_that_has_ended_or_never_was_cannot_be_cancelled(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        end_job(connection, run_id, "build")
        with pytest.raises(Conflict):
            cancel_one(connection, run_id, "build")
        with pytest.raises(NotFound):
            cancel_one(connection, run_id, "other")


def planned(connection: sa.Connection, run_id: str, runner_ids: list[str]) -> int:
    """Store a plan that puts every job of a run on either runner; return its cycle."""
    candidates = tuple((runner_id, 0) for runner_id in runner_ids)
    decisions = tuple(
        Decision(job_id=row["job_id"], candidates=candidates)
        for row in jobs_of(connection, run_id).values()
    )
    plan = Plan(decisions=decisions, diagnoses=(), eligible=len(decisions), runners=2)
    saved = commit.save_plan(connection, PARTITION, plan, "sha256:s", POLICY.digest(), rng=RNG)
    return saved.cycle_id


def in_parallel(*calls: Callable[[], object]) -> None:
    """Start all at once, wait for all, and raise what any of them raised."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        start.wait()
        call()

    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(run, call) for call in calls]:
            future.result()


def test_a_cancellation_that_races_with_a_grant_leaves_nothing_reserved(
    engine: sa.Engine,
) -> None:
    with write(engine) as connection:
        runners = [register_runner(connection, name).runner_id for name in ("one", "two")]

    def cancelling(run_id: str) -> None:
        with write(engine) as connection:
            cancel(connection, run_id)

    def committing(cycle_id: int) -> None:
        with write(engine) as connection:
            commit.commit_cycle(connection, cycle_id, built_in=POLICY)

    for _ in range(6):
        with write(engine) as connection:
            run_id = submit_run(connection, *(a_job_spec(f"j{n}") for n in range(6)))
            cycle_id = planned(connection, run_id, runners)
        in_parallel(partial(committing, cycle_id), partial(cancelling, run_id))
        with read(engine) as connection:
            assert run_of(connection, run_id)["state"] == "cancelled"
            assert set(job_states(connection, run_id).values()) == {"cancelled"}
            assert free_of_reservations(connection)


# Running out of time


def shift_birth(connection: sa.Connection, run_id: str, *, by_ms: int) -> None:
    connection.execute(
        sa.update(tables.runs)
        .where(tables.runs.c.run_id == run_id)
        .values(ready_at=tables.runs.c.ready_at - by_ms)
    )


def test_a_run_out_of_time_stops_and_is_timed_out(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection, a_job_spec("a"), a_job_spec("b", needs=("a",)))
        shift_birth(connection, run_id, by_ms=86_400_001)
        assert runs.time_out_run(connection, run_id, policy=LEASE_POLICY) == "timed_out"
        found = jobs_of(connection, run_id)
        assert {row["state"] for row in found.values()} == {"cancelled"}
        assert "timeout" in found["a"]["message"]


def test_a_run_with_time_left_is_left_alone(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        assert runs.time_out_run(connection, run_id, policy=LEASE_POLICY) == "queued"
        assert DeadlineKind.RUN in deadlines_of(connection, run_id)


@pytest.mark.parametrize("stop", [cancel, lambda c, r: end_job(c, r, "build")])
def test_a_run_that_is_stopping_or_ended_does_not_time_out(
    sqlite_engine: sa.Engine, stop: Callable[[sa.Connection, str], object]
) -> None:
    with write(sqlite_engine) as connection:
        run_id = submit_run(connection)
        stop(connection, run_id)
        ended = run_of(connection, run_id)["state"]
        shift_birth(connection, run_id, by_ms=86_400_001)
        assert runs.time_out_run(connection, run_id, policy=LEASE_POLICY) == ended
        assert deadlines_of(connection, run_id) == {}
