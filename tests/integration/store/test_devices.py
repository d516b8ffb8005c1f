"""A device and its runner are had in one transaction, by one lease, and given back with it."""

from collections import Counter
from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.errors import InvalidRequest
from forgeyard.model.capability import Requirements, TrustClass
from forgeyard.model.equipment import (
    WHOLE,
    Device,
    DeviceRequirement,
    Equipment,
    EquipmentRequirement,
    Gpu,
    GpuRequirement,
    GpuSharing,
)
from forgeyard.model.job import JobSpec
from forgeyard.model.policy import OvercommitPolicy
from forgeyard.model.protocol import CompletionVerdict, Outcome
from forgeyard.scheduler.grant import Verdict
from forgeyard.store import devices, overview, runs, tables
from forgeyard.store.engine import read, write
from forgeyard.store.snapshot import load
from tests.builders import PARTITION, a_job_spec, some_capabilities, some_resources
from tests.integration.store.test_commit_races import SCHEDULERS, at_once
from tests.leasing import POLICY, Desk, Lease

pytestmark = pytest.mark.integration
ROOM = some_resources(cpu=64_000, memory=2**40, disk=2**40, slots=64)


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def gpus(count: int, *, shared: bool = False) -> dict[str, object]:
    """Describe a runner with GPUs, or with ones that can be parted."""
    sharing = GpuSharing.SHARED if shared else GpuSharing.EXCLUSIVE
    found = tuple(Gpu(id=f"GPU-{n}", sharing=sharing) for n in range(count))
    has = some_capabilities(equipment=Equipment(gpus=found, devices=()))
    return {"capabilities": has, "total": ROOM}


def wanting(name: str, *wanted: GpuRequirement, **changed: object) -> JobSpec:
    requires = Requirements(equipment=EquipmentRequirement(gpus=wanted or (GpuRequirement(),)))
    return a_job_spec(name, requires=requires, **changed)


def held(desk: Desk) -> dict[str, dict[str, int]]:
    with read(desk.engine) as connection:
        return devices.load(connection)


def names(desk: Desk, lease: Lease) -> set[str]:
    return {row["device_id"] for row in desk.rows(tables.device_holds, lease_id=lease.lease_id)}


@pytest.mark.requirement("DEV-003", "DEV-005", "DEV-006", "DEV-007", "ACC-024", "ELG-012")
def test_a_lease_holds_its_device_from_the_transaction_that_made_it(desk: Desk) -> None:
    desk.register("plain")
    runner_id = desk.register("gpu-1", **gpus(1)).runner_id
    desk.submit(wanting("first"), wanting("second"))
    outcome = desk.cycle()
    assert outcome.granted == 1
    (lease,) = desk.leases(state="offered")
    assert lease.runner_id == runner_id
    assert held(desk) == {runner_id: {"GPU-0": WHOLE}}
    (told,) = desk.assignments(lease.session_id)[lease.session_id].offers
    assert [one.device_id for one in told.devices] == ["GPU-0"]
    (line,) = desk.rows(tables.history, kind="attempt", entity_id=lease.attempt_id)
    assert line["reason"].endswith("with GPU-0")


@pytest.mark.requirement("RES-012", "DEV-007")
@pytest.mark.parametrize("ending", ["complete", "reject", "lapse", "fence"])
def test_however_a_lease_ends_its_devices_are_free_again(desk: Desk, ending: str) -> None:
    desk.register("gpu-1", **gpus(2))
    desk.submit(wanting("first", GpuRequirement(count=2)))
    desk.cycle()
    (lease,) = desk.leases()
    if ending == "complete":
        desk.accept(lease)
        assert desk.complete(lease) is CompletionVerdict.ACCEPTED
        assert desk.complete(lease) is CompletionVerdict.DUPLICATE_ACCEPTED
    elif ending == "reject":
        desk.reject(lease)
        desk.reject(lease)
    elif ending == "lapse":
        desk.later(40_000)
        desk.heartbeat(lease.session_id)
        assert desk.sweep().expired == 1
    else:
        desk.register("gpu-1", **gpus(2))
    assert held(desk) == {}
    assert desk.rows(tables.device_holds) == []


