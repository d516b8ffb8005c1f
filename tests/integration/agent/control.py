"""The control plane that a real agent meets: the agent API over a socket, and no Temporal.

What the workflows would do (schedule, sweep, settle) a test asks for by hand.
"""

import asyncio
import shutil
import socket
from collections import Counter
from collections.abc import AsyncIterator, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forgeyard import archive
from forgeyard.agent.client import AgentClient
from forgeyard.agent.loop import AgentSettings
from forgeyard.api.agent_app import create_agent_app
from forgeyard.api.agent_callers import SessionOwners
from forgeyard.api.dependencies import ApiDependencies
from forgeyard.api.keepalive import keepalive
from forgeyard.api.metrics import StoreFigures
from forgeyard.api.policy_cache import PolicyCache
from forgeyard.api.polling import AssignmentReader
from forgeyard.api.trust import Trust
from forgeyard.config import ApiConfig, Config, LimitsConfig
from forgeyard.machine_settings import AgentConfig
from forgeyard.model.job import JobSpec
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.protocol import Assignments
from forgeyard.scheduler import place
from forgeyard.store import blobs as blob_rows
from forgeyard.store import commit, dispatch, liveness, runs, snapshot, sweep, tables
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.changes import Row
from forgeyard.store.engine import read, write
from tests.builders import RNG, submit_run
from tests.integration.agent.scripts import eventually

TOKEN = "sesame-open"
KINDS = (
    *("accept", "progress", "logs", "outputs", "complete", "renewals", "inputs", "poll"),
    *("caches", "sessions"),
)
TOOLS = ("sh", "sleep", "cat", "mkdir", "tr", "touch", "wc", "env", "cp", "rm")
LIMITS = LimitsConfig(source=2**20, output=2**20, log_per_attempt=2**20)


def a_policy(**changed: int) -> SchedulingPolicy:
    """Set a quick pace: renewals every 0.2 s, heartbeats every second, settling at once."""
    pace = {
        "renew_every": 200,
        "connectivity_grace": 500,
        "longest_back_off": 300,
        "settle_within": 0,
        "session_silence": 6_000,
        **changed,
    }
    return SchedulingPolicy(lease=LeasePolicy(**pace))


