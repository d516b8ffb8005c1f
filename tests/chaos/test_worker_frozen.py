"""A worker freezes in a commit, another commits the cycle, and the first one wakes up (F12)."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

import psutil
import pytest

from tests.chaos.cluster import Cluster, opened
from tests.chaos.plant import a_job, until
from tests.chaos.rounds import Rounds
from tests.chaos.standin import BEFORE_COMMIT, WITHIN_COMMIT

# Soak, for Temporal gives up on a frozen worker one timeout after the other.
pytestmark = [pytest.mark.integration, pytest.mark.soak]


@pytest.fixture
def cluster(
    tmp_path: Path, make_postgresql: Callable[[str], AbstractContextManager[str]]
) -> Iterator[Cluster]:
    """Run an API and an agent; a frozen transaction is given up after three seconds."""
    settings = {"FORGEYARD_STORE__IDLE_TIMEOUT_MS": "3000"}
    with (
        make_postgresql("frozen") as url,
        opened(Cluster(folder=tmp_path, url=url, settings=settings)) as cluster,
    ):
        cluster.open(workers=0, apis=1)
        yield cluster


@pytest.mark.parametrize("moment", [BEFORE_COMMIT, WITHIN_COMMIT])
def test_a_worker_that_froze_in_a_commit_grants_nothing_when_it_wakes(
    cluster: Cluster, rounds: Rounds, moment: str
) -> None:
    cluster.until_online(cluster.start_agent(url=cluster.agents_url))
    for rng in rounds.of("cycle committed by another worker while the first one was frozen"):
        demand_the_other_s_grants(cluster, rounds, rng, moment)


def demand_the_other_s_grants(cluster: Cluster, rounds: Rounds, rng: Random, moment: str) -> None:
    other = cluster.start_worker(name="worker-other", standby=True)
    sleepy = cluster.start_worker(name="worker-sleepy", fault=moment)
    jobs = {f"job-{n}": a_job("true") for n in range(rng.randint(1, 4))}
    with cluster.client() as client:
        document = {"name": "frozen", "jobs": jobs}
        answer = client.post("/v1/runs", {"document": document, "submitted_by": "chaos"})
    run_id = str(dict(answer)["run_id"])
    frozen = psutil.Process(sleepy.pid)
    until(lambda: frozen.status() == psutil.STATUS_STOPPED, within_s=120, or_say=cluster.tails)
    frozen_at = time.monotonic()
    assert not cluster.leases(run_id)
    other.popen.send_signal(signal.SIGUSR1)
    cluster.until_state(run_id, "succeeded", within_s=180)
    rounds.took("frozen to all jobs done by the other", time.monotonic() - frozen_at, goal_s=150)
    before = cluster.leases(run_id)
    if frozen.status() == psutil.STATUS_STOPPED and len(before) == len(jobs):
        rounds.hit()
    sleepy.thaw()
    with cluster.client() as client:
        answer = client.post("/v1/runs", {"document": document, "submitted_by": "chaos"})
    cluster.until_state(str(dict(answer)["run_id"]), "succeeded", within_s=120)
    assert cluster.leases(run_id) == before
    assert [row["number"] for row in cluster.attempts(run_id)] == [1] * len(jobs)
    cluster.demand_rest()
    for worker in (sleepy, other):
        worker.end()
