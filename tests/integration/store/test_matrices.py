"""Cells of a matrix in the store: how many may run at a time, and what a failure does to them."""

import pytest
import sqlalchemy as sa

from forgeyard.model.capability import Platform, Requirements
from forgeyard.model.job import (
    Condition,
    FailureClass,
    JobSpec,
    MatrixCell,
    RetryPolicy,
    Step,
    Timeouts,
)
from forgeyard.model.protocol import Outcome, Phase
from forgeyard.model.units import Millis
from forgeyard.runfile.compile import compile_run
from forgeyard.store import runs, tables, views
from forgeyard.store.engine import read
from tests.builders import LEASE_POLICY, RNG, a_job_spec, some_capabilities, some_resources
from tests.integration.store.test_commit_races import at_once
from tests.leasing import HOUR, Desk, Lease

pytestmark = pytest.mark.integration


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def cells(count: int, *, of: str = "test", **changed: object) -> tuple[JobSpec, ...]:
    """Describe the cells of one matrix."""
    strategy = {
        name: changed.pop(name) for name in ("fail_fast", "max_parallel") if name in changed
    }
    return tuple(
        a_job_spec(
            f"{of}-{number}",
            matrix=MatrixCell(of=of, values={"n": str(number)}, **strategy),
            **changed,
        )
        for number in range(count)
    )


def states(desk: Desk, run_id: str) -> str:
    """Read the states of a run's jobs in order, by their first letters."""
    rows = sorted(desk.rows(tables.jobs, run_id=run_id), key=lambda row: row["position"])
    return " ".join(row["state"][:4] for row in rows)


def cancel(desk: Desk, run_id: str, name: str) -> str:
    return desk.change(
        runs.cancel_job,
        run_id,
        name,
        reason="not needed",
        actor="ann",
        channel="test",
        policy=LEASE_POLICY,
    )


def cancel_run(desk: Desk, run_id: str) -> None:
    desk.change(
        runs.cancel_run, run_id, reason="no", actor="ann", channel="test", policy=LEASE_POLICY
    )


def started(desk: Desk) -> list[Lease]:
    """Run one cycle, and have every offer accepted and its steps begun; leases by job."""
    desk.cycle()
    for lease in desk.leases(state="offered"):
        desk.accept(lease)
        desk.progress(lease, Phase.RUNNING)
    return sorted(desk.leases(state="active"), key=lambda lease: lease.job_id)


def fail(desk: Desk, lease: Lease) -> None:
    desk.complete(lease, Outcome.FAILED, failure_class=FailureClass.USER_COMMAND)
    desk.settle(lease)


def waiting(desk: Desk, run_id: str) -> dict[str, str | None]:
    with read(desk.engine) as connection:
        return {job.name: job.waiting for job in views.run(connection, run_id).jobs}


# How many at a time


def test_only_so_many_cells_wait_for_a_runner_at_a_time(desk: Desk) -> None:
    run_id = desk.submit(*cells(4, max_parallel=2), a_job_spec("other"))
    assert states(desk, run_id) == "elig elig pend pend elig"
    why = waiting(desk, run_id)
    assert why["test-2"] == "waits for a free place among the 2 of matrix test"
    (queued,) = desk.deadlines(desk.rows(tables.jobs, name="test-1")[0]["job_id"])
    assert queued == "queue"
    assert desk.deadlines(desk.rows(tables.jobs, name="test-2")[0]["job_id"]) == set()


def test_a_cell_that_ends_gives_its_place_to_the_next_in_order(desk: Desk) -> None:
    desk.register()
    run_id = desk.submit(*cells(4, max_parallel=2, fail_fast=False))
    first, second = started(desk)
    assert states(desk, run_id) == "runn runn pend pend"
    desk.complete(second)
    assert states(desk, run_id) == "runn succ elig pend"
    fail(desk, first)
    assert states(desk, run_id) == "fail succ elig elig"


def test_cancelling_skipping_and_running_out_of_time_free_a_place_too(desk: Desk) -> None:
    first = a_job_spec("first")
    queue = Timeouts(queue=Millis(1_000))
    run_id = desk.submit(
        *cells(5, max_parallel=1, fail_fast=False, timeouts=queue),
        first,
        *cells(2, of="b", max_parallel=1, needs=("first",)),
        *cells(2, of="c", max_parallel=1, needs=("first",), condition=Condition.FAILURE),
    )
    cancel(desk, run_id, "test-0")
    assert states(desk, run_id).startswith("canc elig pend pend pend")
    cancel(desk, run_id, "test-2")
    assert states(desk, run_id).startswith("canc elig canc pend pend")
    desk.later(2_000)
    desk.sweep()
    assert states(desk, run_id).startswith("canc time canc elig pend")
    cancel(desk, run_id, "first")
    assert states(desk, run_id).endswith("canc skip skip elig pend")


