"""Where jobs may be in view of other jobs and of earlier attempts, over the API and real cycles."""

import pytest
import sqlalchemy as sa

from forgeyard.model.holdings import Holdings
from forgeyard.model.location import Location, ReliabilityClass
from forgeyard.model.policy import SchedulingPolicy, ScoreWeights
from forgeyard.model.runner import RunnerHealth
from forgeyard.scheduler.score import TERMS
from forgeyard.store import settle, tables
from forgeyard.store.engine import read, write
from tests.integration.api.ground import Ground
from tests.integration.api.house import Held, House, a_document, digest_of

pytestmark = pytest.mark.integration
POLICY = SchedulingPolicy()
MATRIX = {"matrix": {"shard": ["1", "2", "3"]}}


@pytest.fixture
def ground(sqlite_house: House) -> Ground:
    """Begin without a runner."""
    return Ground(house=sqlite_house, policy=POLICY)


def reasons(ground: Ground, run_id: str) -> dict[str, str]:
    """Read why the jobs of a run wait."""
    query = sa.select(tables.jobs).where(tables.jobs.c.run_id == run_id)
    with read(ground.house.engine) as connection:
        rows = connection.execute(query).mappings()
        return {row["name"]: row["diagnosis"] for row in rows if row["diagnosis"]}


async def take(ground: Ground, name: str) -> list[Held]:
    """Accept everything that a runner is offered."""
    session_id = ground.sessions[name]
    offers = (await ground.house.poll(session_id, wait_ms=200))["offers"]
    held = [
        Held(lease_id=it["lease_id"], session_id=session_id, epoch=it["epoch"], offer=it)
        for it in offers
    ]
    for one in held:
        assert (await ground.house.tell(one, "accept")).status_code == 200
    return held


async def lose(ground: Ground, name: str) -> None:
    """Let a runner break whatever it was given, through its own fault."""
    for held in await take(ground, name):
        await ground.house.tell(held, "complete", outcome="failed", failure_class="infrastructure")
        with write(ground.house.engine) as connection:
            settle.settle(connection, held.offer["attempt_id"], policy=POLICY.lease)


@pytest.mark.requirement("SCO-017", "SCO-018")
async def test_a_shard_goes_where_no_other_is_once_hosts_are_known(ground: Ground) -> None:
    alone = ScoreWeights(**{name: int(name == "spread") for name in TERMS})
    ground.policy = SchedulingPolicy(batch=1, weights=alone)
    await ground.register("first", Location(host="h1"))
    run = await ground.house.submit(a_document(test={"strategy": MATRIX}))
    assert ground.cycle() == 1
    for name in ("one", "two"):
        await ground.register(name, Location())
    _, winner = ground.plan()
    other = {"one": "two", "two": "one"}.get(winner)
    assert other is not None, "the first has a shard already"
    await ground.register(winner, Location(host="h1"))
    await ground.register(other, Location(host="h2"))
    assert ground.cycle() == 1
    assert ground.placed(run["run_id"]) == ["first", other]


@pytest.mark.requirement("SCO-017", "SCO-018")
@pytest.mark.case("SP-041")
async def test_shards_that_must_be_spread_stay_so_when_two_are_tried_again(ground: Ground) -> None:
    regions = {"a": "eu", "b": "us", "c": "ap", "d": "eu"}
    for name, region in regions.items():
        await ground.register(name, Location(host=name, region=region))
    spread = {"over": "region", "required": True}
    job = {"strategy": {**MATRIX, "spread": spread}, "retry": {"max-attempts": 9}}
    run = await ground.house.submit(a_document(test=job))
    assert ground.cycle() == 3
    placed = ground.placed(run["run_id"])
    assert sorted(regions[name] for name in placed) == ["ap", "eu", "us"]
    for name in placed[:2]:
        await lose(ground, name)
    ground.cycle()
    still = {regions[placed[2]]}
    again = [regions[name] for name in ground.placed(run["run_id"])[3:]]
    assert len(again) == 2
    assert not still & set(again)
    assert len(set(again)) == len(again)


