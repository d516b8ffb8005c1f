"""F5: PostgreSQL is killed while leases are committed: what was acknowledged is there, wholly."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.store import tables
from tests.chaos.outage import KilledServer, killable_postgresql, pid_of
from tests.chaos.plant import Plant, a_job, lives, until
from tests.chaos.rounds import Rounds
from tests.chaos.standin import AFTER_COMMIT, KILLED_WITHIN_COMMIT, TALLIED

# Soak, for each moment is a server killed, recovered, and 24 jobs on two agents: minutes.
pytestmark = [pytest.mark.integration, pytest.mark.soak]
JOBS = 24


@pytest.fixture(scope="module")
def gone() -> Iterator[tuple[str, KilledServer]]:
    """Run a server whose commits survive a kill, and give the way to kill it."""
    with killable_postgresql("killed") as it:
        yield it


@pytest.fixture(scope="module")
def database(gone: tuple[str, KilledServer]) -> str:
    """Give the database to the plant."""
    return gone[0]


@pytest.fixture
def outage(gone: tuple[str, KilledServer]) -> Iterator[KilledServer]:
    """Give the way to take it away; it is back afterwards, also after a failure."""
    yield gone[1]
    gone[1].end()


@pytest.mark.requirement("RCN-019", "INV-022", "GAT-002")
@pytest.mark.parametrize("moment", [KILLED_WITHIN_COMMIT, AFTER_COMMIT, TALLIED])
def test_leases_are_there_wholly_or_not_at_all_and_those_that_were_acknowledged_are(
    plant: Plant, rounds: Rounds, outage: KilledServer, moment: str
) -> None:
    """F5: inside the transaction, right after it, and at any time while others are under way."""
    plant.until_online(plant.start_agent(), plant.start_agent())
    for rng in rounds.of(f"the server died {moment.replace('_', ' ')}, with jobs yet to be leased"):
        demand_whole_commits(plant, rounds, rng, outage, moment)


def demand_whole_commits(
    plant: Plant, rounds: Rounds, rng: Random, outage: KilledServer, moment: str
) -> None:
    tally = plant.file(f"tally-{rng.random()}")
    postmaster = pid_of(outage.server)
    plant.processes["worker"].end()
    strikes = {} if moment == TALLIED else {"victims": [postmaster], "survives": True}
    plant.start_worker(fault=moment, tally=str(tally), **strikes)
    run_id = plant.submit(**{f"job_{n}": a_job("sleep 0.2") for n in range(JOBS)})
    if moment == TALLIED:
        until(tally.exists, every_s=0.005, or_say=plant.tails)
        time.sleep(rng.uniform(0, 1.0))
        outage.begin()
    until(lambda: not lives(postmaster), every_s=0.01, or_say=plant.tails)
    killed_at = time.monotonic()
    outage.end()
    until(plant.has_database, every_s=0.02, or_say=plant.tails)
    leased = len(plant.leases(run_id))
    demand_whole(plant, tally)
    if leased < JOBS:
        rounds.hit()
    until(lambda: len(plant.leases(run_id)) > leased, every_s=0.02, or_say=plant.tails)
    rounds.took("killed server to next lease granted", time.monotonic() - killed_at, goal_s=90)
    plant.until_state(run_id, "succeeded")
    plant.demand_rest()
    demand_whole(plant, tally)


def demand_whole(plant: Plant, tally: Path) -> None:
    """Insist that every cycle has all of its leases or none, and those that were told, theirs."""
    cycles, planned, leases = tables.cycles, tables.placements, tables.leases
    there = sa.func.count(leases.c.lease_id)
    promised = sa.func.count(sa.case((planned.c.verdict == "granted", 1)))
    query = (
        sa.select(cycles.c.cycle_id, cycles.c.granted, promised.label("promised"))
        .add_columns(there.label("there"), cycles.c.committed_at)
        .join(planned, planned.c.cycle_id == cycles.c.cycle_id)
        .outerjoin(leases, leases.c.lease_id == planned.c.lease_id)
        .group_by(cycles.c.cycle_id, cycles.c.granted, cycles.c.committed_at)
    )
    found = {row["cycle_id"]: row for row in plant.rows(query)}
    for row in found.values():
        granted = 0 if row["committed_at"] is None else row["granted"]
        assert row["there"] == row["promised"] == granted, row
    told = tally.read_text().splitlines() if tally.exists() else []
    for cycle_id, granted in (map(int, line.split()) for line in told):
        assert granted == 0 or found[cycle_id]["there"] == granted
