"""People see what is there, and why what does not run waits."""

import pytest
import sqlalchemy as sa

from forgeyard.errors import AmbiguousName, InvalidRequest, NotFound
from forgeyard.model.job import Condition, FailureClass, OutputSpec, Priority, RetryPolicy
from forgeyard.model.protocol import Outcome, Phase, StepResult, Usage
from forgeyard.model.run import GitSource
from forgeyard.model.transitions import JobState, RunState
from forgeyard.model.units import GIB, Bytes, Millis
from forgeyard.store import artifacts, blobs, changes, codec, runs, tables, views
from forgeyard.store.changes import LEASE
from forgeyard.store.engine import read
from tests.builders import PARTITION, RNG, a_job_spec, end_job, jobs_of, some_resources
from tests.leasing import Desk

pytestmark = pytest.mark.integration

WHEEL = "sha256:" + "a" * 64


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def show(desk: Desk, run_id: str) -> views.RunView:
    with read(desk.engine) as connection:
        return views.run(connection, run_id)


def job(desk: Desk, run_id: str, name: str = "build") -> views.JobView:
    return next(view for view in show(desk, run_id).jobs if view.name == name)


def test_a_run_is_shown_whole(desk: Desk) -> None:
    build = a_job_spec("build", outputs=(OutputSpec(name="wheel", path="dist/*"),))
    test = a_job_spec("test", needs=("build",), priority=Priority.HIGH)
    lease = desk.active(build, test)
    desk.change(blobs.record, WHEEL, 5)
    row = desk.change(changes.find, LEASE, lease.lease_id)
    desk.change(artifacts.record, row, "wheel", "dist/*", WHEEL, 5)
    desk.progress(lease, Phase.RUNNING)
    steps = (StepResult(name="run", exit_code=0, wall=Millis(7)),)
    usage = Usage(wall=Millis(9), cpu=Millis(8), peak_memory=Bytes(1_000))
    desk.complete(lease, exit_code=0, steps=steps, usage=usage)
    view = show(desk, lease.run_id)
    assert (view.name, view.state, view.submitted_by) == ("demo", RunState.RUNNING, "tester")
    assert [one.name for one in view.jobs] == ["build", "test"]
    built, tested = view.jobs
    assert (built.state, built.waiting, built.needs) == (JobState.SUCCEEDED, None, ())
    assert [(o.name, o.path, o.digest, o.size_bytes) for o in built.outputs] == [
        ("wheel", "dist/*", WHEEL, 5)
    ]
    (attempt,) = built.attempts
    assert (attempt.runner, attempt.number, attempt.state) == ("runner-1", 1, "succeeded")
    assert (attempt.steps, attempt.wall_ms, attempt.peak_memory_bytes) == (steps, 9, 1_000)
    assert (tested.needs, tested.priority, tested.condition) == (("build",), "high", "success")
    assert codec.encode(view)


@pytest.mark.parametrize("size", [1, 12])
def test_showing_a_run_takes_the_same_few_queries(desk: Desk, size: int) -> None:
    run_id = desk.submit(*(a_job_spec(f"job-{n}") for n in range(size)))
    asked: list[str] = []
    with read(desk.engine) as connection:
        sa.event.listen(connection, "before_cursor_execute", lambda *call: asked.append(call[2]))
        views.run(connection, run_id)
    assert len(asked) <= 12


def test_a_pending_job_names_the_needs_it_waits_for(desk: Desk) -> None:
    first, second = a_job_spec("a"), a_job_spec("b")
    run_id = desk.submit(first, second, a_job_spec("c", needs=("a", "b")))
    assert job(desk, run_id, "c").waiting == "waits for a, b"
    desk.change(end_job, run_id, "a")
    assert job(desk, run_id, "c").waiting == "waits for b"


@pytest.mark.requirement("DIA-007", "DIA-008")
def test_an_eligible_job_says_what_the_scheduler_found(desk: Desk) -> None:
    run_id = desk.submit(a_job_spec(resources=some_resources(memory=16 * GIB)))
    assert job(desk, run_id).waiting == "waits for the next scheduling cycle"
    desk.register()
    desk.cycle()
    waiting = job(desk, run_id).waiting
    assert waiting is not None
    assert "16 GiB" in waiting


@pytest.mark.parametrize("text", ["no JSON", "[]", "{}", "null", "7"])
def test_a_diagnosis_that_cannot_be_read_hides_nothing_else(desk: Desk, text: str) -> None:
    run_id = desk.submit()
    (row,) = desk.change(jobs_of, run_id).values()
    desk.overwrite(tables.jobs, row["job_id"], diagnosis=text)
    assert job(desk, run_id).waiting == "waits for the next scheduling cycle"