@pytest.mark.case("SP-028")
@pytest.mark.requirement("RES-011")
def test_two_requests_of_two_hold_four_distinct_devices_or_none(desk: Desk) -> None:
    two = GpuRequirement(count=2)
    desk.register("gpu-1", **gpus(4))
    desk.submit(wanting("first", two, two), wanting("second", two, two))
    assert desk.cycle().granted == 1
    (lease,) = desk.leases()
    assert names(desk, lease) == {f"GPU-{n}" for n in range(4)}
    assert len(desk.rows(tables.device_holds)) == 4


@pytest.mark.case("SP-025")
def test_parts_of_gpus_are_committed_as_they_were_planned(desk: Desk) -> None:
    for name in ("gpu-1", "gpu-2"):
        desk.register(name, **gpus(8, shared=True))
    part = GpuRequirement(share=180)
    tiny = some_resources(cpu=10, memory=1, disk=1)
    desk.submit(*(wanting(f"job-{n:02}", part, resources=tiny) for n in range(90)))
    cycle_id = desk.plan()
    planned = desk.row(tables.cycles, cycle_id)["planned"]
    outcome = desk.commit(cycle_id)
    assert (planned, outcome.granted, outcome.refused) == (80, 80, 0)
    everything = [share for of_runner in held(desk).values() for share in of_runner.values()]
    assert everything == [900] * 16
    per_gpu = Counter(
        (row["runner_id"], row["device_id"]) for row in desk.rows(tables.device_holds)
    )
    assert set(per_gpu.values()) == {5}
    assert desk.cycle().granted == 0


@pytest.mark.case("SP-032")
def test_a_stale_view_of_a_device_costs_one_conflict_and_is_not_repeated(desk: Desk) -> None:
    first = desk.register("gpu-1", **gpus(1)).runner_id
    desk.submit(wanting("one"))
    desk.submit(wanting("two"))
    stale, other = desk.plan(), desk.plan()
    assert desk.commit(other).granted == 1
    assert {verdict for _, verdict in desk.commit(stale).verdicts} == {Verdict.JOB_GONE}
    late = desk.plan()
    assert desk.row(tables.cycles, late)["planned"] == 0
    second = desk.register("gpu-2", **gpus(1)).runner_id
    assert desk.cycle().granted == 1
    assert held(desk) == {first: {"GPU-0": WHOLE}, second: {"GPU-0": WHOLE}}


@pytest.mark.case("SP-032")
def test_a_plan_whose_device_is_gone_falls_back_on_its_next_candidate(desk: Desk) -> None:
    desk.register("gpu-1", **gpus(1))
    desk.register("gpu-2", **gpus(1))
    desk.submit(wanting("mine"))
    stale = desk.plan()
    (planned,) = desk.rows(tables.placements, cycle_id=stale)
    winner = planned["candidates"].split('"')[1]
    hold = {"lease_id": "lse_x", "device_id": "GPU-0", "runner_id": winner, "share": WHOLE}
    with write(desk.engine) as connection:
        connection.execute(sa.insert(tables.device_holds).values(hold))
    assert desk.commit(stale).granted == 1
    (lease,) = desk.leases()
    assert lease.runner_id != winner


@pytest.mark.case("SP-029")
def test_what_a_cancelled_job_held_serves_both_requests_of_the_next(desk: Desk) -> None:
    one = GpuRequirement()
    desk.register("gpu-1", **gpus(2))
    victim = desk.submit(wanting("victim", GpuRequirement(count=2)))
    desk.cycle()
    (lease,) = desk.leases()
    desk.accept(lease)
    desk.submit(wanting("next", one, one))
    assert desk.cycle().granted == 0
    desk.change(
        runs.cancel_run,
        victim,
        reason="room is needed",
        actor="tester",
        channel="test",
        policy=POLICY.lease,
    )
    desk.complete(lease, Outcome.CANCELLED)
    assert desk.cycle().granted == 1
    (following,) = desk.leases(state="offered")
    assert names(desk, following) == {"GPU-0", "GPU-1"}


@pytest.mark.requirement("LSE-006", "RCN-006", "DEV-006")
@pytest.mark.requirement("PRI-032", "PRI-039", "PHA-008")
def test_four_schedulers_give_each_device_once(desk: Desk) -> None:
    for number in range(3):
        desk.register(f"gpu-{number}", **gpus(2))
    desk.submit(*(wanting(f"job-{n}") for n in range(20)))
    plans = [desk.plan() for _ in range(SCHEDULERS)]
    outcomes = at_once([lambda cycle_id=cycle_id: desk.commit(cycle_id) for cycle_id in plans])
    assert sum(outcome.granted for outcome in outcomes) == 6
    holds = desk.rows(tables.device_holds)
    assert len({(row["runner_id"], row["device_id"]) for row in holds}) == len(holds) == 6


