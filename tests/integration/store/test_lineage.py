"""An older copy of the store is known by what its witnesses know; the store is held then (F30)."""

import asyncio
from pathlib import Path

import pytest
import sqlalchemy as sa

from activities import contracts
from activities.leasing import LeasingActivities
from activities.relay import _claim
from activities.scheduling import SchedulingActivities
from activities.upkeep import UpkeepActivities
from forgeyard.api.keepalive import Keepalive, keepalive
from forgeyard.api.policy_cache import PolicyCache
from forgeyard.config import RetentionConfig
from forgeyard.errors import StaleRejected, StoreHeld
from forgeyard.model.ids import SessionId
from forgeyard.model.protocol import (
    Heartbeat,
    HeartbeatAnswer,
    Outcome,
    Renew,
    Renewal,
    RenewalVerdict,
    RenewAnswer,
)
from forgeyard.scheduler.grant import Verdict
from forgeyard.store import lineage, retention, tables
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.engine import read
from forgeyard.store.lineage import Lineage
from tests import backups
from tests.builders import PARTITION, RNG, a_job_spec
from tests.leasing import HOUR, Desk, Lease

pytestmark = pytest.mark.integration


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    desk = Desk(engine)
    mark(desk)
    return desk


def mark(desk: Desk, times: int = 1) -> str:
    """Let the store leave marks; return the newest."""
    for _ in range(times):
        desk.change(lineage.leave_mark, rng=RNG)
    return stands(desk).mark


def stands(desk: Desk) -> Lineage:
    with read(desk.engine) as connection:
        return lineage.current(connection)


def heed(desk: Desk, said: str, **named: object) -> Lineage:
    return desk.change(lineage.heed, said, witness="a witness", **named)


def hold(desk: Desk) -> None:
    said = {"reason": "restored", "by": "ops", "actor": "ops", "channel": "test"}
    assert desk.change(lineage.hold, **said).hold is not None


def alive(desk: Desk) -> Keepalive:
    return keepalive(desk.engine, PolicyCache(desk.policy), kick=lambda: None)


def beat(desk: Desk, session_id: str, *held: str, store_mark: str = "") -> HeartbeatAnswer:
    async def call() -> HeartbeatAnswer:
        return await alive(desk).hear(session_id, Heartbeat(held=held), store_mark=store_mark)

    return asyncio.run(call())


def renew(desk: Desk, lease: Lease, *, store_mark: str = "") -> tuple[RenewalVerdict, int]:
    message = Renew(
        session_id=SessionId(lease.session_id),
        leases=(Renewal(lease_id=lease.lease_id, epoch=lease.epoch),),
    )

    async def call() -> RenewAnswer:
        return await alive(desk).renew(message, store_mark=store_mark)

    (one,) = asyncio.run(call()).leases
    return one.verdict, one.ttl


# How an older store is recognised


def test_marks_of_the_store_that_it_still_has_prove_nothing(desk: Desk) -> None:
    first = mark(desk)
    newest = mark(desk, 3)
    assert heed(desk, first).hold is None
    assert heed(desk, newest).hold is None


def test_a_mark_that_this_store_has_not_reached_holds_it_and_is_audited(desk: Desk) -> None:
    copy = backups.take(desk.engine)
    lost = mark(desk, 3)
    backups.put_back(desk.engine, copy)
    held = heed(desk, lost).hold
    assert held is not None
    assert held.reason == "mark 4 was seen, and the newest of this store is 1"
    assert held.by == "a witness"
    assert stands(desk).hold == held
    (line,) = desk.audited("store.held")
    assert (line["actor"], line["detail"]) == ("system", f"a witness: {held.reason}")
    heed(desk, lost)
    assert len(desk.audited("store.held")) == 1


def test_a_lost_mark_is_known_by_its_token_after_the_store_has_caught_up(desk: Desk) -> None:
    copy = backups.take(desk.engine)
    lost = mark(desk, 3)
    backups.put_back(desk.engine, copy)
    mark(desk, 10)
    held = heed(desk, lost).hold
    assert held is not None
    assert held.reason == "mark 4 was seen, and that of this store is another"


def test_a_mark_from_before_the_copy_was_taken_proves_nothing(desk: Desk) -> None:
    known = mark(desk)
    mark(desk, 2)
    copy = backups.take(desk.engine)
    mark(desk, 2)
    backups.put_back(desk.engine, copy)
    assert heed(desk, known).hold is None


@pytest.mark.parametrize(
    "said",
    ["", "nonsense", "a.b.c.d", "str_other.0.900.token", ".0.900.x", "str_x.-1.9.t", "1.2.3.4.5"],
)
def test_what_is_no_mark_of_this_store_proves_nothing(desk: Desk, said: str) -> None:
    assert heed(desk, said, session_id="ses_none", lease_ids=["lse_none"]).hold is None


def test_a_store_without_any_mark_can_be_asked(engine: sa.Engine) -> None:
    assert heed(Desk(engine), "str_other.0.900.token") == Lineage()


