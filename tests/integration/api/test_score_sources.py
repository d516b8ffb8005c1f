"""Every term of the score is moved by what an agent really reports, and then another runner wins.

Two runners alike; a job that waits. The cycle's plan names a winner by the stable tie-break. Then
something is reported over the agent API that speaks for the other one, or against the winner, and
the next plan of the very same job, committed by the cycle's own activities, goes to the other.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.model.equipment import Equipment, Gpu
from forgeyard.model.holdings import Holdings, bloom_of
from forgeyard.model.location import Location, ReliabilityClass
from forgeyard.model.policy import SchedulingPolicy, ScoreWeights
from forgeyard.model.protocol import Report
from forgeyard.model.runner import ResourcePressure, RunnerHealth
from forgeyard.scheduler.score import TERMS
from forgeyard.store import tables
from forgeyard.store.engine import write
from tests.builders import a_registration
from tests.integration.api.ground import Ground, able
from tests.integration.api.house import House, a_document, digest_of
from tests.scraping import growth, scrape_here

pytestmark = pytest.mark.integration
SOURCE = b"the files of a run" * 9
KEY = digest_of(b"key")
POLICY = SchedulingPolicy(batch=1, locality_bytes=len(SOURCE))
"""One job at a time, so that work for a named runner, which comes first, comes alone."""
CACHES = {"pip": {"path": ".cache", "key": "a.lock"}}


Lift = Callable[[Ground, str, str], Awaitable[None]]


async def load(ground: Ground, winner: str, other: str) -> None:
    """The winner is given other work."""
    await ground.work(winner)


async def pressure(ground: Ground, winner: str, other: str) -> None:
    """The winner says that its processors are short."""
    await ground.beat(winner, pressure=ResourcePressure.CPU)


async def packing(ground: Ground, winner: str, other: str) -> None:
    """The other has begun work already, and the policy fills runners up."""
    await ground.work(other)


async def locality(ground: Ground, winner: str, other: str) -> None:
    """The other has fetched the source."""
    await ground.beat(other, holdings=Holdings(objects={digest_of(SOURCE): len(SOURCE)}))


async def locality_in_a_bloom_set(ground: Ground, winner: str, other: str) -> None:
    """The other has it among more than it can list."""
    await ground.beat(other, holdings=Holdings(others=bloom_of([digest_of(SOURCE)])))


async def site(ground: Ground, winner: str, other: str) -> None:
    """The other stands in the rack of the storage."""
    await ground.register(other, Location(host=other, site="rack-1"))


async def region(ground: Ground, winner: str, other: str) -> None:
    """The other is in the region of the storage."""
    await ground.register(other, Location(host=other, site="rack-7", region="eu"))


async def cache(ground: Ground, winner: str, other: str) -> None:
    """A job of that name asked for a cache, and the other has it warm."""
    for name in (winner, other):
        held = await ground.work(name, caches=CACHES)
        path = f"/agent/v1/leases/{held.lease_id}/caches/pip/{KEY}"
        assert (await ground.house.agents.head(path, params=held.holder)).status_code == 404
        await ground.house.tell(held, "complete", outcome="failed", failure_class="user_command")
    await ground.beat(other, holdings=Holdings(closures=(KEY,)))


async def reliability(ground: Ground, winner: str, other: str) -> None:
    """The winner broke what it was given."""
    held = await ground.work(winner)
    await ground.house.tell(held, "complete", outcome="failed", failure_class="sandbox_setup")


async def health(ground: Ground, winner: str, other: str) -> None:
    """The winner says itself that something is wrong with it."""
    await ground.beat(winner, health=RunnerHealth.DEGRADED, health_reason="clock")


async def fairness(ground: Ground, winner: str, other: str) -> None:
    """The other is put into a pool of the project's own."""
    row = {"pool_id": "pol_own", "name": "own", "owner_id": "prj_default", "created_at": 1}
    with write(ground.house.engine) as connection:
        connection.execute(sa.insert(tables.pools).values(row))
    ground.overwrite(tables.runners, {"name": other}, pool_id="pol_own")


async def cost(ground: Ground, winner: str, other: str) -> None:
    """The other is the cheaper one."""
    await ground.report(winner, cost_micros_per_hour=400_000)
    await ground.report(other, cost_micros_per_hour=100_000)


async def spot_preferred(ground: Ground, winner: str, other: str) -> None:
    """The other may be taken away at any time, which the job likes."""
    await ground.report(other, reliability=ReliabilityClass.PREEMPTIBLE)


async def spot_avoided(ground: Ground, winner: str, other: str) -> None:
    """The winner may be taken away at any time, which the job does not like."""
    await ground.report(winner, reliability=ReliabilityClass.PREEMPTIBLE)


async def affinity(ground: Ground, winner: str, other: str) -> None:
    """A job of that name has succeeded on the other."""
    held = await ground.work(other)
    await ground.house.tell(held, "complete", outcome="succeeded")


