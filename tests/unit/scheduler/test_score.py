from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from forgeyard.model.capability import Requirements
from forgeyard.model.equipment import Equipment, EquipmentRequirement, Gpu, GpuRequirement
from forgeyard.model.holdings import Bloom, Holdings, bloom_of
from forgeyard.model.location import Location, ReliabilityClass
from forgeyard.model.policy import SchedulingPolicy, ScoreWeights
from forgeyard.model.runner import ResourcePressure
from forgeyard.model.units import Resources
from forgeyard.model.wishes import SchedulingClass, SpotWish, Spread, Wishes
from forgeyard.scheduler.scene import Scene, weights_of
from forgeyard.scheduler.score import (
    NEUTRAL,
    TERMS,
    PlacementScore,
    hash64,
    rising_terms,
    score,
    tie_break,
)
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from forgeyard.scheduler.standing import SchedulingPool
from tests.scheduling import LINUX, NOW, a_job, a_runner, a_snapshot, amounts

HASH = 0x1F564E3F9481B5AA  # blake2b, 8 bytes, of the text below
ROOM = {name: 0 for name in TERMS} | {"headroom": 2, "load": 1}
OTHERS = (SchedulingClass.INTERACTIVE, SchedulingClass.BATCH)


def judged(
    job: SchedulingJob,
    runner: SchedulingRunner,
    *others: SchedulingRunner,
    free: Resources | None = None,
    weights: Mapping[str, int] = MappingProxyType(ROOM),
    **known: object,
) -> PlacementScore:
    """Score a runner among others; only room counts unless weights are given."""
    policy = SchedulingPolicy(weights=ScoreWeights(**weights), locality_bytes=100)
    world = a_snapshot([job], [runner, *others], **known)
    return score(job, runner, free or runner.free, Scene(world, policy))


def only(name: str) -> Mapping[str, int]:
    """Weigh one term alone."""
    return {term: int(term == name) for term in TERMS}


@pytest.mark.requirement("SCO-011")
def test_headroom_is_what_stays_of_the_scarcest_resource() -> None:
    runner = a_runner()  # 4 cores, 12 GiB, 100 GiB of disk
    found = judged(a_job(resources=amounts(cpu=1_000, memory_gib=9)), runner)
    assert found.headroom == 250
    assert found.load == 750
    assert found.weighed == 2 * 250 + 750
    assert found.total == (2 * 250 + 750) // 3


@pytest.mark.requirement("TST-002")
def test_an_emptier_runner_is_better() -> None:
    runner = a_runner()
    busy = judged(a_job(), runner, free=runner.free.minus(amounts()))
    assert judged(a_job(), runner).total > busy.total