def test_a_job_on_its_way_to_a_runner_names_it(desk: Desk) -> None:
    lease = desk.offered(a_job_spec())
    assert job(desk, lease.run_id).waiting == "is offered to runner-1, which has not accepted yet"
    desk.accept(lease)
    desk.progress(lease, Phase.RUNNING)
    assert job(desk, lease.run_id).waiting is None


def test_a_job_between_attempts_says_what_comes_next(desk: Desk) -> None:
    retry = RetryPolicy(on=(FailureClass.USER_COMMAND,), delay=Millis(60_000))
    lease = desk.active(a_job_spec(retry=retry))
    desk.complete(lease, Outcome.FAILED, failure_class=FailureClass.USER_COMMAND, exit_code=1)
    waiting = job(desk, lease.run_id).waiting
    assert waiting == "attempt 1 failed; another is being decided"
    desk.settle(lease)
    waiting = job(desk, lease.run_id).waiting
    assert waiting is not None
    assert waiting.startswith("tries again in ")
    assert waiting.endswith(" s; 1 of 3 attempts used")


def test_a_lost_job_names_the_runner_that_was_lost(desk: Desk) -> None:
    lease = desk.active(a_job_spec())
    desk.later(600_000)
    desk.overwrite(tables.runs, lease.run_id, state="running")
    (row,) = desk.change(jobs_of, lease.run_id).values()
    desk.overwrite(tables.jobs, row["job_id"], state="lost")
    waiting = job(desk, lease.run_id).waiting
    assert waiting == "lost runner-1; another attempt is being decided"


def test_a_job_that_is_being_cancelled_says_why(desk: Desk) -> None:
    lease = desk.active(a_job_spec())
    desk.change(
        runs.cancel_run,
        lease.run_id,
        reason="not needed",
        actor="a",
        channel="api",
        policy=desk.policy.lease,
    )
    assert job(desk, lease.run_id).waiting == "is being cancelled: not needed"


def test_a_run_is_found_by_the_beginning_of_its_id(desk: Desk) -> None:
    first, second = desk.submit(), desk.submit()
    common = next(n for n in range(len(first)) if first[n] != second[n])
    with read(desk.engine) as connection:
        assert views.run_id_of(connection, first) == first
        assert views.run_id_of(connection, first[: common + 1]) == first
        with pytest.raises(AmbiguousName, match="several"):
            views.run_id_of(connection, first[:common])
        for nothing in ("", "run_none", "%", "run%", "\0", "ä", "a" * 100):
            with pytest.raises(NotFound):
                views.run_id_of(connection, nothing)


def test_runs_are_listed_page_by_page_newest_first(desk: Desk) -> None:
    submitted = [desk.submit(name=f"run-{n}") for n in range(5)]
    # Two in the same millisecond are still told apart.
    with desk.engine.begin() as connection:
        connection.execute(sa.update(tables.runs).values(created_at=1_000))
    desk.overwrite(tables.runs, submitted[0], created_at=2_000)
    listed: list[str] = []
    before: str | None = None
    while True:
        with read(desk.engine) as connection:
            page = views.list_runs(connection, limit=2, before=before)
        listed += [run.run_id for run in page.runs]
        before = page.next
        if before is None:
            break
    assert listed == [submitted[0], *sorted(submitted[1:], reverse=True)]


def test_runs_are_listed_with_the_counts_of_their_jobs(desk: Desk) -> None:
    run_id = desk.submit(a_job_spec("a"), a_job_spec("b"))
    desk.submit()
    desk.change(end_job, run_id, "a", JobState.FAILED)
    with read(desk.engine) as connection:
        (run,) = views.list_runs(connection, limit=5, state=RunState.RUNNING).runs or (None,)
        queued = views.list_runs(connection, limit=5, state=RunState.QUEUED).runs
    shown = run or next(one for one in queued if one.run_id == run_id)
    assert (shown.jobs, shown.open_jobs, shown.failed_jobs) == (2, 1, 1)


def test_a_foreign_cursor_is_refused(desk: Desk) -> None:
    with read(desk.engine) as connection:
        for cursor in ("run_none", "\0", ""):
            with pytest.raises(InvalidRequest):
                views.list_runs(connection, limit=5, before=cursor)


def test_history_tells_the_story_of_everything_in_a_run(desk: Desk) -> None:
    lease = desk.active(a_job_spec())
    desk.complete(lease)
    other = desk.submit()
    with read(desk.engine) as connection:
        lines = views.history_of_run(connection, lease.run_id)
    told = [(line.kind, line.name, line.after) for line in lines]
    assert told[0] == ("run", "demo", "queued")
    assert told[-1] == ("run", "demo", "succeeded")
    for line in (
        ("job", "build", "leased"),
        ("attempt", "build #1", "leased"),
        ("lease", "build #1", "offered"),
        ("lease", "build #1", "released"),
        ("attempt", "build #1", "succeeded"),
    ):
        assert told.count(line) == 1
    assert other not in {line.entity_id for line in lines}