def test_a_lease_without_a_trace_is_proof_from_whoever_shows_a_mark(desk: Desk) -> None:
    lease, newest = desk.active(), mark(desk)
    assert heed(desk, newest, lease_ids=[lease.lease_id]).hold is None
    assert heed(desk, "", lease_ids=["lse_lost"]).hold is None
    held = heed(desk, newest, lease_ids=[lease.lease_id, "lse_lost"]).hold
    assert held is not None
    assert held.reason == "lease lse_lost was granted, and this store knows nothing of it"


def test_a_session_without_a_trace_is_proof_but_not_one_that_has_ended(desk: Desk) -> None:
    old, newest = desk.register().session_id, mark(desk)
    desk.register()
    assert heed(desk, newest, session_id=old).hold is None
    held = heed(desk, newest, session_id="ses_lost").hold
    assert held is not None
    assert held.reason == "session ses_lost was opened, and this store knows nothing of it"


def test_an_agent_of_another_store_is_told_to_register_as_ever(desk: Desk) -> None:
    with pytest.raises(StaleRejected):
        beat(desk, "ses_other", store_mark="str_other.0.900.token")
    assert stands(desk).hold is None


def test_witnesses_are_given_marks_but_none_while_the_store_is_held(desk: Desk) -> None:
    session_id, newest = desk.register().session_id, mark(desk)
    assert beat(desk, session_id).store_mark == newest
    assert desk.register("runner-2").store_mark == newest
    hold(desk)
    assert beat(desk, session_id).store_mark == ""
    assert desk.register("runner-3").store_mark == ""


def test_a_plan_that_places_something_leaves_a_mark(desk: Desk) -> None:
    before = stands(desk).newest
    desk.register()
    desk.plan()
    assert stands(desk).newest == before
    desk.submit()
    desk.plan()
    assert stands(desk).newest != before


def test_only_the_newest_marks_are_kept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "MARKS_KEPT", 5)
    mark(desk, 9)
    assert [row["value"] for row in desk.rows(tables.store_marks)] == [5, 6, 7, 8, 9, 10]


# What a hold holds


@pytest.mark.requirement("RCN-019")
def test_while_held_a_plan_is_void(desk: Desk) -> None:
    desk.register()
    desk.submit()
    cycle_id = desk.plan()
    hold(desk)
    outcome = desk.commit(cycle_id)
    assert [verdict for _, verdict in outcome.verdicts] == [Verdict.STORE_HELD]
    assert not desk.rows(tables.leases)
    assert desk.commit(cycle_id) == outcome


def test_while_held_nothing_lapses_and_no_deadline_is_enforced(desk: Desk) -> None:
    active = desk.active(a_job_spec("one"))
    offered = desk.offered(a_job_spec("two"), runner="runner-2")
    failed = desk.active(a_job_spec("three"), runner="runner-3")
    desk.complete(failed, Outcome.FAILED)
    before = [desk.states(lease) for lease in (active, offered, failed)]
    hold(desk)
    desk.later(48 * HOUR)
    swept = desk.sweep()
    assert (swept.expired, swept.due, swept.settled) == (0, 0, 0)
    assert "nothing is enforced: the store is held: restored" in swept.alert
    assert [desk.states(lease) for lease in (active, offered, failed)] == before
    assert not desk.view(active).ended
    assert {row["state"] for row in desk.rows(tables.sessions)} == {"open"}


