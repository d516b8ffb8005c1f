"""A whole Forgeyard as `forgeyard up` runs it, on free ports and in a directory of its own.

Runs are submitted through the public API; times are read from the store's own columns.
"""

import asyncio
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import sqlalchemy as sa

from benchmarks.measures import stopwatch, wall_ms
from forgeyard import config
from forgeyard.config import ApiConfig, Config, StoreConfig, TemporalConfig
from forgeyard.machine_settings import AgentConfig
from forgeyard.store import tables
from forgeyard.store.engine import open_engine, read
from worker.standalone import running

SLOTS = 8
LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When each thing happened to one attempt, in milliseconds since its submission."""

    job_id: str
    attempt_id: str
    number: int
    state: str
    stored: int
    leased: int
    accepted: int
    running: int
    finished: int
    settled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What became of one run."""

    begin_ms: int
    timelines: Sequence[Timeline]

    @property
    def end_ms(self) -> int:
        """Tell when its last attempt was settled."""
        return self.begin_ms + max(each.settled for each in self.timelines)

    @property
    def settled_per_second(self) -> float:
        """Tell how many jobs a second were brought from submission to settlement."""
        return len(self.timelines) * 1000 / max(each.settled for each in self.timelines)

    @property
    def leased_per_second(self) -> float:
        """Tell how many leases a second were granted until the last of them was."""
        return len(self.timelines) * 1000 / max(each.leased for each in self.timelines)


@dataclass(frozen=True, kw_only=True)
class System:
    """A running system."""

    settings: Config
    engine: sa.Engine
    http: httpx.Client
    temporal: TemporalConfig

    async def run(self, commands: Sequence[str], *, within_s: float = 300.0) -> Batch:
        """Submit a run of independent jobs, one for each command; wait until all are settled."""
        document = {"name": "benchmark", "jobs": _jobs(commands)}
        begin_ms, elapsed = wall_ms(), stopwatch()
        answer = await asyncio.to_thread(
            self.http.post, "/v1/runs", json={"document": document, "submitted_by": "benchmark"}
        )
        answer.raise_for_status()
        run_id = answer.json()["run_id"]
        while self._unsettled(run_id):
            if elapsed() > within_s:
                raise TimeoutError(f"run {run_id} is not settled after {within_s} s")
            await asyncio.sleep(LOOK_S)
        return Batch(begin_ms=begin_ms, timelines=self._timelines(run_id, begin_ms))

    def _unsettled(self, run_id: str) -> int:
        jobs, attempts = tables.jobs, tables.attempts
        settled = (
            sa.exists()
            .where(attempts.c.job_id == jobs.c.job_id)
            .where(attempts.c.settled_at.is_not(None))
        )
        query = sa.select(sa.func.count()).where(jobs.c.run_id == run_id, ~settled)
        with read(self.engine) as connection:
            return int(connection.execute(query).scalar_one())

    def _timelines(self, run_id: str, begin_ms: int) -> list[Timeline]:
        jobs, attempts = tables.jobs, tables.attempts
        query = (
            sa.select(attempts, jobs.c.created_at.label("stored_at"))
            .join(jobs, jobs.c.job_id == attempts.c.job_id)
            .where(attempts.c.run_id == run_id)
        )
        with read(self.engine) as connection:
            rows = connection.execute(query).mappings().all()
        bad = [row["message"] for row in rows if row["state"] != "succeeded"]
        if bad:
            raise RuntimeError(f"{len(bad)} attempts did not succeed: {bad[0]}")
        return [
            Timeline(
                job_id=row["job_id"],
                attempt_id=row["attempt_id"],
                number=row["number"],
                state=row["state"],
                stored=row["stored_at"] - begin_ms,
                leased=row["created_at"] - begin_ms,
                accepted=row["accepted_at"] - begin_ms,
                running=row["started_at"] - begin_ms,
                finished=row["finished_at"] - begin_ms,
                settled=row["settled_at"] - begin_ms,
            )
            for row in rows
        ]


@contextmanager
def started(say: Callable[[str], None]) -> Generator[System]:
    """Run a system with one agent of eight slots; leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="forgeyard-benchmark-") as folder:
        settings = config.load(
            data_dir=Path(folder),
            temporal=TemporalConfig(address="127.0.0.1:0", ui_url="http://127.0.0.1:0"),
            api=ApiConfig(port=0, agent_port=0),
            store=StoreConfig(),
            agent=AgentConfig(
                jobs=SLOTS, name="benchmark", headroom_memory="64Mi", headroom_disk="64Mi"
            ),
        )
        with running(settings, agents=1, say=say) as system:
            token = settings.token_path().read_text().strip()
            engine = open_engine(settings.database_url(), settings.store)
            with httpx.Client(
                base_url=system.endpoints.api_url,
                headers={"authorization": f"Bearer {token}"},
                timeout=30,
                trust_env=False,
            ) as http:
                address = system.endpoints.temporal_address
                temporal = settings.temporal.model_copy(update={"address": address})
                yield System(settings=settings, engine=engine, http=http, temporal=temporal)
            engine.dispose()


def _jobs(commands: Sequence[str]) -> Mapping[str, object]:
    resources = {"cpu": 0.1, "memory": "32Mi", "disk": "16Mi"}
    return {
        f"job-{number}": {"resources": resources, "steps": [{"run": command}]}
        for number, command in enumerate(commands, 1)
    }
