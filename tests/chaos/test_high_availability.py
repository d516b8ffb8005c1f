"""Several workers and APIs on PostgreSQL: one dies, or all are replaced, while work flows."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from random import Random
from statistics import median
from tempfile import TemporaryFile
from typing import Any, cast

import pytest
import sqlalchemy as sa

from forgeyard import archive
from forgeyard.agent.client import AgentClient
from forgeyard.cli.client import Client
from forgeyard.model.protocol import Reject
from forgeyard.model.runner import RejectReason
from forgeyard.store import tables
from forgeyard.store.engine import write
from tests.builders import a_registration, some_capabilities
from tests.chaos.cluster import OPEN, Cluster, Traffic, opened
from tests.chaos.plant import a_job, until
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
    return sorted(
        row["session_id"] for row in cluster.rows(sa.select(tables.sessions.c.session_id))
    )


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
    until_open(cluster, flow)
    for name in rng.sample((worker, api), k=2):
        cluster.processes[name].kill()
        time.sleep(rng.uniform(0, 0.5))
    rounds.hit()
    killed_at, newest = time.monotonic(), cluster.newest_lease()
    until(lambda: cluster.newest_lease() > newest, every_s=0.02, within_s=90, or_say=cluster.tails)
    rounds.took("killed to next lease", time.monotonic() - killed_at, goal_s=60)
    cluster.open_worker(worker)
    cluster.open_api(api)
    cluster.until_serving(api)


def until_open(cluster: Cluster, flow: Traffic) -> None:
    """Wait for a moment when a run is under way."""
    until(lambda: any(cluster.run_state(run) in OPEN for run in flow.runs[-5:]), every_s=0.01)


@pytest.mark.requirement("RCN-006")
@pytest.mark.soak  # five processes end and start one after the other: minutes where others work too
def test_replacing_every_worker_and_api_costs_no_attempt_and_no_client_an_error(
    cluster: Cluster, rounds: Rounds
) -> None:
    """The database is at the next release's schema already, as in a rolling upgrade."""
    expand(cluster)
    before = sessions(cluster)
    for rng in rounds.of("processes asked to end while runs were open"):
        with cluster.traffic(rng) as flow:
            flow.until_flowing()
            for name in rng.sample(EVERYBODY, k=5):
                replace(cluster, rounds, name, flow)
            rounds.hit()
            flow.until_flowing()
        rounds.record("jobs, each executed once", flow.demand_once_each())
        rounds.record("slowest submission", f"{flow.slowest_s:.1f} s")
        cluster.demand_rest()
    assert sessions(cluster) == before
    assert lost_leases(cluster) == 0


def replace(cluster: Cluster, rounds: Rounds, name: str, flow: Traffic) -> None:
    """Ask one process to end while a run is open, see it end well, and start its successor."""
    process = cluster.processes[name]
    until_open(cluster, flow)
    process.popen.send_signal(signal.SIGTERM)
    asked_at = time.monotonic()
    assert process.popen.wait(150) == 0, process.log.read_text()
    rounds.took(f"{name[:-2]} asked to end to ended", time.monotonic() - asked_at, goal_s=120)
    if name.startswith("worker"):
        cluster.until_polling(cluster.open_worker(name))
    else:
        cluster.open_api(name)
        cluster.until_serving(name)
    flow.until_flowing(more=1)


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


def test_a_key_that_is_sent_to_both_apis_at_once_starts_one_run(cluster: Cluster) -> None:
    clients = [cluster.client(name) for name in cluster.ports]
    with ThreadPoolExecutor(2) as pool:
        for number in range(10):
            body = {"document": {"name": "once", "jobs": {"job": a_job("true")}}}
            key = f"both-{number}"
            ask = partial(started, body=body, key=key)
            first, second = pool.map(ask, clients)
            assert first == second
            cluster.until_state(first, "succeeded")
    for client in clients:
        client.__exit__()
    runs = cluster.rows(sa.select(tables.runs.c.run_id).where(tables.runs.c.name == "once"))
    assert len(runs) == 10


