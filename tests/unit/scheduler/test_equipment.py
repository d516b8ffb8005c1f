"""Equipment that a runner lacks, or cannot tell: each has its code and its golden sentence."""

from dataclasses import replace

import pytest

from forgeyard.model.equipment import (
    Device,
    DeviceRequirement,
    Equipment,
    EquipmentRequirement,
    Gpu,
    GpuRequirement,
    GpuSharing,
    GpuVendor,
    IsolationClass,
    NetworkMode,
    Runtime,
    RuntimeRequirement,
    SandboxKind,
)
from forgeyard.model.gaps import Aspect
from forgeyard.model.units import GIB, Bytes
from forgeyard.scheduler.board import kind_of
from forgeyard.scheduler.diagnose import DiagnosticCode, diagnose
from forgeyard.scheduler.eligibility import can_ever_run, codes_of, is_eligible, rejections
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.rejection import PASSING
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from forgeyard.scheduler.words import wanted_texts
from tests.scheduling import LINUX, POLICY, a_job_that_requires, a_runner, a_snapshot

A10 = Gpu(
    vendor=GpuVendor.NVIDIA,
    model="NVIDIA A10",
    memory=Bytes(24 * GIB),
    compute_capability="8.6",
    sharing=GpuSharing.EXCLUSIVE,
)
TODAY = Equipment(
    cpu_features=("avx2", "sse4_2"),
    runtimes=(Runtime(name="docker", version="20.10.5"),),
    sandboxes=(SandboxKind.NONE,),
    network_modes=(NetworkMode.HOST,),
    isolation=(IsolationClass.PROCESS,),
    devices=(Device(kind="usb-programmer", count=1),),
    gpus=(A10, A10),
)
"""What an agent of today says of itself, on a host with some hardware."""


def equipped(name: str = "linux-1", **changed: object) -> SchedulingRunner:
    has = replace(TODAY, **changed)
    return a_runner(name, capabilities=replace(LINUX, agent_version="0.1.0", equipment=has))


def wanting(**wishes: object) -> SchedulingJob:
    return a_job_that_requires(equipment=EquipmentRequirement(**wishes))


def wanting_gpu(**wishes: object) -> SchedulingJob:
    return wanting(gpus=(GpuRequirement(**wishes),))


def wanting_runtime(name: str, version: str | None = None) -> SchedulingJob:
    return wanting(runtimes=(RuntimeRequirement(name=name, version=version),))


def wanting_devices(kind: str, count: int = 1) -> SchedulingJob:
    return wanting(devices=(DeviceRequirement(kind=kind, count=count),))


FITTING = {
    "features": wanting(cpu_features=("avx2", "sse4_2")),
    "runtime": wanting_runtime("docker"),
    "runtime in a range": wanting_runtime("docker", ">=20,<21"),
    "sandbox": wanting(sandbox=SandboxKind.NONE),
    "network": wanting(network=NetworkMode.HOST),
    "isolation": wanting(isolation=IsolationClass.PROCESS),
    "device": wanting_devices("usb-programmer"),
    "two gpus": wanting_gpu(count=2),
    "everything about a gpu": wanting_gpu(
        vendor=GpuVendor.NVIDIA,
        model="nvidia a10",
        memory=Bytes(24 * GIB),
        compute_capability=">=8.0",
        sharing=GpuSharing.EXCLUSIVE,
    ),
    "agent version": a_job_that_requires(agent_version=">=0.1,<1"),
}


@pytest.mark.requirement("ELG-004", "ELG-010", "ELG-012", "ELG-007")
@pytest.mark.parametrize("job", FITTING.values(), ids=FITTING)
def test_what_a_runner_has_satisfies(job: SchedulingJob) -> None:
    assert rejections(job, equipped()) == ()
    assert is_eligible(job, equipped())
    (decision,) = plan(a_snapshot([job], [equipped()]), POLICY).decisions
    assert decision.candidates[0][0] == "rnr_linux-1"


