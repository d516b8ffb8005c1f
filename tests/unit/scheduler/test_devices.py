"""GPUs and devices are given out one by one: which ones, to whom, and in what words not."""

from dataclasses import replace

import pytest

from forgeyard.model.capability import Capabilities, Requirements
from forgeyard.model.equipment import (
    WHOLE,
    Device,
    DeviceForm,
    DeviceRequirement,
    DeviceShare,
    Equipment,
    EquipmentRequirement,
    Gpu,
    GpuRequirement,
    GpuSharing,
    GpuVendor,
)
from forgeyard.model.units import GIB, Bytes
from forgeyard.scheduler.devices import ALL_FREE, allocate, plus
from forgeyard.scheduler.diagnose import DiagnosticCode, diagnose
from forgeyard.scheduler.eligibility import is_eligible, rejections
from forgeyard.scheduler.explain import explain
from forgeyard.scheduler.grant import GrantRequest, JobStanding, RunnerStanding, Verdict, grant
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from tests.scheduling import POLICY, a_job, a_runner, a_snapshot, amounts
from tests.tree import open_gates


def gpu(name: str, memory: int = 16, **changed: object) -> Gpu:
    known = Gpu(
        id=name,
        vendor=GpuVendor.NVIDIA,
        model="T4",
        memory=Bytes(memory * GIB),
        compute_capability="7.5",
        sharing=GpuSharing.EXCLUSIVE,
    )
    return replace(known, **changed)


def shared(name: str, memory: int = 16) -> Gpu:
    return gpu(name, memory, sharing=GpuSharing.SHARED)


def with_gpus(*gpus: Gpu, name: str = "gpu-1", **changed: object) -> SchedulingRunner:
    has = Capabilities(equipment=Equipment(gpus=gpus, devices=()))
    room = amounts(cpu=64_000, memory_gib=64, disk_gib=100, slots=64)
    return a_runner(name, capabilities=has, total=room, **changed)


def wanting(*gpus: GpuRequirement, name: str = "build") -> SchedulingJob:
    wanted = Requirements(equipment=EquipmentRequirement(gpus=gpus))
    return a_job(name, requirements=wanted, resources=amounts(cpu=100, disk_gib=0, memory_gib=0))


def chosen(has: Equipment, *gpus: GpuRequirement, held: dict[str, int] | None = None) -> list[str]:
    found = allocate(EquipmentRequirement(gpus=gpus), has, held or {})
    return [] if found is None else [one.device_id for one in found]


def test_the_least_capable_gpu_that_does_is_given() -> None:
    has = Equipment(gpus=(gpu("big", 80), gpu("small", 16), gpu("middle", 40)))
    assert chosen(has, GpuRequirement()) == ["small"]
    assert chosen(has, GpuRequirement(memory=Bytes(20 * GIB))) == ["middle"]
    assert sorted(chosen(has, GpuRequirement(), GpuRequirement())) == ["middle", "small"]
    # The greedy choice for the first request would leave nothing for the second.
    fussy = GpuRequirement(memory=Bytes(80 * GIB))
    assert chosen(has, GpuRequirement(count=2), fussy) == ["small", "middle", "big"]


def test_one_that_can_be_shared_is_spared_for_those_who_share() -> None:
    has = Equipment(gpus=(shared("parts"), gpu("whole")))
    assert chosen(has, GpuRequirement()) == ["whole"]
    assert chosen(has, GpuRequirement(share=100)) == ["parts"]


@pytest.mark.requirement("DEV-002")
def test_a_part_goes_where_a_part_is_gone_already_and_never_onto_an_exclusive_gpu() -> None:
    has = Equipment(gpus=(shared("fresh"), shared("begun"), gpu("own")))
    assert chosen(has, GpuRequirement(share=180), held={"begun": 500}) == ["begun"]
    assert chosen(has, GpuRequirement(share=600), held={"begun": 500}) == ["fresh"]
    assert chosen(has, GpuRequirement(share=600), held={"begun": 500, "fresh": 500}) == []
    # Nobody can tell whether this one bears neighbours, so it has none.
    unsure = Equipment(gpus=(gpu("unsure", sharing=None),))
    assert chosen(unsure, GpuRequirement(share=1)) == []
    assert chosen(unsure, GpuRequirement()) == ["unsure"]


