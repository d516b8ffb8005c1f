from dataclasses import replace

import pytest

from forgeyard.model.capability import (
    Architecture,
    Capabilities,
    Platform,
    Toolchain,
    ToolchainRequirement,
    TrustClass,
)
from forgeyard.model.job import Priority
from forgeyard.model.runner import ResourcePressure, RunnerState
from forgeyard.scheduler.eligibility import can_ever_run, is_eligible, is_trusted, rejections
from forgeyard.scheduler.rejection import PASSING, RejectionCode
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from tests.scheduling import a_job, a_job_that_requires, a_runner, amounts


def codes(job: SchedulingJob, runner: SchedulingRunner) -> list[RejectionCode]:
    return [rejection.code for rejection in rejections(job, runner)]


def only_text(job: SchedulingJob, runner: SchedulingRunner) -> str:
    (rejection,) = rejections(job, runner)
    return rejection.text


def test_a_runner_that_has_everything_is_eligible() -> None:
    job = a_job_that_requires(
        platform=Platform.LINUX,
        os_version=">=12",
        architecture=Architecture.X86_64,
        toolchains=(ToolchainRequirement(name="python", version=">=3.11,<4"),),
        labels={"zone": "a"},
        trust=TrustClass.TRUSTED_INTERNAL,
    )
    assert rejections(job, a_runner()) == ()
    assert is_eligible(job, a_runner())


@pytest.mark.requirement("MOD-003", "ACC-013")
@pytest.mark.parametrize(
    ("state", "code"),
    [
        (RunnerState.OFFLINE, RejectionCode.OFFLINE),
        (RunnerState.DRAINING, RejectionCode.DRAINING),
        (RunnerState.SATURATED, RejectionCode.SATURATED),
        (RunnerState.UNHEALTHY, RejectionCode.UNHEALTHY),
        (RunnerState.UNADMITTED, RejectionCode.UNADMITTED),
    ],
)
def test_only_an_online_runner_takes_work(state: RunnerState, code: RejectionCode) -> None:
    assert codes(a_job(), a_runner(state=state)) == [code]
    assert code in PASSING


def test_a_runner_without_a_session_is_offline_whatever_its_row_says() -> None:
    assert codes(a_job(), a_runner(session_id=None)) == [RejectionCode.OFFLINE]


def test_a_saturated_runner_says_what_is_short() -> None:
    runner = a_runner(state=RunnerState.SATURATED, pressure=ResourcePressure.MEMORY)
    assert only_text(a_job(), runner) == "is saturated: memory pressure"


@pytest.mark.requirement("TST-002")
def test_a_runner_that_just_lost_or_refused_the_job_is_not_asked() -> None:
    assert codes(a_job(), a_runner(suspect=True)) == [RejectionCode.SUSPECT]
    job = a_job(refused_by={"rnr_linux-1": "disk_insufficient"})
    assert only_text(job, a_runner()) == "turned this job down a moment ago: disk_insufficient"
    assert rejections(job, a_runner("linux-2")) == ()


@pytest.mark.requirement("ELG-002", "ELG-003", "ELG-020", "ELG-021", "ACC-003", "PRI-008")
@pytest.mark.requirement("TST-002")
def test_platform_architecture_and_os_version_must_match() -> None:
    job = a_job_that_requires(
        platform=Platform.MACOS, architecture=Architecture.AARCH64, os_version=">=13"
    )
    assert [rejection.text for rejection in rejections(job, a_runner())] == [
        "needs platform macos, has platform linux",
        "needs architecture aarch64, has architecture x86_64",
        "needs OS version >=13, has OS version 12",
    ]


@pytest.mark.requirement("ELG-018")
def test_what_a_runner_could_not_tell_never_satisfies() -> None:
    job = a_job_that_requires(
        platform=Platform.LINUX,
        architecture=Architecture.X86_64,
        os_version=">=1",
        toolchains=(
            ToolchainRequirement(name="gcc", version=">=1"),
            ToolchainRequirement(name="rust", digest="sha256:abc"),
        ),
    )
    mute = Capabilities(toolchains=(Toolchain(name="gcc"), Toolchain(name="rust", version="1.80")))
    assert codes(job, a_runner(capabilities=mute)) == [
        RejectionCode.PLATFORM_UNKNOWN,
        RejectionCode.ARCHITECTURE_UNKNOWN,
        RejectionCode.OS_VERSION_UNKNOWN,
        RejectionCode.TOOLCHAIN_VERSION_UNKNOWN,
        RejectionCode.TOOLCHAIN_DIGEST_UNKNOWN,
    ]


