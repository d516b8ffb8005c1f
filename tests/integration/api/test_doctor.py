"""The doctor over HTTP, on each database: healthy, then with one real damage at a time."""

import pytest
import sqlalchemy as sa

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import beats, liveness, tables
from forgeyard.store.engine import write
from tests.builders import a_job_spec, some_resources
from tests.integration.api.house import House, a_document
from tests.leasing import Desk

pytestmark = pytest.mark.integration
MINUTE = 60_000
HUGE = {"resources": {"memory": "64Gi"}}


async def _examined(house: House) -> dict[str, dict]:
    answer = await house.people.get("/v1/scheduler/doctor")
    assert answer.status_code == 200, answer.text
    checks = answer.json()["checks"]
    order = ["ok", "warn", "fail"]
    assert answer.json()["verdict"] == max((one["verdict"] for one in checks), key=order.index)
    for one in checks:
        assert one["sentence"].endswith("."), one
        assert bool(one["advice"]) == (one["verdict"] != "ok"), one
    return {one["name"]: one for one in checks}


def _damage(house: House, statement: sa.Executable) -> None:
    with write(house.engine) as connection:
        connection.execute(statement)


def _beat(house: House) -> None:
    """Serve renewals, and sweep once."""
    with write(house.engine) as connection:
        liveness.beat_renewal(connection, policy=SchedulingPolicy())
        beats.beat(connection, beats.sweep_of("default"))


async def assert_only(house: House, name: str, verdict: str, *words: str) -> dict:
    found = await _examined(house)
    others = {one: check["verdict"] for one, check in found.items() if one != name}
    assert set(others.values()) == {"ok"}, found
    assert found[name]["verdict"] == verdict, found[name]
    for word in words:
        assert word in found[name]["sentence"], found[name]
    return found[name]


async def _healthy(house: House) -> None:
    """Run one job and let another wait behind it, with nothing wrong."""
    _beat(house)
    await house.accepted(a_document(build={}, after={"needs": "build"}))


@pytest.mark.requirement("DIA-019")
async def test_a_healthy_system_passes_every_check(house: House) -> None:
    await _healthy(house)
    found = await _examined(house)
    assert list(found) == [
        *("store", "runner_pools", "capability_classes", "quotas", "stuck_jobs", "contention"),
        *(
            "lease_backlog",
            "resource_accounting",
            "reconciliation",
            "upkeep",
            "outbox",
            "lease_renewal",
        ),
    ]
    assert {one["verdict"] for one in found.values()} == {"ok"}, found
    assert found["runner_pools"]["sentence"] == "Taking work: 1 of 1 runner."


@pytest.mark.requirement("DIA-020")
async def test_a_pool_without_anybody_who_takes_work_is_found(house: House) -> None:
    await _healthy(house)
    await house.register("runner-2")
    runners = tables.runners
    second = sa.update(runners).where(runners.c.name == "runner-2")
    _damage(house, second.values(pool_id="pol_nowhere"))
    await assert_only(house, "runner_pools", "fail", "1 runner", "pol_nowhere")
    pool = {"pool_id": "pol_nowhere", "name": "spare", "created_at": 0, "state": "draining"}
    _damage(house, sa.insert(tables.pools).values(pool))
    try:
        await assert_only(house, "runner_pools", "ok")
        _damage(house, second.values(state="offline", session_id=None))
        await assert_only(house, "runner_pools", "warn", "pool spare (draining)")
    finally:
        _damage(house, sa.delete(tables.pools).where(tables.pools.c.pool_id == "pol_nowhere"))


async def test_without_runners_jobs_that_wait_make_it_a_failure(sqlite_house: House) -> None:
    _beat(sqlite_house)
    await assert_only(
        sqlite_house, "runner_pools", "warn", "None of the 0 runners", "0 jobs waiting"
    )
    await sqlite_house.submit()
    found = await _examined(sqlite_house)
    assert found["runner_pools"]["verdict"] == "fail"
    assert "1 job waiting" in found["runner_pools"]["sentence"]
    assert found["capability_classes"]["verdict"] == "warn"


@pytest.mark.requirement("DIA-021")
async def test_sorts_of_jobs_that_nobody_can_ever_run_are_named(house: House) -> None:
    await _healthy(house)
    await house.submit(
        a_document(huge=HUGE, larger=HUGE, apple={"requires": {"platform": "macos"}})
    )
    check = await assert_only(house, "capability_classes", "warn", "2 jobs like huge", "64 GiB")
    assert "1 other sort of jobs" in check["sentence"]