@pytest.mark.case("SP-031")
def test_a_gpu_that_is_named_is_that_gpu() -> None:
    has = Equipment(gpus=(gpu("a"), gpu("b")))
    assert chosen(has, GpuRequirement(id="b")) == ["b"]
    assert chosen(has, GpuRequirement(), GpuRequirement(id="a")) == ["b", "a"]
    assert chosen(has, GpuRequirement(id="b"), held={"b": WHOLE}) == []
    (reason,) = rejections(wanting(GpuRequirement(id="c")), with_gpus(gpu("a"), gpu("b")))
    assert (reason.code, reason.text) == ("gpu_id_mismatch", "needs 1 GPU (c), has a and b")


@pytest.mark.case("SP-031")
def test_a_named_gpu_is_found_on_its_own_runner_among_twins() -> None:
    runners = [with_gpus(gpu(f"uuid-{n}"), name=f"gpu-{n}") for n in range(6)]
    made = plan(a_snapshot([wanting(GpuRequirement(id="uuid-4"))], runners), POLICY)
    assert [it.candidates[0][0] for it in made.decisions] == ["rnr_gpu-4"]


@pytest.mark.case("SP-027")
def test_two_gpus_of_two_models_are_two_gpus_unless_one_model_is_asked_for() -> None:
    mixed = with_gpus(gpu("a", model="A100"), gpu("h", model="H100"))
    assert is_eligible(wanting(GpuRequirement(count=2)), mixed)
    (reason,) = rejections(wanting(GpuRequirement(count=2, same_model=True)), mixed)
    assert reason.code == "gpu_same_model_mismatch"
    pair = Equipment(gpus=(gpu("a", model="A100"), gpu("h", model="H100"), gpu("b", model="a100")))
    assert chosen(pair, GpuRequirement(count=2, same_model=True)) == ["a", "b"]


@pytest.mark.case("SP-028")
def test_several_requests_of_one_job_get_distinct_gpus_at_once() -> None:
    two = GpuRequirement(count=2)
    has = Equipment(gpus=tuple(gpu(f"g{n}") for n in range(4)))
    assert sorted(chosen(has, two, two)) == ["g0", "g1", "g2", "g3"]
    assert chosen(has, two, two, held={"g3": WHOLE}) == []
    (reason,) = rejections(wanting(two, two), with_gpus(gpu("a"), gpu("b"), gpu("c")))
    assert (reason.code, reason.permanent) == ("gpu_mismatch", True)
    assert reason.text == "needs 2 GPUs and 2 GPUs at once, has 3"


@pytest.mark.requirement("ELG-012")
@pytest.mark.case("SP-026")
def test_two_halves_are_no_whole() -> None:
    halves = with_gpus(shared("a"), shared("b"), held_devices={"a": 500, "b": 500})
    job = wanting(GpuRequirement(share=800))
    assert not is_eligible(job, halves)
    (reason,) = rejections(job, halves)
    assert (reason.code, reason.permanent) == ("busy_gpu", False)
    assert reason.text == "needs 0.8 of 1 GPU, has 0.5 of 1 GPU and 0.5 of 1 GPU free now"
    assert plan(a_snapshot([job], [halves]), POLICY).decisions == ()


@pytest.mark.requirement("DIA-014")
def test_a_job_that_waits_for_a_device_is_told_so() -> None:
    busy = with_gpus(gpu("a"), gpu("b"), held_devices={"a": WHOLE})
    job = wanting(GpuRequirement(count=2))
    (diagnosis,) = plan(a_snapshot([job], [busy]), POLICY).diagnoses
    assert (diagnosis.code, diagnosis.permanent) == (DiagnosticCode.NO_DEVICE, False)
    assert diagnosis.sentence == (
        "Waiting for a device: only gpu-1 can run this job, but it has its devices in use."
    )
    told = explain(job, a_snapshot([job], [busy]), POLICY)
    assert told.runners[0].rejections[0].text == "needs 2 GPUs, has 1 free now"
    assert told.sentence == diagnosis.sentence


