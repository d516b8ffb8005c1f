"""Pools in the store: who gets into them, what closes them, and what a commit makes of a change."""

import json

import pytest
import sqlalchemy as sa

from forgeyard.errors import Conflict, InvalidRequest, NotFound
from forgeyard.model.capability import Requirements, TrustClass
from forgeyard.model.runner import RunnerState
from forgeyard.model.wishes import Purpose, Wishes
from forgeyard.scheduler.grant import Verdict
from forgeyard.scheduler.standing import Sharing
from forgeyard.store import generations, pool_views, pools, runners, snapshot, tables
from forgeyard.store.engine import database_now, read, write
from forgeyard.store.pools import PoolRules
from forgeyard.store.shares import Intent
from tests.builders import PARTITION, RNG, a_job_spec, some_capabilities
from tests.leasing import POLICY, Desk

pytestmark = pytest.mark.integration
BY_ANN = Intent(actor="ann", channel="cli", reason="new racks")
RESERVED = PoolRules(owner="prj_other", sharing=Sharing.RESERVED)


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def a_pool(desk: Desk, name: str = "ios", rules: PoolRules | None = None) -> str:
    return desk.change(pools.create, name, rules or PoolRules(), BY_ANN, rng=RNG)


def a_window(desk: Desk, *, starts_in: int, lasts: int = 3_600_000) -> str:
    def add(connection: sa.Connection) -> str:
        starts_at = database_now(connection) + starts_in
        return pools.add_window(
            connection,
            "default",
            starts_at=starts_at,
            ends_at=starts_at + lasts,
            intent=BY_ANN,
            partition=PARTITION,
            rng=RNG,
        )

    return desk.change(add)


def audited(desk: Desk) -> list[str]:
    with read(desk.engine) as connection:
        return list(connection.execute(sa.select(tables.audit.c.action)).scalars())


def fleet(desk: Desk) -> int:
    with read(desk.engine) as connection:
        return generations.current(connection)


def wakes(desk: Desk) -> int:
    with read(desk.engine) as connection:
        return connection.execute(sa.select(tables.wakes.c.generation)).scalar() or 0


def diagnosed(desk: Desk) -> list[dict]:
    with read(desk.engine) as connection:
        told = sa.select(tables.jobs.c.diagnosis).where(tables.jobs.c.diagnosis.is_not(None))
        return [json.loads(one) for one in connection.execute(told).scalars()]


def sentences(desk: Desk) -> str:
    return " ".join(one["sentence"] for one in diagnosed(desk))


@pytest.mark.requirement("RUN-002", "RUN-005")
@pytest.mark.requirement("PHA-005")
def test_a_draining_pool_gives_nothing_until_it_is_undrained(desk: Desk) -> None:
    desk.active()
    desk.submit()
    before, woken = fleet(desk), wakes(desk)
    desk.change(pools.drain, "default", BY_ANN)
    assert (fleet(desk), wakes(desk)) == (before + 1, woken + 1)
    assert desk.cycle().granted == 0
    assert "it is in a pool that drains" in sentences(desk)
    assert desk.leases(state="active"), "what runs goes on"
    desk.change(pools.undrain, "default", BY_ANN)
    assert desk.cycle().granted == 1
    assert audited(desk) == ["pool.drain", "pool.undrain"]


@pytest.mark.requirement("ELG-040")
def test_a_pool_that_drains_after_the_plan_gets_nothing_from_it(desk: Desk) -> None:
    desk.register()
    desk.submit()
    cycle = desk.plan()
    desk.change(pools.drain, "default", BY_ANN)
    assert [verdict for _, verdict in desk.commit(cycle).verdicts] == [Verdict.RUNNER_UNAVAILABLE]


def test_a_runner_that_was_moved_after_the_plan_gets_nothing_from_it(desk: Desk) -> None:
    desk.register()
    desk.submit()
    a_pool(desk)
    cycle = desk.plan()
    desk.change(pools.assign, "runner-1", "ios", BY_ANN)
    assert desk.commit(cycle).granted == 0
    assert desk.cycle().granted == 1


