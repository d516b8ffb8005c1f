"""A plant with several workers and APIs, and work that never stops flowing through it.

Agents and submitters know every address; nothing but SQL and a directory is shared by the APIs.
"""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import httpx
import sqlalchemy as sa

from forgeyard.cli.client import Client
from forgeyard.cli.endpoint import Endpoint
from forgeyard.cli.following import Patience
from forgeyard.store import tables
from tests.chaos.plant import Plant, Process, a_job, until
from tests.integration.temporal.server import free_port

START_S = 400.0
"""How long the machine may take to start a process while many others run on it."""
OPEN_RUNS = 2
OPEN = ("queued", "running")
FORGEYARD = (sys.executable, "-m", "forgeyard.cli.main")


@dataclass(kw_only=True)
class Cluster(Plant):
    """Workers and APIs by name, each a process of its own."""

    ports: dict[str, tuple[int, int]] = field(default_factory=dict)

    def open_worker(self, name: str, **settings: str) -> Process:
        """Start a worker of this name, under settings of its own and with a log of its own."""
        (self.folder / f"{name}.log").unlink(missing_ok=True)
        return self._open(name, (*FORGEYARD, "worker"), **settings)

    def open_api(self, name: str, **settings: str) -> Process:
        """Start an API of this name, where it was before if it was."""
        port, agent_port = self.ports.setdefault(name, (free_port(), free_port()))
        return self._open(
            name,
            (*FORGEYARD, "api"),
            FORGEYARD_API__PORT=str(port),
            FORGEYARD_API__AGENT_PORT=str(agent_port),
            **settings,
        )

    def open(self, *, workers: int, apis: int, **settings: str) -> None:
        """Start Temporal, so many workers and APIs, and wait for these."""
        self.temporal.start()
        for number in range(1, workers + 1):
            self.open_worker(f"worker-{number}", **settings)
        names = [f"api-{number}" for number in range(1, apis + 1)]
        for name in names:
            self.open_api(name, **settings)
        for name in names:
            self.until_serving(name)

    def until_serving(self, name: str) -> None:
        """Wait until an API is ready."""

        def answers() -> bool:
            with suppress(httpx.HTTPError):
                return httpx.get(f"{self.url_of(name)}/readyz", trust_env=False).is_success
            return False

        until(answers, within_s=START_S, or_say=lambda: f"{name} does not answer\n{self.tails()}")

    def until_polling(self, *workers: Process) -> None:
        """Wait until these workers have connected."""
        until(
            lambda: all("connected to Temporal" in worker.log.read_text() for worker in workers),
            within_s=START_S,
            or_say=self.tails,
        )

    def url_of(self, name: str) -> str:
        """Tell where the public API of this name answers."""
        return f"http://127.0.0.1:{self.ports[name][0]}"

    @property
    def agents_url(self) -> str:
        """Tell an agent every address it may use."""
        return ",".join(f"http://127.0.0.1:{port}" for _, port in self.ports.values())

    def client(self, *names: str) -> Client:
        """Connect as the command line does, to these APIs or to all of them."""
        urls = tuple(self.url_of(name) for name in names or self.ports)
        return Client(Endpoint(urls=urls, token=self.token))

    def newest_lease(self) -> str:
        """Name the lease that was granted last."""
        newest = sa.select(sa.func.max(tables.leases.c.lease_id).label("lease_id"))
        return str(self.rows(newest)[0]["lease_id"] or "")

    def end_agents(self) -> None:
        """End every agent and whatever its jobs left."""
        ours = [name for name in self.processes if not name.startswith(("worker", "api", "old"))]
        for name in ours:
            self.processes.pop(name).end()

    @contextmanager
    def traffic(self, rng: random.Random, *, submitters: int = 2) -> "Iterator[Traffic]":
        """Let small runs flow for as long as the block lasts; then see all of them through."""
        flow = Traffic(cluster=self, rng=rng)
        threads = [threading.Thread(target=flow.submit) for _ in range(submitters)]
        for thread in threads:
            thread.start()
        try:
            yield flow
        finally:
            flow.stop.set()
            for thread in threads:
                thread.join(240)
        assert not flow.errors, flow.errors
        for run_id in flow.runs:
            self.until_state(run_id, "succeeded", within_s=240)