@pytest.mark.requirement("LSE-006", "DEV-002")
def test_four_schedulers_never_fill_a_shared_gpu_beyond_its_whole(desk: Desk) -> None:
    runner_id = desk.register("gpu-1", **gpus(2, shared=True)).runner_id
    plans: list[int] = []
    for number in range(SCHEDULERS):
        desk.submit(*(wanting(f"s{number}-{n}", GpuRequirement(share=300)) for n in range(6)))
        plans.append(desk.plan())
    outcomes = at_once([lambda cycle_id=cycle_id: desk.commit(cycle_id) for cycle_id in plans])
    assert sum(outcome.granted for outcome in outcomes) == 6
    assert held(desk) == {runner_id: {"GPU-0": 900, "GPU-1": 900}}


def test_the_database_itself_refuses_to_give_a_whole_device_twice(engine: sa.Engine) -> None:
    hold = {"device_id": "GPU-0", "runner_id": "rnr_1", "share": WHOLE}
    twice = [{**hold, "lease_id": "lse_1"}, {**hold, "lease_id": "lse_2"}]
    with write(engine) as connection, pytest.raises(sa.exc.IntegrityError):
        connection.execute(sa.insert(tables.device_holds), twice)


@pytest.mark.requirement("RES-015")
def test_devices_that_no_living_lease_holds_are_freed_and_the_others_kept(desk: Desk) -> None:
    runner_id = desk.register("gpu-1", **gpus(2)).runner_id
    desk.submit(wanting("job"))
    desk.cycle()
    (lease,) = desk.leases()
    (mine,) = names(desk, lease)
    stray = {"device_id": "GPU-1", "runner_id": runner_id, "share": WHOLE, "lease_id": "lse_x"}
    with write(desk.engine) as connection:
        connection.execute(sa.insert(tables.device_holds).values(stray))
    assert desk.sweep().repaired == 1
    assert held(desk) == {runner_id: {mine: WHOLE}}
    (found,) = desk.rows(tables.findings)
    assert (found["kind"], found["entity"]) == ("device_stray", "lse_x")
    assert desk.sweep().repaired == 0


@pytest.mark.requirement("RES-012")
@pytest.mark.case("SP-024")
def test_round_after_round_the_free_amounts_are_exactly_the_same(desk: Desk) -> None:
    total = some_resources(cpu=1_000, memory=10, disk=10, slots=10)
    has = some_capabilities(equipment=Equipment(gpus=(Gpu(sharing=GpuSharing.SHARED),)))
    runner_id = desk.register("gpu-1", total=total, capabilities=has).runner_id
    tenth = some_resources(cpu=100, memory=1, disk=1)
    part = GpuRequirement(share=100)
    for number in range(8):
        desk.submit(*(wanting(f"r{number}-{n}", part, resources=tenth) for n in range(10)))
        assert desk.cycle().granted == 10
        assert desk.reserved(runner_id)["cpu_milli"] == 1_000
        assert held(desk) == {runner_id: {"gpu/0": WHOLE}}
        for lease in desk.leases(state="offered"):
            desk.accept(lease)
            desk.complete(lease)
        assert desk.reserved(runner_id)["cpu_milli"] == 0
        assert held(desk) == {}


@pytest.mark.requirement("ELG-012", "DEV-004")
def test_a_counted_device_goes_to_one_job_at_a_time(desk: Desk) -> None:
    has = some_capabilities(equipment=Equipment(devices=(Device(kind="board", count=2),)))
    desk.register("bench", capabilities=has, total=ROOM)
    wants = EquipmentRequirement(devices=(DeviceRequirement(kind="board"),))
    spec = [a_job_spec(f"job-{n}", requires=Requirements(equipment=wants)) for n in range(3)]
    desk.submit(*spec)
    assert desk.cycle().granted == 2
    found = {row["device_id"] for row in desk.rows(tables.device_holds)}
    assert found == {"board/0", "board/1"}
    (waiting,) = desk.rows(tables.jobs, state="eligible")
    assert desk.cycle().granted == 0
    assert "has its devices in use" in desk.row(tables.jobs, waiting["job_id"])["diagnosis"]


