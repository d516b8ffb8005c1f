"""Draining a runner at once cancels its jobs the way people cancel them, and nothing else."""

import pytest
import sqlalchemy as sa

from forgeyard.errors import NotFound
from forgeyard.model.job import Condition
from forgeyard.model.protocol import Outcome
from forgeyard.store import draining, runs, tables
from tests.builders import LEASE_POLICY, a_job_spec, some_resources
from tests.integration.store.test_commit_races import at_once
from tests.leasing import Desk

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("recorded")]


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def drain_now(desk: Desk, name: str = "runner-1") -> int:
    return desk.change(
        draining.drain_now,
        name,
        reason="disk on fire",
        actor="ann",
        channel="test",
        policy=LEASE_POLICY,
    )


def cancel_run(desk: Desk, run_id: str) -> None:
    desk.change(
        runs.cancel_run, run_id, reason="no", actor="ann", channel="test", policy=LEASE_POLICY
    )


def states(desk: Desk, run_id: str) -> dict[str, str]:
    return {row["name"]: row["state"] for row in desk.rows(tables.jobs, run_id=run_id)}


@pytest.mark.requirement("RUN-003")
def test_draining_now_cancels_what_the_runner_works_on(desk: Desk) -> None:
    runner_id = desk.register(
        total=some_resources(cpu=1_500, memory=2**40, disk=2**40, slots=3)
    ).runner_id
    first = desk.submit(a_job_spec("a"), a_job_spec("b"), a_job_spec("c", needs=("a",)))
    second = desk.submit(
        a_job_spec("d"), a_job_spec("tidy", needs=("d",), condition=Condition.FAILURE)
    )
    desk.cycle()
    leases = {desk.row(tables.jobs, one.job_id)["name"]: one for one in desk.leases()}
    assert sorted(leases) == ["a", "b", "d"]
    desk.accept(leases["a"])
    assert drain_now(desk) == 3
    assert states(desk, first) == {"a": "preparing", "b": "cancelled", "c": "pending"}
    assert states(desk, second) == {"d": "cancelled", "tidy": "eligible"}
    assert desk.row(tables.leases, leases["a"].lease_id)["cancel_requested"] == 1
    runner = desk.row(tables.runners, runner_id)
    assert (runner["state"], runner["drain_reason"]) == ("draining", "disk on fire")
    assert desk.reserved(runner_id)["slots"] == 1
    assert desk.cycle().granted == 0, "what it freed is not given away again"
    desk.complete(leases["a"], Outcome.CANCELLED)
    desk.settle(leases["a"])
    assert states(desk, first) == {"a": "cancelled", "b": "cancelled", "c": "skipped"}
    told = {(row["target"], row["detail"], row["actor"]) for row in desk.audited("job.cancel")}
    assert told == {(one.job_id, "disk on fire", "ann") for one in leases.values()}
    assert len(desk.audited("runner.drain")) == 1


def test_draining_now_leaves_other_runners_and_jobs_alone(desk: Desk) -> None:
    one_job = some_resources(cpu=500, memory=2**40, disk=2**40)
    runner_id = desk.register("runner-1", total=one_job).runner_id
    desk.register("runner-2", total=one_job)
    run_id = desk.submit(*(a_job_spec(f"j{number}") for number in range(3)))
    desk.cycle()
    assert drain_now(desk) == 1
    (gone,) = desk.leases(state="revoked")
    assert gone.runner_id == runner_id
    assert sorted(states(desk, run_id).values()) == ["cancelled", "eligible", "leased"]


def test_draining_now_again_cancels_nothing_more(desk: Desk) -> None:
    lease = desk.active()
    assert [drain_now(desk), drain_now(desk)] == [1, 0]
    assert len(desk.audited("job.cancel")) == 1
    assert desk.row(tables.jobs, lease.job_id)["cancel_reason"] == "disk on fire"


def test_an_idle_runner_is_drained_and_an_unknown_one_is_not_found(desk: Desk) -> None:
    runner_id = desk.register().runner_id
    assert drain_now(desk) == 0
    assert desk.row(tables.runners, runner_id)["drain_requested"] == 1
    with pytest.raises(NotFound):
        drain_now(desk, "nobody")


def test_draining_now_while_work_is_given_out_and_stopped_leaves_nothing_behind(
    desk: Desk,
) -> None:
    for _ in range(4):
        runner_id = desk.register().runner_id
        held = desk.submit(*(a_job_spec(f"j{number}") for number in range(2)))
        desk.cycle()
        for lease in desk.leases(state="offered"):
            desk.accept(lease)
        more = desk.submit(*(a_job_spec(f"x{number}") for number in range(2)))
        cycle_id = desk.plan()
        at_once(
            [
                lambda: drain_now(desk),
                lambda cycle_id=cycle_id: desk.commit(cycle_id),
                lambda run_id=held: cancel_run(desk, run_id),
            ]
        )
        assert desk.cycle().granted == 0
        for lease in desk.leases(state="active"):
            assert desk.row(tables.jobs, lease.job_id)["cancel_reason"] is not None
            desk.complete(lease, Outcome.CANCELLED)
            desk.settle(lease)
        assert desk.reserved(runner_id)["slots"] == 0
        assert desk.run_state(held) == "cancelled"
        if desk.run_state(more) in ("queued", "running"):
            cancel_run(desk, more)
        desk.change(
            lambda connection, runner_id=runner_id: connection.execute(
                sa.update(tables.runners).values(drain_requested=0)
            )
        )