@dataclass(kw_only=True)
class Traffic:
    """Runs of three jobs, submitted one after the other by clients that turn to who answers.

    Each client has a few open at once, so that there is always work and never a long queue.
    """

    cluster: Cluster
    rng: random.Random
    stop: threading.Event = field(default_factory=threading.Event)
    runs: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    def submit(self) -> None:
        """Submit until told to stop; note whatever an ordinary client could not get over."""
        try:
            with self.cluster.client() as client:
                open_runs: list[str] = []
                while not self.stop.wait(0.2):
                    open_runs = [one for one in open_runs if not self._is_over(client, one)]
                    if len(open_runs) < OPEN_RUNS:
                        open_runs.append(self._submit_one(client))
        except Exception as error:
            self.errors.append(repr(error))

    def _is_over(self, client: Client, run_id: str) -> bool:
        answer = Patience(pause_s=0.2).ask(lambda: client.get(f"/v1/runs/{run_id}"))
        return cast("Mapping[str, object]", answer)["state"] not in OPEN

    def _submit_one(self, client: Client) -> str:
        began = time.monotonic()
        key = f"key-{self.rng.random()}"
        body = {"document": self._document(), "submitted_by": "chaos"}
        patience = Patience(patience_s=30.0, pause_s=0.2)
        answer = patience.ask(lambda: client.post("/v1/runs", body, idempotency_key=key))
        run_id = str(cast("Mapping[str, object]", answer)["run_id"])
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        self.runs.append(run_id)
        return run_id

    def _document(self) -> dict[str, object]:
        tell = f"echo $FORGEYARD_JOB_ID >> {self._told}"
        slow = f"{tell}\nsleep {self.rng.uniform(0.2, 2.0):.1f}"
        jobs = {
            "first": a_job(tell),
            "slow": a_job(slow),
            "last": a_job(tell, needs=["first", "slow"]),
        }
        return {"name": "flow", "jobs": jobs}

    @property
    def _told(self) -> Path:
        return self.cluster.file("executed")

    def until_flowing(self, *, more: int = 2) -> None:
        """Wait until some more runs have been submitted and have ended."""
        cluster, begun = self.cluster, len(self.runs)
        until(
            lambda: len(self.runs) >= begun + more or self.errors,
            within_s=200,
            or_say=cluster.tails,
        )
        assert not self.errors, self.errors
        cluster.until_state(self.runs[begun], "succeeded", within_s=200)

    def demand_once_each(self) -> int:
        """Insist that every job was executed by one attempt, and no other; return how many."""
        jobs, attempts = tables.jobs, tables.attempts
        ours = jobs.c.run_id.in_(self.runs)
        count = sa.func.count(attempts.c.attempt_id)
        query = (
            sa.select(jobs.c.job_id, jobs.c.state, count.label("attempts"))
            .join(attempts, attempts.c.job_id == jobs.c.job_id)
            .where(ours)
            .group_by(jobs.c.job_id, jobs.c.state)
        )
        rows = self.cluster.rows(query)
        executed = Counter(self._told.read_text().split())
        assert len(rows) == 3 * len(self.runs) > 0
        for row in rows:
            found = (row["state"], row["attempts"], executed[row["job_id"]])
            assert found == ("succeeded", 1, 1), (row, self.cluster.story())
        return len(rows)


@contextmanager
def opened(cluster: Cluster) -> Iterator[Cluster]:
    """Give a cluster out, and end it whatever happens."""
    try:
        yield cluster
    finally:
        cluster.close()
