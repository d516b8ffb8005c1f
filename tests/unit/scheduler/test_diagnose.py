import pytest

from forgeyard.model.capability import (
    Architecture,
    Capabilities,
    Platform,
    ToolchainRequirement,
    TrustClass,
)
from forgeyard.model.runner import RunnerState
from forgeyard.scheduler.diagnose import Diagnosis, DiagnosticCode, diagnose
from forgeyard.scheduler.rejection import RejectionCode
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from tests.scheduling import LINUX, a_job, a_job_that_requires, a_runner, amounts

FULL = amounts(cpu=4_000, memory_gib=0, disk_gib=0, slots=4)


def told(job: SchedulingJob, *runners: SchedulingRunner) -> Diagnosis:
    return diagnose(job, runners, {runner.runner_id: runner.free for runner in runners})


@pytest.mark.requirement("DIA-010")
def test_an_empty_fleet_says_how_to_get_a_runner() -> None:
    found = told(a_job())
    assert found.code is DiagnosticCode.NO_RUNNERS
    assert found.permanent
    assert "forgeyard agent" in found.sentence


@pytest.mark.requirement("DIA-012", "DIA-006", "DIA-009")
def test_a_job_too_large_names_the_best_there_is() -> None:
    mac = a_runner("mac-1", capabilities=Capabilities(platform=Platform.MACOS))
    small = a_runner("linux-0", total=amounts(cpu=4_000, memory_gib=8, disk_gib=9, slots=1))
    job = a_job(resources=amounts(memory_gib=16))
    job = a_job(
        requirements=a_job_that_requires(platform=Platform.LINUX).requirements,
        resources=job.resources,
    )
    found = told(job, small, mac, a_runner())
    assert found.code is DiagnosticCode.INSUFFICIENT_MEMORY
    assert found.permanent
    assert found.sentence == (
        "None of the 3 registered runners can ever run this job:"
        " it needs 16 GiB of memory, but the best match (linux-1) has 12 GiB."
    )
    assert [(miss.runner, miss.text) for miss in found.near_misses] == [
        ("linux-1", "needs 16 GiB of memory, has 12 GiB"),
        ("mac-1", "needs platform linux, has platform macos; needs 16 GiB of memory, has 12 GiB"),
    ]
    assert [(tally.code, tally.runners) for tally in found.rejections] == [
        (RejectionCode.INSUFFICIENT_MEMORY, 3),
        (RejectionCode.PLATFORM_MISMATCH, 1),
    ]


def test_almost_enough_never_reads_like_enough() -> None:
    runner = a_runner(headroom=amounts(cpu=0, memory_gib=0, disk_gib=0, slots=0))
    job = a_job(resources=runner.total.plus(amounts(cpu=1, memory_gib=0, disk_gib=0, slots=0)))
    assert told(job, runner).sentence.endswith("it needs 4.001 cores, but linux-1 has 4 cores.")


@pytest.mark.requirement("DIA-011", "DIA-013", "DIA-015")
@pytest.mark.parametrize(
    ("job", "code", "ending"),
    [
        (
            a_job_that_requires(platform=Platform.WINDOWS),
            DiagnosticCode.NO_MATCHING_PLATFORM,
            "it needs platform windows, but linux-1 has platform linux.",
        ),
        (
            a_job_that_requires(architecture=Architecture.AARCH64),
            DiagnosticCode.NO_MATCHING_ARCHITECTURE,
            "it needs architecture aarch64, but linux-1 has architecture x86_64.",
        ),
        (
            a_job_that_requires(os_version=">=13"),
            DiagnosticCode.NO_MATCHING_OS_VERSION,
            "it needs OS version >=13, but linux-1 has OS version 12.",
        ),
        (
            a_job_that_requires(trust=TrustClass.CONFIDENTIAL),
            DiagnosticCode.TRUST_MISMATCH,
            "it needs trust confidential, but linux-1 has trust trusted_internal.",
        ),
        (
            a_job_that_requires(labels={"gpu": "a100"}),
            DiagnosticCode.MISSING_LABEL,
            "it needs label gpu=a100, but linux-1 has no label gpu.",
        ),
        (
            a_job_that_requires(toolchains=(ToolchainRequirement(name="python", version=">=4"),)),
            DiagnosticCode.MISSING_TOOLCHAIN,
            "it needs python >=4, but linux-1 has python 3.11.2.",
        ),
        (
            a_job(resources=amounts(cpu=8_000, disk_gib=200)),
            DiagnosticCode.INSUFFICIENT_CPU,
            "it needs 8 cores and 200 GiB of disk, but linux-1 has 4 cores and 100 GiB.",
        ),
        (
            a_job(resources=amounts(disk_gib=200)),
            DiagnosticCode.INSUFFICIENT_DISK,
            "it needs 200 GiB of disk, but linux-1 has 100 GiB.",
        ),
        (
            a_job(resources=amounts(slots=5)),
            DiagnosticCode.INSUFFICIENT_SLOTS,
            "it needs 5 slots, but linux-1 has 4 slots.",
        ),
    ],
)
def test_each_lasting_obstacle_has_its_code_and_its_sentence(
    job: SchedulingJob, code: DiagnosticCode, ending: str
) -> None:
    found = told(job, a_runner())
    assert (found.code, found.permanent) == (code, True)
    assert found.sentence == f"The only registered runner can never run this job: {ending}"