@pytest.mark.requirement("DIA-014")
def test_a_device_that_nobody_has_is_told_as_never() -> None:
    phone = EquipmentRequirement(devices=(DeviceRequirement(kind="phone"),))
    job = a_job(requirements=Requirements(equipment=phone))
    found = diagnose(job, [with_gpus()], {})
    assert (found.code, found.permanent) == (DiagnosticCode.NO_DEVICE, True)
    assert "needs 1 device phone, but gpu-1 has none" in found.sentence


@pytest.mark.case("SP-025")
def test_five_parts_fit_on_each_gpu_and_the_plan_equals_the_commit() -> None:
    gpus = tuple(shared(f"g{n}") for n in range(8))
    runners = [with_gpus(*gpus, name=f"gpu-{n}") for n in range(2)]
    jobs = [wanting(GpuRequirement(share=180), name=f"job-{n:02}") for n in range(90)]
    made = plan(a_snapshot(jobs, runners), replace(POLICY, batch=100))
    assert (len(made.decisions), len(made.diagnoses)) == (80, 10)
    requests = [
        GrantRequest(
            job_id=it.job_id,
            resources=jobs[0].resources,
            candidates=it.candidates,
            devices=it.equipment,
        )
        for it in made.decisions
    ]
    standings = {
        it.runner_id: RunnerStanding(
            schedulable=True, free=it.free, equipment=it.capabilities.equipment
        )
        for it in runners
    }
    eligible = dict.fromkeys((job.job_id for job in jobs), JobStanding.ELIGIBLE)
    answers = grant(requests, eligible, standings, gates=open_gates())
    assert {answer.verdict for answer in answers} == {Verdict.GRANTED}
    assert [it.candidates[0][0] for it in made.decisions] == [it.runner_id for it in answers]
    held: dict[tuple[str | None, str], int] = {}
    for answer in answers:
        (one,) = answer.devices
        key = (answer.runner_id, one.device_id)
        held[key] = held.get(key, 0) + one.share
    assert sorted(held.values()) == [900] * 16


@pytest.mark.case("SP-029")
def test_what_a_stopped_job_frees_is_seen_by_every_request_of_the_next() -> None:
    has = Equipment(gpus=tuple(gpu(f"g{n}") for n in range(4)))
    wanted = EquipmentRequirement(gpus=(GpuRequirement(count=2), GpuRequirement(count=2)))
    victim = (DeviceShare(device_id="g1"), DeviceShare(device_id="g2"))
    held = plus(ALL_FREE, victim)
    assert allocate(wanted, has, held) is None
    for one in victim:
        del held[one.device_id]
    assert len(allocate(wanted, has, held) or ()) == 4


PHONE = Device(
    kind="phone",
    id="serial-1",
    model="Pixel 8",
    os_version="14",
    api_level="34",
    abi="arm64-v8a",
    form=DeviceForm.PHYSICAL,
)


@pytest.mark.requirement("DEV-004", "ELG-012")
@pytest.mark.parametrize(
    "wish",
    [
        {"api_level": ">=33"},
        {"model": "pixel 8"},
        {"abi": "arm64-v8a"},
        {"os_version": ">=14,<15"},
        {"form": DeviceForm.PHYSICAL},
        {"id": "serial-1"},
    ],
    ids=lambda wish: next(iter(wish)),
)
def test_a_device_is_what_is_asked_for_or_known_not_to_be(wish: dict[str, object]) -> None:
    (name,) = wish
    wanted = EquipmentRequirement(devices=(DeviceRequirement(kind="phone", **wish),))
    other = {"api_level": "32", "model": "Other", "abi": "x86_64", "os_version": "17"}
    wrong = replace(PHONE, **{name: {**other, "id": "x", "form": DeviceForm.SIMULATOR}[name]})
    assert allocate(wanted, Equipment(devices=(PHONE,)), {}) == (DeviceShare(device_id="serial-1"),)
    job = a_job(requirements=Requirements(equipment=wanted))
    for phone, code in ((wrong, "mismatch"), (replace(PHONE, **{name: None}), "unknown")):
        has = Capabilities(equipment=Equipment(devices=(phone,)))
        (reason,) = rejections(job, a_runner(capabilities=has))
        by_name = "mismatch" if name == "id" else code
        assert reason.code == f"device_attribute_{by_name}"


