"""CPU may be promised more than once, within bounds and for all to see; nothing else ever is."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from forgeyard.errors import InvalidPolicy
from forgeyard.model.policy import OvercommitPolicy, SchedulingPolicy
from forgeyard.model.policy_document import read
from forgeyard.model.units import Bytes, MilliCpu, Resources
from forgeyard.scheduler.explain import explain
from forgeyard.scheduler.grant import GrantRequest, JobStanding, RunnerStanding, grant
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.room import allocatable, overdrawn
from forgeyard.scheduler.snapshot import SchedulingRunner
from tests.scheduling import POLICY, a_job, a_runner, a_snapshot, amounts
from tests.tree import open_gates
from tests.worlds import demand_hits, some_amounts, some_capacity, some_crumbs

HALF_AGAIN = replace(POLICY, overcommit=OvercommitPolicy(cpu_percent=150))


def lending(percent: int, **changed: object) -> SchedulingRunner:
    return a_runner(cpu_percent=percent, **changed)


@pytest.mark.requirement("RES-016", "RES-017")
def test_overcommit_multiplies_the_cpu_that_the_headroom_leaves_and_nothing_else() -> None:
    kept = amounts(cpu=1_000, memory_gib=2, disk_gib=10, slots=1)
    runner = lending(150, headroom=kept)
    assert runner.allocatable == amounts(cpu=4_500, memory_gib=10, disk_gib=90, slots=3)
    assert lending(100, headroom=kept).allocatable.cpu == 3_000


@pytest.mark.requirement("RES-016", "RES-017")
def test_the_plan_places_what_the_policy_lends_and_no_more() -> None:
    jobs = [a_job(f"job-{n}", resources=amounts(cpu=2_000, memory_gib=1)) for n in range(4)]
    plain = plan(a_snapshot(jobs, [lending(100)]), POLICY)
    lent = plan(a_snapshot(jobs, [lending(150)]), HALF_AGAIN)
    assert (len(plain.decisions), len(lent.decisions)) == (2, 3)
    greedy = [a_job(f"job-{n}", resources=amounts(cpu=100, memory_gib=6)) for n in range(3)]
    assert len(plan(a_snapshot(greedy, [lending(400)]), HALF_AGAIN).decisions) == 2


@pytest.mark.requirement("RES-017")
def test_the_policy_bounds_it() -> None:
    assert read({"overcommit": {"cpu_percent": 400}}).overcommit.cpu_percent == 400
    assert SchedulingPolicy().overcommit.cpu_percent == 100
    for percent in (99, 401):
        with pytest.raises(InvalidPolicy) as refused:
            read({"overcommit": {"cpu_percent": percent}})
        assert refused.value.field == "overcommit.cpu_percent"


@pytest.mark.case("SP-060")
def test_a_host_that_keeps_back_more_than_it_has_offers_nothing() -> None:
    odd = lending(200, headroom=amounts(cpu=6_000))
    assert odd.allocatable.cpu == 0
    assert plan(a_snapshot([a_job()], [odd]), POLICY).decisions == ()


@pytest.mark.case("SP-059")
def test_what_was_lent_and_is_called_back_is_no_room_but_a_mismatch() -> None:
    """Even a job that asks for no CPU at all is kept off a runner that owes some."""
    owing = lending(100, reserved=amounts(cpu=4_170, memory_gib=0, disk_gib=0, slots=1))
    assert owing.free.cpu == -170
    modest = a_job(resources=amounts(cpu=0))
    made = plan(a_snapshot([a_job("plain"), modest], [owing]), POLICY)
    assert made.decisions == ()
    assert overdrawn(owing.free) == (
        "resource accounting mismatch: jobs hold 0.17 cores more than may be given away",
    )
    assert overdrawn(lending(100).free) == ()


@pytest.mark.requirement("RES-017")
def test_an_explanation_shows_the_room_with_what_is_lent() -> None:
    job = a_job(resources=amounts(cpu=5_000))
    told = explain(job, a_snapshot([job], [lending(150)]), HALF_AGAIN)
    (verdict,) = told.runners
    assert (verdict.cpu_percent, verdict.allocatable.cpu, told.winner) == (150, 6_000, "linux-1")
    assert verdict.free_text.startswith("6 cores")


@pytest.mark.requirement("RES-016")
def test_memory_disk_and_slots_are_never_promised_twice_by_any_plan() -> None:
    hits: Counter[str] = Counter()
    for seed in range(300):
        rng = Random(seed)
        percent = rng.choice((100, 150, 400))
        runners = [
            lending(percent, name=f"r{n}", total=some_capacity(rng), headroom=some_crumbs(rng))
            for n in range(3)
        ]
        runners = [replace(it, runner_id=f"rnr_{n}") for n, it in enumerate(runners)]
        jobs = [a_job(f"j{n}", resources=some_amounts(rng)) for n in range(20)]
        wanted = {job.job_id: job.resources for job in jobs}
        given = {it.runner_id: Resources() for it in runners}
        for decision in plan(a_snapshot(jobs, runners), POLICY).decisions:
            winner = decision.candidates[0][0]
            given[winner] = given[winner].plus(wanted[decision.job_id])
        for it in runners:
            there = it.total.minus(it.headroom)
            sums = given[it.runner_id]
            assert sums.memory <= max(there.memory, 0)
            assert sums.disk <= max(there.disk, 0)
            assert sums.slots <= max(there.slots, 0)
            assert sums.cpu * 100 <= max(there.cpu, 0) * percent
            hits["cpu promised twice"] += sums.cpu > there.cpu
            hits["placed"] += sums.slots > 0
    demand_hits(hits, *hits)


@pytest.mark.requirement("RES-005")
@pytest.mark.case("SP-024")
def test_a_thousand_rounds_of_granting_and_releasing_leave_exactly_what_was_there() -> None:
    whole = Resources(cpu=MilliCpu(1_000), memory=Bytes(10), disk=Bytes(10), slots=10)
    tenth = Resources(cpu=MilliCpu(100), memory=Bytes(1), disk=Bytes(1), slots=1)
    free = allocatable(whole, Resources(), cpu_percent=100)
    names = [f"job-{n}" for n in range(10)]
    requests = [
        GrantRequest(job_id=name, resources=tenth, candidates=(("one", 1),)) for name in names
    ]
    for _ in range(1_000):
        standing = RunnerStanding(schedulable=True, free=free)
        answers = grant(
            requests,
            dict.fromkeys(names, JobStanding.ELIGIBLE),
            {"one": standing},
            gates=open_gates(),
        )
        assert all(answer.runner_id == "one" for answer in answers)
        for _ in answers:
            free = free.minus(tenth)
        assert free == Resources()
        for _ in answers:
            free = free.plus(tenth)
        assert free.cpu == 1_000
    assert free == whole
