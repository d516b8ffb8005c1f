"""A scheduler that starts anew knows what one knows that ran all along: all of it is in SQL."""

import random

import pytest
import sqlalchemy as sa

from activities import contracts
from activities.scheduling import SchedulingActivities
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.scheduler import place
from forgeyard.scheduler.grant import Verdict
from forgeyard.store import snapshot, tables
from forgeyard.store.engine import read
from forgeyard.store.runner_cache import RunnerCache
from tests.builders import PARTITION, RNG, a_job_spec, some_resources
from tests.leasing import Desk

pytestmark = pytest.mark.integration
REQUEST = contracts.Partition(partition=PARTITION)


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def a_scheduler(desk: Desk) -> SchedulingActivities:
    """Start a scheduler, as a worker's process does: it knows nothing."""
    return SchedulingActivities(desk.engine, desk.policy, rng=RNG)


def cycle(desk: Desk, scheduler: SchedulingActivities) -> int:
    plan = scheduler.plan_cycle(REQUEST)
    order = contracts.Cycle(cycle_id=plan.cycle_id, partition=PARTITION)
    return scheduler.commit_cycle(order).granted if plan.planned else 0


def seen(desk: Desk, cache: RunnerCache) -> tuple[tuple[object, ...], place.Plan]:
    """Look at everything through what a process remembers; tell what it would do."""
    with read(desk.engine) as connection:
        found = snapshot.load(connection, PARTITION, desk.policy, read_runners=cache.read)
    jobs = [job.job_id for job in found.jobs]
    held = (found.scopes, found.keys, found.held_room, found.parked)
    return (jobs, found.runners, held), place.plan(found, SchedulingPolicy())


@pytest.mark.requirement("RCN-001", "RCN-003", "RCN-004", "RCN-018", "INV-016")
@pytest.mark.parametrize("seed", range(3))
def test_a_fresh_process_sees_and_plans_what_the_old_one_did(desk: Desk, seed: int) -> None:
    rng, cache = random.Random(seed), RunnerCache()
    for number in range(4):
        desk.register(f"runner-{number}", total=some_resources(cpu=4_000, slots=4))
    old = a_scheduler(desk)
    for number in range(4):
        desk.submit(*(a_job_spec(f"job-{number}-{n}") for n in range(rng.randint(1, 4))))
        cycle(desk, old)
        seen(desk, cache)
        for lease in rng.sample(desk.leases(state="offered"), 1):
            desk.accept(lease)
            desk.complete(lease)
    desk.submit(a_job_spec("last"), a_job_spec("large", resources=some_resources(cpu=3_000)))
    found, plan = seen(desk, cache)
    fresh, fresh_plan = seen(desk, RunnerCache())
    assert fresh == found
    assert fresh_plan.decisions == plan.decisions
    assert cycle(desk, a_scheduler(desk)) == len(plan.decisions) > 0


@pytest.mark.requirement("RCN-019")
def test_a_plan_that_nobody_committed_does_no_harm_and_is_void_once_its_jobs_are_placed(
    desk: Desk,
) -> None:
    desk.register()
    desk.submit()
    unfinished = a_scheduler(desk).plan_cycle(REQUEST)
    assert not desk.rows(tables.leases)
    successor = a_scheduler(desk)
    assert cycle(desk, successor) == 1
    outcome = desk.commit(unfinished.cycle_id)
    assert [verdict for _, verdict in outcome.verdicts] == [Verdict.JOB_GONE]
    assert len(desk.leases()) == 1