@pytest.mark.requirement("ELG-008", "ELG-019", "PRI-009")
@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("3.11.2", ">=3.11,<4", True),
        ("3.9", ">=3.11", False),  # not a comparison of texts
        ("3.11.2", "==3.*", True),
        ("3.13.0rc1", ">=3.13", False),
        ("18.0", ">=18", True),
        ("17.4", ">=18", False),
        (None, ">=1", False),
        ("nightly", ">=1", False),
        ("1.0", "not a range", False),
    ],
)
def test_toolchain_versions_compare_as_numbers(
    version: str | None, wanted: str, fits: bool
) -> None:
    job = a_job_that_requires(toolchains=(ToolchainRequirement(name="tool", version=wanted),))
    offered = Capabilities(toolchains=(Toolchain(name="tool", version=version),))
    assert is_eligible(job, a_runner(capabilities=offered)) is fits


@pytest.mark.requirement("ELG-008", "ELG-019")
def test_one_tool_must_meet_version_and_digest_together() -> None:
    wanted = ToolchainRequirement(name="rust", version=">=1.80", digest="sha256:good")
    split = (
        Toolchain(name="rust", version="1.70", digest="sha256:good"),
        Toolchain(name="rust", version="1.81", digest="sha256:bad"),
    )
    whole = Toolchain(name="rust", version="1.81", digest="sha256:good")
    job = a_job_that_requires(toolchains=(wanted,))
    assert only_text(job, a_runner(capabilities=Capabilities(toolchains=split))) == (
        "needs rust >=1.80 sha256:good, has rust 1.70 sha256:good and 1.81 sha256:bad"
    )
    assert is_eligible(job, a_runner(capabilities=Capabilities(toolchains=(*split, whole))))


@pytest.mark.requirement("DIA-003", "ACC-002", "PRI-009", "ELG-009")
def test_a_missing_tool_is_named_with_what_is_there_instead() -> None:
    newer = a_job_that_requires(toolchains=(ToolchainRequirement(name="python", version=">=3.12"),))
    assert only_text(newer, a_runner()) == "needs python >=3.12, has python 3.11.2"
    other = a_job_that_requires(toolchains=(ToolchainRequirement(name="xcode"),))
    assert only_text(other, a_runner()) == "needs xcode, has no xcode"
    exact = a_job_that_requires(
        toolchains=(ToolchainRequirement(name="python", digest="sha256:a"),)
    )
    assert codes(exact, a_runner()) == [RejectionCode.TOOLCHAIN_DIGEST_UNKNOWN]


@pytest.mark.requirement("ELG-032", "ELG-034")
def test_every_label_must_have_its_value() -> None:
    job = a_job_that_requires(labels={"zone": "b", "disk": "nvme"})
    assert [rejection.text for rejection in rejections(job, a_runner())] == [
        "needs label disk=nvme, has no label disk",
        "needs label zone=b, has label zone=a",
    ]


@pytest.mark.requirement(
    "ELG-013",
    "ELG-015",
    "ELG-016",
    "ELG-038",
    "DEV-008",
    "DEV-009",
    "ACC-005",
    "ACC-025",
    "INV-031",
    "INV-036",
    "PRI-012",
)
@pytest.mark.parametrize("offered", TrustClass)
@pytest.mark.parametrize("wanted", [None, *TrustClass])
def test_trust_is_exact_and_restricted_runners_must_be_asked_for(
    wanted: TrustClass | None, offered: TrustClass
) -> None:
    general = offered in (TrustClass.UNTRUSTED_GENERAL, TrustClass.TRUSTED_INTERNAL)
    fits = general if wanted is None else wanted is offered
    assert is_trusted(wanted, offered) is fits
    job = a_job_that_requires(trust=wanted)
    assert is_eligible(job, a_runner(trust=offered)) is fits


