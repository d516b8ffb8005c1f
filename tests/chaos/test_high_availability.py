"""Several workers and APIs on PostgreSQL: one dies, or all are replaced, while work flows."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.store import tables
from forgeyard.store.engine import write
from tests.chaos.cluster import OPEN, Cluster, Traffic, opened
from tests.chaos.plant import until
from tests.chaos.rounds import Rounds

pytestmark = pytest.mark.integration
EVERYBODY = ("worker-1", "worker-2", "worker-3", "api-1", "api-2")


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
    make_postgresql: Callable[[str], AbstractContextManager[str]],
) -> Iterator[Cluster]:
    """Run three workers, two APIs and two agents that know both."""
    folder = tmp_path_factory.mktemp("cluster")
    with make_postgresql("cluster") as url, opened(Cluster(folder=folder, url=url)) as cluster:
        cluster.open(workers=3, apis=2)
        cluster.until_polling(*(cluster.processes[f"worker-{n}"] for n in (1, 2, 3)))
        agents = [cluster.start_agent(url=cluster.agents_url) for _ in range(2)]
        cluster.until_online(*agents)
        yield cluster


def sessions(cluster: Cluster) -> list[str]:
    """List the sessions that were ever opened."""
    return [row["session_id"] for row in cluster.rows(sa.select(tables.sessions.c.session_id))]


def test_a_worker_and_an_api_that_are_killed_cost_no_job_and_no_attempt(
    cluster: Cluster, rounds: Rounds
) -> None:
    before = sessions(cluster)
    for rng in rounds.of("a worker and an API killed while runs were open"):
        with cluster.traffic(rng) as flow:
            flow.until_flowing()
            kill_and_replace(cluster, rounds, rng, flow)
            flow.until_flowing()
        rounds.record("jobs, each executed once", flow.demand_once_each())
        cluster.demand_rest()
    assert sessions(cluster) == before


def kill_and_replace(cluster: Cluster, rounds: Rounds, rng: Random, flow: Traffic) -> None:
    """Kill one of each at a moment of the seed, time the next lease, start them again."""
    time.sleep(rng.uniform(0, 1))
    worker, api = f"worker-{rng.randint(1, 3)}", f"api-{rng.randint(1, 2)}"
    open_runs = [run for run in flow.runs if cluster.run_state(run) in OPEN]
    for name in rng.sample((worker, api), k=2):
        cluster.processes[name].kill()
        time.sleep(rng.uniform(0, 0.5))
    if open_runs:
        rounds.hit()
    killed_at, newest = time.monotonic(), cluster.newest_lease()
    until(lambda: cluster.newest_lease() > newest, every_s=0.02, within_s=60, or_say=cluster.tails)
    rounds.took("killed to next lease", time.monotonic() - killed_at, goal_s=40)
    cluster.open_worker(worker)
    cluster.open_api(api)
    cluster.until_serving(api)


def test_replacing_every_worker_and_api_costs_no_attempt_and_no_client_an_error(
    cluster: Cluster, rounds: Rounds
) -> None:
    """The database is at the next release's schema already, as in a rolling upgrade."""
    expand(cluster)
    before = sessions(cluster)
    for rng in rounds.of("processes asked to end while runs were open"):
        with cluster.traffic(rng) as flow:
            flow.until_flowing()
            busy = [replace(cluster, rounds, name, flow) for name in rng.sample(EVERYBODY, k=5)]
            flow.until_flowing()
        if all(busy):
            rounds.hit()
        rounds.record("jobs, each executed once", flow.demand_once_each())
        rounds.record("slowest submission", f"{flow.slowest_s:.1f} s")
        cluster.demand_rest()
    assert sessions(cluster) == before
    assert lost_leases(cluster) == 0


def replace(cluster: Cluster, rounds: Rounds, name: str, flow: Traffic) -> bool:
    """Ask one process to end, see that it does so well, start its successor; tell if it was busy."""
    process = cluster.processes[name]
    is_busy = any(cluster.run_state(run) in OPEN for run in flow.runs[-5:])
    process.popen.send_signal(signal.SIGTERM)
    asked_at = time.monotonic()
    assert process.popen.wait(60) == 0, process.log.read_text()
    rounds.took(f"{name[:-2]} asked to end to ended", time.monotonic() - asked_at, goal_s=45)
    if name.startswith("worker"):
        cluster.until_polling(cluster.open_worker(name))
    else:
        cluster.open_api(name)
        cluster.until_serving(name)
    flow.until_flowing(more=1)
    return is_busy


def expand(cluster: Cluster) -> None:
    """Add to the schema what a later release might, and say that it is that release's."""
    with write(cluster.engine) as connection:
        for statement in (
            "ALTER TABLE runs ADD COLUMN colour TEXT",
            "ALTER TABLE leases ADD COLUMN weight BIGINT NOT NULL DEFAULT 1",
            "CREATE TABLE later (name TEXT PRIMARY KEY)",
            "UPDATE alembic_version SET version_num = '9999'",
        ):
            connection.execute(sa.text(statement))


def lost_leases(cluster: Cluster) -> int:
    """Count the leases that ended in any other way than by their job's end."""
    leases = tables.leases
    ended_badly = leases.c.state.in_(("expired", "revoked", "rejected"))
    return len(cluster.rows(sa.select(leases.c.lease_id).where(ended_badly)))
