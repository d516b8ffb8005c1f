"""The versions of the policy: who sets one first, what is in force, what commits make of it."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from activities import contracts
from activities.scheduling import SchedulingActivities
from forgeyard.errors import Conflict
from forgeyard.model.policy import SchedulingPolicy, digest_of
from forgeyard.model.units import Millis
from forgeyard.scheduler.grant import Verdict
from forgeyard.store import policies, tables
from forgeyard.store.engine import read
from forgeyard.store.policies import PolicyInForce
from tests.builders import PARTITION, RNG, a_job_spec, some_resources
from tests.leasing import POLICY, Desk

pytestmark = pytest.mark.integration
RACERS = 8
QUICK = replace(POLICY, lease=replace(POLICY.lease, offer_ttl=Millis(5_000)))


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def put(desk: Desk, policy: SchedulingPolicy, expected: int, **named: object) -> PolicyInForce:
    usual = {"actor": "ann", "channel": "test", "reason": "a test", "built_in": POLICY}
    return desk.change(policies.set_policy, policy, expected_version=expected, **{**usual, **named})


def in_force(desk: Desk) -> PolicyInForce:
    with read(desk.engine) as connection:
        return policies.current(connection, POLICY)


def history(desk: Desk, limit: int = 50) -> tuple[policies.PolicyVersion, ...]:
    with read(desk.engine) as connection:
        return policies.history(connection, limit=limit)


def test_the_built_in_policy_is_in_force_until_somebody_sets_one(desk: Desk) -> None:
    assert in_force(desk) == PolicyInForce(version=0, digest=POLICY.digest(), policy=POLICY)
    assert put(desk, QUICK, 0).version == 1
    assert in_force(desk) == PolicyInForce(version=1, digest=QUICK.digest(), policy=QUICK)
    assert put(desk, POLICY, 1).version == 2
    assert in_force(desk).policy == POLICY


def test_a_new_version_is_kept_with_its_author_and_audited(desk: Desk) -> None:
    put(desk, QUICK, 0, reason="a bigger fleet")
    put(desk, POLICY, 1, actor="bob", reason="too much")
    assert [(one.version, one.actor, one.reason, one.damage) for one in history(desk)] == [
        (2, "bob", "too much", None),
        (1, "ann", "a bigger fleet", None),
    ]
    assert [one.version for one in history(desk, limit=1)] == [2]
    audited = desk.audited("policy.set")
    assert [(row["actor"], row["target"]) for row in audited] == [
        ("ann", "policy 1"),
        ("bob", "policy 2"),
    ]
    assert QUICK.digest() in audited[0]["detail"]


def test_who_has_not_seen_the_version_in_force_is_refused(desk: Desk) -> None:
    put(desk, QUICK, 0)
    for seen in (0, 2):
        with pytest.raises(Conflict, match="version 1 is in force") as caught:
            put(desk, POLICY, seen)
        assert caught.value.field == "expected_version"
    assert len(history(desk)) == 1


def test_setting_what_is_in_force_is_done_already_whatever_was_seen(desk: Desk) -> None:
    assert put(desk, POLICY, 0).version == 0
    put(desk, QUICK, 0)
    assert put(desk, QUICK, 0).version == 1
    assert len(history(desk)) == 1
    assert len(desk.audited("policy.set")) == 1


def test_a_new_policy_wakes_the_loop_of_those_who_wait_and_nobody_else(desk: Desk) -> None:
    put(desk, QUICK, 0)
    assert desk.wakes() == 0
    desk.submit(a_job_spec("build"))
    before = desk.wakes()
    put(desk, POLICY, 1)
    assert desk.wakes() == before + 1
    put(desk, POLICY, 2)
    assert desk.wakes() == before + 1


def test_of_many_who_set_a_policy_at_once_one_succeeds(desk: Desk) -> None:
    start = threading.Barrier(RACERS)

    def race(number: int) -> int | None:
        start.wait()
        try:
            return put(desk, replace(POLICY, batch=number + 1), 0).version
        except Conflict:
            return None

    with ThreadPoolExecutor(RACERS) as pool:
        answers = list(pool.map(race, range(RACERS)))
    assert sorted(answers, key=str) == [1, *[None] * (RACERS - 1)]
    assert in_force(desk).policy.batch == answers.index(1) + 1
    assert [one.version for one in history(desk)] == [1]


@pytest.mark.requirement("ELG-040")
def test_a_plan_made_under_the_policy_before_grants_nothing_and_the_next_one_does(
    desk: Desk,
) -> None:
    desk.register()
    desk.submit(a_job_spec("one"), a_job_spec("two"))
    cycle_id = desk.plan()
    put(desk, QUICK, 0)
    outcome = desk.commit(cycle_id)
    assert (outcome.granted, outcome.refused) == (0, 2)
    assert {verdict for _, verdict in outcome.verdicts} == {Verdict.POLICY_CHANGED}
    assert desk.leases() == []
    assert desk.commit(cycle_id) == outcome, "a void plan stays void"
    put(desk, POLICY, 1)
    assert desk.commit(cycle_id) == outcome, "even when its policy is in force again"
    after = Desk(desk.engine, POLICY).cycle()
    assert after.granted == 2


def test_what_a_commit_grants_has_the_deadlines_of_the_policy_in_force(desk: Desk) -> None:
    put(desk, QUICK, 0)
    desk.register()
    desk.submit(a_job_spec("one"))
    planner = Desk(desk.engine, QUICK)
    cycle_id = planner.plan()
    assert desk.commit(cycle_id).granted == 1
    (lease,) = desk.leases()
    row = desk.row(tables.leases, lease.lease_id)
    assert row["expires_at"] - row["offered_at"] == 5_000
    assert desk.row(tables.attempts, lease.attempt_id)["policy_digest"] == QUICK.digest()


def test_the_worker_plans_and_commits_by_the_policy_in_force(desk: Desk) -> None:
    body = SchedulingActivities(desk.engine, POLICY, rng=RNG)
    partition = contracts.Partition(partition=PARTITION)
    desk.register(**{"total": some_resources(cpu=4_000, slots=4, memory=2**40, disk=2**40)})
    desk.submit(a_job_spec("one"), a_job_spec("two"))
    stale = body.plan_cycle(partition)
    assert (stale.planned, stale.full) == (2, False)
    put(desk, replace(QUICK, batch=1), 0)
    void = body.commit_cycle(contracts.Cycle(cycle_id=stale.cycle_id, partition=PARTITION))
    assert (void.granted, void.refused) == (0, 2)
    fresh = body.plan_cycle(partition)
    assert (fresh.planned, fresh.full) == (1, True), "the batch that was set"
    done = body.commit_cycle(contracts.Cycle(cycle_id=fresh.cycle_id, partition=PARTITION))
    assert (done.granted, done.refused) == (1, 0)
    (lease,) = desk.rows(tables.leases)
    assert lease["expires_at"] - lease["offered_at"] == 5_000


def test_whoever_commits_after_a_policy_was_set_sees_it(postgresql_engine: sa.Engine) -> None:
    """A commit that waits for the scopes while a policy is set must not judge by the one before."""
    desk = Desk(postgresql_engine)
    desk.register()
    desk.submit(a_job_spec("one"))
    cycle_id = desk.plan()
    with ThreadPoolExecutor(1) as pool:
        with desk.engine.connect() as connection, connection.begin():
            policies.set_policy(
                connection,
                QUICK,
                expected_version=0,
                actor="ann",
                channel="test",
                reason="a race",
                built_in=POLICY,
            )
            committing = pool.submit(desk.commit, cycle_id)
            until(lambda: waiting(desk) == 1)
        assert committing.result(20).granted == 0


def until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(400):
        if holds():
            return
        pause.wait(0.02)
    pytest.fail("it did not come to be")


def waiting(desk: Desk) -> int:
    """Count who waits for a lock."""
    with desk.engine.connect() as connection:
        query = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return int(connection.execute(query).scalar_one())


DAMAGE = {
    "no JSON": {"document": "{"},
    "other numbers": {"document": QUICK.canonical().replace("5000", "6000")},
    "not allowed": {"document": '{"batch":0}', "digest": digest_of('{"batch":0}')},
    "of a newer release": {"document": '{"new":1}', "digest": digest_of('{"new":1}')},
    "deep": {"document": "[" * 100_000, "digest": digest_of("[" * 100_000)},
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_version_that_cannot_be_read_is_passed_over_and_can_be_replaced(
    desk: Desk, damage: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    first = replace(POLICY, batch=7)
    put(desk, first, 0)
    put(desk, QUICK, 1)
    desk.overwrite(tables.policies, 2, **damage)
    assert in_force(desk) == PolicyInForce(version=1, digest=first.digest(), policy=first)
    assert "policy version 2 is passed over" in caplog.text
    assert [one.damage is None for one in history(desk)] == [False, True]
    desk.register()
    desk.submit(a_job_spec("one"))
    assert Desk(desk.engine, first).cycle().granted == 1
    assert put(desk, QUICK, 1).version == 3
    assert in_force(desk).version == 3


def test_without_any_readable_version_the_built_in_policy_is_in_force(desk: Desk) -> None:
    put(desk, QUICK, 0)
    desk.overwrite(tables.policies, 1, document="")
    assert in_force(desk).version == 0
    assert put(desk, QUICK, 0).version == 2


def test_a_number_left_out_of_a_stored_document_has_its_default(desk: Desk) -> None:
    """An older release did not know it yet."""
    put(desk, QUICK, 0)
    document = json.loads(QUICK.canonical())
    del document["sweep"]["period"]
    text = json.dumps(document)
    desk.overwrite(tables.policies, 1, document=text, digest=digest_of(text))
    assert in_force(desk).policy == QUICK
    assert in_force(desk).digest == digest_of(text)