@pytest.mark.parametrize("ids", [("a", "a"), ("a,b",), ("a\nb",)])
def test_devices_without_a_plain_name_of_their_own_are_refused(
    desk: Desk, ids: tuple[str, ...]
) -> None:
    has = some_capabilities(equipment=Equipment(gpus=tuple(Gpu(id=name) for name in ids)))
    with pytest.raises(InvalidRequest) as refused:
        desk.register("odd", capabilities=has)
    assert refused.value.field == "capabilities.equipment"


@pytest.mark.requirement("RES-003", "RES-002")
def test_a_runner_is_shown_with_its_parts_and_its_devices(desk: Desk) -> None:
    kept = some_resources(cpu=1_000, memory=2**30, disk=0, slots=0)
    desk.register("gpu-1", **gpus(2), headroom=kept)
    desk.submit(wanting("job"))
    desk.cycle()
    (lease,) = desk.leases()
    with read(desk.engine) as connection:
        (seen,) = overview.runners(connection)
    assert (seen.total.cpu, seen.headroom.cpu, seen.allocatable.cpu) == (64_000, 1_000, 63_000)
    assert (seen.reserved.cpu, seen.free.cpu) == (500, 62_500)
    by_id = {one.device_id: (one.free, one.leases) for one in seen.devices}
    (taken,) = names(desk, lease)
    assert by_id.pop(taken) == (0, (lease.lease_id,))
    assert set(by_id.values()) == {(WHOLE, ())}


@pytest.mark.requirement("RES-016", "RES-017")
@pytest.mark.case("SP-059")
def test_lent_cpu_is_committed_shown_and_a_mismatch_once_it_is_called_back(
    engine: sa.Engine,
) -> None:
    lending = replace(POLICY, overcommit=OvercommitPolicy(cpu_percent=150))
    desk = Desk(engine, lending)
    desk.register("small", total=some_resources(cpu=1_000, slots=9, memory=2**40, disk=2**40))
    desk.submit(*(a_job_spec(f"job-{n}") for n in range(4)))
    assert desk.cycle().granted == 3
    with read(engine) as connection:
        (lent,) = overview.runners(connection, cpu_percent=150)
        sums = overview.capacity(connection, cpu_percent=150)
    assert (lent.allocatable.cpu, lent.free.cpu, lent.diagnostics) == (1_500, 0, ())
    assert (sums.cpu_percent, sums.allocatable.cpu, sums.total.cpu) == (150, 1_500, 1_000)
    plain = Desk(engine)
    plain.submit(a_job_spec("late", resources=some_resources(cpu=0)))
    assert plain.cycle().granted == 0
    with read(engine) as connection:
        (called_back,) = overview.runners(connection)
        (seen,) = load(connection, PARTITION, POLICY).runners
    assert seen.free.cpu == -500
    assert "resource accounting mismatch: jobs hold 0.5 cores more" in called_back.diagnostics[0]


@pytest.mark.requirement("RES-016")
def test_a_commit_never_lends_memory(engine: sa.Engine) -> None:
    desk = Desk(engine, replace(POLICY, overcommit=OvercommitPolicy(cpu_percent=400)))
    desk.register("small", total=some_resources(cpu=1_000, memory=2**20, disk=2**40, slots=9))
    half = some_resources(cpu=100, memory=2**19)
    desk.submit(*(a_job_spec(f"job-{n}", resources=half) for n in range(3)))
    plan = desk.plan()
    assert desk.commit(plan).granted == 2


@pytest.mark.requirement("ACC-025", "DEV-008", "DEV-010")
def test_a_signing_job_waits_for_a_signing_runner_however_good_the_others_are(desk: Desk) -> None:
    desk.register("huge", total=ROOM)
    desk.submit(a_job_spec("sign", requires=Requirements(trust=TrustClass.SIGNING_RESTRICTED)))
    assert desk.cycle().granted == 0
    (parked,) = desk.rows(tables.parked_classes)
    assert "TRUST_MISMATCH" in parked["diagnosis"]
    signing = some_capabilities(trust=TrustClass.SIGNING_RESTRICTED)
    runner_id = desk.register("vault", capabilities=signing).runner_id
    assert desk.cycle().granted == 1
    assert [lease.runner_id for lease in desk.leases()] == [runner_id]