def test_a_damaged_cell_is_parked_and_the_next_takes_its_place(desk: Desk) -> None:
    run_id = desk.submit(*cells(3, max_parallel=1))
    desk.overwrite(tables.jobs, desk.rows(tables.jobs, name="test-1")[0]["job_id"], spec="{}")
    cancel(desk, run_id, "test-0")
    assert states(desk, run_id) == "canc canc elig"


def test_a_lost_cell_keeps_its_place_while_it_is_tried_again(desk: Desk) -> None:
    desk.register()
    delayed = RetryPolicy(delay=Millis(60_000))
    run_id = desk.submit(*cells(2, max_parallel=1, retry=delayed))
    (lease,) = started(desk)
    desk.later(HOUR)
    desk.sweep()
    assert states(desk, run_id) == "lost pend"
    desk.settle(lease)
    assert states(desk, run_id) == "retr pend"


def test_cells_that_wait_for_a_place_are_cancelled_with_their_run(desk: Desk) -> None:
    run_id = desk.submit(*cells(3, max_parallel=1))
    cancel_run(desk, run_id)
    assert states(desk, run_id) == "canc canc canc"
    assert desk.run_state(run_id) == "cancelled"


# Failing fast


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "fail runn canc canc"),
        ({"fail_fast": False}, "fail runn elig elig"),
        ({"continue_on_error": True}, "fail runn elig elig"),
    ],
)
def test_a_failed_cell_stops_the_others_unless_it_may_fail(
    desk: Desk, changed: dict, expected: str
) -> None:
    for number in range(2):
        desk.register(f"r-{number}", total=some_resources(cpu=500, memory=2**40, disk=2**40))
    run_id = desk.submit(*cells(4, **changed))
    first, second = started(desk)
    fail(desk, first)
    assert states(desk, run_id) == expected
    row = desk.row(tables.jobs, second.job_id)
    asked = (row["cancel_reason"], desk.row(tables.leases, second.lease_id)["cancel_requested"])
    if changed:
        assert asked == (None, 0)
        return
    assert asked == ("test-0 did not succeed, and its matrix fails fast", 1)
    desk.complete(second, Outcome.CANCELLED)
    desk.settle(second)
    assert states(desk, run_id) == "fail canc canc canc"
    assert desk.run_state(run_id) == "failed"


def test_failing_fast_takes_offers_back_and_leaves_other_jobs_alone(desk: Desk) -> None:
    desk.register()
    run_id = desk.submit(*cells(3, max_parallel=2), *cells(1, of="b"), a_job_spec("other"))
    desk.cycle()
    offered = sorted(desk.leases(state="offered"), key=lambda lease: lease.job_id)
    desk.accept(offered[0])
    fail(desk, offered[0])
    assert states(desk, run_id) == "fail canc canc leas leas"
    runner_id = offered[0].runner_id
    assert desk.reserved(runner_id)["slots"] == 2


def test_a_cell_that_nobody_took_in_time_fails_its_matrix_fast(desk: Desk) -> None:
    short = a_job_spec(
        "test-0", matrix=MatrixCell(of="test"), timeouts=Timeouts(queue=Millis(1_000))
    )
    run_id = desk.submit(short, a_job_spec("test-1", matrix=MatrixCell(of="test")))
    desk.later(2_000)
    desk.sweep()
    assert states(desk, run_id) == "time canc"
    assert desk.run_state(run_id) == "failed"


def test_a_cancelled_cell_stops_no_other(desk: Desk) -> None:
    desk.register()
    run_id = desk.submit(*cells(3, max_parallel=2))
    first, second = started(desk)
    cancel(desk, run_id, "test-2")
    assert states(desk, run_id) == "runn runn canc"
    cancel(desk, run_id, "test-0")
    desk.complete(first, Outcome.CANCELLED)
    desk.settle(first)
    assert states(desk, run_id) == "canc runn canc"
    assert desk.row(tables.jobs, second.job_id)["cancel_reason"] is None