def started(client: Client, *, body: dict[str, object], key: str = "") -> str:
    answer = client.post("/v1/runs", {**body, "submitted_by": "chaos"}, idempotency_key=key or None)
    return str(cast("dict[str, object]", answer)["run_id"])


def test_what_one_api_took_in_the_other_knows_and_tells(cluster: Cluster) -> None:
    """A source, and a log that is followed page by page at one API after the other."""
    cluster.file("executed").touch()
    with TemporaryFile() as file, cluster.client("api-1") as one, cluster.client("api-2") as two:
        packed = archive.pack(cluster.folder / "shared", file, limit=2**20)
        file.seek(0)
        one.put_blob(packed.digest, packed.size, file)
        assert two.has_blob(packed.digest)
        lines = "\n".join(f"echo line-{n}; sleep 0.2" for n in range(10))
        document = {
            "name": "told",
            "jobs": {"job": a_job(f"[ -e executed ] && echo found\n{lines}")},
        }
        run_id = started(two, body={"document": document, "source_digest": packed.digest})
        text, cursor, ended, pages = "", None, False, 0
        while not ended:
            reader = (one, two)[pages % 2]
            page = reader.get(f"/v1/runs/{run_id}/logs", after=cursor, wait_ms=5_000)
            found = cast("dict[str, Any]", page)
            text += "".join(chunk["text"] for chunk in found["chunks"])
            cursor, ended, pages = found["next"], found["ended"], pages + 1
    assert pages > 2
    assert "found" in text
    assert [line for line in text.splitlines() if line.startswith("line-")] == [
        f"line-{n}" for n in range(10)
    ]


def test_an_agent_that_waits_at_one_api_soon_hears_of_a_job_that_came_to_the_other(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    """Compared with a job that came to the very API where the agent waits, in the same run."""
    here = asyncio.run(waits(cluster, polled="api-1", asked="api-1"))
    across = asyncio.run(waits(cluster, polled="api-1", asked="api-2"))
    told = [f"{median(times):.2f} s" for times in (here, across)]
    record_property("submitted to offered, median: same API, other API", ", ".join(told))
    # The reader looks every 100 ms; the rest is the same way through Temporal and the scheduler.
    assert median(across) < 3 * median(here) + 1.0


async def waits(cluster: Cluster, *, polled: str, asked: str, times: int = 5) -> list[float]:
    """Let an agent poll one API while jobs that only it can do come to another; time the offers."""
    name = f"poller-{asked}"
    url = f"http://127.0.0.1:{cluster.ports[polled][1]}"
    capabilities = some_capabilities(labels={"only": name})
    took: list[float] = []
    async with AgentClient((url,), cluster.token) as agent:
        session = await agent.register(a_registration(name, capabilities=capabilities))
        for number in range(times):
            polling = asyncio.create_task(agent.poll(session.session_id, wait_ms=20_000))
            await asyncio.sleep(0.3)
            job = a_job("true", requires={"labels": {"only": name}})
            document = {"name": f"across-{number}", "jobs": {"job": job}}
            began = time.monotonic()
            with cluster.client(asked) as client:
                run_id = await asyncio.to_thread(started, client, body={"document": document})
            while not (answer := await polling).offers:
                polling = asyncio.create_task(agent.poll(session.session_id, wait_ms=20_000))
            took.append(time.monotonic() - began)
            refused = Reject(
                session_id=session.session_id,
                epoch=answer.offers[0].epoch,
                reason=RejectReason.LOCAL_POLICY,
                detail="seen enough",
            )
            await agent.reject(answer.offers[0].lease_id, refused)
            with cluster.client(polled) as client:
                await asyncio.to_thread(client.post, f"/v1/runs/{run_id}:cancel", {})
        await agent.close(session.session_id)
    return took
