"""Public bug reports of other schedulers, re-created for the pure rule.

Nothing is timed. Where a report is about cost, work is counted.
"""

from collections.abc import Callable

import pytest

from benchmarks.fleets import a_partition
from forgeyard.errors import InvalidQuantity
from forgeyard.model.capability import Architecture, Platform, Requirements
from forgeyard.model.job import Priority
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Bytes, MilliCpu, Resources, Rounding, parse_bytes, parse_cpu
from forgeyard.model.wishes import Wishes
from forgeyard.scheduler import columns, eligibility
from forgeyard.scheduler.board import Board
from forgeyard.scheduler.diagnose import DiagnosticCode
from forgeyard.scheduler.eligibility import rejections, satisfies
from forgeyard.scheduler.grant import GrantRequest, JobStanding, RunnerStanding, Verdict, grant
from forgeyard.scheduler.order import in_order
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.rejection import RejectionCode
from forgeyard.scheduler.scopes import Quota, SchedulingScope
from tests.scheduling import LINUX, NOW, POLICY, a_job, a_runner, a_snapshot, amounts
from tests.tree import in_turn, open_gates

EXABYTE = 10**18


def a_size(text: str | int, rounding: Rounding = Rounding.REQUEST) -> int:
    return parse_bytes(text, field="memory", rounding=rounding)


# Units


@pytest.mark.case("SP-019")
def test_fifty_exabytes_neither_wrap_nor_fit() -> None:
    with pytest.raises(InvalidQuantity):
        a_size("50E")
    huge = a_job(resources=Resources(cpu=MilliCpu(1), memory=Bytes(50 * EXABYTE), slots=1))
    assert [it.code for it in rejections(huge, a_runner())] == [RejectionCode.INSUFFICIENT_MEMORY]
    made = plan(a_snapshot([huge], [a_runner()]), POLICY)
    assert made.decisions == ()
    assert [(it.code, it.permanent) for it in made.diagnoses] == [
        (DiagnosticCode.INSUFFICIENT_MEMORY, True)
    ]


@pytest.mark.case("SP-020")
def test_fractions_of_binary_units_are_exact_and_nonsense_is_no_zero() -> None:
    assert a_size("0.5Gi") == 536_870_912
    assert a_size("1.5Ti", Rounding.CAPACITY) == 1_649_267_441_664
    for nonsense in ("", "Gi", "half", "1.5.5Gi", "1 Zi"):
        with pytest.raises(InvalidQuantity):
            a_size(nonsense)


@pytest.mark.case("SP-023")
def test_a_bare_number_is_bytes_and_nothing_is_nothing() -> None:
    assert a_size("4096") == a_size(4096) == 4096
    nothing = Resources(memory=Bytes(a_size("0G")), slots=1)
    board = Board(a_snapshot([], [a_runner()]), POLICY)
    before = board.free()["rnr_linux-1"]
    assert board.place(a_job(resources=nothing))
    assert board.free()["rnr_linux-1"] == before.minus(Resources(slots=1))


@pytest.mark.case("SP-024")
def test_a_tenth_of_a_core_ten_times_is_a_core_a_thousand_times_over() -> None:
    tenth = Resources(cpu=parse_cpu(0.1, field="cpu", rounding=Rounding.REQUEST))
    core = Resources(cpu=parse_cpu("1", field="cpu", rounding=Rounding.CAPACITY))
    jobs = [f"job_{number}" for number in range(11)]
    requests = [
        GrantRequest(job_id=job, resources=tenth, candidates=(("rnr_1", 0),)) for job in jobs
    ]
    standing = dict.fromkeys(jobs, JobStanding.ELIGIBLE)
    free = core
    for _ in range(1_000):
        runner = RunnerStanding(schedulable=True, free=free)
        verdicts = [it.verdict for it in _granted(requests, standing, runner)]
        assert verdicts == [Verdict.GRANTED] * 10 + [Verdict.NO_CAPACITY]
        for _ in range(10):
            free = free.minus(tenth)
        assert free.cpu == 0
        for _ in range(10):
            free = free.plus(tenth)
        assert free.cpu == 1_000


# Order


@pytest.mark.case("SP-071")
def test_a_hundred_jobs_of_one_instant_have_one_order() -> None:
    jobs = [a_job(f"{number:03}") for number in range(100)]
    by_id = sorted(job.job_id for job in jobs)
    assert [job.job_id for job in in_order(jobs, POLICY, NOW)] == by_id
    assert [job.job_id for job in in_order(jobs[::-1], POLICY, NOW + 5)] == by_id
    assert [job.job_id for job in in_turn(a_snapshot(jobs[::-1], []), POLICY)] == by_id


@pytest.mark.case("SP-052")
def test_three_jobs_within_their_quota_are_placed_at_once() -> None:
    queue = SchedulingScope(scope_id="que_default", name="q", quota=Quota(jobs=3))
    jobs = [a_job(name) for name in ("a", "b", "c")]
    made = plan(a_snapshot(jobs, [a_runner()], scopes={queue.scope_id: queue}), POLICY)
    assert {decision.job_id for decision in made.decisions} == {"job_a", "job_b", "job_c"}


@pytest.mark.case("SP-077")
def test_an_older_job_is_not_overtaken_by_an_equal_one_that_comes_as_room_appears() -> None:
    older = a_job("z-older", eligible_at=NOW - 1, refused_by={"rnr_gone": "full"})
    newer = a_job("a-newer", eligible_at=NOW)
    one = a_runner(total=amounts())
    made = plan(a_snapshot([newer, older], [one]), POLICY)
    assert [decision.job_id for decision in made.decisions] == ["job_z-older"]