class Network:
    """What lies between agents and the server; holds up requests and loses answers when told."""

    def __init__(self) -> None:
        self._held = ""
        self._free = asyncio.Event()
        self._to_lose: set[str] = set()
        self._broken = ""
        self.lost: list[str] = []
        self.seen: Counter[str] = Counter()

    def hold(self, word: str) -> None:
        """Let no request through whose path ends in, or has after it, this word."""
        self._held = word
        self._free.clear()

    def release(self) -> None:
        """Let everything through."""
        self._held = ""
        self._free.set()

    def lose_one_answer_each(self, *words: str) -> None:
        """Lose the first answer to each kind of request, after the server did what was asked."""
        self._to_lose = set(words)

    def break_down(self, word: str) -> None:
        """Answer this kind of request with 502 from now on."""
        self._broken = word

    async def carry(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry one request and its answer."""
        parts = scope.get("path", "").split("/")
        kind = next((word for word in KINDS if word in parts), "")
        # The archives of a warm-up, not what is said of it.
        kind = "warmup" if "warmup" in parts[:-1] else kind
        self.seen.update((kind, scope.get("method", "")))
        if kind and kind == self._held:
            await self._free.wait()
        is_lost = kind in self._to_lose
        if is_lost:
            self._to_lose.remove(kind)
            await app(scope, receive, _nowhere)
            self.lost.append(kind)
        if is_lost or (kind and kind == self._broken):
            await send({"type": "http.response.start", "status": 502, "headers": []})
            await send({"type": "http.response.body", "body": b"bad gateway"})
            return
        await app(scope, receive, send)


async def _nowhere(_message: Message) -> None:
    """Lose a part of an answer."""


@dataclass(kw_only=True)
class Control:
    """The store, its blobs, and where the agent API listens."""

    engine: sa.Engine
    blobs: FileBlobStore
    policy: SchedulingPolicy
    port: int
    folder: Path
    deps: ApiDependencies
    network: "Network"

    @property
    def url(self) -> str:
        """Tell where the agent API listens."""
        return f"http://127.0.0.1:{self.port}"

    def settings(self, name: str = "runner-1", **changed: object) -> AgentSettings:
        """Describe an agent with a work directory of its own."""
        # Without a local cache everything is fetched, which is what most tests are about.
        usual = {
            "headroom_disk": "0",
            "headroom_memory": "0",
            "drain_timeout_s": 20.0,
            "local_cache": "0",
        }
        own = {"name": name, "work_dir": str(self.folder / name), "path": str(self._tools())}
        config = AgentConfig.model_validate({**usual, **own, **changed})
        return AgentSettings(urls=(self.url,), token=TOKEN, config=config, limits=LIMITS)

    def _tools(self) -> Path:
        """Offer the few programs that the scripts use, so that no agent asks for versions."""
        folder = self.folder / "bin"
        if not folder.exists():
            folder.mkdir()
            for name in TOOLS:
                found = shutil.which(name)
                assert found is not None, name
                (folder / name).symlink_to(found)
        return folder

    def submit(self, *jobs: JobSpec, source: Path | None = None) -> str:
        """Submit a run, with the files of a directory as its source."""
        digest = self._keep(source) if source else None
        with write(self.engine) as connection:
            return submit_run(connection, *jobs, source_digest=digest)

    def _keep(self, source: Path) -> str:
        path = self.folder / "source.tar.gz"
        with path.open("wb") as target:
            packed = archive.pack(source, target, limit=LIMITS.source)
        self.blobs.put([path.read_bytes()], digest=packed.digest, limit=LIMITS.source)
        with write(self.engine) as connection:
            blob_rows.record(connection, packed.digest, packed.size)
        return packed.digest

    def schedule(self) -> int:
        """Run one cycle; return how many leases it granted."""
        with write(self.engine) as connection:
            seen = snapshot.load(connection, "default", self.policy)
            plan = place.plan(seen, self.policy)
            saved = commit.save_plan(
                connection, "default", plan, seen.digest(), self.policy.digest(), rng=RNG
            )
            return commit.commit_cycle(connection, saved.cycle_id, built_in=self.policy).granted

    def sweep(self) -> None:
        """Enforce every deadline that has passed, as Upkeep does."""
        with write(self.engine) as connection:
            liveness.beat_renewal(connection, policy=self.policy)
        sweep.sweep(self.engine, "default", self.policy)

    async def follow(self, run_id: str, *states: str) -> Row:
        """Schedule and sweep until the run is in one of these states, or has ended."""
        wanted = states or ("succeeded", "failed", "cancelled", "timed_out")

        def arrived() -> bool:
            self.schedule()
            self.sweep()
            return self.run(run_id)["state"] in wanted

        await eventually(arrived, every=0.05)
        return self.run(run_id)

    async def until_running(self, run_id: str) -> None:
        """Schedule until the first job of the run runs."""

        def is_running() -> bool:
            self.schedule()
            return any(row["state"] == "running" for row in self.attempts(run_id))

        await eventually(is_running, every=0.05)

    async def registered(self, name: str = "runner-1") -> None:
        """Wait for an agent to open a session."""
        await eventually(lambda: bool(self.rows(tables.runners, name=name, state="online")))

    def cancel(self, run_id: str) -> None:
        """Cancel a run, as a user does."""
        with write(self.engine) as connection:
            runs.cancel_run(
                connection,
                run_id,
                reason="not needed",
                actor="tester",
                channel="test",
                policy=self.policy.lease,
            )

    def rows(self, table: sa.Table, **where: object) -> list[Row]:
        """Read the rows of a table that match."""
        conditions = [table.c[name] == value for name, value in where.items()]
        with read(self.engine) as connection:
            found = connection.execute(sa.select(table).where(*conditions)).mappings()
            return [dict(row) for row in found]

    def run(self, run_id: str) -> Row:
        """Read a run."""
        (row,) = self.rows(tables.runs, run_id=run_id)
        return row

    def attempts(self, run_id: str) -> list[Row]:
        """Read the attempts of a run, oldest first."""
        rows = self.rows(tables.attempts, run_id=run_id)
        return sorted(rows, key=lambda row: (row["created_at"], row["number"]))

    def log(self, attempt_id: str) -> str:
        """Read an attempt's whole log."""
        chunks = self.rows(tables.log_chunks, attempt_id=attempt_id)
        ordered = sorted(chunks, key=lambda row: row["sequence"])
        return b"".join(row["data"] for row in ordered).decode()

    def change(self, table: sa.Table, where: Mapping[str, object], **values: object) -> None:
        """Change rows behind everybody's back, such as the instant at which a lease expires."""
        conditions = [table.c[name] == value for name, value in where.items()]
        with write(self.engine) as connection:
            connection.execute(sa.update(table).where(*conditions).values(values))

    def blobs_on_disk(self) -> list[Path]:
        """List the files of the blob store."""
        return [path for path in (self.folder / "blobs").rglob("*") if path.is_file()]

    def client(self) -> AgentClient:
        """Connect as another agent would."""
        return AgentClient((self.url,), TOKEN)

    def _wired(self) -> ASGIApp:
        """Make the agent API, behind a network that a test can hold up."""
        app = create_agent_app(self.deps)

        async def behind_the_network(scope: Scope, receive: Receive, send: Send) -> None:
            await self.network.carry(app, scope, receive, send)

        return behind_the_network

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve the agent API for as long as the block lasts, always on the same port."""
        server = _Server(
            uvicorn.Config(
                self._wired(),
                log_config=None,
                lifespan="off",
                http="h11",
                timeout_graceful_shutdown=2,
            )
        )
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", self.port))
        self.port = sock.getsockname()[1]
        serving = asyncio.create_task(server.serve([sock]))
        try:
            await eventually(lambda: server.started)
            yield
        finally:
            server.should_exit = True
            await serving
            sock.close()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to pytest."""
        yield


@asynccontextmanager
async def a_control(
    engine: sa.Engine, folder: Path, *, policy: SchedulingPolicy | None = None
) -> AsyncIterator[Control]:
    """Set up a control plane; nobody listens yet."""
    policy = policy or a_policy()

    def assignments(session_ids: Collection[str]) -> Mapping[str, Assignments]:
        with read(engine) as connection:
            return dispatch.assignments(connection, session_ids, policy=policy.lease)

    reader = AssignmentReader(assignments, period_s=0.02)
    policies = PolicyCache(policy)
    config = Config(data_dir=folder, limits=LIMITS, api=ApiConfig(long_poll_s=1))
    deps = ApiDependencies(
        engine=engine,
        blobs=FileBlobStore(folder / "blobs"),
        config=config,
        policies=policies,
        token=TOKEN,
        rng=RNG,
        kick=lambda: None,
        temporal_answers=_no,
        assignments=reader,
        keepalive=keepalive(engine, policies, kick=lambda: None),
        trust=Trust(config),
        owners=SessionOwners(engine),
        figures=StoreFigures(engine, "default"),
    )
    stop = asyncio.Event()
    reading = asyncio.create_task(reader.run(stop))
    try:
        yield Control(
            engine=engine,
            blobs=deps.blobs,
            policy=policy,
            port=0,
            folder=folder,
            deps=deps,
            network=Network(),
        )
    finally:
        stop.set()
        await reading


async def _no() -> bool:
    return False
