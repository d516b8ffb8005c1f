"""The planner that reckons in columns decides, and explains itself, exactly as the naive one."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from benchmarks.naive import NaivePlanner
from forgeyard.model.policy import ClassPolicy, SchedulingPolicy, ScoreWeights
from forgeyard.model.units import Bytes, MilliCpu, Resources
from forgeyard.model.wishes import SchedulingClass, Wishes
from forgeyard.scheduler.board import Board
from forgeyard.scheduler.census import Census
from forgeyard.scheduler.diagnose import diagnose
from forgeyard.scheduler.eligibility import is_eligible
from forgeyard.scheduler.holds import HeldRoom, HoldKind
from forgeyard.scheduler.order import in_order
from forgeyard.scheduler.place import Plan, plan
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner, Snapshot
from tests.scheduling import NOW
from tests.tree import POOLS, Path, some_tree
from tests.worlds import demand_hits, some_amounts, some_crumbs, some_job, some_runner

WORLDS = 460
HUGE = (2**55, 2**61)
"""Too much for a product, and too much for a sum."""


def a_crowd(seed: int) -> Snapshot:
    """Make up to 30 jobs of few kinds and up to 24 runners, many of them twins."""
    rng = Random(seed)
    models = [_odd(rng, some_runner(rng, place)) for place in range(rng.randint(1, 6))]
    runners = tuple(
        replace(
            rng.choice(models),
            runner_id=f"rnr_{place}",
            name=f"runner-{place // 2}",
            pool_id=rng.choice(POOLS),
        )
        for place in range(rng.randint(0, 24))
    )
    kinds = [some_job(rng, place) for place in range(6)]
    scopes, paths = some_tree(rng)
    jobs = tuple(
        _owned(rng, _asked(rng, some_job(rng, place), rng.choice(kinds), runners), paths)
        for place in range(rng.randint(1, 30))
    )
    return Snapshot(
        partition="default",
        taken_at=NOW,
        jobs=jobs,
        runners=runners,
        waiting=len(jobs),
        scopes=scopes,
        keys={"taken": "somebody"},
        held_room=tuple(_some_holds(rng, jobs, runners)),
    )


def _some_holds(
    rng: Random, jobs: tuple[SchedulingJob, ...], runners: tuple[SchedulingRunner, ...]
) -> Iterator[HeldRoom]:
    """Hold room for a job now and then, waiting or elsewhere."""
    for _ in range(rng.choice((0, 2, 4, 6))):
        job = rng.choice(jobs)
        if runners:
            yield HeldRoom(
                job_id=rng.choice((job.job_id, job.job_id, "job_elsewhere")),
                kind=rng.choice((HoldKind.BACKFILL, HoldKind.BACKFILL, HoldKind.NOMINATION)),
                partition="default",
                runner_id=rng.choice(runners).runner_id,
                room=job.resources,
                since=NOW - 60_000,
                deadline=NOW + rng.choice((-1, 60_000, 600_000)),
            )


def _owned(rng: Random, job: SchedulingJob, paths: list[Path]) -> SchedulingJob:
    """Put a job into a queue; one in ten wants a key."""
    tenant, organization, project, queue = rng.choice(paths)
    keys = (rng.choice(("taken", "free")),) if rng.random() < 0.1 else ()
    return replace(
        job,
        tenant_id=tenant,
        organization_id=organization,
        project_id=project,
        queue_id=queue,
        adjustment=rng.choice((0, 0, 0, 50, -250, 900)),
        wishes=Wishes(keys=keys, scheduling_class=rng.choice((None, None, *SchedulingClass))),
        lasts=rng.choice((30_000, 300_000, 3_000_000)),
    )


def _odd(rng: Random, runner: SchedulingRunner) -> SchedulingRunner:
    """Make a fleet's misfits: empty, overdrawn, without a resource, or far too large."""
    odd = rng.random()
    if odd < 0.3:
        return replace(runner, reserved=Resources())
    if odd < 0.4:
        return replace(runner, reserved=runner.total.plus(some_amounts(rng)))
    if odd < 0.5:
        return replace(runner, headroom=runner.total.plus(some_crumbs(rng)))
    if odd < 0.6:
        total = replace(runner.total, cpu=MilliCpu(0), disk=Bytes(0))
        return replace(runner, total=total, headroom=Resources(), reserved=Resources())
    if odd < 0.8:
        memory = Bytes(rng.choice(HUGE) + rng.randint(0, 9))
        return replace(runner, total=replace(runner.total, memory=memory))
    return runner