def test_a_simulator_is_given_to_those_who_do_not_care() -> None:
    simulator = replace(PHONE, id="simulated", form=DeviceForm.SIMULATOR)
    has = Equipment(devices=(PHONE, simulator))
    wanted = EquipmentRequirement(devices=(DeviceRequirement(kind="phone"),))
    assert allocate(wanted, has, {}) == (DeviceShare(device_id="simulated"),)
    assert allocate(wanted, has, {"simulated": WHOLE}) == (DeviceShare(device_id="serial-1"),)


def test_devices_that_are_only_counted_have_a_number() -> None:
    has = Equipment(devices=(Device(kind="board", count=3),))
    wanted = EquipmentRequirement(devices=(DeviceRequirement(kind="board", count=2),))
    found = allocate(wanted, has, {"board/1": WHOLE})
    assert [one.device_id for one in found or ()] == ["board/0", "board/2"]
    assert allocate(wanted, has, {"board/0": WHOLE, "board/1": WHOLE}) is None


def test_a_job_that_wants_no_device_gets_none_and_is_not_kept_by_any() -> None:
    busy = with_gpus(gpu("a"), held_devices={"a": WHOLE})
    assert is_eligible(wanting(), busy)
    assert allocate(EquipmentRequirement(), busy.capabilities.equipment, {"a": WHOLE}) == ()


def test_the_digest_of_a_snapshot_tells_what_is_held() -> None:
    free, busy = with_gpus(gpu("a")), with_gpus(gpu("a"), held_devices={"a": WHOLE})
    assert a_snapshot([], [free]).digest() != a_snapshot([], [busy]).digest()


@pytest.mark.case("SP-019")
def test_an_amount_beyond_all_numbers_never_wraps() -> None:
    runner = with_gpus()
    job = replace(wanting(), resources=replace(amounts(), memory=Bytes(50 * 10**18)))
    (reason,) = rejections(job, runner)
    assert (reason.code, reason.permanent) == ("insufficient_memory", True)
    made = plan(a_snapshot([job], [runner]), POLICY)
    assert (made.decisions, made.diagnoses[0].code) == ((), "INSUFFICIENT_MEMORY")


@pytest.mark.case("SP-057")
def test_the_number_of_jobs_side_by_side_is_a_resource_like_any_other() -> None:
    roomy = replace(with_gpus(), total=replace(with_gpus().total, slots=12))
    jobs = [wanting(name=f"job-{n:02}") for n in range(13)]
    made = plan(a_snapshot(jobs, [roomy]), POLICY)
    assert (len(made.decisions), len(made.diagnoses)) == (12, 1)
    full = replace(roomy, reserved=amounts(cpu=1_200, memory_gib=0, disk_gib=0, slots=12))
    (reason,) = rejections(jobs[12], full)
    assert (reason.code, reason.text) == ("busy_slots", "needs 1 slot, has 0 slots free now")


def test_choosing_models_has_an_end() -> None:
    """Worst is a runner of many pairs and a job that can have none of them whole."""
    has = Equipment(gpus=tuple(gpu(f"g{n}", model=f"m{n // 2}") for n in range(64)))
    pairs = (GpuRequirement(count=2, same_model=True),) * 7
    too_many = GpuRequirement(count=51)
    assert chosen(has, *pairs, too_many) == []
    assert len(chosen(has, *pairs, GpuRequirement(count=50))) == 64