@pytest.mark.requirement("DIA-022")
async def test_a_quota_below_what_one_waiting_job_asks_is_found(house: House) -> None:
    await _healthy(house)
    await house.submit(a_document(wide={"resources": {"cpu": 2}}))
    scopes = tables.scopes
    tenant = sa.update(scopes).where(scopes.c.scope_id == "tnt_default")
    try:
        _damage(house, tenant.values(max_cpu_milli=2_000))
        await assert_only(house, "quotas", "ok")
        _damage(house, tenant.values(max_cpu_milli=1_000))
        await assert_only(house, "quotas", "fail", "cpu quota of tenant", "job wide alone")
        _damage(house, tenant.values(burst_percent=100))
        await assert_only(house, "quotas", "ok")
        _damage(house, tenant.values(paused=1))
        await assert_only(house, "quotas", "warn", "tenant", "paused")
    finally:
        _damage(house, tenant.values(max_cpu_milli=None, burst_percent=0, paused=0))


@pytest.mark.requirement("DIA-023")
async def test_jobs_that_could_run_while_no_cycle_runs_are_found(house: House) -> None:
    await _healthy(house)
    await house.submit(a_document(idle={}, huge={"resources": {"cpu": 4}}))
    await assert_only(house, "stuck_jobs", "ok")
    jobs, cycles = tables.jobs, tables.cycles
    waiting = sa.update(jobs).where(jobs.c.state == "eligible")
    _damage(house, waiting.values(eligible_at=jobs.c.eligible_at - 3 * MINUTE))
    await assert_only(house, "stuck_jobs", "ok")
    _damage(house, sa.update(cycles).values(committed_at=cycles.c.committed_at - 2 * MINUTE))
    await assert_only(house, "stuck_jobs", "fail", "1 job could run now, the first for 18")
    assert house.schedule() == 1
    await assert_only(house, "stuck_jobs", "ok", "none of 1 job")
    _damage(house, waiting.values(spec="{"))
    await assert_only(house, "stuck_jobs", "fail", "Unreadable: 1 waiting job (job_")


@pytest.mark.requirement("DIA-024")
async def test_offers_nobody_takes_and_leases_nobody_sweeps_are_found(house: House) -> None:
    _beat(house)
    session_id = await house.register()
    await house.submit(a_document(one={}, two={}))
    assert len(await house.offered(session_id)) == 2
    await assert_only(house, "lease_backlog", "ok", "2 offers")
    leases = tables.leases
    _damage(house, sa.update(leases).values(offered_at=leases.c.offered_at - 20_000))
    await assert_only(house, "lease_backlog", "warn", "2 offers", "of 30 s")
    _damage(house, sa.update(leases).values(expires_at=leases.c.expires_at - 60_000))
    await assert_only(house, "lease_backlog", "fail", "2 leases and 0 deadlines")
    assert Desk(house.engine).sweep().expired == 2
    await assert_only(house, "lease_backlog", "ok", "0 offers")
    deadlines = tables.deadlines
    _damage(house, sa.update(deadlines).values(due_at=0))
    assert (await _examined(house))["lease_backlog"]["verdict"] == "fail"


@pytest.mark.case("SP-059")
@pytest.mark.requirement("DIA-025")
async def test_books_that_do_not_balance_are_found_and_only_read(house: House) -> None:
    await _healthy(house)
    runners, kept = tables.runners, tables.reservations
    _damage(house, sa.update(runners).values(reserved_cpu_milli=1_500))
    says = "is cpu_milli 1500 and should be cpu_milli 500"
    for _ in range(2):
        await assert_only(house, "resource_accounting", "fail", says)
    _damage(house, sa.update(runners).values(reserved_cpu_milli=500))
    await assert_only(house, "resource_accounting", "ok")
    _damage(house, sa.update(kept).values(memory_bytes=0))
    await assert_only(house, "resource_accounting", "fail", "is memory_bytes 0 and should be")
    assert Desk(house.engine).sweep().repaired == 1, "although the runner's own row was right"
    found = await _examined(house)
    assert found["resource_accounting"]["verdict"] == "ok"
    assert found["reconciliation"]["verdict"] == "warn"
    assert "1 contradiction, 0 not repaired" in found["reconciliation"]["sentence"]
    assert "memory_bytes 0, expected memory_bytes" in found["reconciliation"]["sentence"]
    recorded = tables.findings
    _damage(house, sa.update(recorded).values(seen_at=recorded.c.seen_at - 61 * MINUTE))
    await assert_only(house, "resource_accounting", "ok")
    _damage(house, sa.update(runners).values(headroom_cpu_milli=3_900))
    await assert_only(house, "resource_accounting", "warn", "may give away: runner-1")


