"""Partitions have loops of their own; what tenants may hold, and whose turn it is, they share."""

from collections import Counter

import pytest
import sqlalchemy as sa

from forgeyard.scheduler import place
from forgeyard.scheduler.grant import Verdict
from forgeyard.store import snapshot, tables
from forgeyard.store.commit import CommitOutcome, save_plan
from forgeyard.store.engine import read
from tests.builders import RNG, a_job_spec, some_resources
from tests.integration.store.test_commit_races import at_once
from tests.leasing import Desk
from tests.sharing import declare, submit_to, used

pytestmark = pytest.mark.integration
LINUX, MAC = "linux", "mac"


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def planned(desk: Desk, partition: str) -> int:
    with read(desk.engine) as connection:
        seen = snapshot.load(connection, partition, desk.policy)
    assert seen.partition == partition
    digests = (seen.digest(), desk.policy.digest())
    plan = place.plan(seen, desk.policy)
    return desk.change(save_plan, partition, plan, *digests, rng=RNG).cycle_id


def cycle(desk: Desk, partition: str) -> CommitOutcome:
    return desk.commit(planned(desk, partition))


def submit(desk: Desk, path: str, partition: str, count: int) -> None:
    specs = (a_job_spec(f"job-{number}") for number in range(count))
    submit_to(desk, path, *specs, partition=partition)


def a_wide_runner(desk: Desk, slots: int) -> None:
    desk.register(total=some_resources(cpu=90_000, memory=2**45, disk=2**45, slots=slots))


@pytest.mark.requirement("FAR-010")
def test_two_partitions_that_planned_at_once_keep_one_quota_together(desk: Desk) -> None:
    a_wide_runner(desk, 50)
    path = declare(desk, "acme", max_jobs=3)
    for partition in (LINUX, MAC):
        submit(desk, path, partition, 5)
    plans = [planned(desk, partition) for partition in (LINUX, MAC)]
    outcomes = at_once([lambda cycle_id=cycle_id: desk.commit(cycle_id) for cycle_id in plans])
    verdicts = Counter(verdict for one in outcomes for _, verdict in one.verdicts)
    assert verdicts == {Verdict.GRANTED: 3, Verdict.QUOTA_BLOCKED: 3}
    assert used(desk, path).jobs == 3
    assert [cycle(desk, partition).granted for partition in (LINUX, MAC)] == [0, 0]
    lease = desk.leases()[0]
    desk.accept(lease)
    desk.complete(lease)
    assert cycle(desk, MAC).granted + cycle(desk, LINUX).granted == 1


@pytest.mark.requirement("FAR-010")
@pytest.mark.parametrize(("first", "second"), [("acme", "umbrella"), ("umbrella", "acme")])
def test_service_in_one_partition_counts_when_turns_are_taken_in_another(
    desk: Desk, first: str, second: str
) -> None:
    a_wide_runner(desk, 5)
    served, patient = declare(desk, first), declare(desk, second)
    submit(desk, served, LINUX, 4)
    assert cycle(desk, LINUX).granted == 4
    submit(desk, served, MAC, 2)
    submit(desk, patient, MAC, 2)
    assert cycle(desk, MAC).granted == 1, "one place is left"
    assert (used(desk, served).jobs, used(desk, patient).jobs) == (4, 1)


def test_a_partition_looks_at_its_own_jobs_alone_and_wakes_by_itself(desk: Desk) -> None:
    a_wide_runner(desk, 6)
    path = declare(desk, "acme")
    submit(desk, path, LINUX, 1)
    submit(desk, path, MAC, 1)
    assert {row["partition"] for row in desk.rows(tables.wakes)} == {LINUX, MAC}
    assert cycle(desk, LINUX).granted == 1
    states = {row["partition"]: row["state"] for row in desk.rows(tables.jobs)}
    assert states == {LINUX: "leased", MAC: "eligible"}