@pytest.mark.requirement("ELG-042")
def test_neither_labels_nor_a_self_report_grant_trust() -> None:
    boasting = Capabilities(
        trust=TrustClass.SIGNING_RESTRICTED, labels={"trust": "signing_restricted"}
    )
    runner = a_runner(capabilities=boasting, trust=TrustClass.UNTRUSTED_GENERAL)
    job = a_job_that_requires(trust=TrustClass.SIGNING_RESTRICTED)
    assert codes(job, runner) == [RejectionCode.TRUST_MISMATCH]


@pytest.mark.requirement("RES-001", "RES-006", "ELG-005", "ELG-006", "ACC-004", "PRI-010")
@pytest.mark.requirement("TST-002")
def test_what_can_never_fit_is_told_from_what_does_not_fit_now() -> None:
    runner = a_runner(
        total=amounts(cpu=4_000, memory_gib=13, disk_gib=10, slots=1),
        headroom=amounts(cpu=0, memory_gib=1, disk_gib=0, slots=0),
        reserved=amounts(cpu=2_500, memory_gib=0, disk_gib=8, slots=1),
    )
    job = a_job(resources=amounts(cpu=2_000, memory_gib=13, disk_gib=4, slots=1))
    found = rejections(job, runner)
    assert [(rejection.code, rejection.permanent) for rejection in found] == [
        (RejectionCode.INSUFFICIENT_MEMORY, True),
        (RejectionCode.BUSY_CPU, False),
        (RejectionCode.BUSY_DISK, False),
        (RejectionCode.BUSY_SLOTS, False),
    ]
    assert [rejection.text for rejection in found] == [
        "needs 13 GiB of memory, has 12 GiB",
        "needs 2 cores, has 1.5 cores free now",
        "needs 4 GiB of disk, has 2 GiB free now",
        "needs 1 slot, has 0 slots free now",
    ]
    assert not can_ever_run(job, runner)


@pytest.mark.requirement("RES-001")
def test_room_that_a_cycle_gave_away_counts_as_taken() -> None:
    job, runner = a_job(), a_runner()
    full = amounts(cpu=0, memory_gib=12, disk_gib=100, slots=4)
    assert is_eligible(job, runner)
    assert not is_eligible(job, runner, free=full)
    assert [it.code for it in rejections(job, runner, free=full)] == [RejectionCode.BUSY_CPU]
    assert can_ever_run(job, runner)


@pytest.mark.requirement("DIA-003")
def test_every_reason_is_reported_not_only_the_first() -> None:
    job = a_job_that_requires(platform=Platform.MACOS, trust=TrustClass.CONFIDENTIAL)
    runner = a_runner(state=RunnerState.DRAINING, suspect=True)
    assert codes(job, runner) == [
        RejectionCode.DRAINING,
        RejectionCode.SUSPECT,
        RejectionCode.PLATFORM_MISMATCH,
        RejectionCode.TRUST_MISMATCH,
    ]


@pytest.mark.requirement("RUN-013", "RUN-012")
@pytest.mark.parametrize(
    ("takes_up_to", "takes"),
    [
        (-1, []),
        (0, ["low"]),
        (100, ["low", "normal"]),
        (400, ["low", "normal", "high", "release_critical", "emergency"]),
    ],
)
def test_an_unwell_runner_takes_the_jobs_that_policy_leaves_to_it(
    takes_up_to: int, takes: list[str]
) -> None:
    runner = a_runner(degraded=True, takes_up_to=takes_up_to)
    jobs = [a_job(priority=priority) for priority in Priority]
    assert [job.priority for job in jobs if is_eligible(job, runner)] == takes
    assert all(is_eligible(job, replace(runner, degraded=False)) for job in jobs)


def test_what_an_unwell_runner_does_not_take_is_said_and_passes() -> None:
    job = a_job(priority=Priority.HIGH)
    (found,) = rejections(job, a_runner(degraded=True, takes_up_to=100))
    assert (found.code, found.permanent) == (RejectionCode.DEGRADED, False)
    assert found.text == "is degraded, and takes no job of priority high meanwhile"
    assert can_ever_run(job, a_runner(degraded=True, takes_up_to=-1))