HAS_GPUS = "linux-1 has 2 GPUs (nvidia, NVIDIA A10, 24 GiB, compute capability 8.6, exclusive)."


@pytest.mark.requirement(
    "ELG-004",
    "ELG-007",
    "ELG-010",
    "ELG-011",
    "ELG-012",
    "ELG-014",
    "ELG-022",
    "ELG-023",
    "ELG-024",
    "DEV-001",
    "PRI-011",
)
@pytest.mark.parametrize(
    ("job", "aspect", "code", "ending"),
    [
        (
            wanting(cpu_features=("avx512f",)),
            Aspect.CPU_FEATURE,
            DiagnosticCode.MISSING_CPU_FEATURE,
            "it needs CPU feature avx512f, but linux-1 has no avx512f.",
        ),
        (
            wanting(cpu_features=("avx2", "avx512f", "amx_tile")),
            Aspect.CPU_FEATURE,
            DiagnosticCode.MISSING_CPU_FEATURE,
            "it needs CPU features amx_tile and avx512f, but linux-1 has no amx_tile and no"
            " avx512f.",
        ),
        (
            wanting_runtime("podman"),
            Aspect.RUNTIME,
            DiagnosticCode.MISSING_RUNTIME,
            "it needs runtime podman, but linux-1 has no podman.",
        ),
        (
            wanting_runtime("docker", ">=24"),
            Aspect.RUNTIME_VERSION,
            DiagnosticCode.MISSING_RUNTIME,
            "it needs runtime docker >=24, but linux-1 has docker 20.10.5.",
        ),
        (
            wanting(sandbox=SandboxKind.VM),
            Aspect.SANDBOX,
            DiagnosticCode.NO_MATCHING_SANDBOX,
            "it needs sandbox vm, but linux-1 has sandbox none.",
        ),
        (
            wanting(network=NetworkMode.DENIED),
            Aspect.NETWORK,
            DiagnosticCode.NO_MATCHING_NETWORK,
            "it needs network denied, but linux-1 has network host.",
        ),
        (
            wanting(isolation=IsolationClass.MACHINE),
            Aspect.ISOLATION,
            DiagnosticCode.NO_MATCHING_ISOLATION,
            "it needs isolation machine, but linux-1 has isolation process.",
        ),
        (
            wanting_devices("usb-programmer", 2),
            Aspect.DEVICE,
            DiagnosticCode.NO_DEVICE,
            "it needs 2 devices usb-programmer, but linux-1 has 1.",
        ),
        (
            wanting_devices("phone"),
            Aspect.DEVICE,
            DiagnosticCode.NO_DEVICE,
            "it needs 1 device phone, but linux-1 has none.",
        ),
        (
            wanting_gpu(count=3),
            Aspect.GPU,
            DiagnosticCode.NO_MATCHING_GPU,
            f"it needs 3 GPUs, but {HAS_GPUS}",
        ),
        (
            wanting_gpu(vendor=GpuVendor.AMD),
            Aspect.GPU_VENDOR,
            DiagnosticCode.NO_MATCHING_GPU,
            f"it needs 1 GPU (amd), but {HAS_GPUS}",
        ),
        (
            wanting_gpu(model="A100"),
            Aspect.GPU_MODEL,
            DiagnosticCode.NO_MATCHING_GPU,
            f"it needs 1 GPU (A100), but {HAS_GPUS}",
        ),
        (
            wanting_gpu(count=2, vendor=GpuVendor.NVIDIA, memory=Bytes(40 * GIB)),
            Aspect.GPU_MEMORY,
            DiagnosticCode.NO_MATCHING_GPU,
            f"it needs 2 GPUs (nvidia, 40 GiB), but {HAS_GPUS}",
        ),
        (
            wanting_gpu(compute_capability=">=9.0"),
            Aspect.GPU_COMPUTE_CAPABILITY,
            DiagnosticCode.NO_MATCHING_GPU,
            f"it needs 1 GPU (compute capability >=9.0), but {HAS_GPUS}",
        ),
        (
            wanting_gpu(sharing=GpuSharing.SHARED),
            Aspect.GPU_SHARING,
            DiagnosticCode.NO_MATCHING_GPU,
            f"it needs 1 GPU (shared), but {HAS_GPUS}",
        ),
    ],
)
def test_what_a_runner_lacks_has_its_code_and_its_sentence(
    job: SchedulingJob, aspect: Aspect, code: DiagnosticCode, ending: str
) -> None:
    (found,) = rejections(job, equipped())
    assert found.code is codes_of(aspect)[0]
    diagnosis = diagnose(job, [equipped()], {})
    assert (diagnosis.code, diagnosis.permanent) == (code, True)
    assert diagnosis.sentence == f"The only registered runner can never run this job: {ending}"


