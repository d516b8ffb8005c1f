"""One cycle's plan: safe, exact, deterministic, and honest about what it leaves waiting."""

from collections import Counter
from dataclasses import asdict, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Resources
from forgeyard.scheduler.avoidance import nearness_to_losses
from forgeyard.scheduler.devices import allocate, plus
from forgeyard.scheduler.explain import explain
from forgeyard.scheduler.order import in_order
from forgeyard.scheduler.place import Decision, Plan, plan
from forgeyard.scheduler.scene import Scene
from forgeyard.scheduler.score import TERMS, rising_terms, score, tie_break
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot
from tests.scheduling import a_job, a_runner, a_snapshot
from tests.worlds import (
    a_policy,
    a_world,
    demand_hits,
    fixed,
    naive_capable,
    naive_fit,
    naive_match,
    naive_minus,
    policies,
    seeds,
    some_amounts,
    some_job,
    some_runner,
    worlds,
)


def naive_plan(world: Snapshot, policy: SchedulingPolicy) -> tuple[Decision, ...]:
    """Judge every job against every runner from scratch, jobs in queue order."""
    free = {runner.runner_id: runner.free for runner in world.runners}
    fleet = {runner.runner_id: runner for runner in world.runners}
    scene = Scene(world, policy)
    made: list[Decision] = []
    for waiting in in_order(world.jobs, policy, world.taken_at):
        job = scene.kin.bind(waiting)
        scored = [
            (
                nearness_to_losses(job, runner, scene),
                -(judged := score(job, runner, free[runner.runner_id], scene)).weighed,
                tie_break(job.job_id, runner.runner_id),
                (runner.runner_id, judged.total),
            )
            for runner in fleet.values()
            if naive_match(job, runner, free[runner.runner_id])
        ]
        if scored and len(made) < policy.batch:
            far = [one for one in scored if one[0] == min(it[0] for it in scored)]
            ring = sorted(far, key=lambda one: one[2])
            best = sorted(ring[: policy.score_at_most or len(ring)])
            candidates = tuple(one[3] for one in best)[: 1 if job.bounds else 1 + policy.candidates]
            taken = candidates[0][0]
            free[taken] = naive_minus(free[taken], job.resources)
            fleet[taken] = with_devices_of(job, fleet[taken])
            scene.kin.place(job, taken)
            made.append(
                Decision(
                    equipment=job.requirements.equipment.device_part,
                    job_id=job.job_id,
                    candidates=candidates,
                )
            )
    return tuple(made)


def with_devices_of(job: SchedulingJob, runner: SchedulingRunner) -> SchedulingRunner:
    """Let a runner hold what a job placed on it takes of its devices."""
    wanted, held = job.requirements.equipment, runner.held_devices
    shares = allocate(wanted, runner.capabilities.equipment, held)
    assert shares is not None
    return replace(runner, held_devices=plus(held, shares))


def afterwards(world: Snapshot, made: Plan) -> list[SchedulingRunner]:
    """Let the winners hold their devices."""
    fleet = {runner.runner_id: runner for runner in world.runners}
    queue = {job.job_id: job for job in world.jobs}
    for decision in made.decisions:
        winner = decision.candidates[0][0]
        fleet[winner] = with_devices_of(queue[decision.job_id], fleet[winner])
    return list(fleet.values())


def left_over(world: Snapshot, made: Plan) -> dict[str, Resources]:
    """Subtract what the winners take."""
    free = {runner.runner_id: runner.free for runner in world.runners}
    wanted = {job.job_id: job.resources for job in world.jobs}
    for decision in made.decisions:
        winner = decision.candidates[0][0]
        free[winner] = naive_minus(free[winner], wanted[decision.job_id])
    return free


@pytest.mark.requirement("RES-001", "FAR-014", "INV-003", "PRI-010", "TST-003")
def test_no_plan_gives_a_runner_more_than_it_has() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=worlds, policy=policies)
    def check(world: Snapshot, policy: SchedulingPolicy) -> None:
        made = plan(world, policy)
        left = left_over(world, made)
        won = [decision.candidates[0][0] for decision in made.decisions]
        for runner_id in won:
            assert naive_fit(Resources(), left[runner_id])
        hits["placed"] += len(won)
        hits["runner was given several jobs"] += len(won) - len(set(won))

    check()
    demand_hits(hits, "placed", "runner was given several jobs")


@pytest.mark.requirement(
    "ELG-001",
    "SCO-004",
    "ACC-001",
    "INV-002",
    "INV-024",
    "PRI-006",
    "PRI-007",
    "ELG-031",
    "TST-003",
)
@pytest.mark.requirement("SCO-020", "ACC-031", "INV-008", "PRI-031")
def test_every_candidate_satisfies_an_independent_matcher() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=worlds, policy=policies)
    def check(world: Snapshot, policy: SchedulingPolicy) -> None:
        fleet = {runner.runner_id: runner for runner in world.runners}
        queue = {job.job_id: job for job in world.jobs}
        for decision in plan(world, policy).decisions:
            for runner_id, _ in decision.candidates:
                runner = fleet[runner_id]
                assert naive_match(queue[decision.job_id], runner, runner.free)
                hits["candidate"] += 1

    check()
    demand_hits(hits, "candidate")