def _asked(
    rng: Random, job: SchedulingJob, kind: SchedulingJob, runners: tuple[SchedulingRunner, ...]
) -> SchedulingJob:
    """Make a job of one kind; some share its very requirements, some were refused, few are huge."""
    shared = rng.random() < 0.5
    wanted = kind.requirements if shared else replace(kind.requirements)
    refusing = [rng.choice(runners).runner_id for _ in range(2)] if runners else []
    resources = kind.resources
    if rng.random() < 0.05:
        resources = replace(resources, memory=Bytes(rng.choice(HUGE) * rng.randint(1, 9)))
    if rng.random() < 0.2:
        resources = replace(resources, cpu=MilliCpu(0), disk=Bytes(0))
    return replace(
        job,
        requirements=wanted,
        resources=resources,
        eligible_at=NOW - 60_000 * rng.randint(0, 4),
        refused_by=dict.fromkeys(refusing, "full") if rng.random() < 0.2 else {},
    )


def _rule(seed: int) -> SchedulingPolicy:
    rng = Random(seed)
    return SchedulingPolicy(
        batch=rng.choice((3, 20, 100)),
        candidates=rng.randint(0, 4),
        classes=ClassPolicy(interactive=rng.randint(-100, 100), batch=rng.randint(-100, 100)),
        weights=ScoreWeights(headroom=rng.randint(0, 3), load=rng.randint(0, 3)),
    )


@pytest.mark.requirement("FAR-018", "SCO-001", "IDX-004")
def test_the_fast_plan_equals_the_naive_one_in_every_world() -> None:
    hits: Counter[str] = Counter()
    for seed in range(WORLDS):
        world, policy = a_crowd(seed), _rule(seed)
        naive = NaivePlanner(snapshot=world, policy=policy).run(watched=True)
        made = plan(world, policy)
        assert made.decisions == tuple(naive.decisions), f"seed {seed}"
        assert made.diagnoses == naive.diagnoses(), f"seed {seed}"
        hits["decisions"] += len(made.decisions)
        hits["held at a gate"] += len(naive.held)
        hits["kept out of a pool"] += naive.pooled
        hits["lent beyond a quota"] += naive.lent
        hits["on a runner with held room"] += naive.used_a_hold
        hits["not the oldest first"] += _is_fair_turn(world, policy, made)
        hits["kept from an unwell runner"] += _spared(world)
        hits["ties broken"] += naive.ties
        hits["stale scores corrected"] += naive.stale
        hits["never"] += sum(it.permanent for it in made.diagnoses)
        hits["not now"] += sum(not it.permanent for it in made.diagnoses)
        hits["near misses"] += sum(len(it.near_misses) > 1 for it in made.diagnoses)
        hits["reckoned in Python's integers"] += not Board(world.runners, policy).columns.exact
    demand_hits(hits, *hits)
    print(f"{WORLDS} worlds")


def _spared(world: Snapshot) -> int:
    """Count the pairs that only the runner's health forbids."""
    return sum(
        not is_eligible(job, runner) and is_eligible(job, replace(runner, degraded=False))
        for job in world.jobs
        for runner in world.runners
        if runner.degraded
    )


def _is_fair_turn(world: Snapshot, policy: SchedulingPolicy, made: Plan) -> bool:
    """Tell whether shares changed the order in which jobs were placed."""
    placed = {decision.job_id for decision in made.decisions}
    by_age = [job.job_id for job in in_order(world.jobs, policy, NOW) if job.job_id in placed]
    return by_age != [decision.job_id for decision in made.decisions]


@pytest.mark.requirement("DIA-002")
def test_a_census_says_of_any_job_what_the_plain_diagnosis_says() -> None:
    """Also of jobs that could be placed: every runner that could run them counts as full."""
    hits: Counter[str] = Counter()
    for seed in range(WORLDS):
        world = a_crowd(seed)
        board = Board(world.runners, _rule(seed))
        census = Census(board.columns)
        for job in world.jobs[:12]:
            told = census.diagnose(job)
            assert told == diagnose(job, world.runners, board.free()), f"seed {seed}"
            hits[told.code] += 1
    demand_hits(hits, "NO_CAPACITY_NOW", "RUNNERS_UNAVAILABLE", "NO_MATCHING_PLATFORM")
