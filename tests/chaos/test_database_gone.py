"""F7: the database is gone for longer than leases live: an outage of ours, not of runners."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.model.policy import LeasePolicy, SchedulingPolicy, SweepPolicy
from forgeyard.model.units import Millis
from tests.chaos.outage import (
    CutNetwork,
    KilledServer,
    LockedFile,
    Outage,
    own_postgresql,
    socket_of,
)
from tests.chaos.plant import Plant, a_job, until, waits_for
from tests.chaos.proxy import Proxy
from tests.chaos.rounds import Rounds
from tests.conftest import postgresql_database

pytestmark = pytest.mark.integration
GAP_S = 7.0
"""An API process beats every five seconds; longer silence is an outage."""


@pytest.fixture(scope="module")
def outage_s(request: pytest.FixtureRequest) -> float:
    """Tell how long the database is gone."""
    seconds: float = request.config.getoption("--chaos-outage")
    assert seconds > GAP_S
    return seconds


@pytest.fixture(scope="module")
def policy(outage_s: float) -> SchedulingPolicy:
    """Let leases and sessions live shorter than the outage, and agents wait longer."""

    def part(of_it: float) -> Millis:
        return Millis(int(outage_s * 1_000 * of_it))

    lease = LeasePolicy(
        execution_ttl=part(0.4),
        renew_every=Millis(500),
        connectivity_grace=part(1.6),
        longest_back_off=Millis(1_000),
        settle_within=Millis(1_000),
        session_silence=part(0.75),
    )
    sweep = SweepPolicy(period=Millis(500), renewal_gap=Millis(int(GAP_S * 1_000)))
    return SchedulingPolicy(lease=lease, sweep=sweep)


@pytest.fixture(scope="module", params=["sqlite", "postgresql-killed", "postgresql-cut-off"])
def gone(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    sqlite_template: Path,
) -> Iterator[tuple[str, Outage]]:
    """Give a database and the way to take it away."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("database") / "forgeyard.db"
        shutil.copyfile(sqlite_template, path)
        yield f"sqlite:///{path}", LockedFile(path=path)
        return
    with own_postgresql() as (server, url), postgresql_database(url, "gone") as own_url:
        if request.param == "postgresql-killed":
            outage = KilledServer(server=server)
            yield own_url, outage
            outage.end()
            return
        with Proxy(target=socket_of(url)) as proxy:
            yield through(proxy, own_url), CutNetwork(proxy=proxy)


def through(proxy: Proxy, url: str) -> str:
    """Reach a database by way of a proxy."""
    near = sa.make_url(url).set(host="127.0.0.1", port=proxy.port, query={})
    return near.render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def database(gone: tuple[str, Outage]) -> str:
    """Give the database to the plant."""
    return gone[0]


@pytest.fixture(scope="module")
def outage(gone: tuple[str, Outage]) -> Outage:
    """Give the way to take it away."""
    return gone[1]


@pytest.mark.requirement("RCN-020", "ACC-029")
def test_while_the_database_is_gone_jobs_go_on_and_nothing_is_placed_or_lost(
    plant: Plant, rounds: Rounds, outage: Outage, outage_s: float
) -> None:
    agent = plant.start_agent()
    plant.until_online(agent)
    for rng in rounds.of("leases and sessions would have lapsed, but the outage was ours"):
        demand_nothing_placed_or_lost(plant, rounds, rng, outage, outage_s)


def demand_nothing_placed_or_lost(
    plant: Plant, rounds: Rounds, rng: Random, outage: Outage, outage_s: float
) -> None:
    mark = f"{rng.random()}"
    first, second, ended = (plant.file(f"{name}-{mark}") for name in ("a", "b", "ended"))
    label = {"chaos": f"l{rng.randint(1, 10**9)}"}
    run_id = plant.submit(
        ends=a_job(f"{waits_for(first)}\ntouch {ended}"),
        lasts=a_job(waits_for(second)),
        waits=a_job("true", requires={"labels": label}),
    )
    plant.until_running(run_id, "ends", "lasts")
    before = plant.gaps()
    time.sleep(rng.uniform(0, 2))
    outage.begin()
    begun = time.time()
    try:
        plant.start_agent(labels=label)
        first.touch()
        until(ended.exists, within_s=outage_s / 2, or_say=plant.tails)
        time.sleep(max(0.0, begun + outage_s - time.time()))
    finally:
        back = time.time()
        outage.end()
    second.touch()
    plant.until_state(run_id, "succeeded")
    rounds.took("database back to run done", time.time() - back, goal_s=90)
    plant.demand_rest()
    assert back - begun >= outage_s
    assert [row["state"] for row in plant.attempts(run_id)] == ["succeeded"] * 3
    offered = [lease["offered_at"] / 1_000 for lease in plant.leases(run_id)]
    assert not [at for at in offered if begun <= at <= back]
    # The run may be over before the next beat, which comes every five seconds.
    until(lambda: plant.gaps() > before, within_s=20, or_say=plant.tails)
    rounds.hit()