def test_a_hold_in_the_midst_of_a_sweep_stops_what_it_was_about_to_enforce(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = desk.active()
    desk.later(48 * HOUR)
    calls: list[bool] = []

    def late(connection: sa.Connection) -> bool:
        """Engage after the sweep has looked for candidates."""
        calls.append(True)
        return len(calls) > 1

    monkeypatch.setattr(lineage, "is_held", late)
    assert desk.sweep().expired == 0
    assert desk.states(lease) == ("active", "preparing", "preparing")
    assert len(calls) > 1


def test_while_held_offers_and_cancellations_are_not_told(desk: Desk) -> None:
    lease = desk.offered()
    assert len(desk.assignments(lease.session_id)[lease.session_id].offers) == 1
    hold(desk)
    for session_id in (lease.session_id, "ses_lost"):
        answer = desk.assignments(session_id)[session_id]
        assert (answer.offers, answer.cancel) == ((), ())


def test_while_held_a_new_session_does_not_fence_the_old_ones_leases(desk: Desk) -> None:
    lease = desk.active()
    hold(desk)
    desk.register()
    assert desk.states(lease) == ("active", "preparing", "preparing")
    assert desk.reserved(lease.runner_id)["slots"] == 1


def test_while_held_agents_keep_what_the_store_does_not_know(desk: Desk) -> None:
    copy = backups.take(desk.engine)
    lease = desk.active()
    lost = mark(desk)
    backups.put_back(desk.engine, copy)
    ttl = desk.policy.lease.execution_ttl
    assert renew(desk, lease, store_mark=lost) == (RenewalVerdict.RENEWED, ttl)
    assert stands(desk).hold is not None
    answer = beat(desk, lease.session_id, lease.lease_id, store_mark=lost)
    assert answer == HeartbeatAnswer()
    (claim,) = desk.rows(tables.store_claims)
    assert (claim["lease_id"], claim["session_id"]) == (lease.lease_id, lease.session_id)


def test_a_lease_lost_within_one_mark_is_noticed_before_it_is_abandoned(desk: Desk) -> None:
    session_id, newest = desk.register().session_id, mark(desk)
    answer = beat(desk, session_id, "lse_lost", store_mark=newest)
    assert answer.abandon == ()
    assert stands(desk).hold is not None


def test_without_a_mark_a_stale_lease_is_stale_and_no_proof(desk: Desk) -> None:
    lease = desk.active()
    desk.later(48 * HOUR)
    desk.sweep()
    assert renew(desk, lease, store_mark=stands(desk).mark) == (RenewalVerdict.STALE, 0)
    assert beat(desk, desk.register("x").session_id, "lse_none").abandon == ("lse_none",)
    assert stands(desk).hold is None


def test_while_held_retention_deletes_nothing(desk: Desk, tmp_path: Path) -> None:
    blobs = FileBlobStore(tmp_path / "blobs")
    desk.change(mark_old_key)
    hold(desk)
    config = RetentionConfig()
    assert retention.forget(desk.engine, blobs, config).traces == 0
    assert len(desk.rows(tables.idempotency)) == 1
    desk.overwrite(tables.lineage, lineage.NAME, held_at=None)
    assert retention.forget(desk.engine, blobs, config).traces == 1


def mark_old_key(connection: sa.Connection) -> None:
    row = {"key": "old", "body_digest": "x", "run_id": "run_x", "created_at": 1}
    connection.execute(sa.insert(tables.idempotency).values(row))


# Temporal's side


@pytest.fixture
def scheduling(desk: Desk) -> SchedulingActivities:
    return SchedulingActivities(desk.engine, desk.policy, rng=RNG)


def test_the_loop_notices_a_lost_future_before_it_plans(
    desk: Desk, scheduling: SchedulingActivities
) -> None:
    desk.register()
    desk.submit(a_job_spec(), a_job_spec("other"))
    copy = backups.take(desk.engine)
    plan = scheduling.plan_cycle(contracts.Partition(partition=PARTITION))
    assert (plan.planned, plan.held) == (2, "")
    backups.put_back(desk.engine, copy)
    again = contracts.Partition(partition=PARTITION, mark=plan.mark)
    assert not scheduling.is_pending(again)
    assert stands(desk).hold is not None
    plan = scheduling.plan_cycle(again)
    assert (plan.planned, plan.cycle_id, plan.mark) == (0, 0, "")
    assert plan.held.startswith("the store is held: mark ")


def test_the_commit_of_a_plan_that_was_lost_holds_the_store(
    desk: Desk, scheduling: SchedulingActivities
) -> None:
    desk.register()
    desk.submit()
    copy = backups.take(desk.engine)
    lost = scheduling.plan_cycle(contracts.Partition(partition=PARTITION))
    backups.put_back(desk.engine, copy)
    assert desk.plan() == lost.cycle_id  # numbered again, as after any restore
    order = contracts.Cycle(cycle_id=lost.cycle_id, partition=PARTITION, mark=lost.mark)
    assert scheduling.commit_cycle(order).granted == 0
    assert stands(desk).hold is not None


def test_upkeep_notices_a_lost_future_before_it_sweeps(desk: Desk) -> None:
    lease = desk.active()
    copy = backups.take(desk.engine)
    lost = mark(desk)
    backups.put_back(desk.engine, copy)
    desk.later(48 * HOUR)
    upkeep = UpkeepActivities(None, desk.engine, desk.policy, task_queue="none")
    request = contracts.Partition(partition=PARTITION, mark=lost)
    swept, _, told = upkeep._sweep(request)
    assert (swept.expired, told) == (0, "")
    assert desk.states(lease)[0] == "active"
    assert stands(desk).hold is not None


def test_while_held_nothing_is_settled_or_relayed(desk: Desk) -> None:
    lease = desk.active()
    desk.complete(lease, Outcome.FAILED)
    assert _claim(desk.engine, 0)
    hold(desk)
    desk.change(lambda connection: connection.execute(RELAY_AGAIN))
    assert not _claim(desk.engine, 0)
    leasing = LeasingActivities(desk.engine, desk.policy, None)
    with pytest.raises(StoreHeld):
        leasing.read_attempt(contracts.Attempt(attempt_id=lease.attempt_id))
    assert desk.row(tables.attempts, lease.attempt_id)["settled_at"] is None


RELAY_AGAIN = sa.update(tables.outbox).values(claimed_until=0)
