"""S4 through the store: certificate, registration, heartbeat, snapshot, plan and commit."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest
import sqlalchemy as sa

from forgeyard.fleet import admission
from forgeyard.model.capability import Requirements, TrustClass
from forgeyard.model.enrolment import Admission, Grant
from forgeyard.model.job import JobSpec
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.protocol import Heartbeat
from forgeyard.store import codec, pools, runners, tables
from forgeyard.store.engine import database_now, read
from forgeyard.store.entrance import Entry
from forgeyard.store.pools import PoolRules
from tests.builders import LEASE_POLICY, RNG
from tests.leasing import Desk
from tests.spoofing import (
    VAULT,
    Sort,
    report_of,
    some_claim,
    some_grant,
    some_job,
    without_trusted,
    wrongs,
)
from tests.trusting import INTENT, enrolled

pytestmark = pytest.mark.integration
ROOMY = SchedulingPolicy(batch=1_000)


def enter(desk: Desk, rng: Random, name: str, grant: Grant) -> None:
    """Enrol a machine that claims anything, let it say that it is well, and claim it all again."""
    claim = some_claim(rng, name)
    if rng.random() < 0.7:
        claim = without_trusted(claim)

    def come(connection: sa.Connection) -> None:
        issued = enrolled(connection, name, grant)
        session = runners.register(
            connection,
            replace(claim, clock_ms=database_now(connection)),
            policy=LEASE_POLICY,
            rng=RNG,
            entry=Entry(runner_id=issued.runner_id),
        )
        said = Heartbeat(report=report_of(some_claim(rng, name)))
        runners.heartbeat(connection, session.session_id, said)

    desk.change(come)


def placed(desk: Desk) -> list[tuple[Sort, Requirements, str, str]]:
    """List placements: sort and requirements of the job, its runner and that one's pool."""
    leases, jobs, machines, kept = tables.leases, tables.jobs, tables.runners, tables.pools
    query = (
        sa.select(jobs.c.name, jobs.c.spec, machines.c.name, kept.c.name)
        .select_from(leases)
        .join(jobs, jobs.c.job_id == leases.c.job_id)
        .join(machines, machines.c.runner_id == leases.c.runner_id)
        .join(kept, kept.c.pool_id == machines.c.pool_id)
    )
    with read(desk.engine) as connection:
        return [
            (Sort(name.partition("-")[0]), codec.decode(JobSpec, spec).requires, runner, pool)
            for name, spec, runner, pool in connection.execute(query)
        ]


def found(engine: sa.Engine, machines: int, hits: Counter[str]) -> Counter[str]:
    """Let machines in and jobs wait, run one cycle, and say what is wrong with its grants."""
    rng, desk = Random(4), Desk(engine, ROOMY)
    vault = PoolRules(trust=TrustClass.SIGNING_RESTRICTED)
    desk.change(pools.create, VAULT, vault, INTENT, rng=RNG)
    grants = {f"runner-{place}": some_grant(rng) for place in range(machines)}
    for name, grant in grants.items():
        enter(desk, rng, name, grant)
    for sort in Sort:
        # Plain jobs go wherever there is room: many of them would leave none to the others.
        count = machines // 4 if sort is Sort.PLAIN else machines
        specs = [some_job(rng, f"{sort}-{place}", sort) for place in range(count)]
        desk.submit(*specs, name=str(sort), proposal=sort is Sort.PROPOSAL)
    hits["granted"] = desk.cycle().granted
    told = Counter[str]()
    for sort, wanted, runner, pool in placed(desk):
        hits[f"{sort} placed"] += 1
        told.update(wrongs(sort, wanted, grants[runner], pool))
    table = tables.runners
    counted = sa.select(table.c.admission, sa.func.count()).group_by(table.c.admission)
    with read(engine) as connection:
        hits.update({name: number for name, number in connection.execute(counted)})
    return told


@pytest.mark.requirement("DEV-012", "INV-055")
def test_three_hundred_machines_that_lie_get_nothing_by_it(
    sqlite_engine: sa.Engine, record_property: Callable[[str, object], None]
) -> None:
    """S4."""
    hits: Counter[str] = Counter()
    assert found(sqlite_engine, 300, hits) == {}
    record_property("S4, leased", dict(hits))
    assert hits[Admission.VERIFIED] + hits[Admission.REJECTED] == 300
    assert all(hits[f"{sort} placed"] >= 20 for sort in Sort)
    assert min(hits[Admission.VERIFIED], 10 * hits[Admission.REJECTED]) >= 100


def test_the_judge_sees_trust_that_was_taken_from_reports(
    sqlite_engine: sa.Engine, record_property: Callable[[str, object], None]
) -> None:
    """S4: without the grants over the reports, proposals reach runners for signing."""
    with patch.object(admission, "granted", lambda report, _grant: report):
        seen = found(sqlite_engine, 40, Counter())
    record_property("S4, leased by reports", dict(seen))
    assert seen["a proposal job on a runner for signing_restricted"] > 0