def test_cpu_pressure_halves_the_load_term_only() -> None:
    before = judged(a_job(), a_runner())
    after = judged(a_job(), a_runner(pressure=ResourcePressure.CPU))
    assert (after.headroom, after.load) == (before.headroom, before.load // 2)


@pytest.mark.requirement("SCO-003")
def test_policy_weighs_the_terms_and_nothing_weighed_is_nothing() -> None:
    job, runner = a_job(resources=amounts(cpu=3_000)), a_runner()
    for name in TERMS:
        alone = judged(job, runner, weights=only(name))
        assert alone.total == alone.weighed == getattr(alone, name)
    assert judged(job, runner, weights=dict.fromkeys(TERMS, 0)).total == 0


def test_a_term_of_weight_zero_is_not_looked_at() -> None:
    worst = a_runner(penalty=9_000, penalty_at=NOW, degraded=True)
    found = judged(a_job(inputs=(("sha256:a", 9),)), worst)
    assert {name: getattr(found, name) for name in NEUTRAL} == NEUTRAL


def test_a_resource_that_a_runner_does_not_count_limits_no_score() -> None:
    runner = a_runner(total=amounts(cpu=2_000, memory_gib=2, disk_gib=0, slots=2))
    assert judged(a_job(resources=amounts(disk_gib=0)), runner).headroom == 500


@pytest.mark.requirement("SCO-005", "SCO-010", "SCO-026", "SCO-027", "SCO-028")
def test_locality_counts_bytes_that_a_runner_has_and_small_inputs_count_little() -> None:
    job = a_job(inputs=(("sha256:a", 800), ("sha256:b", 200)))

    def locality(*names: str, others: Bloom | None = None, wanted: SchedulingJob = job) -> int:
        held = Holdings(objects=dict.fromkeys(names, 1), others=others)
        return judged(wanted, a_runner(holdings=held), weights=only("locality")).locality

    assert (locality("sha256:a", "sha256:b"), locality("sha256:a"), locality()) == (1000, 800, 0)
    assert locality(others=bloom_of(["sha256:b"])) == 200
    assert locality("sha256:a", wanted=a_job(inputs=(("sha256:a", 10),))) == 100
    assert locality(wanted=a_job()) == 0


@pytest.mark.requirement("SCO-023", "SCO-024", "SCO-025", "FOP-023")
def test_what_must_be_fetched_counts_by_how_near_the_storage_is() -> None:
    job = a_job(inputs=(("sha256:a", 800), ("sha256:b", 200)))
    storage = Location(site="rack-1", region="eu")

    def locality(where: Location, *names: str) -> int:
        runner = a_runner(location=where, holdings=Holdings(objects=dict.fromkeys(names, 1)))
        return judged(job, runner, weights=only("locality"), storage=storage).locality

    assert locality(Location(site="rack-1")) == 500
    assert locality(Location(site="rack-2", region="eu")) == 250
    assert locality(Location()) == 0
    assert locality(Location(site="rack-1"), "sha256:a") == 900


@pytest.mark.requirement("SCO-009", "SCO-030")
def test_cache_counts_the_dependency_caches_that_are_warm() -> None:
    job = a_job(closures=("npm-1", "pip-1"))
    runner = a_runner(holdings=Holdings(closures=("pip-1", "pip-0")))
    assert judged(job, runner, weights=only("cache")).cache == 500
    assert judged(a_job(), runner, weights=only("cache")).cache == 0


@pytest.mark.requirement("SCO-014", "SCO-015")
def test_reliability_falls_with_every_loss_and_comes_back() -> None:
    def reliability(**changed: object) -> int:
        return judged(a_job(), a_runner(**changed), weights=only("reliability")).reliability

    half_life = SchedulingPolicy().lease.penalty_half_life
    assert reliability() == 1000
    assert reliability(penalty=1_000, penalty_at=NOW) == 500
    assert reliability(penalty=16_000, penalty_at=NOW) == 58
    assert reliability(penalty=1_000, penalty_at=NOW - half_life) == 666
    assert reliability(penalty=1_000, penalty_at=NOW - 30 * half_life) == 1000
    assert reliability(degraded=True) == 500


def test_fairness_prefers_a_pool_of_the_jobs_own() -> None:
    def fairness(owner: str | None) -> int:
        pool = SchedulingPool(pool_id="pol_own", owner_id=owner)
        return judged(a_job(), a_runner(pool=pool), weights=only("fairness")).fairness

    assert (fairness("prj_default"), fairness("prj_other"), fairness(None)) == (1000, 0, 0)


@pytest.mark.requirement("SCO-019", "SCO-022")
def test_cost_is_how_much_cheaper_than_the_dearest() -> None:
    dear = costing(400_000, "dear")

    def cost(micros: int | None) -> int:
        return judged(a_job(), costing(micros, "it"), dear, weights=only("cost")).cost

    assert (cost(100_000), cost(400_000), cost(0), cost(None)) == (750, 0, 1000, 0)


@pytest.mark.requirement("SPT-001", "SPT-003")
@pytest.mark.parametrize(
    ("wish", "points"),
    [
        (SpotWish.PREFERRED, (0, 500, 1000)),
        (SpotWish.AVOIDED, (1000, 500, 0)),
        (SpotWish.ALLOWED, (500, 500, 500)),
    ],
)
def test_spot_is_how_a_machine_suits_the_wish(wish: SpotWish, points: tuple[int, ...]) -> None:
    found = [
        judged(
            a_job(spot=wish),
            a_runner(capabilities=replace(LINUX, reliability=kind)),
            weights=only("spot"),
        ).spot
        for kind in ReliabilityClass
    ]
    assert tuple(found) == points


@pytest.mark.requirement("SCO-016")
def test_affinity_is_how_near_to_where_the_job_last_succeeded() -> None:
    home = a_runner("home", location=Location(host="h1", site="s1"))

    def affinity(runner: SchedulingRunner, job: SchedulingJob) -> int:
        return judged(job, runner, home, weights=only("affinity")).affinity

    job = a_job(home="rnr_home")
    assert affinity(home, job) == 1000
    assert affinity(a_runner(location=Location(host="h1")), job) == 750
    assert affinity(a_runner(location=Location(host="h2", site="s1")), job) == 500
    assert affinity(a_runner(), job) == 0
    assert affinity(home, a_job(home="rnr_gone")) == affinity(home, a_job()) == 0


@pytest.mark.requirement("SCO-017", "SCO-018")
def test_spread_falls_with_every_shard_near_by() -> None:
    shard = a_job(wishes=Wishes(spread=Spread(group="test")))
    near = a_runner("near", location=Location(host="h1", site="s1", region="r1"))

    def spread(where: Location) -> int:
        runner = a_runner(location=where)
        known = {"run_1/test": {"rnr_near": 1}}
        return judged(shard, runner, near, weights=only("spread"), shards=known).spread

    assert spread(Location(host="h1", site="s1", region="r1")) == 500
    assert spread(Location(host="h2", site="s1", region="r1")) == 666
    assert spread(Location(host="h2", site="s2", region="r1")) == 833
    assert spread(Location(host="h2", site="s2", region="r2")) == spread(Location()) == 1000


@pytest.mark.requirement("SCO-012", "SCO-013")
def test_scarcity_spares_what_is_rare_for_those_who_need_it() -> None:
    plain = [a_runner(f"plain-{number}") for number in range(3)]
    gpu = replace(LINUX, equipment=Equipment(gpus=(Gpu(model="a100"),)))
    rare, big = a_runner("gpu", capabilities=gpu), a_runner("big", total=amounts(memory_gib=64))

    def scarcity(job: SchedulingJob, runner: SchedulingRunner) -> int:
        others = [it for it in (*plain, rare, big) if it is not runner]
        return judged(job, runner, *others, weights=only("scarcity")).scarcity

    needs_gpu = Requirements(equipment=EquipmentRequirement(gpu=GpuRequirement()))
    assert scarcity(a_job(), plain[0]) == 1000
    assert scarcity(a_job(), rare) == 200
    assert scarcity(a_job(requirements=needs_gpu), rare) == 1000
    assert scarcity(a_job(), big) == 200
    assert scarcity(a_job(resources=amounts(memory_gib=40)), big) == 1000


@pytest.mark.requirement("SCO-021", "SCO-022")
def test_interactive_jobs_mind_load_and_locality_and_batch_jobs_cost() -> None:
    weights = ScoreWeights()
    normal = weights_of(SchedulingClass.NORMAL, weights)
    interactive, batch = (weights_of(hurry, weights) for hurry in OTHERS)
    assert normal == weights
    assert (interactive.load, interactive.locality) == (2 * weights.load, 2 * weights.locality)
    assert batch == replace(weights, cost=3 * weights.cost)


def test_a_policy_that_packs_is_told_to_have_a_term_that_rises() -> None:
    assert rising_terms(SchedulingPolicy()) == ()
    packing = SchedulingPolicy(weights=ScoreWeights(packing=1))
    assert rising_terms(packing) == ("packing",)
    found = judged(a_job(resources=amounts(cpu=3_000)), a_runner(), weights=only("packing"))
    assert found.packing == 1000 - found.headroom == 750


def costing(micros: int | None, name: str) -> SchedulingRunner:
    return a_runner(name, capabilities=replace(LINUX, cost_micros_per_hour=micros))


@pytest.mark.requirement("SCO-033")
def test_the_tie_break_is_stable_and_differs_from_job_to_job() -> None:
    assert tie_break("job_1", "rnr_1") == (hash64("rnr_1") - hash64("job_1")) % 2**64
    assert hash64("forgeyard") == HASH
    runners = [f"rnr_{number}" for number in range(10)]
    winners = {
        min(runners, key=lambda runner: tie_break(f"job_{job}", runner)) for job in range(200)
    }
    assert len(winners) > 5