@pytest.mark.requirement("SCO-017")
async def test_a_shard_without_a_place_of_its_own_waits_and_says_so(ground: Ground) -> None:
    for name in ("a", "b"):
        await ground.register(name, Location(host="h1"))
    await ground.register("c", Location())
    spread = {"over": "host", "required": True}
    run = await ground.house.submit(a_document(test={"strategy": {**MATRIX, "spread": spread}}))
    assert ground.cycle() == 1
    told = reasons(ground, run["run_id"])
    assert len(told) == 2
    assert all("BOUND_TO_OTHERS" in it and "free of other shards" in it for it in told.values())


@pytest.mark.requirement("RTY-006", "RTY-007")
@pytest.mark.parametrize("by", ["runner", "host", "site", "region"])
async def test_a_reproduction_runs_somewhere_else_or_waits(ground: Ground, by: str) -> None:
    same = Location(host="h1", site="s1", region="r1")
    await ground.register("one", same)
    apart = {"distinct": [{"jobs": ["build"], "by": by}]}
    run = await ground.house.submit(a_document(build={}, again=apart))
    assert ground.cycle() == 1
    (told,) = reasons(ground, run["run_id"]).values()
    assert "apart from" in told
    if by != "runner":
        await ground.register("near", same)
        assert ground.cycle() == 0
        await ground.register("unknown", Location())
        assert ground.cycle() == 0
    await ground.register("far", Location(host="h2", site="s2", region="r2"))
    assert ground.cycle() == 1
    assert ground.placed(run["run_id"]) == ["one", "far"]


@pytest.mark.requirement("FAR-029")
async def test_a_job_that_needs_a_neighbour_runs_on_its_host_and_nowhere_else(
    ground: Ground,
) -> None:
    for name, host in (("a", "h1"), ("b", "h2"), ("c", "h2"), ("d", "h3")):
        await ground.register(name, Location(host=host))
    service = {"requires": {"labels": {"runner": "b"}}}
    jobs = {f"client-{number}": {"with": "service"} for number in range(3)}
    run = await ground.house.submit(
        {
            "name": "pair",
            "jobs": {
                name: {"steps": [{"run": "true"}], **job}
                for name, job in {**jobs, "service": service}.items()
            },
        }
    )
    assert ground.cycle() == 1, "the service alone, for nobody has a place beside it yet"
    told = reasons(ground, run["run_id"])
    assert len(told) == 3
    assert all("must be beside" in it for it in told.values())
    assert ground.cycle() == 3
    placed = ground.placed(run["run_id"])
    assert placed[0] == "b"
    assert set(placed[1:]) <= {"b", "c"}


@pytest.mark.requirement("RTY-001", "RTY-002", "RTY-004", "RTY-005", "ACC-014", "INV-033")
@pytest.mark.requirement("PRI-019", "PHA-007")
@pytest.mark.requirement("GAT-007")
async def test_retries_move_away_from_runner_host_site_and_region_and_never_get_stuck(
    ground: Ground,
) -> None:
    """Every runner that is left is worse in every other way, and gets the job all the same."""
    places = {
        "first": Location(host="h1", site="s1", region="r1"),
        "host": Location(host="h1", site="s1", region="r1"),
        "site": Location(host="h2", site="s1", region="r1"),
        "region": Location(host="h3", site="s2", region="r1"),
        "world": Location(host="h4", site="s3", region="r2"),
    }
    await ground.register("first", places["first"])
    job = {"retry": {"max-attempts": 9}}
    run = await ground.house.submit(a_document(build=job))
    assert ground.cycle() == 1
    expected = ["first"]
    for name in ("host", "site", "region", "world"):
        await ground.register(name, places[name])
        await ground.report(name, cost_micros_per_hour=10**6)
        await ground.beat(name, health=RunnerHealth.DEGRADED, health_reason="slow")
        await lose(ground, expected[-1])
        assert ground.cycle() == 1
        expected.append(name)
        assert ground.placed(run["run_id"]) == expected
    await lose(ground, "world")
    assert ground.cycle() == 1, "avoided everywhere is no reason to wait"
    assert ground.placed(run["run_id"])[-1] in places