# Amounts


@pytest.mark.case("SP-057")
def test_the_thirteenth_job_of_a_runner_with_twelve_slots_waits_for_a_slot() -> None:
    runner = a_runner(
        total=amounts(cpu=64_000, memory_gib=256, disk_gib=500, slots=12),
        reserved=amounts(cpu=12_000, memory_gib=12, disk_gib=12, slots=12),
    )
    job = a_job()
    assert [it.code for it in rejections(job, runner)] == [RejectionCode.BUSY_SLOTS]
    assert plan(a_snapshot([job], [runner]), POLICY).decisions == ()
    wide = a_job(resources=amounts(slots=13))
    assert RejectionCode.INSUFFICIENT_SLOTS in [it.code for it in rejections(wide, runner)]


@pytest.mark.case("SP-056", "SP-059")
def test_a_runner_that_holds_more_than_it_has_harms_no_cycle_and_gets_nothing() -> None:
    shrunk = a_runner("shrunk", total=amounts(cpu=500), reserved=amounts(cpu=4_000, slots=4))
    made = plan(a_snapshot([a_job("a"), a_job("b")], [shrunk, a_runner()]), POLICY)
    assert {it.candidates for it in made.decisions} == {
        (("rnr_linux-1", score),) for ((_, score),) in (it.candidates for it in made.decisions)
    }
    assert len(made.decisions) == 2
    assert plan(a_snapshot([a_job()], [shrunk]), POLICY).decisions == ()


# Keys


@pytest.mark.case("SP-089")
def test_a_job_that_waits_for_a_key_is_not_told_that_it_waits_for_a_runner() -> None:
    job = a_job(wishes=Wishes(keys=("staging",)))
    (told,) = plan(
        a_snapshot([job], [a_runner()], keys={"staging": "deploy-blue"}), POLICY
    ).diagnoses
    assert told.code is DiagnosticCode.KEY_HELD
    assert "deploy-blue" in told.sentence
    assert "staging" in told.sentence


# Cost


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count how often requirements are held against a profile."""
    count = 0

    def counted(*arguments: object) -> bool:
        nonlocal count
        count += 1
        return satisfies(*arguments)

    for module in (columns, eligibility):
        monkeypatch.setattr(module, "satisfies", counted)
    return lambda: count


def some_kinds(count: int) -> list[Requirements]:
    return [
        Requirements(platform=Platform.LINUX, labels={"zone": "a"} if number % 2 else {})
        for number in range(count)
    ]


@pytest.mark.requirement("ACC-034")
@pytest.mark.case("SP-093")
def test_a_head_that_finds_no_room_holds_up_no_other_class(looks: Callable[[], int]) -> None:
    """A thousand runners and ten thousand jobs: every kind is looked at once, not every job."""
    mac = Requirements(platform=Platform.MACOS)
    head = [
        a_job(f"a{number:05}", requirements=mac, priority=Priority.HIGH) for number in range(5_000)
    ]
    kinds = some_kinds(10)
    rest = [a_job(f"b{number:05}", requirements=kinds[number % 10]) for number in range(5_000)]
    runners = [a_runner(f"{number:04}") for number in range(1_000)]
    policy = SchedulingPolicy(batch=1_000)
    made = plan(a_snapshot([*head, *rest], runners), policy)
    assert len(made.decisions) == 1_000
    assert not any(decision.job_id.startswith("job_a") for decision in made.decisions)
    assert 0 < looks() <= 10, "one look for each kind and profile, all runners being alike"


@pytest.mark.requirement("TST-006", "TST-007", "TST-008", "IDX-001")
def test_a_large_partition_is_planned_with_a_look_for_each_kind_and_profile(
    looks: Callable[[], int],
) -> None:
    """Ten thousand runners of some hundred profiles, a hundred thousand jobs of 200 kinds."""
    world = a_partition(jobs=100_000, runners=10_000, classes=200)
    made = plan(world, SchedulingPolicy(batch=500))
    assert (len(made.decisions), made.eligible, made.runners) == (500, 100_000, 10_000)
    profiles = len(columns.Columns(world.runners).profiles)
    assert profiles < 1_000
    assert 0 < looks() <= 200 * profiles


@pytest.mark.requirement("IDX-001", "IDX-003", "IDX-004")
@pytest.mark.case("SP-016")
def test_a_class_that_fits_nowhere_costs_a_look_for_each_profile_and_stops_no_other(
    looks: Callable[[], int],
) -> None:
    profiles = [
        LINUX,
        *(type(LINUX)(platform=Platform.LINUX, architecture=it) for it in Architecture),
    ]
    runners = [
        a_runner(f"{number:05}", capabilities=profiles[number % len(profiles)])
        for number in range(10_000)
    ]
    nowhere = Requirements(platform=Platform.LINUX, labels={"zone": "mars"})
    jobs = [a_job(f"a{number:04}", requirements=nowhere) for number in range(1_000)]
    jobs += [a_job(f"b{number:04}") for number in range(200)]
    made = plan(a_snapshot(jobs, runners), POLICY)
    assert [decision.job_id[:5] for decision in made.decisions] == ["job_b"] * 200
    assert [it.code for it in made.diagnoses] == [DiagnosticCode.MISSING_LABEL] * 1_000
    assert 0 < looks() <= 3 * len(profiles)


def _granted(
    requests: list[GrantRequest], standing: dict[str, JobStanding], runner: RunnerStanding
) -> tuple[object, ...]:
    return grant(requests, standing, {"rnr_1": runner}, gates=open_gates())