@pytest.mark.requirement("RES-019", "RES-020", "RES-022")
def test_a_reserved_pool_serves_its_owner_alone(desk: Desk) -> None:
    desk.register()
    desk.submit()
    desk.change(
        pools.change, "default", PoolRules(owner="que_default", sharing=Sharing.RESERVED), BY_ANN
    )
    assert desk.cycle().granted == 1, "it is the queue's own pool"
    with write(desk.engine) as connection:
        connection.execute(sa.update(tables.pools).values(owner_id="prj_other"))
    desk.submit()
    assert desk.cycle().granted == 0
    assert {one["code"] for one in diagnosed(desk)} == {"NO_MATCHING_POOL"}


@pytest.mark.requirement("RES-021", "RES-023")
@pytest.mark.requirement("PRI-022")
def test_idle_capacity_of_a_reserved_pool_spills_over(desk: Desk) -> None:
    desk.register()
    with write(desk.engine) as connection:
        connection.execute(
            sa.update(tables.pools).values(owner_id="prj_other", sharing="reserved", spillover=1)
        )
    desk.submit()
    assert desk.cycle().granted == 1


@pytest.mark.requirement("DEV-013", "ELG-042")
def test_a_runner_of_another_trust_class_gets_nothing_in_a_pool(desk: Desk) -> None:
    a_pool(desk, "vault", PoolRules(trust=TrustClass.SIGNING_RESTRICTED))
    labelled = some_capabilities(labels={"trust": "signing_restricted", "pool": "vault"})
    desk.register(capabilities=labelled)
    desk.change(pools.assign, "runner-1", "vault", BY_ANN)
    desk.submit(a_job_spec())
    desk.submit(a_job_spec("sign", wishes=Wishes(purpose=Purpose.SIGNING), requires=Requirements()))
    assert desk.cycle().granted == 0


@pytest.mark.requirement("RUN-004")
def test_before_maintenance_only_jobs_that_end_in_time_are_placed(desk: Desk) -> None:
    desk.register()
    long = a_job_spec("long")
    desk.submit(long)
    window = a_window(desk, starts_in=2 * 3_600_000)
    assert desk.cycle().granted == 1, "all its timeouts together end before"
    desk.change(pools.cancel_window, window, BY_ANN)
    a_window(desk, starts_in=600_000)
    desk.submit(long)
    assert desk.cycle().granted == 0
    assert "it is in a pool under maintenance" in sentences(desk)


@pytest.mark.requirement("RUN-004")
def test_a_pool_opens_by_itself_when_its_maintenance_is_over(desk: Desk) -> None:
    desk.register()
    desk.submit()
    window = a_window(desk, starts_in=-1_000)
    assert desk.cycle().granted == 0
    desk.overwrite(tables.maintenance_windows, window, ends_at=1)
    with write(desk.engine) as connection:
        mine = tables.deadlines.c.entity_id == window
        connection.execute(sa.update(tables.deadlines).where(mine).values(due_at=1))
    before = wakes(desk)
    assert desk.sweep().due == 1
    assert wakes(desk) == before + 1
    assert desk.cycle().granted == 1


def test_cancelled_maintenance_leaves_no_deadline(desk: Desk) -> None:
    window = a_window(desk, starts_in=0)
    desk.change(pools.cancel_window, window, BY_ANN)
    with read(desk.engine) as connection:
        assert connection.execute(sa.select(sa.func.count(tables.deadlines.c.kind))).scalar() == 0
    with pytest.raises(NotFound):
        desk.change(pools.cancel_window, window, BY_ANN)


@pytest.mark.requirement("ELG-042", "RUN-006")
def test_what_an_agent_asks_for_is_a_wish_that_an_operator_grants(desk: Desk) -> None:
    a_pool(desk)
    desk.register(pool="ios")
    with read(desk.engine) as connection:
        shown = pool_views.pool(connection, "ios")
    assert (shown.runners, shown.wished_by) == ((), ("runner-1",))
    desk.change(pools.assign, "runner-1", "ios", BY_ANN)
    desk.register(pool="default")
    with read(desk.engine) as connection:
        shown = pool_views.pool(connection, "ios")
    assert shown.runners == ("runner-1",), "registering anew moves nobody"


