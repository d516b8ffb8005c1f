"""Partitions plan by themselves, each its own jobs, and are fair together: shares are one book."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.scheduler import place
from forgeyard.store import snapshot, tables
from forgeyard.store.commit import save_plan
from forgeyard.store.engine import read
from tests.builders import RNG, a_job_spec, some_resources
from tests.integration.store.test_commit_races import at_once
from tests.leasing import POLICY, Desk
from tests.sharing import declare, limit, submit_to, used

pytestmark = pytest.mark.integration
WIDE = {"total": some_resources(cpu=90_000, memory=2**45, disk=2**45, slots=90)}


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def plan(desk: Desk, partition: str, *, batch: int) -> int:
    """Plan as the scheduler of a partition does."""
    policy = replace(POLICY, batch=batch)
    with read(desk.engine) as connection:
        seen = snapshot.load(connection, partition, policy)
    digests = (seen.digest(), POLICY.digest())
    made = place.plan(seen, policy)
    return desk.change(save_plan, partition, made, *digests, rng=RNG).cycle_id


def jobs(count: int) -> list[object]:
    return [a_job_spec(f"job-{number}") for number in range(count)]


@pytest.mark.requirement("FAR-010")
@pytest.mark.parametrize("elsewhere", [0, 8])
def test_who_was_served_in_one_partition_comes_after_others_in_another(
    desk: Desk, elsewhere: int
) -> None:
    """Of two tenants in the west the first comes first, unless it was served in the east."""
    desk.register(**WIDE)
    greedy, patient = declare(desk, "greedy"), declare(desk, "patient")
    if elsewhere:
        submit_to(desk, greedy, *jobs(elsewhere), partition="east")
        assert desk.commit(plan(desk, "east", batch=elsewhere)).granted == elsewhere
    first = submit_to(desk, greedy, *jobs(1), partition="west")
    second = submit_to(desk, patient, *jobs(1), partition="west")
    assert desk.commit(plan(desk, "west", batch=1)).granted == 1
    (served,) = desk.rows(tables.jobs, partition="west", state="leased")
    assert served["run_id"] == (second if elsewhere else first)


@pytest.mark.requirement("FAR-010", "LSE-005")
def test_partitions_that_commit_at_once_share_runners_and_quotas_exactly(desk: Desk) -> None:
    desk.register(**WIDE)
    limit(desk, declare(desk, "a"), max_jobs=7)
    queue = "a/org/prj/main"
    partitions = ("east", "west", "south")
    for partition in partitions:
        submit_to(desk, queue, *jobs(5), partition=partition)
    plans = [plan(desk, partition, batch=5) for partition in partitions]
    outcomes = at_once([lambda cycle_id=cycle_id: desk.commit(cycle_id) for cycle_id in plans])
    assert sum(outcome.granted for outcome in outcomes) == used(desk, queue).jobs == 7
    of = {lease.job_id: lease for lease in desk.leases()}
    assert len(of) == 7
