"""Quotas, keys and pauses where it counts: judged again under locks, when leases are granted."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.model.job import FailureClass, JobSpec, RetryPolicy
from forgeyard.model.protocol import Outcome
from forgeyard.model.wishes import Wishes
from forgeyard.scheduler.grant import Verdict
from forgeyard.scheduler.scopes import Usage
from forgeyard.store import scopes, shares, tables
from forgeyard.store.engine import read, write
from tests.builders import a_job_spec, some_resources
from tests.integration.store.test_commit_races import at_once
from tests.leasing import HOUR, Desk, Lease
from tests.sharing import (
    DEFAULT,
    WISH,
    cancel,
    declare,
    limit,
    queue_path,
    submit_to,
    summed,
    tags_of,
    used,
)

pytestmark = pytest.mark.integration
WIDE = some_resources(cpu=90_000, memory=2**45, disk=2**45, slots=90)


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def jobs(count: int, **changed: object) -> list[JobSpec]:
    return [a_job_spec(f"job-{number}", **changed) for number in range(count)]


def wanting(*keys: str) -> dict[str, object]:
    return {"wishes": Wishes(keys=keys)}


def verdicts(outcomes: list) -> Counter:
    return Counter(verdict for outcome in outcomes for _, verdict in outcome.verdicts)


def race(desk: Desk, *cycles: int) -> list:
    """Commit plans at once."""
    return at_once([lambda cycle_id=cycle_id: desk.commit(cycle_id) for cycle_id in cycles])


@pytest.mark.requirement("QUO-002", "QUO-004", "QUO-006")
@pytest.mark.case("SP-070")
@pytest.mark.parametrize("level", [DEFAULT, "default/default/default", "default", "everything"])
@pytest.mark.requirement("QUO-001")
def test_racing_schedulers_grant_exactly_the_quota(desk: Desk, level: str) -> None:
    """Each planned for all there was; a quota checked without locks would be granted four times."""
    desk.register(total=WIDE)
    cycles = []
    for number in range(4):
        run_id = desk.submit(*jobs(12), name=f"run-{number}")
        others = sa.update(tables.jobs).where(tables.jobs.c.run_id != run_id)
        with write(desk.engine) as connection:  # each scheduler sees its own twelve alone
            connection.execute(others.values(partition="elsewhere"))
            connection.execute(
                sa.update(tables.jobs)
                .where(tables.jobs.c.run_id == run_id)
                .values(partition="default")
            )
        cycles.append(desk.plan())
    limit(desk, level, max_jobs=20)
    outcomes = race(desk, *cycles)
    assert verdicts(outcomes) == {Verdict.GRANTED: 20, Verdict.QUOTA_BLOCKED: 28}
    assert used(desk, level).jobs == 20


@pytest.mark.requirement("QUO-006")
def test_racing_schedulers_grant_exactly_the_quota_of_a_pool(desk: Desk) -> None:
    for number in range(4):
        desk.register(f"runner-{number}", total=WIDE)
    desk.submit(*jobs(12))
    cycles = [desk.plan() for _ in range(4)]
    limit(desk, "pool:default", max_jobs=5)
    outcomes = race(desk, *cycles)
    assert sum(outcome.granted for outcome in outcomes) == used(desk, "pool:default").jobs == 5


@pytest.mark.requirement("QUO-005")
@pytest.mark.parametrize(
    ("limits", "granted"),
    [({"max_jobs": 3}, 3), ({"max_cpu_milli": 2_499}, 4), ({"max_memory_bytes": 2**29}, 2)],
)
def test_every_dimension_is_held_in_the_plan_and_in_the_commit(
    desk: Desk, limits: dict[str, int], granted: int
) -> None:
    desk.register(total=WIDE)
    desk.submit(*jobs(8))
    before = desk.plan()
    limit(desk, "default", **limits)
    assert desk.commit(before).granted == granted
    assert desk.cycle().granted == 0


@pytest.mark.requirement("QUO-008")
def test_a_burst_is_granted_to_its_last_job_and_not_one_more(desk: Desk) -> None:
    desk.register(total=WIDE)
    limit(desk, "default", max_jobs=4, burst_percent=50)
    desk.submit(*jobs(12))
    outcomes = race(desk, *(desk.plan() for _ in range(3)))
    assert sum(outcome.granted for outcome in outcomes) == used(desk, "default").jobs == 6


@pytest.mark.requirement("QUO-008")
def test_a_burst_takes_only_what_nobody_within_its_quota_wants(desk: Desk) -> None:
    desk.register(total=some_resources(cpu=2_000, memory=2**40, disk=2**40, slots=4))
    bursting = declare(desk, "a")
    limit(desk, "a", max_jobs=1, burst_percent=1_000)
    submit_to(desk, bursting, *jobs(9))
    submit_to(desk, declare(desk, "b"), *jobs(2))
    assert desk.cycle().granted == 4
    assert (used(desk, "a").jobs, used(desk, "b").jobs) == (2, 2)


@pytest.mark.case("SP-072")
def test_two_jobs_of_one_key_are_never_granted_by_two_schedulers(desk: Desk) -> None:
    desk.register(total=WIDE)
    first = desk.submit(a_job_spec("one", **wanting("staging")))
    one = desk.plan()
    with write(desk.engine) as connection:
        connection.execute(sa.update(tables.jobs).values(partition="elsewhere"))
    desk.submit(a_job_spec("two", **wanting("staging", "other")))
    two = desk.plan()
    assert verdicts(race(desk, one, two)) == {Verdict.GRANTED: 1, Verdict.KEY_CONTENDED: 1}
    (lease,) = desk.leases()
    keys = {row["key_name"] for row in desk.rows(tables.key_holds, lease_id=lease.lease_id)}
    assert keys == ({"staging"} if lease.run_id == first else {"staging", "other"})


@pytest.mark.parametrize("ends", ["complete", "reject", "expire", "cancel"])
def test_a_key_is_given_back_however_its_lease_ends_and_the_next_job_is_woken(
    desk: Desk, ends: str
) -> None:
    desk.register(total=WIDE)
    run_id = desk.submit(a_job_spec("one", **wanting("k")))
    assert desk.cycle().granted == 1
    (lease,) = desk.leases()
    desk.submit(a_job_spec("two", **wanting("k")))
    assert desk.cycle().granted == 0
    woken = desk.wakes()
    end(desk, lease, ends, run_id)
    assert desk.rows(tables.key_holds) == []
    assert desk.wakes() > woken
    assert desk.cycle().granted >= 1


def end(desk: Desk, lease: Lease, how: str, run_id: str) -> None:
    """End a lease that was offered."""
    if how == "complete":
        desk.accept(lease)
        desk.complete(lease)
    elif how == "reject":
        desk.reject(lease)
    elif how == "expire":
        desk.later(desk.policy.lease.offer_ttl + 1)
        assert desk.sweep().expired >= 1
    else:
        cancel(desk, run_id)


@pytest.mark.case("SP-015")
def test_a_job_that_waits_for_a_key_is_woken_when_the_offered_holder_is_cancelled(
    desk: Desk,
) -> None:
    test_a_key_is_given_back_however_its_lease_ends_and_the_next_job_is_woken(desk, "cancel")


@pytest.mark.case("SP-073", "SP-090")
def test_a_job_that_cannot_run_yet_holds_no_key(desk: Desk) -> None:
    """Neither one that needs another job, nor one that waits to be tried again."""
    desk.register(total=WIDE)
    retried = RetryPolicy(delay=HOUR, max_delay=HOUR)
    run_id = desk.submit(
        a_job_spec("a", retry=retried, **wanting("k")),
        a_job_spec("b", needs=("a",), **wanting("k")),
    )
    assert desk.cycle().granted == 1
    (lease,) = desk.leases()
    desk.accept(lease)
    desk.complete(lease, Outcome.FAILED, failure_class=FailureClass.INFRASTRUCTURE)
    desk.settle(lease)
    (job,) = desk.rows(tables.jobs, run_id=run_id, name="a")
    assert job["state"] == "retry_waiting"
    assert desk.rows(tables.key_holds) == []
    desk.submit(a_job_spec("ready", **wanting("k")))
    assert desk.cycle().granted == 1


@pytest.mark.parametrize("path", [DEFAULT, "default", "everything"])
def test_a_pause_between_plan_and_commit_lets_nothing_through(desk: Desk, path: str) -> None:
    desk.register(total=WIDE)
    desk.submit(*jobs(3))
    cycle_id = desk.plan()
    desk.change(shares.pause, path, note="", intent=WISH)
    outcome = desk.commit(cycle_id)
    assert [verdict for _, verdict in outcome.verdicts] == [Verdict.PAUSED] * 3
    assert desk.rows(tables.leases) == []
    desk.change(shares.resume, path, intent=WISH)
    assert desk.cycle().granted == 3


@pytest.mark.requirement("QUO-003", "QUO-004")
@pytest.mark.case("SP-092", "SP-069")
def test_a_job_beyond_its_quota_stays_eligible_and_no_attempt_is_made_of_it(desk: Desk) -> None:
    desk.register(total=WIDE)
    limit(desk, DEFAULT, max_jobs=1)
    run_id = desk.submit(*jobs(2))
    desk.plan()  # its scheduler dies between the plan and the commit
    assert used(desk, DEFAULT) == Usage()
    assert desk.cycle().granted == 1
    assert used(desk, DEFAULT).jobs == 1
    states = sorted(row["state"] for row in desk.rows(tables.jobs, run_id=run_id))
    assert states == ["eligible", "leased"]
    assert len(desk.rows(tables.attempts)) == 1


@pytest.mark.requirement("QUO-007")
@pytest.mark.case("SP-047")
def test_shards_that_run_again_count_again(desk: Desk) -> None:
    desk.register(total=WIDE)
    limit(desk, DEFAULT, max_jobs=3)
    desk.submit(*jobs(3))
    assert desk.cycle().granted == 3
    for lease in desk.leases():
        desk.accept(lease)
        desk.complete(lease, Outcome.FAILED, failure_class=FailureClass.INFRASTRUCTURE)
        desk.settle(lease)
    assert used(desk, DEFAULT) == Usage()
    desk.submit(*jobs(2), name="more")
    assert desk.cycle().granted == used(desk, DEFAULT).jobs == 3
    assert desk.cycle().granted == 0


@pytest.mark.case("SP-048")
def test_a_limit_stands_by_itself_when_a_neighbour_is_gone(desk: Desk) -> None:
    """Nothing is lent between scopes but idle room, so no borrowed limit can go stale."""
    desk.register(total=WIDE)
    declare(desk, "a")
    declare(desk, "b")
    limit(desk, "a", max_jobs=10, burst_percent=100)
    limit(desk, "b", max_jobs=2)
    with write(desk.engine) as connection:
        connection.execute(sa.delete(tables.scopes).where(tables.scopes.c.name == "a"))
    submit_to(desk, queue_path("b"), *jobs(10))
    assert desk.cycle().granted == used(desk, "b").jobs == 2


@pytest.mark.case("SP-040")
def test_a_job_that_waits_for_room_under_a_quota_with_room_is_woken_when_room_comes(
    desk: Desk,
) -> None:
    desk.register(total=some_resources(cpu=500, memory=2**40, disk=2**40, slots=9))
    limit(desk, DEFAULT, max_jobs=5)
    desk.submit(*jobs(2))
    assert desk.cycle().granted == 1
    assert desk.cycle().granted == 0
    woken = desk.wakes()
    (lease,) = desk.leases()
    desk.accept(lease)
    desk.complete(lease)
    assert desk.wakes() > woken
    assert desk.cycle().granted == 1


@pytest.mark.case("SP-052")
def test_three_jobs_whose_quotas_have_room_are_placed_within_two_cycles(desk: Desk) -> None:
    desk.register(total=WIDE)
    for tenant in "abc":
        submit_to(desk, declare(desk, tenant, max_jobs=1), *jobs(1))
    assert desk.cycle().granted + desk.cycle().granted == 3


@pytest.mark.case("SP-077", "SP-078")
def test_a_job_whose_offers_come_to_nothing_keeps_its_age(desk: Desk) -> None:
    desk.register(total=some_resources(cpu=500, memory=2**40, disk=2**40, slots=1))
    old = desk.submit(name="old")
    (born,) = desk.rows(tables.jobs, run_id=old)
    for epoch in range(1, 4):
        assert desk.cycle().granted == 1
        (lease,) = desk.leases(epoch=epoch)
        desk.reject(lease)
        desk.later(HOUR)  # the refusal is forgotten
    desk.submit(name="new")
    (job,) = desk.rows(tables.jobs, run_id=old)
    assert job["eligible_at"] == born["eligible_at"]
    assert desk.cycle().granted == 1
    assert desk.leases(state="offered")[0].run_id == old


@pytest.mark.requirement("FAR-019")
@pytest.mark.parametrize("ends", ["reject", "expire", "cancel"])
def test_an_offer_that_comes_to_nothing_costs_nobody_anything(desk: Desk, ends: str) -> None:
    desk.register(total=WIDE)
    desk.submit(name="earlier")
    desk.cycle()
    desk.accept(desk.leases()[0])
    before = tags_of(desk)
    run_id = desk.submit(name="later")
    assert desk.cycle().granted == 1
    assert tags_of(desk) != before
    limit(desk, DEFAULT, weight=7)
    (lease,) = desk.leases(state="offered")
    end(desk, lease, ends, run_id)
    assert tags_of(desk) == before


def test_an_accepted_job_has_been_served_and_gives_nothing_back(desk: Desk) -> None:
    desk.register(total=WIDE)
    desk.submit()
    desk.cycle()
    charged = tags_of(desk)
    (lease,) = desk.leases()
    desk.accept(lease)
    desk.complete(lease, Outcome.FAILED)
    desk.settle(lease)
    assert tags_of(desk) == charged


@pytest.mark.requirement("QUO-007")
def test_what_a_scope_uses_is_what_its_live_leases_hold_whatever_happens(desk: Desk) -> None:
    rng = Random(7)
    desk.register(total=WIDE)
    queues = [declare(desk, tenant) for tenant in "abc"]
    limit(desk, "a", max_jobs=4, burst_percent=50)
    limit(desk, "b", max_cpu_milli=2_000)
    hits: Counter[str] = Counter()
    for _ in range(45):
        act(desk, rng, queues, hits)
        with read(desk.engine) as connection:
            seen = scopes.load(connection)
        found = {name: scope.used for name, scope in seen.items() if scope.used != Usage()}
        assert found == summed(desk)
        assert used(desk, "a").jobs <= 6
        assert used(desk, "b").cpu <= 2_000
    assert min(hits[name] for name in ("cycle", "submit", "end")) >= 5, hits


def act(desk: Desk, rng: Random, queues: list[str], hits: Counter) -> None:
    """Do one of the things that happen."""
    offered = desk.leases(state="offered")
    deed = rng.choice(("submit", "cycle", "cycle", "end"))
    hits[deed] += 1
    if deed == "submit":
        amounts = some_resources(cpu=rng.choice((100, 700)))
        submit_to(desk, rng.choice(queues), *jobs(rng.randint(1, 5), resources=amounts))
    elif deed == "cycle":
        desk.cycle()
    elif offered:
        lease = rng.choice(offered)
        end(desk, lease, rng.choice(("complete", "reject", "expire", "cancel")), lease.run_id)


def test_a_runner_that_joins_again_waits_for_scopes_before_it_is_locked(
    postgresql_engine: sa.Engine,
) -> None:
    desk = Desk(postgresql_engine)
    desk.offered()
    assert_runner_is_free(desk, lambda: desk.register())


def test_a_run_that_is_stopped_waits_for_scopes_before_its_runners_are_locked(
    postgresql_engine: sa.Engine,
) -> None:
    desk = Desk(postgresql_engine)
    lease = desk.offered()
    assert_runner_is_free(desk, lambda: cancel(desk, lease.run_id))


def assert_runner_is_free(desk: Desk, deed: Callable[[], object]) -> None:
    """Hold the root as a commit does, and see whether the runner can be locked beside the deed."""
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    root = sa.select(tables.scopes).where(tables.scopes.c.level == -1).with_for_update()
    runner = sa.select(tables.runners).with_for_update(skip_locked=True)
    with write(desk.engine) as connection:
        connection.execute(root)
        done = at_once_behind(deed)
        while not connection.execute(waiting).scalar_one():
            assert not done.done()
        assert len(connection.execute(runner).all()) == 1
        connection.rollback()
    done.result()


def at_once_behind(deed: Callable[[], object]) -> "Future[object]":
    """Begin a deed in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    begun = pool.submit(deed)
    pool.shutdown(wait=False)
    return begun