@pytest.mark.requirement("GAT-010", "RCN-025")
async def test_plans_that_come_to_nothing_are_found_and_told_as_a_share(house: House) -> None:
    """Thirty placements are planned by two schedulers that see the same; one of them gets them."""
    desk = Desk(house.engine)
    desk.register(total=some_resources(cpu=90_000, memory=2**45, disk=2**45, slots=90))
    desk.submit(*(a_job_spec(f"job-{number}") for number in range(30)))
    plans = [desk.plan(), desk.plan()]
    assert desk.commit(plans[0]).granted == 30
    await _contention(house, "ok", "0 of 30 placements")
    desk.commit(plans[1])
    found = await _contention(house, "warn", "30 of 60 placements, mostly job_gone")
    assert "partitions" in found["advice"]
    told = await house.people.get("/metrics")
    assert "forgeyard_scheduler_conflict_ratio 0.5" in told.text
    _damage(house, sa.update(tables.cycles).values(created_at=1))
    await _contention(house, "ok", "0 of 0 placements")


async def _contention(house: House, verdict: str, said: str) -> dict:
    """Look at this check alone: on a busy machine others may have something to say."""
    found = (await _examined(house))["contention"]
    assert found["verdict"] == verdict, found
    assert said in found["sentence"]
    return found


async def test_events_that_wait_for_long_are_found(house: House) -> None:
    await _healthy(house)
    outbox = tables.outbox
    _damage(house, sa.update(outbox).values(created_at=outbox.c.created_at - 20_000))
    await assert_only(house, "outbox", "warn", "1 event, one for 2")
    _damage(house, sa.update(outbox).values(created_at=outbox.c.created_at - 2 * MINUTE))
    await assert_only(house, "outbox", "fail", "1 event, one for 14")


async def test_renewals_that_nobody_serves_are_found(house: House) -> None:
    await _assert_renewal(house, "warn", "No API process has served renewals yet.")
    _beat(house)
    await _assert_renewal(house, "ok", "")
    _damage(house, sa.update(tables.liveness).values(beat_at=tables.liveness.c.beat_at - MINUTE))
    await _assert_renewal(house, "fail", "for 6")


async def _assert_renewal(house: House, verdict: str, words: str) -> None:
    check = (await _examined(house))["lease_renewal"]
    assert check["verdict"] == verdict
    assert words in check["sentence"]


@pytest.mark.case("SP-066")
async def test_a_reaper_that_does_not_come_any_more_is_an_alert(house: House) -> None:
    await _healthy(house)
    liveness_ = tables.liveness
    swept = sa.update(liveness_).where(liveness_.c.service == beats.sweep_of("default"))
    _damage(house, swept.values(beat_at=liveness_.c.beat_at - MINUTE))
    check = await assert_only(house, "upkeep", "fail", "No sweep has come to its end for 6")
    assert "forgeyard worker" in check["advice"]
    text = (await house.people.get("/metrics")).text
    (age,) = (x for x in text.splitlines() if x.startswith("forgeyard_upkeep_swept_age_seconds "))
    assert float(age.split()[1]) >= 60
    assert Desk(house.engine).sweep().alert == ""
    await assert_only(house, "upkeep", "ok")
    with write(house.engine) as connection:
        beats.beat(connection, beats.reconciliation_of("default"))
    compared = sa.update(liveness_).where(liveness_.c.service == beats.reconciliation_of("default"))
    _damage(house, compared.values(beat_at=liveness_.c.beat_at - 5 * MINUTE))
    await assert_only(house, "upkeep", "warn", "Nothing has been reconciled for 30")


async def test_before_the_first_sweep_nobody_is_said_to_sweep(sqlite_house: House) -> None:
    found = await _examined(sqlite_house)
    assert found["upkeep"]["sentence"] == "No sweep has run yet."
