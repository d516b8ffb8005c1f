"""A change that is under way when a commit begins: the commit waits for it, and obeys it.

Each runs on PostgreSQL with two connections: one has made a change and not ended its transaction
when the other commits a plan that was made before.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.model.capability import Requirements
from forgeyard.model.equipment import Equipment, EquipmentRequirement, Gpu, GpuRequirement
from forgeyard.model.ids import SessionId
from forgeyard.model.job import JobSpec, Priority
from forgeyard.model.policy import PreemptionPolicy, SchedulingPolicy
from forgeyard.model.protocol import Complete, Heartbeat, Outcome
from forgeyard.model.runner import ResourcePressure
from forgeyard.model.wishes import Preemptibility, Wishes
from forgeyard.scheduler import place
from forgeyard.scheduler.grant import Verdict
from forgeyard.scheduler.preempt import Nomination
from forgeyard.store import leases, policies, preemption, runners, runs, shares, snapshot, tables
from forgeyard.store.commit import CommitOutcome, commit_cycle
from forgeyard.store.engine import read, write
from forgeyard.store.shares import Shares
from tests.builders import (
    PARTITION,
    RNG,
    a_job_spec,
    a_registration,
    some_capabilities,
    some_resources,
)
from tests.chaos.invariants import violations
from tests.conftest import empty
from tests.integration.store.test_commit import a_plan
from tests.integration.store.test_commit_races import WAITING, at_once
from tests.leasing import Desk, Lease
from tests.sharing import DEFAULT, WISH

pytestmark = pytest.mark.integration
WHO = {"reason": "a test", "actor": "ann", "channel": "test"}
Change = Callable[[sa.Connection, Desk], object]
ROOM = some_resources(cpu=8_000, memory=2**40, disk=2**40, slots=8)
ONE_GPU = Equipment(gpus=(Gpu(id="GPU-0"),), devices=())


@pytest.fixture
def desk(postgresql_engine: sa.Engine) -> Desk:
    return Desk(postgresql_engine)


def a_greedy_job() -> JobSpec:
    """Describe a job that wants the key, the device and the quota."""
    wanted = EquipmentRequirement(gpus=(GpuRequirement(),))
    return a_job_spec(requires=Requirements(equipment=wanted), wishes=Wishes(keys=("k",)))


def equipped(desk: Desk) -> str:
    capable = some_capabilities(equipment=ONE_GPU)
    return desk.register(total=ROOM, capabilities=capable).session_id


def behind(desk: Desk, cycle_id: int, change: Change) -> CommitOutcome:
    """Commit a plan while a change is under way; end the change once the commit waits for it."""
    with ThreadPoolExecutor(1) as pool:
        with write(desk.engine) as connection:
            change(connection, desk)
            committing: Future[CommitOutcome] = pool.submit(desk.commit, cycle_id)
            while not connection.execute(sa.text(WAITING)).scalar_one():
                assert not committing.done(), "it did not wait"
        return committing.result()


def set_policy(connection: sa.Connection, desk: Desk) -> None:
    changed = replace(desk.policy, batch=desk.policy.batch - 1)
    policies.set_policy(connection, changed, expected_version=0, built_in=desk.policy, **WHO)


def pause(connection: sa.Connection, _desk: Desk) -> None:
    shares.pause(connection, DEFAULT, note="", intent=WISH)


def no_quota(connection: sa.Connection, _desk: Desk) -> None:
    version = shares.show(connection, DEFAULT).version
    none = Shares(max_jobs=0)
    shares.change(connection, DEFAULT, none, expected_version=version, intent=WISH)


def drain(connection: sa.Connection, _desk: Desk) -> None:
    runners.drain(connection, "runner-1", **WHO)


def unhealthy(connection: sa.Connection, desk: Desk) -> None:
    (row,) = desk.rows(tables.runners)
    critical = Heartbeat(pressure=ResourcePressure.CRITICAL)
    runners.heartbeat(connection, row["session_id"], critical)


def leave(connection: sa.Connection, desk: Desk) -> None:
    (row,) = desk.rows(tables.runners)
    runners.close(connection, row["session_id"], policy=desk.policy.lease)


@pytest.mark.requirement("RCN-028", "INV-027")
@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (set_policy, Verdict.POLICY_CHANGED),
        (pause, Verdict.PAUSED),
        (no_quota, Verdict.QUOTA_BLOCKED),
        (drain, Verdict.RUNNER_UNAVAILABLE),
        (unhealthy, Verdict.RUNNER_UNAVAILABLE),
        (leave, Verdict.RUNNER_UNAVAILABLE),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_a_commit_obeys_what_was_under_way_when_it_began(
    desk: Desk, change: Change, verdict: Verdict
) -> None:
    equipped(desk)
    desk.submit(a_greedy_job())
    cycle_id = desk.plan()
    outcome = behind(desk, cycle_id, change)
    assert [said for _, said in outcome.verdicts] == [verdict]
    assert desk.leases() == []
    assert desk.rows(tables.key_holds) == desk.rows(tables.device_holds) == []
    assert desk.commit(cycle_id) == outcome


@pytest.mark.requirement("RCN-028")
@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ("k", "k", Verdict.KEY_CONTENDED),
        ("k", "other", Verdict.NO_CAPACITY),
    ],
    ids=["key", "device"],
)
def test_a_key_or_device_that_another_commit_takes_meanwhile_is_not_given_twice(
    desk: Desk, first: str, second: str, verdict: Verdict
) -> None:
    equipped(desk)
    plans = []
    for key in (first, second):
        desk.submit(replace(a_greedy_job(), wishes=Wishes(keys=(key,))))
        plans.append(desk.plan())
        with write(desk.engine) as connection:  # the other scheduler sees its own job alone
            connection.execute(sa.update(tables.jobs).values(partition="elsewhere"))

    def take(connection: sa.Connection, desk: Desk) -> None:
        assert commit_cycle(connection, plans[0], built_in=desk.policy).granted == 1

    outcome = behind(desk, plans[1], take)
    assert [said for _, said in outcome.verdicts] == [verdict]
    assert len(desk.leases()) == len(desk.rows(tables.device_holds)) == 1


@pytest.mark.requirement("RCN-028")
def test_a_session_that_begins_meanwhile_gets_the_lease_and_the_one_before_does_not(
    desk: Desk,
) -> None:
    before = equipped(desk)
    desk.submit(a_greedy_job())
    capable = some_capabilities(equipment=ONE_GPU)

    def anew(connection: sa.Connection, desk: Desk) -> None:
        message = a_registration("runner-1", total=ROOM, capabilities=capable)
        runners.register(connection, message, policy=desk.policy.lease, rng=RNG)

    assert behind(desk, desk.plan(), anew).granted == 1
    (lease,) = desk.leases()
    (session,) = desk.rows(tables.sessions, state="open")
    assert lease.session_id == session["session_id"] != before


def given_back_meanwhile(desk: Desk) -> dict[str, int]:
    """Commit a job to a runner whose other job is completing; return what the runner holds."""
    session = desk.register(total=ROOM)
    desk.submit(a_job_spec("first"))
    assert desk.cycle().granted == 1
    (ending,) = desk.leases()
    desk.accept(ending)
    desk.submit(a_job_spec("second"))
    done = Complete(
        session_id=SessionId(ending.session_id), epoch=ending.epoch, outcome=Outcome.SUCCEEDED
    )

    def complete(connection: sa.Connection, desk: Desk) -> None:
        leases.complete(connection, ending.lease_id, done, policy=desk.policy.lease)

    assert behind(desk, desk.plan(), complete).granted == 1
    return desk.reserved(session.runner_id)


@pytest.mark.requirement("LSE-006", "RCN-028")
def test_what_is_given_back_while_a_commit_waits_stays_given_back(desk: Desk) -> None:
    assert given_back_meanwhile(desk)["slots"] == 1


@pytest.mark.requirement("RCN-025", "LSE-005")
def test_a_job_that_is_being_cancelled_is_passed_over_without_waiting(desk: Desk) -> None:
    equipped(desk)
    run_id = desk.submit(a_greedy_job())
    desk.submit(a_job_spec("other"))
    cycle_id = desk.plan()
    with write(desk.engine) as connection:
        runs.cancel_job(connection, run_id, "build", **WHO, policy=desk.policy.lease)
        outcome = desk.commit(cycle_id)
    assert sorted(verdict for _, verdict in outcome.verdicts) == [Verdict.GRANTED, Verdict.JOB_GONE]


# Preemption

URGENT = a_job_spec(
    "hotfix",
    priority=Priority.EMERGENCY,
    resources=some_resources(cpu=1_000, slots=1),
)
VICTIM = a_job_spec("nightly", wishes=Wishes(preemption=Preemptibility.RESTARTABLE))
ROOM_OF_TWO = some_resources(cpu=1_000, memory=2**40, disk=2**40, slots=2)
PREEMPTING = SchedulingPolicy(preemption=PreemptionPolicy(enabled=1))


@pytest.fixture
def pressed(postgresql_engine: sa.Engine) -> Desk:
    return Desk(postgresql_engine, PREEMPTING)


def nominated(desk: Desk) -> tuple[Nomination, list[Lease]]:
    """Fill a runner with two restartable jobs, one of them accepted, and ask for its room."""
    desk.register(total=ROOM_OF_TWO)
    desk.submit(VICTIM)
    desk.submit(VICTIM)
    assert desk.cycle().granted == 2
    victims = desk.leases(state="offered")
    desk.accept(victims[0])
    desk.submit(URGENT, elevation="production is down")
    with read(desk.engine) as connection:
        seen = snapshot.load(connection, PARTITION, PREEMPTING)
    (nomination,) = place.plan(seen, PREEMPTING).nominations
    return nomination, victims


def clear(desk: Desk, nomination: Nomination) -> bool:
    return desk.change(preemption.clear, nomination, PARTITION, policy=PREEMPTING)


@pytest.mark.requirement("PRE-005", "RCN-028")
def test_the_room_that_preemption_frees_goes_to_nobody_who_commits_at_the_same_moment(
    pressed: Desk, record_property: Callable[[str, object], None]
) -> None:
    """Others plan for the room that an offered victim leaves, and commit while it is cleared."""
    cleared = refused = 0
    for number in range(12):
        desk = fresh(pressed)
        nomination, _ = nominated(desk)
        small = desk.submit(a_job_spec(f"small-{number}"))
        (job,) = desk.rows(tables.jobs, run_id=small)
        plans = [desk.plan(a_plan((job["job_id"], [nomination.runner_id]))) for _ in range(2)]
        done, *outcomes = at_once(
            [
                lambda desk=desk, wanted=nomination: clear(desk, wanted),
                *(lambda desk=desk, cycle_id=cycle_id: desk.commit(cycle_id) for cycle_id in plans),
            ]
        )
        assert violations(desk.engine) == []
        assert done
        assert [outcome.granted for outcome in outcomes] == [0, 0]
        (hold,) = desk.rows(tables.held_room)
        assert hold["job_id"] == nomination.job_id
        cleared += done
        refused += 2
    record_property("cleared beside commits", f"{cleared} times, {refused} commits refused")


@pytest.mark.requirement("PRE-005")
def test_two_schedulers_that_clear_a_runner_at_once_stop_its_jobs_once(pressed: Desk) -> None:
    for _ in range(8):
        desk = fresh(pressed)
        nomination, victims = nominated(desk)
        done = at_once([lambda desk=desk, wanted=nomination: clear(desk, wanted)] * 3)
        assert sorted(done) == [False, False, True]
        assert violations(desk.engine) == []
        assert len(desk.rows(tables.held_room)) == 1
        assert [desk.states(one)[0] for one in victims] == ["active", "revoked"]


@pytest.mark.requirement("PRE-005")
def test_a_victim_that_ends_while_it_is_stopped_leaves_all_or_nothing(
    pressed: Desk, record_property: Callable[[str, object], None]
) -> None:
    """Either it had ended, and nobody else is stopped, or it is stopped and ends as it says."""
    first = 0
    for number in range(12):
        desk = fresh(pressed)
        nomination, (running, offered) = nominated(desk)
        done, _ = at_once(
            [
                lambda desk=desk, wanted=nomination: clear(desk, wanted),
                lambda desk=desk, lease=running, n=number: desk.complete(
                    lease, Outcome.SUCCEEDED if n % 2 else Outcome.CANCELLED
                ),
            ]
        )
        first += not done
        assert violations(desk.engine) == []
        assert len(desk.rows(tables.held_room)) == int(bool(done))
        assert desk.states(offered)[0] == ("revoked" if done else "offered")
    record_property("victims that ended first", f"{first} of 12")


def fresh(desk: Desk) -> Desk:
    """Empty the database for another round."""
    empty(desk.engine)
    return desk