def test_two_cells_that_fail_at_the_same_moment_end_everything_once(desk: Desk) -> None:
    for _ in range(5):
        desk.register()
        run_id = desk.submit(*cells(4))
        leases = [lease for lease in started(desk) if lease.run_id == run_id]
        assert len(leases) == 4
        at_once([lambda lease=lease: fail(desk, lease) for lease in leases[:2]])
        for lease in leases[2:]:
            desk.complete(lease, Outcome.CANCELLED)
            desk.settle(lease)
        assert sorted(states(desk, run_id).split()) in (
            ["canc", "canc", "canc", "fail"],
            ["canc", "canc", "fail", "fail"],
        )
        row = desk.row(tables.runs, run_id)
        assert (row["state"], row["open_jobs"]) == ("failed", 0)
        assert desk.reserved(leases[0].runner_id)["slots"] == 0


def test_failing_fast_while_offers_and_agents_come_and_go_deadlocks_nobody(desk: Desk) -> None:
    for _ in range(4):
        storm(desk)


def storm(desk: Desk) -> None:
    """Fail a cell while a cycle grants, an agent accepts, one reports and one starts anew."""
    _, other = (desk.register(f"runner-{n}").session_id for n in range(2))
    run_id = desk.submit(*cells(6))
    desk.cycle()
    first, *offered = sorted(desk.leases(state="offered"), key=lambda lease: lease.job_id)
    desk.accept(first)
    more = desk.submit(*(a_job_spec(f"x{n}") for n in range(6)))
    cycle_id = desk.plan()
    desk.complete(first, Outcome.FAILED, failure_class=FailureClass.USER_COMMAND)
    at_once(
        [
            lambda: desk.settle(first),
            lambda: desk.commit(cycle_id),
            lambda: desk.accept(offered[-1]),
            lambda: desk.heartbeat(other),
            lambda: desk.register("runner-0"),
        ]
    )
    found = set(states(desk, run_id).split())
    assert found & {"elig", "pend", "leas"} == set()
    assert "fail" in found
    for left in (run_id, more):
        if desk.run_state(left) in ("queued", "running"):
            cancel_run(desk, left)


# Reruns, and what the scheduler sees


def test_a_rerun_of_failed_cells_keeps_their_matrix(desk: Desk) -> None:
    desk.register()
    run_id = desk.submit(*cells(4, max_parallel=1, fail_fast=False))
    (first,) = started(desk)
    desk.complete(first)
    for _ in range(3):
        (lease,) = started(desk)
        fail(desk, lease)
    again = desk.change(runs.rerun_failed, run_id, actor="ann", policy=LEASE_POLICY, rng=RNG).run_id
    assert states(desk, again) == "succ elig pend pend"
    (second,) = started(desk)
    desk.complete(second)
    assert states(desk, again) == "succ succ elig pend"
    with read(desk.engine) as connection:
        shown = views.run(connection, again).jobs[1]
    assert (shown.matrix, shown.matrix_values) == ("test", {"n": "1"})


@pytest.mark.requirement("FAR-030", "FAR-031")
def test_shards_are_placed_on_different_runners_in_one_cycle(desk: Desk) -> None:
    one_job = some_resources(cpu=500, memory=2**40, disk=2**40)
    for number in range(3):
        desk.register(f"linux-{number}", total=one_job)
    mac = some_capabilities(platform=Platform.MACOS)
    desk.register("mac", total=one_job, capabilities=mac)
    strategy = {"matrix": {"shard": [1, 2, 3], "os": ["linux"], "include": [{"os": "macos"}]}}
    document = {
        "jobs": {
            "test": {
                "strategy": strategy,
                "requires": {"platform": "${{ matrix.os }}"},
                "steps": [{"run": "run-tests --shard=${{ matrix.shard }}/3"}],
            }
        }
    }
    spec = compile_run(document, fallback_name="shards")
    written_out = tuple(
        a_job_spec(
            job.name,
            requires=Requirements(platform=job.requires.platform),
            steps=(Step(name="step 1", run=job.steps[0].run),),
        )
        for job in spec.jobs
    )
    assert [(job.requires, job.steps, job.resources) for job in spec.jobs] == [
        (job.requires, job.steps, job.resources) for job in written_out
    ]
    desk.submit(*spec.jobs)
    assert desk.cycle().granted == 4
    placed = {
        desk.row(tables.jobs, lease.job_id)["name"]: desk.row(tables.runners, lease.runner_id)
        for lease in desk.leases(state="offered")
    }
    assert len({runner["runner_id"] for runner in placed.values()}) == 4
    assert placed["test-macos"]["name"] == "mac"