async def scarcity(ground: Ground, winner: str, other: str) -> None:
    """The winner turns out to have the only GPU."""
    await ground.report(winner, equipment=Equipment(gpus=(Gpu(model="A100"),)))


async def scarce_memory(ground: Ground, winner: str, other: str) -> None:
    """The winner turns out to have by far the most memory, as little of it as is free."""
    usual = a_registration(winner)
    total = replace(usual.total, memory=4 * usual.total.memory)
    kept = replace(usual.headroom, memory=0)
    report = Report(capabilities=able(winner), total=total, headroom=kept)
    await ground.beat(winner, report=report)


CASES = [
    pytest.param(lift, term, job, id=lift.__name__)
    for lift, term, job in (
        (load, "load", {}),
        (load, "headroom", {}),
        (pressure, "load", {}),
        (packing, "packing", {}),
        (locality, "locality", {}),
        (locality_in_a_bloom_set, "locality", {}),
        (site, "locality", {}),
        (region, "locality", {}),
        (cache, "cache", {}),
        (reliability, "reliability", {}),
        (health, "reliability", {}),
        (fairness, "fairness", {}),
        (cost, "cost", {}),
        (cost, "cost", {"priority": "low"}),
        (spot_preferred, "spot", {"spot": "preferred"}),
        (spot_avoided, "spot", {"spot": "avoided"}),
        (affinity, "affinity", {}),
        (scarcity, "scarcity", {}),
        (scarce_memory, "scarcity", {}),
    )
]


def weighing(term: str) -> SchedulingPolicy:
    """Weigh all terms as usual, but for packing, which undoes what `headroom` says."""
    if term in ("packing", "headroom"):
        return replace(POLICY, weights=ScoreWeights(**{name: int(name == term) for name in TERMS}))
    return POLICY


def without(policy: SchedulingPolicy, term: str) -> SchedulingPolicy:
    """Weigh all others as before; a job side by side takes room as well."""
    weights = {name: getattr(policy.weights, name) for name in TERMS} | {term: 0}
    if term == "load":
        weights["headroom"] = 0
    return replace(policy, weights=ScoreWeights(**weights))


@pytest.mark.parametrize(("lift", "term", "job"), CASES)
@pytest.mark.requirement("ACC-007", "SCO-001", "SCO-002", "SCO-003", "SCO-005", "SCO-006")
@pytest.mark.requirement("SCO-007", "SCO-009", "SCO-010", "SCO-011", "SCO-012", "SCO-013")
@pytest.mark.requirement("SCO-014", "SCO-016", "SCO-019", "SCO-021", "SCO-022", "SCO-024")
@pytest.mark.requirement("SCO-025", "SCO-027", "SCO-030", "SCO-034", "ACC-006", "ACC-015")
@pytest.mark.requirement("SPT-001", "SPT-005", "SPT-006", "RUN-013", "FOP-030")
@pytest.mark.requirement("PRI-013", "PRI-014", "PRI-020", "PRI-033", "SCO-029", "PHA-003")
async def test_what_an_agent_reports_makes_another_runner_win(
    sqlite_house: House, lift: Lift, term: str, job: dict[str, object]
) -> None:
    ground = Ground(house=sqlite_house, policy=weighing(term))
    for name in ("one", "two"):
        await ground.register(name)
    await sqlite_house.people.put(f"/v1/blobs/{digest_of(SOURCE)}", content=SOURCE)
    run = await sqlite_house.submit(a_document(build=job), source_digest=digest_of(SOURCE))
    _, winner = ground.plan()
    other = {"one": "two", "two": "one"}[winner]
    await lift(ground, winner, other)
    weighed, ground.policy = ground.policy, without(ground.policy, term)
    assert ground.plan()[1] == winner, "another term than this one speaks for the other"
    ground.policy = weighed
    assert ground.cycle() == 1
    assert ground.placed(run["run_id"]) == [other]


@pytest.mark.requirement("MET-016")
async def test_how_near_jobs_are_put_to_their_inputs_is_published(sqlite_house: House) -> None:
    ground = Ground(house=sqlite_house, policy=weighing("locality"))
    for name in ("one", "two"):
        await ground.register(name)
    await sqlite_house.people.put(f"/v1/blobs/{digest_of(SOURCE)}", content=SOURCE)
    published = "forgeyard_scheduler_placement_locality_score"
    sums = list[float]()
    for reported in (False, True):
        if reported:
            await locality(ground, "one", "two")
        await sqlite_house.submit(a_document(build={}), source_digest=digest_of(SOURCE))
        before = scrape_here()
        assert ground.cycle() == 1
        counted = growth(before, scrape_here())
        assert counted(f"{published}_count") == 1
        sums.append(counted(f"{published}_sum"))
    assert sums[0] < sums[1] <= 1_000
