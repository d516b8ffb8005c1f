"""What Prometheus finds at the API: right by SQL, behind the gate, and with bounded labels."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard import telemetry
from forgeyard.api.metrics import StoreFigures
from forgeyard.config import StoreConfig
from forgeyard.model.capability import Requirements
from forgeyard.model.equipment import (
    Device,
    DeviceRequirement,
    Equipment,
    EquipmentRequirement,
    Gpu,
    GpuRequirement,
    GpuSharing,
)
from forgeyard.store import tables
from forgeyard.store.engine import open_engine, write
from tests.builders import a_job_spec, some_capabilities, submit_run
from tests.integration.api.house import House, a_document, client_of
from tests.leasing import Desk
from tests.scraping import Scrape, scraped

pytestmark = pytest.mark.integration
MINUTE = 60_000


async def _scrape(house: House) -> Scrape:
    answer = await house.people.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    return scraped(answer.text)


async def test_metrics_are_shut_without_the_token(sqlite_house: House) -> None:
    async with client_of(sqlite_house.public, token=None) as nobody:
        assert (await nobody.get("/metrics")).status_code == 401


@pytest.mark.requirement("MET-011", "MET-012", "MET-013")
@pytest.mark.requirement("PRI-028")
async def test_jobs_leases_and_amounts_are_those_of_the_store(house: House) -> None:
    held = await house.accepted(a_document(build={}, test={"needs": "build"}, other={}))
    found = await _scrape(house)
    assert found.value("forgeyard_jobs", state="pending") == 1
    assert found.value("forgeyard_jobs", state="preparing") == 1
    assert found.value("forgeyard_jobs", state="leased") == 1
    assert found.value("forgeyard_runners", state="online") == 1
    assert found.value("forgeyard_leases", state="active") == 1
    assert found.value("forgeyard_leases", state="offered") == 1
    assert found.value("forgeyard_runner_cpu_allocated_cores") == 1.0
    assert found.value("forgeyard_runner_cpu_allocatable_cores") == 4.0
    assert found.value("forgeyard_runner_memory_allocated_bytes") == 2 * 256 * 2**20
    assert found.value("forgeyard_runner_disk_allocated_bytes") == 2 * 256 * 2**20
    assert found.value("forgeyard_runner_slots_allocated") == 2
    assert found.value("forgeyard_store_up") == 1
    assert found.value("forgeyard_outbox_undelivered") == 2
    await house.tell(held, "complete", outcome="succeeded")
    found = await _scrape(house)
    assert found.value("forgeyard_runner_cpu_allocated_cores") == 0.5
    assert found.value("forgeyard_leases_ended_recently", how="released") == 1


@pytest.mark.requirement("MET-005")
async def test_jobs_that_cannot_be_placed_are_counted_by_their_diagnosis(house: House) -> None:
    await house.register()
    huge = {"resources": {"memory": "64Gi"}}
    await house.submit(a_document(a=huge, b=huge, c={"requires": {"platform": "macos"}}, d={}))
    house.schedule()
    found = await _scrape(house)
    assert found.value("forgeyard_scheduler_unschedulable", code="INSUFFICIENT_MEMORY") == 2
    assert found.value("forgeyard_scheduler_unschedulable", code="NO_MATCHING_PLATFORM") == 1
    assert found.value("forgeyard_scheduler_unschedulable", code="NO_CAPACITY_NOW") == 0
    assert found.value("forgeyard_jobs", state="eligible") == 3


@pytest.mark.requirement("MET-007")
async def test_the_longest_wait_is_told_by_priority_and_between_tenants(house: House) -> None:
    waits = {"a": ("tnt_a", 10), "b": ("tnt_a", 3), "c": ("tnt_b", 4)}
    with write(house.engine) as connection:
        for name, (tenant, minutes) in waits.items():
            run_id = submit_run(connection, name=name)
            connection.execute(
                sa.update(tables.jobs)
                .where(tables.jobs.c.run_id == run_id)
                .values(
                    tenant_id=tenant,
                    eligible_at=tables.jobs.c.eligible_at - minutes * MINUTE,
                    priority="high" if name == "b" else "normal",
                )
            )
    found = await _scrape(house)
    oldest = "forgeyard_scheduler_oldest_wait_seconds"
    assert found.value(oldest, priority="normal") == pytest.approx(600, abs=20)
    assert found.value(oldest, priority="high") == pytest.approx(180, abs=20)
    assert found.value(oldest, priority="low") == 0
    delay = found.value("forgeyard_scheduler_fairness_delay_seconds")
    assert delay == pytest.approx(360, abs=20)


@pytest.mark.requirement("MET-010", "MET-019", "MET-020")
async def test_offers_nobody_took_and_leases_that_were_lost_are_counted(house: House) -> None:
    before = await _scrape(house)
    document = a_document(a={}, b={}, c={}, d={})
    session_id = await house.register()
    await house.submit(document)
    done, lost, refused, _ignored = await house.offered(session_id)
    await house.tell(refused, "reject", reason="draining")
    for held in (done, lost):
        await house.tell(held, "accept")
    await house.tell(done, "complete", outcome="succeeded")
    await house.tell(done, "complete", outcome="succeeded")
    desk = Desk(house.engine)
    desk.later(2 * MINUTE + 1_000)
    overdue = await _scrape(house)
    assert overdue.value("forgeyard_leases_overdue") == 2
    swept = desk.sweep()
    assert (swept.expired, swept.offers) == (2, 1)
    found = await _scrape(house)
    assert found.value("forgeyard_leases_overdue") == 0
    ended = "forgeyard_leases_ended_recently"
    for how in ("released", "rejected", "offer_expired", "lost"):
        assert found.value(ended, how=how) == 1, how
    assert found.value("forgeyard_runner_lost_attempt_ratio") == 0.5
    assert found.value("forgeyard_runner_rejection_ratio") == 0.25
    failed = "forgeyard_scheduler_lease_dispatch_failures_total"
    assert found.value(failed, reason="rejected") == before.value(failed, reason="rejected") + 1
    answers = "forgeyard_lease_answers_total"
    for answer, calls in (("accepted", 2), ("succeeded", 1), ("duplicate_accepted", 1)):
        known = before.value(answers, answer=answer)
        assert found.value(answers, answer=answer) == known + calls, answer


async def test_reservations_that_disagree_with_leases_show(house: House) -> None:
    await house.accepted()
    assert (await _scrape(house)).value("forgeyard_reservations_wrong_runners") == 0
    with write(house.engine) as connection:
        connection.execute(sa.update(tables.runners).values(reserved_cpu_milli=0))
    assert (await _scrape(house)).value("forgeyard_reservations_wrong_runners") == 1


@pytest.mark.requirement("MET-008")
async def test_the_signals_of_pressure_of_the_last_cycle_are_told(house: House) -> None:
    await house.register()
    await house.submit()
    outbox = {"event_id": "evt", "stream": "att", "sequence": 1, "kind": "k", "payload": "{}"}
    with write(house.engine) as connection:
        connection.execute(sa.insert(tables.outbox).values(created_at=0, **outbox))
    house.schedule()
    found = await _scrape(house)
    backpressure = "forgeyard_scheduler_backpressure"
    assert found.value(backpressure, signal="control_plane_pressure") == 1
    assert found.value(backpressure, signal="cas_pressure") == 0
    with write(house.engine) as connection:
        connection.execute(sa.delete(tables.outbox))
    house.schedule()
    found = await _scrape(house)
    assert found.value(backpressure, signal="control_plane_pressure") == 0


@pytest.mark.requirement("MET-021")
@pytest.mark.case("SP-084")
async def test_no_name_and_no_id_becomes_a_label(house: House) -> None:
    with write(house.engine) as connection:
        path = ("tenant_id", "organization_id", "project_id", "queue_id")
        named = {column: f"{column}_💎" for column in path}
        run_id = submit_run(connection, name="💎")
        connection.execute(
            sa.update(tables.jobs).where(tables.jobs.c.run_id == run_id).values(named)
        )
    held = await house.accepted(a_document(build={}), labels={"💎": "💎"})
    text = (await house.people.get("/metrics")).text
    assert "💎" not in text
    assert held.lease_id not in text
    assert run_id not in text
    bounded = {"state", "code", "priority", "how", "step", "verdict", "reason", "answer"}
    # Fleets are few, and operators name them; their figures may come from other tests.
    of_fleets = {"fleet", "provider", "capacity_class"}
    bounded |= {"kind", "result", "signal", "where", "what"}
    assert scraped(text).labels() <= bounded | of_fleets


def test_the_store_is_read_once_for_all_who_ask_within_seconds(engine: sa.Engine) -> None:
    desk, figures = Desk(engine), StoreFigures(engine, "default")
    registry = telemetry.published(figures)
    before = scraped(telemetry.text(registry).decode())
    desk.submit()
    again = scraped(telemetry.text(registry).decode())
    fresh = scraped(telemetry.text(telemetry.published(StoreFigures(engine, "default"))).decode())
    waiting = [one.value("forgeyard_jobs", state="eligible") for one in (before, again, fresh)]
    assert waiting == [0, 0, 1]


def test_without_a_store_a_process_still_tells_what_it_counted(tmp_path: Path) -> None:
    gone = open_engine(f"sqlite:///{tmp_path / 'no' / 'such.db'}", StoreConfig())
    found = scraped(telemetry.text(telemetry.published(StoreFigures(gone, "default"))).decode())
    assert found.value("forgeyard_store_up") == 0
    assert "forgeyard_jobs" not in found.families
    assert "forgeyard_scheduler_placements" in found.families


@pytest.mark.requirement("MET-014", "MET-015")
async def test_gpus_and_other_devices_in_use_are_told_apart(house: House) -> None:
    equipment = Equipment(
        gpus=tuple(Gpu(id=f"GPU-{n}", sharing=GpuSharing.SHARED) for n in range(2)),
        devices=(Device(kind="phone", count=3),),
    )
    desk = Desk(house.engine)
    desk.register("lab", capabilities=some_capabilities(equipment=equipment))
    wanted = EquipmentRequirement(
        gpus=(GpuRequirement(), GpuRequirement(share=250)),
        devices=(DeviceRequirement(kind="phone", count=2),),
    )
    desk.submit(a_job_spec("flash", requires=Requirements(equipment=wanted)))
    assert desk.cycle().granted == 1
    found = await _scrape(house)
    assert found.value("forgeyard_runner_gpus_allocated") == 1.25
    assert found.value("forgeyard_runner_devices_allocated") == 2
