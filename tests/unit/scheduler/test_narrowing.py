"""A cycle matches classes of jobs with profiles of runners, never every job with every runner."""

import pytest

from forgeyard.model.capability import Capabilities, Platform, Requirements, Toolchain, TrustClass
from forgeyard.scheduler import columns, eligibility
from forgeyard.scheduler.eligibility import satisfies
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from tests.scheduling import POLICY, a_job, a_runner, a_snapshot, amounts

RUNNERS, JOBS, CLASSES, PROFILES = 400, 1_000, 5, 4


def _runner(number: int, **changed: object) -> SchedulingRunner:
    tool = Toolchain(name="python", version=f"3.{number % PROFILES}")
    offered = Capabilities(platform=Platform.LINUX, toolchains=(tool,))
    return a_runner(f"runner-{number}", capabilities=offered, **changed)


def _job(number: int, **changed: object) -> SchedulingJob:
    wanted = Requirements(platform=Platform.LINUX, labels={})
    sizes = amounts(cpu=100 + number % CLASSES)
    return a_job(f"job-{number}", requirements=wanted, resources=sizes, **changed)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[TrustClass]:
    """Count how often the matcher itself is asked."""
    counted: list[TrustClass] = []

    def counting(wanted: Requirements, offered: Capabilities, trust: TrustClass) -> bool:
        counted.append(trust)
        return satisfies(wanted, offered, trust)

    for module in (columns, eligibility):
        monkeypatch.setattr(module, "satisfies", counting)
    return counted


@pytest.mark.requirement("IDX-001", "IDX-003", "ACC-034")
@pytest.mark.requirement("IDX-002")
def test_the_matcher_is_asked_once_for_each_class_and_profile(looks: list[TrustClass]) -> None:
    fleet = [_runner(number) for number in range(RUNNERS)]
    made = plan(a_snapshot([_job(number) for number in range(JOBS)], fleet), POLICY)
    assert len(made.decisions) == POLICY.batch
    assert len(looks) == CLASSES * PROFILES


@pytest.mark.requirement("IDX-001", "ACC-034")
def test_a_thousand_jobs_in_vain_cost_no_second_look(looks: list[TrustClass]) -> None:
    full = [_runner(number, reserved=amounts(slots=4)) for number in range(RUNNERS)]
    made = plan(a_snapshot([_job(number) for number in range(JOBS)], full), POLICY)
    assert len(made.diagnoses) == JOBS
    assert len(looks) == CLASSES * PROFILES


@pytest.mark.case("SP-093")
def test_a_head_of_the_queue_that_waits_in_vain_holds_nobody_else_up() -> None:
    zone = Capabilities(platform=Platform.LINUX, labels={"zone": "full"})
    fleet = [_runner(number) for number in range(990)]
    fleet += [
        a_runner(f"full-{number}", capabilities=zone, reserved=amounts(slots=4))
        for number in range(10)
    ]
    stuck = Requirements(labels={"zone": "full"})
    heads = [a_job(f"head-{number}", requirements=stuck, eligible_at=1) for number in range(1_000)]
    others = [_job(number) for number in range(9_000)]
    made = plan(a_snapshot([*heads, *others], fleet), POLICY)
    placed = {decision.job_id for decision in made.decisions}
    assert len(placed) == POLICY.batch
    assert placed <= {job.job_id for job in others}
    assert not made.hopeless