@pytest.mark.requirement("FAR-018", "SCO-001", "ACC-007", "INV-023", "PHA-001")
def test_a_plan_equals_the_naive_one() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=worlds, policy=policies)
    def check(world: Snapshot, policy: SchedulingPolicy) -> None:
        made = plan(world, policy)
        assert made.decisions == naive_plan(world, policy)
        hits["decision"] += len(made.decisions)
        hits["decision with a choice"] += sum(len(it.candidates) > 1 for it in made.decisions)

    check()
    demand_hits(hits, "decision", "decision with a choice")


@pytest.mark.requirement("SCO-032")
def test_a_plan_is_a_pure_function_whatever_order_its_input_has() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=worlds, policy=policies, seed=st.integers())
    def check(world: Snapshot, policy: SchedulingPolicy, seed: int) -> None:
        rng = Random(seed)
        shuffled = replace(
            world,
            jobs=tuple(rng.sample(world.jobs, len(world.jobs))),
            runners=tuple(rng.sample(world.runners, len(world.runners))),
        )
        made = plan(world, policy)
        assert repr(plan(world, policy)).encode() == repr(made).encode()
        assert repr(plan(shuffled, policy)).encode() == repr(made).encode()
        assert shuffled.digest() == world.digest()
        hits["really shuffled"] += shuffled.jobs != world.jobs
        hits["something was decided"] += bool(made.decisions)

    check()
    demand_hits(hits, "really shuffled", "something was decided")


def test_every_job_is_placed_or_diagnosed_or_behind_a_full_batch() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=worlds, policy=policies)
    def check(world: Snapshot, policy: SchedulingPolicy) -> None:
        made = plan(world, policy)
        placed = [decision.job_id for decision in made.decisions]
        blocked = [diagnosis.job_id for diagnosis in made.diagnoses]
        assert len({*placed, *blocked}) == len(placed) + len(blocked)
        behind = {job.job_id for job in world.jobs} - {*placed, *blocked}
        assert not behind or len(placed) == policy.batch
        hits["placed"] += len(placed)
        hits["diagnosed"] += len(blocked)
        hits["behind a full batch"] += len(behind)

    check()
    demand_hits(hits, "placed", "diagnosed", "behind a full batch")


@pytest.mark.requirement("DIA-006")
def test_a_diagnosis_is_permanent_exactly_when_no_runner_could_ever_do_it() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=worlds, policy=policies)
    def check(world: Snapshot, policy: SchedulingPolicy) -> None:
        made = plan(world, policy)
        left = left_over(world, made)
        queue = {job.job_id: job for job in world.jobs}
        fleet, kin = afterwards(world, made), Scene(world, policy).kin
        for decision in made.decisions:
            kin.place(kin.bind(queue[decision.job_id]), decision.candidates[0][0])
        for diagnosis in made.diagnoses:
            job = kin.bind(queue[diagnosis.job_id])
            able = [runner for runner in fleet if naive_capable(job, runner)]
            assert diagnosis.permanent is (not able)
            assert not any(naive_match(job, runner, left[runner.runner_id]) for runner in able)
            hits["never" if diagnosis.permanent else "not now"] += 1

    check()
    demand_hits(hits, "never", "not now")


@pytest.mark.requirement("DIA-002")
def test_an_explanation_says_what_the_plan_does() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(world=worlds, policy=policies)
    def check(world: Snapshot, policy: SchedulingPolicy) -> None:
        made = plan(world, policy)
        winners = {it.job_id: it.candidates[0] for it in made.decisions}
        sentences = {it.job_id: it.sentence for it in made.diagnoses}
        for job in world.jobs[:8]:
            told = explain(job, world, policy)
            if job.job_id in winners:
                assert told.winner is not None
                assert told.runners[0].score is not None
                best = (told.runners[0].runner_id, told.runners[0].score.total)
                assert best == winners[job.job_id]
                hits["placed"] += 1
            elif job.job_id in sentences:
                assert (told.winner, told.sentence) == (None, sentences[job.job_id])
                hits["blocked"] += 1
            else:
                assert told.winner is None
                hits["behind"] += 1
            assert len(told.runners) == len(world.runners)
            assert all((it.rank is None) is bool(it.rejections) for it in told.runners)

    check()
    demand_hits(hits, "placed", "blocked", "behind")


@pytest.mark.requirement("SCO-011")
@given(seed=seeds)
@fixed
def test_a_score_only_falls_as_a_runner_fills_up_except_what_is_said_to_rise(seed: int) -> None:
    rng = Random(seed)
    world, policy = a_world(seed), a_policy(seed)
    runner, job, more = some_runner(rng, 0), some_job(rng, 0), some_amounts(rng)
    scene = Scene(replace(world, runners=(*world.runners[1:], runner)), policy)
    before = asdict(score(job, runner, runner.free, scene))
    after = asdict(score(job, runner, runner.free.minus(more), scene))
    for name in TERMS:
        assert 0 <= min(before[name], after[name]) <= max(before[name], after[name]) <= 1000
        assert after[name] <= before[name] or name in rising_terms(policy)


@pytest.mark.requirement("SCO-033", "SCO-034")
def test_the_stable_tie_break_spreads_single_jobs_over_equal_runners() -> None:
    fleet = [a_runner(f"twin-{number}") for number in range(8)]
    rule = SchedulingPolicy()
    taken: Counter[str] = Counter()
    for number in range(400):
        (decision,) = plan(a_snapshot([a_job(f"{number}")], fleet), rule).decisions
        taken[decision.candidates[0][0]] += 1
    print(f"\n{sorted(taken.values())} of 400 jobs on 8 equal runners")
    assert len(taken) == len(fleet)
    assert max(taken.values()) < 200