@pytest.mark.requirement("RUN-007")
def test_runners_show_what_they_hold(desk: Desk) -> None:
    desk.register("idle")
    lease = desk.active(a_job_spec(), runner="busy")
    with read(desk.engine) as connection:
        found = {runner.name: runner for runner in views.runners(connection)}
    assert sorted(found) == ["busy", "idle"]
    (holder,) = (runner for runner in found.values() if runner.placed)
    (placed,) = holder.placed
    assert (placed.run_id, placed.job, placed.attempt) == (lease.run_id, "build", 1)
    assert holder.reserved == some_resources()
    assert holder.free == holder.allocatable.minus(some_resources())
    assert holder.capabilities.os_version == "12"
    assert codec.encode(holder)


def test_capacity_counts_only_runners_that_take_work(desk: Desk) -> None:
    desk.register("one", headroom=some_resources(slots=0))
    gone = desk.register("two")
    desk.overwrite(tables.runners, gone.runner_id, state="offline")
    desk.submit(a_job_spec("a"), a_job_spec("b"))
    with read(desk.engine) as connection:
        capacity = views.capacity(connection)
    assert (capacity.runners, capacity.absent) == (1, 1)
    assert capacity.free == capacity.allocatable
    assert capacity.total.minus(capacity.allocatable) == some_resources(slots=0)
    assert capacity.wanted == some_resources().plus(some_resources())


def test_an_empty_house_has_no_capacity(desk: Desk) -> None:
    with read(desk.engine) as connection:
        assert views.capacity(connection).total == some_resources(cpu=0, memory=0, disk=0, slots=0)
        assert views.runners(connection) == ()
        status = views.scheduler_status(connection, PARTITION)
        (queue,) = views.queues(connection)
    assert (status.jobs, status.oldest_eligible_ms, status.last_cycle) == ({}, None, None)
    assert (queue.queue_id, queue.running, queue.eligible) == ("que_default", 0, {})


def test_queues_count_what_waits_and_what_runs(desk: Desk) -> None:
    desk.active(a_job_spec())
    desk.submit(
        a_job_spec("a"),
        a_job_spec("b", priority=Priority.HIGH),
        a_job_spec("c", needs=("a",), condition=Condition.ALWAYS),
    )
    with read(desk.engine) as connection:
        (queue,) = views.queues(connection)
    assert (queue.name, queue.running, queue.pending) == ("default", 1, 1)
    assert queue.eligible == {"normal": 1, "high": 1}
    assert queue.oldest_eligible_ms is not None


def test_status_tells_how_scheduling_stands(desk: Desk) -> None:
    desk.active(a_job_spec())
    desk.submit(a_job_spec())
    with read(desk.engine) as connection:
        status = views.scheduler_status(connection, PARTITION)
        elsewhere = views.scheduler_status(connection, "elsewhere")
    assert status.jobs == {"preparing": 1, "eligible": 1}
    assert status.runners == {"online": 1}
    assert status.last_cycle is not None
    assert (status.last_cycle.planned, status.last_cycle.granted) == (1, 1)
    assert status.wake_generation > status.wake_signalled == 0
    assert (elsewhere.jobs, elsewhere.last_cycle) == ({}, None)


def test_rerunning_shows_where_a_success_came_from(desk: Desk) -> None:
    run_id = desk.submit(a_job_spec("a"), a_job_spec("b"))
    desk.change(end_job, run_id, "a")
    desk.change(end_job, run_id, "b", JobState.FAILED)
    again = desk.change(
        runs.rerun_failed, run_id, actor="tester", policy=desk.policy.lease, rng=RNG
    ).run_id
    view = show(desk, again)
    assert view.rerun_of == run_id
    assert view.jobs[0].reused_from == show(desk, run_id).jobs[0].job_id
    assert view.jobs[1].reused_from is None


def test_a_rerun_works_on_the_same_commit(desk: Desk) -> None:
    git = GitSource(repository="https://example.org/app.git", ref="main", commit="a" * 40)
    run_id = desk.submit(a_job_spec("a"), git=git)
    desk.change(end_job, run_id, "a", JobState.FAILED)
    again = desk.change(
        runs.rerun_failed, run_id, actor="tester", policy=desk.policy.lease, rng=RNG
    ).run_id
    assert show(desk, again).git == git
    with read(desk.engine) as connection:
        assert {one.git for one in views.list_runs(connection, limit=9).runs} == {git}