@pytest.mark.requirement("ELG-018", "DEV-001")
@pytest.mark.parametrize(
    ("job", "changed", "aspect", "ending"),
    [
        (
            FITTING["features"],
            {"cpu_features": None},
            Aspect.CPU_FEATURE,
            "it needs CPU features avx2 and sse4_2, but linux-1 has unknown CPU features.",
        ),
        (
            FITTING["runtime"],
            {"runtimes": None},
            Aspect.RUNTIME,
            "it needs runtime docker, but linux-1 has unknown runtimes.",
        ),
        (
            FITTING["runtime in a range"],
            {"runtimes": (Runtime(name="docker"),)},
            Aspect.RUNTIME_VERSION,
            "it needs runtime docker >=20,<21, but linux-1 has docker unknown.",
        ),
        (
            FITTING["sandbox"],
            {"sandboxes": None},
            Aspect.SANDBOX,
            "it needs sandbox none, but linux-1 has an unknown sandbox.",
        ),
        (
            FITTING["network"],
            {"network_modes": None},
            Aspect.NETWORK,
            "it needs network host, but linux-1 has an unknown network.",
        ),
        (
            FITTING["isolation"],
            {"isolation": None},
            Aspect.ISOLATION,
            "it needs isolation process, but linux-1 has an unknown isolation.",
        ),
        (
            FITTING["device"],
            {"devices": None},
            Aspect.DEVICE,
            "it needs 1 device usb-programmer, but linux-1 has unknown devices.",
        ),
        (
            FITTING["two gpus"],
            {"gpus": None},
            Aspect.GPU,
            "it needs 2 GPUs, but linux-1 has unknown GPUs.",
        ),
        (
            wanting_gpu(compute_capability=">=8.0"),
            {"gpus": (Gpu(model="x"),)},
            Aspect.GPU_COMPUTE_CAPABILITY,
            "linux-1 has 1 GPU (unknown vendor, x, unknown memory, compute capability unknown,"
            " unknown sharing).",
        ),
        *(
            (
                wanting_gpu(**{wish: getattr(A10, wish)}),
                {"gpus": (Gpu(),)},
                Aspect(f"gpu_{wish}"),
                "linux-1 has 1 GPU (unknown vendor, unknown model, unknown memory, compute"
                " capability unknown, unknown sharing).",
            )
            for wish in ("vendor", "model", "memory", "sharing")
        ),
    ],
)
def test_what_a_runner_cannot_tell_never_satisfies(
    job: SchedulingJob, changed: dict[str, object], aspect: Aspect, ending: str
) -> None:
    runner = equipped(**changed)
    (found,) = rejections(job, runner)
    assert found.code is codes_of(aspect)[1]
    assert not can_ever_run(job, runner)
    assert diagnose(job, [runner], {}).sentence.endswith(ending)
    assert can_ever_run(job, equipped())