def test_the_nearest_runner_is_the_one_that_lacks_the_fewest_things() -> None:
    bare = a_runner("bare", capabilities=Capabilities())
    found = told(
        a_job_that_requires(
            platform=Platform.LINUX,
            toolchains=(ToolchainRequirement(name="python", version=">=3.12"),),
        ),
        bare,
        a_runner(),
    )
    assert found.code is DiagnosticCode.MISSING_TOOLCHAIN
    assert found.near_misses[0].runner == "linux-1"


@pytest.mark.requirement("DIA-006")
def test_a_full_runner_is_worth_waiting_for() -> None:
    found = told(a_job(), a_runner(reserved=FULL))
    assert found.code is DiagnosticCode.NO_CAPACITY_NOW
    assert not found.permanent
    assert found.sentence == "Waiting for room: only linux-1 can run this job, but it is full."


def test_the_able_runners_are_told_apart_from_the_others() -> None:
    found = told(
        a_job_that_requires(platform=Platform.LINUX),
        a_runner("a", reserved=FULL),
        a_runner("b", reserved=FULL),
        a_runner("c", state=RunnerState.OFFLINE),
        a_runner("d", state=RunnerState.DRAINING),
        a_runner("mac", capabilities=Capabilities(platform=Platform.MACOS)),
    )
    assert found.sentence == (
        "Waiting for room: 4 of 5 registered runners can run this job,"
        " but 2 are full, 1 is offline and 1 is draining."
    )


@pytest.mark.parametrize(
    ("runner", "code", "does"),
    [
        (a_runner(state=RunnerState.OFFLINE), DiagnosticCode.RUNNERS_UNAVAILABLE, "is offline"),
        (a_runner(state=RunnerState.DRAINING), DiagnosticCode.RUNNERS_UNAVAILABLE, "is draining"),
        (
            a_runner(state=RunnerState.SATURATED),
            DiagnosticCode.RUNNERS_UNAVAILABLE,
            "is under pressure",
        ),
        (a_runner(state=RunnerState.UNHEALTHY), DiagnosticCode.RUNNERS_UNAVAILABLE, "is unhealthy"),
        (
            a_runner(state=RunnerState.UNADMITTED),
            DiagnosticCode.RUNNERS_UNAVAILABLE,
            "is not admitted",
        ),
        (a_runner(suspect=True), DiagnosticCode.RUNNERS_UNAVAILABLE, "has fallen silent"),
        (a_runner("shy"), DiagnosticCode.RECENTLY_REFUSED, "has just refused it"),
    ],
)
def test_each_passing_obstacle_is_said_in_words(
    runner: SchedulingRunner, code: DiagnosticCode, does: str
) -> None:
    found = told(a_job(refused_by={"rnr_shy": "local_policy"}), runner)
    assert (found.code, found.permanent) == (code, False)
    assert found.sentence.endswith(f"only {runner.name} can run this job, but it {does}.")


@pytest.mark.requirement("DIA-018")
def test_a_sentence_stays_the_same_while_nothing_lasting_changes() -> None:
    nearly = FULL.minus(amounts(cpu=500, memory_gib=0, disk_gib=0, slots=0))
    assert told(a_job(), a_runner(reserved=FULL)) == told(a_job(), a_runner(reserved=nearly))


def test_a_diagnosis_can_be_said_of_another_job() -> None:
    found = told(a_job(), a_runner(capabilities=LINUX, reserved=FULL))
    assert found.about("job_other").job_id == "job_other"
    assert found.about("job_other").sentence == found.sentence
