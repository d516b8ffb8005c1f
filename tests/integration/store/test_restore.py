"""Confirming an older store: what is still true goes on, and nothing of the lost future counts."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from activities import contracts
from activities.relay import _claim, _claim_wake
from forgeyard.api.keepalive import keepalive
from forgeyard.api.policy_cache import PolicyCache
from forgeyard.errors import Conflict, NotFound
from forgeyard.model.job import RetryPolicy
from forgeyard.model.protocol import (
    CompletionVerdict,
    Heartbeat,
    HeartbeatAnswer,
    Phase,
    RenewalVerdict,
)
from forgeyard.store import lineage, restore, tables
from forgeyard.store.engine import read, write
from forgeyard.store.restore import Confirmed, StoreView
from forgeyard.store.shares import Intent
from tests import backups
from tests.builders import PARTITION, RNG, a_job_spec
from tests.leasing import HOUR, Desk, Lease

pytestmark = pytest.mark.integration
ONCE = RetryPolicy(max_attempts=1)
OPS = Intent(actor="ops", channel="test", reason="the disk died")


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    desk = Desk(engine)
    mark(desk)
    return desk


def mark(desk: Desk) -> str:
    desk.change(lineage.leave_mark, rng=RNG)
    with read(desk.engine) as connection:
        return lineage.current(connection).mark


def heed(desk: Desk, said: str) -> lineage.Lineage:
    return desk.change(lineage.heed, said, witness="a witness")


def beat(desk: Desk, lease: Lease, *more: str, said: str = "") -> tuple[str, ...]:
    async def call() -> HeartbeatAnswer:
        message = Heartbeat(held=(lease.lease_id, *more))
        alive = keepalive(desk.engine, PolicyCache(desk.policy), kick=lambda: None)
        return await alive.hear(lease.session_id, message, store_mark=said)

    return asyncio.run(call()).abandon


def confirm(desk: Desk) -> Confirmed:
    return desk.change(restore.confirm, intent=OPS, policy=desk.policy)


def view(desk: Desk) -> StoreView:
    with read(desk.engine) as connection:
        return restore.view(connection)


def restored(desk: Desk, copy: backups.Copy) -> str:
    """Lose what happened since a copy was taken; return the mark by which that shows."""
    lost = mark(desk)
    backups.put_back(desk.engine, copy)
    assert heed(desk, lost).hold is not None
    return lost


def pass_while_held(desk: Desk, milliseconds: int) -> None:
    """Let time pass, in which the store was held."""
    desk.later(milliseconds)
    held_at = desk.row(tables.lineage, lineage.NAME)["held_at"]
    desk.overwrite(tables.lineage, lineage.NAME, held_at=held_at - milliseconds)


def lapse(desk: Desk, lease: Lease) -> None:
    """Let an active lease end because nobody renews it, and settle that."""
    ends = desk.policy.lease
    desk.later(ends.execution_ttl + ends.connectivity_grace + ends.longest_back_off + 1_000)
    assert desk.sweep().expired == 1
    desk.settle(lease)


def test_only_a_store_that_is_held_can_be_confirmed(desk: Desk) -> None:
    with pytest.raises(Conflict, match="not held"):
        confirm(desk)
    restored(desk, backups.take(desk.engine))
    assert confirm(desk).era > 0
    with pytest.raises(Conflict, match="not held"):
        confirm(desk)
    assert not view(desk).held


def test_a_confirmation_is_audited_with_who_and_why(desk: Desk) -> None:
    restored(desk, backups.take(desk.engine))
    era = confirm(desk).era
    (line,) = desk.audited("store.confirmed")
    assert (line["actor"], line["channel"], line["target"]) == ("ops", "test", "store")
    assert line["detail"].startswith(f"the disk died: era {era}, 0 leases abandoned")


def test_the_view_tells_what_would_be_abandoned_go_on_and_run_again(desk: Desk) -> None:
    goes_on = desk.active(a_job_spec("goes-on"))
    silent = desk.active(a_job_spec("silent"), runner="runner-2")
    copy = backups.take(desk.engine)
    lost = desk.active(a_job_spec("lost"), runner="runner-3")
    said = restored(desk, copy)
    assert beat(desk, goes_on, said=said) == beat(desk, lost, said=said) == ()
    found = view(desk)
    assert found.held
    assert found.reason.startswith("mark ")
    assert (found.unknown, found.unknown_leases) == (1, (lost.lease_id,))
    assert (found.going_on, found.silent) == (1, 1)
    (one,) = found.silent_jobs
    assert (one.job, one.runner, one.lease_id) == ("silent", "runner-2", silent.lease_id)
    assert confirm(desk) == Confirmed(era=view(desk).era, abandoned=1, going_on=1, silent=1)
    assert not desk.rows(tables.store_claims)


def test_who_heard_of_the_hold_a_while_ago_claims_nothing_after_its_end(desk: Desk) -> None:
    lease = desk.active(a_job_spec())
    restored(desk, backups.take(desk.engine))
    confirm(desk)
    desk.change(lineage.claim, lease.session_id, ["lse_lost"])
    assert (view(desk).unknown, desk.rows(tables.store_claims)) == (0, [])


def test_a_claim_under_way_is_waited_for_and_forgotten_with_the_rest(
    postgresql_engine: sa.Engine,
) -> None:
    desk = Desk(postgresql_engine)
    mark(desk)
    restored(desk, backups.take(desk.engine))
    with ThreadPoolExecutor(1) as pool:
        with write(desk.engine) as connection:
            lineage.claim(connection, "ses_any", ["lse_lost"])
            ending = pool.submit(confirm, desk)
            while not waiting(desk):
                assert not ending.done()
        ending.result(30)
    assert not desk.rows(tables.store_claims)


def waiting(desk: Desk) -> int:
    """Count the locks that somebody waits for."""
    with read(desk.engine) as connection:
        return int(connection.scalar(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")))


# The fence holds across a restore


@pytest.mark.requirement("INV-016")
def test_a_result_of_the_lost_future_is_never_accepted(desk: Desk) -> None:
    desk.register()
    desk.submit()
    copy = backups.take(desk.engine)
    assert desk.cycle().granted == 1
    (lost,) = desk.leases()
    desk.accept(lost)
    restored(desk, copy)
    confirm(desk)
    with pytest.raises(NotFound):
        desk.complete(lost)
    assert desk.cycle().granted == 1
    (granted,) = desk.leases()
    assert granted.job_id == lost.job_id
    assert granted.lease_id != lost.lease_id
    assert granted.epoch > lost.epoch
    with pytest.raises(NotFound):
        desk.complete(lost)
    desk.accept(granted)
    assert desk.complete(granted) is CompletionVerdict.ACCEPTED


def test_a_plan_that_the_lost_future_committed_grants_nothing_here(desk: Desk) -> None:
    """The ids of its leases lie in the copy: granting them again would wake the dead."""
    desk.register()
    desk.submit()
    cycle_id = desk.plan()
    copy = backups.take(desk.engine)
    assert desk.commit(cycle_id).granted == 1
    (lost,) = desk.leases()
    desk.accept(lost)
    restored(desk, copy)
    confirm(desk)
    assert desk.commit(cycle_id).granted == 0
    assert not desk.leases()
    assert desk.cycle().granted == 1
    (granted,) = desk.leases()
    assert granted.lease_id != lost.lease_id
    with pytest.raises(NotFound):
        desk.complete(lost)


def test_a_job_that_was_leased_meanwhile_is_granted_beyond_the_lost_future_too(desk: Desk) -> None:
    lease = desk.active()
    restored(desk, backups.take(desk.engine))
    era = confirm(desk).era
    assert desk.row(tables.jobs, lease.job_id)["epoch"] == lease.epoch
    lapse(desk, lease)
    desk.register("runner-2")
    assert desk.cycle().granted == 1
    old, new = desk.leases(job_id=lease.job_id)
    assert old.epoch < era < new.epoch == desk.row(tables.jobs, lease.job_id)["epoch"]


def test_cycles_are_numbered_beyond_those_of_the_lost_future(desk: Desk) -> None:
    desk.register()
    desk.submit()
    copy = backups.take(desk.engine)
    lost = desk.plan()
    restored(desk, copy)
    era = confirm(desk).era
    assert lost < era < desk.plan() < desk.plan()


def test_workflows_of_attempts_have_names_of_their_own_in_each_era(desk: Desk) -> None:
    desk.register()
    desk.submit()
    copy = backups.take(desk.engine)
    restored(desk, copy)
    era = confirm(desk).era
    desk.cycle()
    (row,) = _claim(desk.engine, 0)
    assert row["era"] == era
    assert contracts.attempt_workflow_id("job_1", 1, era) == f"attempt/job_1/1/{era}"
    assert contracts.attempt_workflow_id("job_1", 1, 0) == "attempt/job_1/1"


def test_the_loop_is_woken_with_a_generation_that_it_cannot_have_seen(desk: Desk) -> None:
    desk.submit()
    copy = backups.take(desk.engine)
    for _ in range(5):
        desk.submit()
    seen = desk.wakes()
    restored(desk, copy)
    era = confirm(desk).era
    wake = _claim_wake(desk.engine, PARTITION)
    assert wake is not None
    assert wake.generation > max(seen, era)
    assert (wake.reason, wake.mark) == ("the restored store was confirmed", mark_before(desk))


def mark_before(desk: Desk) -> str:
    with read(desk.engine) as connection:
        return lineage.current(connection).mark


def test_what_was_known_of_the_lost_future_does_not_hold_the_store_again(desk: Desk) -> None:
    lost = restored(desk, backups.take(desk.engine))
    confirm(desk)
    assert heed(desk, lost).hold is None
    assert heed(desk, mark(desk)).hold is None


def test_the_same_copy_put_back_twice_is_noticed_twice(desk: Desk) -> None:
    copy = backups.take(desk.engine)
    restored(desk, copy)
    first = confirm(desk).era
    known = mark(desk)
    backups.put_back(desk.engine, copy)
    held = heed(desk, known).hold
    assert held is not None
    assert f"a restore was confirmed at {first}" in held.reason
    assert confirm(desk).era > first
    assert heed(desk, known).hold is None


# What is still true goes on


def test_a_lease_that_its_agent_still_has_goes_on_and_ends_once(desk: Desk) -> None:
    lease = desk.active()
    copy = backups.take(desk.engine)
    desk.progress(lease, Phase.RUNNING)
    said = restored(desk, copy)
    beat(desk, lease, said=said)
    pass_while_held(desk, 48 * HOUR)
    confirm(desk)
    assert (desk.sweep().expired, desk.sweep().due) == (0, 0)
    assert desk.renew(lease) is RenewalVerdict.RENEWED
    assert beat(desk, lease) == ()
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED
    assert desk.run_state(lease.run_id) == "succeeded"


def test_an_offer_whose_acceptance_was_lost_is_accepted_for_the_agent_that_works(
    desk: Desk,
) -> None:
    lease = desk.offered()
    copy = backups.take(desk.engine)
    desk.accept(lease)
    said = restored(desk, copy)
    beat(desk, lease, said=said)
    confirm(desk)
    assert desk.states(lease) == ("active", "preparing", "preparing")
    assert desk.complete(lease) is CompletionVerdict.ACCEPTED


def test_a_claim_of_another_session_accepts_nothing(desk: Desk) -> None:
    lease = desk.offered()
    said = restored(desk, backups.take(desk.engine))
    beat(desk, replace(lease, session_id=desk.register("runner-2").session_id), said=said)
    assert (view(desk).going_on, view(desk).silent) == (0, 1)
    confirm(desk)
    assert desk.states(lease)[0] == "offered"


def test_after_it_agents_abandon_what_the_store_does_not_know(desk: Desk) -> None:
    lease = desk.active()
    said = restored(desk, backups.take(desk.engine))
    assert beat(desk, lease, "lse_lost", said=said) == ()
    confirm(desk)
    assert beat(desk, lease, "lse_lost", said=said) == ("lse_lost",)


def test_a_lease_that_nobody_has_any_more_lapses_and_costs_no_attempt(desk: Desk) -> None:
    lease = desk.active(a_job_spec(retry=ONCE))
    restored(desk, backups.take(desk.engine))
    assert confirm(desk).silent == 1
    assert desk.sweep().expired == 0
    lapse(desk, lease)
    job = desk.row(tables.jobs, lease.job_id)
    assert (job["state"], job["attempts_charged"]) == ("eligible", 0)
    desk.register("runner-2")
    assert desk.cycle().granted == 1


def test_no_run_is_timed_out_for_the_time_in_which_the_store_was_held(desk: Desk) -> None:
    lease = desk.active()
    restored(desk, backups.take(desk.engine))
    pass_while_held(desk, 24 * HOUR)
    confirm(desk)
    assert desk.sweep().due == 0
    assert desk.run_state(lease.run_id) == "running"


def test_runs_go_on_being_submitted_and_placed_afterwards(desk: Desk) -> None:
    desk.register()
    restored(desk, backups.take(desk.engine))
    confirm(desk)
    run_id = desk.submit()
    assert desk.cycle().granted == 1
    (lease,) = desk.leases()
    desk.accept(lease)
    desk.complete(lease)
    assert desk.run_state(run_id) == "succeeded"