@pytest.mark.requirement("RTY-003")
@pytest.mark.case("SP-042")
async def test_a_failure_of_the_jobs_own_avoids_nobody(ground: Ground) -> None:
    await ground.register("one")
    job = {"retry": {"max-attempts": 9, "on": ["test_failure"]}}
    run = await ground.house.submit(a_document(build=job))
    assert ground.cycle() == 1
    (held,) = await take(ground, "one")
    await ground.house.tell(held, "complete", outcome="failed", failure_class="test_failure")
    with write(ground.house.engine) as connection:
        settle.settle(connection, held.offer["attempt_id"], policy=POLICY.lease)
    await ground.register("two")
    await ground.report("two", cost_micros_per_hour=10**6)
    await ground.report("one", cost_micros_per_hour=1)
    assert ground.cycle() == 1
    assert ground.placed(run["run_id"]) == ["one", "one"]


@pytest.mark.requirement("SPT-002", "SPT-005", "ACC-060")
@pytest.mark.parametrize("job", [{"spot": "forbidden"}, {"priority": "release_critical"}])
async def test_a_machine_that_may_go_never_gets_what_must_not_be_there(
    ground: Ground, job: dict[str, object]
) -> None:
    await ground.register("spot")
    await ground.report("spot", reliability=ReliabilityClass.PREEMPTIBLE)
    run = await ground.house.submit(a_document(build=job))
    assert ground.cycle() == 0
    (told,) = reasons(ground, run["run_id"]).values()
    assert "it needs a machine that stays" in told
    await ground.register("stays")
    assert ground.cycle() == 1
    assert ground.placed(run["run_id"]) == ["stays"]


@pytest.mark.requirement("SPT-002")
async def test_without_its_guard_the_policy_lets_release_jobs_choose(ground: Ground) -> None:
    ground.policy = SchedulingPolicy(spot_guard=0)
    await ground.register("spot")
    await ground.report("spot", reliability=ReliabilityClass.PREEMPTIBLE)
    await ground.house.submit(a_document(build={"priority": "release_critical"}))
    assert ground.cycle() == 1


@pytest.mark.requirement("SCO-014", "SCO-015")
@pytest.mark.case("SP-044")
async def test_a_runner_that_breaks_everything_at_once_does_not_eat_the_queue(
    ground: Ground,
) -> None:
    """It is always the emptiest; the others fill up, one of twenty jobs after another."""
    ground.policy = SchedulingPolicy(batch=1)
    names = ("hole", "a", "b", "c", "d", "e")
    for name in names:
        await ground.register(name)
    job = {"retry": {"max-attempts": 20}, "resources": {"cpu": "100m", "memory": "64Mi"}}
    runs = [await ground.house.submit(a_document(build=job)) for _ in range(20)]
    broken = 0
    for _ in range(60):
        if not ground.cycle():
            break
        taken = await ground.house.poll(ground.sessions["hole"], wait_ms=1)
        broken += len(taken["offers"])
        if taken["offers"]:
            await lose(ground, "hole")
    placed = [ground.placed(run["run_id"])[-1] for run in runs]
    print(f"\n{broken} attempts went to the hole")
    assert 1 <= broken <= 5
    assert "hole" not in placed


@pytest.mark.requirement(
    "SCO-008", "ACC-016", "INV-007", "INV-029", "INV-006", "SCO-004", "ACC-008"
)
@pytest.mark.case("SP-003")
async def test_what_a_runner_says_it_holds_never_helps_it_over_what_is_hard(
    ground: Ground,
) -> None:
    source = b"files" * 99
    await ground.house.people.put(f"/v1/blobs/{digest_of(source)}", content=source)
    for name in ("full", "free"):
        await ground.register(name)
    ground.policy = SchedulingPolicy(
        batch=1,
        locality_bytes=1,
        weights=ScoreWeights(**{name: int(name == "locality") for name in TERMS}),
    )
    await ground.work("full", resources={"memory": "7Gi"})
    await ground.beat("full", holdings=Holdings(objects={digest_of(source): len(source)}))
    big = {"resources": {"memory": "2Gi"}}
    run = await ground.house.submit(a_document(build=big), source_digest=digest_of(source))
    assert ground.cycle() == 1
    assert ground.placed(run["run_id"]) == ["free"]