def test_impossible_pools_are_refused(desk: Desk) -> None:
    a_pool(desk)
    with pytest.raises(Conflict):
        a_pool(desk)
    with pytest.raises(InvalidRequest):
        a_pool(desk, "mine", PoolRules(sharing=Sharing.RESERVED))
    with pytest.raises(NotFound):
        a_pool(desk, "mine", RESERVED)
    with pytest.raises(NotFound):
        desk.change(pools.drain, "none", BY_ANN)
    with pytest.raises(NotFound):
        desk.change(pools.assign, "nobody", "ios", BY_ANN)
    with pytest.raises(InvalidRequest):
        a_window(desk, starts_in=1_000, lasts=0)


def test_a_runner_declared_unhealthy_stays_so_whatever_it_says(desk: Desk) -> None:
    session = desk.register().session_id
    desk.submit()
    say = {"reason": "wrong results", "actor": "ann", "channel": "cli"}
    desk.change(runners.declare, "runner-1", RunnerState.UNHEALTHY, **say)
    desk.heartbeat(session)
    assert desk.cycle().granted == 0
    desk.register()
    assert desk.cycle().granted == 0
    desk.change(runners.declare, "runner-1", RunnerState.ONLINE, **say)
    assert desk.cycle().granted == 1
    with pytest.raises(InvalidRequest):
        desk.change(runners.declare, "runner-1", RunnerState.OFFLINE, **say)
    assert audited(desk) == ["runner.set_state"] * 2


@pytest.mark.requirement("POL-006", "POL-007", "POL-008", "RUN-007")
def test_where_a_signing_job_went_is_accounted_for(desk: Desk) -> None:
    desk.register(capabilities=some_capabilities(trust=TrustClass.SIGNING_RESTRICTED))
    desk.submit(a_job_spec("sign", wishes=Wishes(purpose=Purpose.SIGNING)))
    assert desk.cycle().granted == 1
    (lease,) = desk.leases()
    runner = desk.row(tables.runners, lease.runner_id)
    attempt = desk.row(tables.attempts, lease.attempt_id)
    names = ("capability_digest", "trust", "pool_id")
    assert [attempt[name] for name in names] == [runner[name] for name in names]
    assert attempt["policy_digest"] == POLICY.digest()
    with read(desk.engine) as connection:
        (row,) = connection.execute(sa.select(tables.audit)).mappings().all()
    assert (row["action"], row["target"]) == ("job.placed", lease.job_id)
    said = json.loads(row["detail"])
    assert {name: said[name] for name in names} == {name: runner[name] for name in names}
    assert (said["runner"], said["purpose"]) == ("runner-1", "signing")


def test_an_ordinary_placement_is_not_audited(desk: Desk) -> None:
    desk.offered()
    assert audited(desk) == []


@pytest.mark.requirement("ELG-029", "PRI-030")
def test_an_old_report_is_not_believed_where_harm_could_be_done(desk: Desk) -> None:
    runner = desk.register().runner_id
    deploy = a_job_spec("deploy", wishes=Wishes(purpose=Purpose.DEPLOY))
    desk.submit(deploy)
    desk.submit(a_job_spec("test"))
    desk.overwrite(tables.runners, runner, reported_at=1)
    assert desk.cycle().granted == 1, "the ordinary job"
    assert "it has to report anew" in sentences(desk)
    desk.register()
    desk.cycle()
    assert {lease.runner_id for lease in desk.leases(state="offered")} == {runner}


def test_a_snapshot_names_the_owner_and_the_reason(desk: Desk) -> None:
    desk.register()
    a_pool(desk, "ios", PoolRules(owner="default/default", sharing=Sharing.RESERVED))
    desk.change(pools.assign, "runner-1", "ios", BY_ANN)
    desk.change(pools.drain, "ios", BY_ANN)
    with read(desk.engine) as connection:
        (runner,) = snapshot.load(connection, PARTITION, POLICY).runners
    assert (runner.pool.owner, runner.pool.owner_id) == ("organization default", "org_default")
    assert (runner.pool.draining, runner.pool.reason) == (True, "new racks")
