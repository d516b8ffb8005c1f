"""Concurrency groups: one run goes on, one waits, the newest wins; nothing overlaps."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.errors import Conflict
from forgeyard.model.job import Condition, Timeouts
from forgeyard.model.protocol import Outcome, Phase
from forgeyard.model.run import Concurrency
from forgeyard.model.transitions import FINAL_RUN_STATES, JobState, RunState
from forgeyard.model.units import Millis
from forgeyard.store import groups, runs, tables, views
from forgeyard.store.changes import Row
from forgeyard.store.engine import read
from tests.builders import LEASE_POLICY, RNG, a_job_spec, a_run_spec, a_submission, end_job
from tests.integration.store.test_commit_races import at_once
from tests.leasing import HOUR, Desk, Lease

pytestmark = pytest.mark.integration
GROUP = "deploy-prod"
MINUTE = 60_000


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def submit(desk: Desk, *jobs: object, group: str = GROUP, cancel: bool = False) -> str:
    """Submit a run of the group, of one job called `build` unless jobs are given."""
    spec = a_run_spec(*jobs, timeout=HOUR)
    wanted = Concurrency(group=group, cancel_in_progress=cancel)
    submission = a_submission(replace(spec, concurrency=wanted))
    return desk.change(runs.submit, submission, policy=LEASE_POLICY, rng=RNG).run_id


def running(desk: Desk) -> Lease:
    """Register a runner, and have the one offer accepted and begun."""
    desk.register()
    assert desk.cycle().granted == 1
    (lease,) = desk.leases(state="offered")
    desk.accept(lease)
    desk.progress(lease, Phase.RUNNING)
    return lease


def row(desk: Desk, run_id: str) -> Row:
    return desk.row(tables.runs, run_id)


def jobs(desk: Desk, run_id: str) -> dict[str, str]:
    return {found["name"]: found["state"] for found in desk.rows(tables.jobs, run_id=run_id)}


def cancel_run(desk: Desk, run_id: str) -> str:
    return desk.change(
        runs.cancel_run, run_id, reason="no", actor="ann", channel="test", policy=LEASE_POLICY
    )


def cancel_job(desk: Desk, run_id: str, name: str) -> str:
    return desk.change(
        runs.cancel_job,
        run_id,
        name,
        reason="no",
        actor="ann",
        channel="test",
        policy=LEASE_POLICY,
    )


def shown(desk: Desk, run_id: str) -> views.RunView:
    with read(desk.engine) as connection:
        return views.run(connection, run_id)


def check_group(desk: Desk, group: str = GROUP) -> None:
    """Check what must hold of a group at any time: at most one goes on, at most one waits."""
    found = desk.rows(tables.runs, concurrency_group=group)
    unfinished = [one for one in found if RunState(one["state"]) not in FINAL_RUN_STATES]
    waiting = [one for one in unfinished if one["ready_at"] is None]
    assert len(waiting) <= 1
    assert len(unfinished) - len(waiting) <= 1
    for one in waiting:
        assert desk.deadlines(one["run_id"]) == {"held"}
        assert set(jobs(desk, one["run_id"]).values()) <= {"pending", "cancelled", "succeeded"}


def test_a_second_run_of_a_group_waits_and_nothing_of_it_is_eligible(desk: Desk) -> None:
    first = submit(desk)
    second = submit(desk, a_job_spec("a"), a_job_spec("b", needs=("a",)))
    other = submit(desk, group="other")
    assert jobs(desk, first) == jobs(desk, other) == {"build": "eligible"}
    assert jobs(desk, second) == {"a": "pending", "b": "pending"}
    assert (row(desk, second)["state"], row(desk, second)["ready_at"]) == ("queued", None)
    assert all(desk.deadlines(one["job_id"]) == set() for one in desk.rows(tables.jobs, name="a"))
    view = shown(desk, second)
    assert (view.waits_for, view.concurrency_group) == (first, GROUP)
    assert view.jobs[0].waiting == f"waits for {first} of its concurrency group {GROUP} to end"
    with read(desk.engine) as connection:
        page = views.list_runs(connection, limit=9)
    assert {one.run_id: one.waits_for for one in page.runs} == {
        first: None,
        second: first,
        other: None,
    }
    check_group(desk)


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_the_end_of_a_run_lets_the_next_go_on_at_the_next_sweep(desk: Desk, end: str) -> None:
    first = submit(desk)
    second = submit(
        desk,
        a_job_spec("a", timeouts=Timeouts(queue=Millis(5 * MINUTE))),
        a_job_spec("never", condition=Condition.FAILURE),
        a_job_spec("b", needs=("a",)),
    )
    desk.sweep()
    assert row(desk, second)["ready_at"] is None
    desk.later(10 * MINUTE)
    if end == "cancelled":
        cancel_run(desk, first)
    else:
        desk.change(end_job, first, "build", JobState(end))
    assert row(desk, second)["ready_at"] is None, "only the sweep may lock the group"
    woken = desk.wakes()
    desk.sweep()
    released = row(desk, second)
    assert released["ready_at"] > released["created_at"]
    assert jobs(desk, second) == {"a": "eligible", "never": "skipped", "b": "pending"}
    assert desk.wakes() > woken
    (due,) = desk.rows(tables.deadlines, entity_id=second)
    assert (due["kind"], due["due_at"]) == ("run", released["ready_at"] + HOUR)
    (job,) = desk.rows(tables.jobs, run_id=second, name="a")
    (due,) = desk.rows(tables.deadlines, entity_id=job["job_id"])
    assert due["due_at"] == released["ready_at"] + 5 * MINUTE
    assert shown(desk, second).waits_for is None
    check_group(desk)


def test_the_time_of_a_run_counts_from_when_it_may_go_on(desk: Desk) -> None:
    first, second = submit(desk), submit(desk)
    desk.overwrite(tables.runs, first, timeout_ms=24 * HOUR)
    desk.later(2 * HOUR)
    assert desk.change(runs.time_out_run, second, policy=LEASE_POLICY) == "queued"
    desk.change(end_job, first, "build")
    desk.sweep()
    assert desk.change(runs.time_out_run, second, policy=LEASE_POLICY) == "queued"
    desk.later(HOUR)
    assert desk.change(runs.time_out_run, second, policy=LEASE_POLICY) == "timed_out"


def test_a_waiting_run_is_superseded_by_a_newer_one(desk: Desk) -> None:
    first, second = submit(desk), submit(desk, a_job_spec("a"), a_job_spec("b", needs=("a",)))
    third = submit(desk)
    assert row(desk, first)["state"] == "queued"
    assert (row(desk, second)["state"], row(desk, second)["note"]) == (
        "superseded",
        f"superseded by {third}",
    )
    assert jobs(desk, second) == {"a": "cancelled", "b": "cancelled"}
    assert desk.deadlines(second) == set()
    assert shown(desk, third).waits_for == first
    (line,) = desk.audited("run.supersede")
    assert (line["target"], line["actor"]) == (second, "tester")
    check_group(desk)


def test_cancel_in_progress_ends_a_run_that_nobody_works_on_at_once(desk: Desk) -> None:
    first = submit(desk)
    second = submit(desk, cancel=True)
    assert row(desk, first)["state"] == "superseded"
    assert jobs(desk, second) == {"build": "eligible"}
    assert desk.deadlines(second) == {"run"}
    check_group(desk)


def test_cancel_in_progress_waits_until_the_agents_have_stopped(desk: Desk) -> None:
    first = submit(desk, a_job_spec("a"), a_job_spec("b", needs=("a",)))
    lease = running(desk)
    second = submit(desk)
    third = submit(desk, cancel=True)
    assert [row(desk, one)["state"] for one in (first, second)] == ["cancelling", "superseded"]
    assert desk.row(tables.leases, lease.lease_id)["cancel_requested"] == 1
    desk.sweep()
    assert (row(desk, third)["ready_at"], shown(desk, third).waits_for) == (None, first)
    check_group(desk)
    desk.complete(lease, Outcome.CANCELLED)
    desk.settle(lease)
    assert (row(desk, first)["state"], row(desk, first)["note"]) == (
        "superseded",
        f"superseded by {third}",
    )
    desk.sweep()
    assert jobs(desk, third) == {"build": "eligible"}


def test_a_run_that_is_being_cancelled_by_its_user_ends_cancelled(desk: Desk) -> None:
    first = submit(desk)
    lease = running(desk)
    cancel_run(desk, first)
    second = submit(desk, cancel=True)
    desk.complete(lease, Outcome.CANCELLED)
    desk.settle(lease)
    assert row(desk, first)["state"] == "cancelled"
    desk.sweep()
    assert jobs(desk, second) == {"build": "eligible"}


def test_a_waiting_run_can_be_cancelled(desk: Desk) -> None:
    first, second = submit(desk), submit(desk)
    assert cancel_run(desk, second) == "cancelled"
    assert desk.deadlines(second) == set()
    third = submit(desk)
    assert shown(desk, third).waits_for == first
    check_group(desk)


def test_a_job_of_a_waiting_run_can_be_cancelled_and_starts_no_other(desk: Desk) -> None:
    first = submit(desk)
    second = submit(
        desk,
        a_job_spec("a"),
        a_job_spec("b", needs=("a",)),
        a_job_spec("tidy", needs=("a",), condition=Condition.ALWAYS),
    )
    cancel_job(desk, second, "a")
    assert jobs(desk, second) == {"a": "cancelled", "b": "pending", "tidy": "pending"}
    desk.change(end_job, first, "build")
    desk.sweep()
    assert jobs(desk, second) == {"a": "cancelled", "b": "skipped", "tidy": "eligible"}


def test_a_waiting_run_whose_last_job_is_cancelled_has_ended(desk: Desk) -> None:
    submit(desk)
    second = submit(desk)
    cancel_job(desk, second, "build")
    assert row(desk, second)["state"] == "failed"
    assert desk.deadlines(second) == set()
    check_group(desk)


def test_a_call_that_was_lost_is_made_up_for_after_a_while(desk: Desk) -> None:
    first, second = submit(desk), submit(desk)
    desk.change(end_job, first, "build")
    later = row(desk, second)["created_at"] + MINUTE
    desk.change(
        lambda connection: connection.execute(
            sa.update(tables.deadlines)
            .where(tables.deadlines.c.kind == "held")
            .values(due_at=later)
        )
    )
    desk.sweep()
    assert row(desk, second)["ready_at"] is None
    desk.later(2 * MINUTE)
    desk.sweep()
    assert row(desk, second)["ready_at"] is not None


def test_releasing_a_run_twice_or_after_its_end_changes_nothing(desk: Desk) -> None:
    first, second = submit(desk), submit(desk)
    assert not desk.change(groups.release, second)
    desk.change(end_job, first, "build")
    assert desk.change(groups.release, second)
    before = row(desk, second)
    assert not desk.change(groups.release, second)
    assert not desk.change(groups.release, first)
    assert row(desk, second) == before


def test_a_superseded_run_has_ended_and_can_be_run_again(desk: Desk) -> None:
    first, second = submit(desk), submit(desk)
    third = submit(desk)
    with pytest.raises(Conflict):
        cancel_run(desk, second)
    again = desk.change(runs.rerun_failed, second, actor="ann", policy=LEASE_POLICY, rng=RNG).run_id
    assert row(desk, third)["note"] == f"superseded by {again}"
    assert (row(desk, again)["rerun_of"], shown(desk, again).waits_for) == (second, first)
    check_group(desk)


def test_a_rerun_that_waits_keeps_what_it_took_over(desk: Desk) -> None:
    first = submit(desk, a_job_spec("a"), a_job_spec("b", needs=("a",)), cancel=True)
    desk.change(end_job, first, "a")
    desk.change(end_job, first, "b", JobState.FAILED)
    second = submit(desk)
    lease = running(desk)
    again = desk.change(runs.rerun_failed, first, actor="ann", policy=LEASE_POLICY, rng=RNG).run_id
    assert row(desk, second)["state"] == "cancelling", "it still cancels what is in progress"
    assert jobs(desk, again) == {"a": "succeeded", "b": "pending"}
    desk.complete(lease, Outcome.CANCELLED)
    desk.settle(lease)
    desk.sweep()
    assert jobs(desk, again) == {"a": "succeeded", "b": "eligible"}


def test_the_same_key_supersedes_nothing_when_it_comes_again(desk: Desk) -> None:
    wanted = Concurrency(group=GROUP, cancel_in_progress=True)
    spec = replace(a_run_spec(), concurrency=wanted)
    submission = a_submission(spec, idempotency_key="k")
    made = [desk.change(runs.submit, submission, policy=LEASE_POLICY, rng=RNG) for _ in range(2)]
    assert made[0].run_id == made[1].run_id
    assert row(desk, made[0].run_id)["state"] == "queued"


# Races: PostgreSQL runs them side by side, SQLite one after the other


def test_runs_submitted_at_once_leave_one_going_and_one_waiting(desk: Desk) -> None:
    for cancel in (False, True):
        group = f"g-{cancel}"
        at_once([lambda g=group, c=cancel: submit(desk, group=g, cancel=c)] * 5)
        check_group(desk, group)
        found = [one["state"] for one in desk.rows(tables.runs, concurrency_group=group)]
        expected = ["queued"] * (1 if cancel else 2)
        assert sorted(found) == expected + ["superseded"] * (5 - len(expected))


def test_a_run_that_ends_while_another_comes_is_seen_or_sees_it(desk: Desk) -> None:
    for number in range(8):
        group = f"g-{number}"
        first = submit(desk, group=group)
        _, second = at_once(
            [
                lambda first=first: desk.change(end_job, first, "build"),
                lambda group=group: submit(desk, group=group),
            ]
        )
        desk.sweep()
        assert jobs(desk, str(second)) == {"build": "eligible"}, number
        check_group(desk, group)


def test_a_run_that_ends_while_the_next_is_superseded_frees_the_newest(desk: Desk) -> None:
    for number in range(6):
        group = f"g-{number}"
        first = submit(desk, group=group)
        lease = running(desk)
        second = submit(desk, group=group)
        _, third, _ = at_once(
            [
                lambda lease=lease: desk.complete(lease),
                lambda group=group: submit(desk, group=group, cancel=True),
                desk.sweep,
            ]
        )
        desk.sweep()
        check_group(desk, group)
        assert row(desk, first)["state"] in ("succeeded", "superseded")
        assert row(desk, second)["state"] == "superseded"
        assert jobs(desk, str(third)) == {"build": "eligible"}
        cancel_run(desk, str(third))


def test_a_waiting_run_cancelled_or_superseded_while_it_is_released_is_in_one_state(
    desk: Desk,
) -> None:
    for number in range(6):
        group = f"g-{number}"
        first, second = submit(desk, group=group), submit(desk, group=group)
        desk.change(end_job, first, "build")
        calls = [
            lambda second=second: desk.change(groups.release, second),
            lambda second=second: cancel_run(desk, second),
        ]
        if number % 2:
            calls[1] = lambda group=group: submit(desk, group=group)
        at_once(calls)
        desk.sweep()
        check_group(desk, group)
        state = row(desk, second)["state"]
        if number % 2:
            assert state in ("queued", "superseded")
        else:
            assert (state, jobs(desk, second)) == ("cancelled", {"build": "cancelled"})


def test_agents_that_start_anew_while_their_runs_are_superseded_block_nobody(desk: Desk) -> None:
    for number in range(4):
        desk.register("runner-1")
        owners = [f"g-{number}-{n}" for n in range(3)]
        old = [submit(desk, group=group) for group in owners]
        desk.cycle()
        for lease in desk.leases(state="offered"):
            desk.accept(lease)
        at_once(
            [
                *(lambda g=group: submit(desk, group=g, cancel=True) for group in owners),
                lambda: desk.register("runner-1"),
                desk.sweep,
            ]
        )
        for lease in desk.leases(state="revoked"):
            desk.settle(lease)
        for group in owners:
            check_group(desk, group)
        assert {row(desk, run_id)["state"] for run_id in old} == {"superseded"}
        desk.sweep()
        for one in desk.rows(tables.runs, state="queued"):
            cancel_run(desk, one["run_id"])


def test_a_run_that_the_release_before_submitted_is_not_held(desk: Desk) -> None:
    run_id = desk.submit(a_job_spec("a"), a_job_spec("b", needs=("a",)))
    desk.overwrite(tables.runs, run_id, ready_at=None)
    desk.change(end_job, run_id, "a")
    assert jobs(desk, run_id) == {"a": "succeeded", "b": "eligible"}
    assert "group" not in (shown(desk, run_id).jobs[1].waiting or "")
    desk.overwrite(tables.runs, run_id, timeout_ms=1_000)
    desk.later(2_000)
    assert desk.change(runs.time_out_run, run_id, policy=LEASE_POLICY) == "timed_out"