@pytest.mark.requirement("ELG-018")
def test_the_version_of_an_agent_must_be_known_and_in_range() -> None:
    newer = a_job_that_requires(agent_version=">=0.2")
    diagnosis = diagnose(newer, [equipped()], {})
    assert diagnosis.code is DiagnosticCode.NO_MATCHING_AGENT_VERSION
    assert diagnosis.sentence.endswith(
        "it needs agent version >=0.2, but linux-1 has agent version 0.1.0."
    )
    silent = a_runner(capabilities=replace(LINUX, agent_version=""))
    (found,) = rejections(FITTING["agent version"], silent)
    assert (found.code, found.offered) == ("agent_version_unknown", "an unknown agent version")
    assert not can_ever_run(FITTING["agent version"], silent)


@pytest.mark.requirement("DEV-001")
def test_every_gpu_that_counts_has_everything_that_is_asked_for() -> None:
    large = replace(A10, memory=Bytes(80 * GIB), compute_capability="7.0")
    runner = equipped(gpus=(A10, large))
    assert is_eligible(wanting_gpu(count=2, vendor=GpuVendor.NVIDIA), runner)
    assert is_eligible(wanting_gpu(memory=Bytes(40 * GIB)), runner)
    assert is_eligible(wanting_gpu(compute_capability=">=8.0"), runner)
    both = wanting_gpu(memory=Bytes(40 * GIB), compute_capability=">=8.0")
    assert [it.code for it in rejections(both, runner)] == ["gpu_compute_capability_mismatch"]


def test_a_gpu_that_may_fit_makes_the_answer_unknown_only_if_it_would_do() -> None:
    job = wanting_gpu(count=2, model="NVIDIA A10")
    nameless = replace(A10, model=None)
    other = replace(A10, model="T4")
    (found,) = rejections(job, equipped(gpus=(A10, nameless, other)))
    assert found.code == "gpu_model_unknown"
    (found,) = rejections(job, equipped(gpus=(A10, other, other)))
    assert found.code == "gpu_model_mismatch"


def test_many_kinds_of_gpu_are_not_all_told() -> None:
    gpus = tuple(replace(A10, model=f"model {place}") for place in range(6))
    (found,) = rejections(wanting_gpu(count=7), equipped(gpus=gpus))
    assert found.offered.count("1 GPU (") == 3
    assert found.offered.endswith(" and 3 more")
    (found,) = rejections(wanting_gpu(), equipped(gpus=()))
    assert found.text == "needs 1 GPU, has no GPU"


def test_a_set_without_members_is_told_as_such() -> None:
    (found,) = rejections(FITTING["sandbox"], equipped(sandboxes=()))
    assert (found.code, found.offered) == ("sandbox_mismatch", "no sandbox")


def test_every_wish_is_printed_among_the_requirements() -> None:
    texts = {name: wanted_texts(job)[0] for name, job in FITTING.items()}
    assert texts == {
        "features": "CPU feature avx2",
        "runtime": "runtime docker",
        "runtime in a range": "runtime docker >=20,<21",
        "sandbox": "sandbox none",
        "network": "network host",
        "isolation": "isolation process",
        "device": "1 device usb-programmer",
        "two gpus": "2 GPUs",
        "everything about a gpu": (
            "1 GPU (nvidia, nvidia a10, 24 GiB, compute capability >=8.0, exclusive)"
        ),
        "agent version": "agent version >=0.1,<1",
    }


def test_jobs_and_runners_that_differ_in_equipment_are_never_judged_as_one() -> None:
    assert len({kind_of(job) for job in FITTING.values()}) == len(FITTING)
    bare = equipped("bare", gpus=())
    jobs = [wanting_gpu(), wanting_devices("usb-programmer")]
    jobs = [replace(job, job_id=f"job_{place}") for place, job in enumerate(jobs)]
    decisions = plan(a_snapshot(jobs, [bare, equipped()]), POLICY).decisions
    able = {it.job_id: {runner for runner, _ in it.candidates} for it in decisions}
    assert able == {"job_0": {"rnr_linux-1"}, "job_1": {"rnr_bare", "rnr_linux-1"}}


def test_every_aspect_lasts_until_the_runner_or_the_job_changes() -> None:
    assert not {code for aspect in Aspect for code in codes_of(aspect)} & PASSING
