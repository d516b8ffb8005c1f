"""The two applications as a caller meets them, and the scheduler's part done by hand."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import sqlalchemy as sa
from fastapi import FastAPI

from activities.encryption import EncryptionCodec
from forgeyard.api.agent_app import create_agent_app
from forgeyard.api.agent_callers import SessionOwners
from forgeyard.api.app import create_app
from forgeyard.api.dependencies import ApiDependencies
from forgeyard.api.keepalive import keepalive
from forgeyard.api.metrics import StoreFigures
from forgeyard.api.policy_cache import PolicyCache
from forgeyard.api.polling import AssignmentReader
from forgeyard.api.trust import Trust
from forgeyard.config import ApiConfig, Config, LimitsConfig, OidcConfig
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.protocol import Assignments
from forgeyard.scheduler import place
from forgeyard.store import codec, commit, dispatch, snapshot, tables
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.engine import read, write
from tests.builders import RNG, a_registration, some_capabilities

TOKEN = "sesame-open"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
NO_ISSUER = OidcConfig()
PATIENT = ApiConfig(long_poll_s=10)
LIMITS = LimitsConfig(source=2**20, output=2**20, log_per_attempt=2**20)


def digest_of(data: bytes) -> str:
    """Name bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def a_document(**jobs: dict[str, object]) -> dict[str, object]:
    """Write a run file: one job called `build` unless jobs are given."""
    jobs = jobs or {"build": {}}
    return {
        "name": "demo",
        "jobs": {
            name.replace("_", "-"): {"steps": [{"run": "true"}], **job}
            for name, job in jobs.items()
        },
    }


@dataclass(frozen=True, kw_only=True)
class Held:
    """A lease as its agent knows it."""

    lease_id: str
    session_id: str
    epoch: int
    offer: Mapping[str, object]

    @property
    def holder(self) -> dict[str, object]:
        """Say who holds it, as every call does."""
        return {"session_id": self.session_id, "epoch": self.epoch}


@dataclass(frozen=True, kw_only=True)
class House:
    """Clients of both applications, and what stands behind them."""

    engine: sa.Engine
    blobs: FileBlobStore
    public: FastAPI
    agent: FastAPI
    people: httpx.AsyncClient
    agents: httpx.AsyncClient
    kicks: list[None] = field(default_factory=list)

    async def submit(self, document: object = None, **fields: object) -> dict:
        """Submit a run and return its view."""
        body = {"document": document or a_document(), "submitted_by": "tester", **fields}
        answer = await self.people.post("/v1/runs", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def register(self, name: str = "runner-1", **capabilities: object) -> str:
        """Open a session as an agent does; return its id."""
        offered = some_capabilities(**capabilities)
        message = codec.encode(a_registration(name, capabilities=offered))
        answer = await self.agents.post(
            "/agent/v1/sessions", content=message, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 201, answer.text
        return answer.json()["session_id"]

    def schedule(self) -> int:
        """Run one cycle; return how many leases it granted."""
        policy = SchedulingPolicy()
        with write(self.engine) as connection:
            seen = snapshot.load(connection, "default", policy)
            plan = place.plan(seen, policy)
            saved = commit.save_plan(
                connection, "default", plan, seen.digest(), policy.digest(), rng=RNG
            )
            return commit.commit_cycle(connection, saved.cycle_id, built_in=policy).granted

    async def poll(self, session_id: str, wait_ms: int = 5_000) -> dict:
        """Poll once."""
        answer = await self.agents.post(
            f"/agent/v1/sessions/{session_id}/poll", params={"wait_ms": wait_ms}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def offered(self, session_id: str) -> list[Held]:
        """Schedule, then poll for the offers."""
        self.schedule()
        found = await self.poll(session_id)
        return [
            Held(
                lease_id=offer["lease_id"],
                session_id=session_id,
                epoch=offer["epoch"],
                offer=offer,
            )
            for offer in found["offers"]
        ]

    async def tell(self, held: Held, verb: str, **fields: object) -> httpx.Response:
        """Send one message about a lease."""
        return await self.agents.post(
            f"/agent/v1/leases/{held.lease_id}/{verb}", json={**held.holder, **fields}
        )

    async def accepted(
        self, document: object = None, *, runner: str = "runner-1", **capabilities: object
    ) -> Held:
        """Submit a run, have its first job leased to a new runner, and accept."""
        session_id = await self.register(runner, **capabilities)
        await self.submit(document)
        (held, *_) = await self.offered(session_id)
        answer = await self.tell(held, "accept")
        assert answer.status_code == 200, answer.text
        return held

    async def log(self, held: Held, sequence: int, data: bytes, step: str = "run") -> int:
        """Send one chunk of log; return the status."""
        answer = await self.agents.post(
            f"/agent/v1/leases/{held.lease_id}/logs",
            params={**held.holder, "sequence": sequence, "step": step},
            content=data,
        )
        return answer.status_code

    async def upload(self, held: Held, name: str, data: bytes) -> httpx.Response:
        """Send one output."""
        return await self.agents.put(
            f"/agent/v1/leases/{held.lease_id}/outputs/{name}",
            params={**held.holder, "digest": digest_of(data)},
            content=data,
        )

    def count(self, table: sa.Table) -> int:
        """Count rows."""
        with read(self.engine) as connection:
            query = sa.select(sa.func.count()).select_from(table)
            return int(connection.execute(query).scalar_one())

    def audited(self) -> list[str]:
        """Read the actions in the audit trail."""
        with read(self.engine) as connection:
            query = sa.select(tables.audit.c.action).order_by(tables.audit.c.audit_id)
            return list(connection.execute(query).scalars())


@asynccontextmanager
async def open_house(
    engine: sa.Engine,
    folder: Path,
    *,
    limits: LimitsConfig = LIMITS,
    oidc: OidcConfig = NO_ISSUER,
    api: ApiConfig = PATIENT,
    codec: EncryptionCodec | None = None,
) -> AsyncIterator[House]:
    """Run the reader of the polls and connect clients to both applications."""
    policy = SchedulingPolicy()

    def assignments(session_ids: Collection[str]) -> Mapping[str, Assignments]:
        with read(engine) as connection:
            return dispatch.assignments(connection, session_ids, policy=policy.lease)

    kicks: list[None] = []
    blobs = FileBlobStore(folder / "blobs")
    reader = AssignmentReader(assignments, period_s=0.01)
    policies = PolicyCache(policy)
    config = Config(data_dir=folder, limits=limits, oidc=oidc, api=api)
    deps = ApiDependencies(
        engine=engine,
        blobs=blobs,
        config=config,
        policies=policies,
        token=TOKEN,
        rng=RNG,
        kick=lambda: kicks.append(None),
        temporal_answers=_no,
        assignments=reader,
        keepalive=keepalive(engine, policies, kick=lambda: kicks.append(None)),
        trust=Trust(config),
        owners=SessionOwners(engine),
        figures=StoreFigures(engine, "default", fresh_s=0),
        codec=codec,
    )
    public, agent = create_app(deps), create_agent_app(deps)
    stop = asyncio.Event()
    reading = asyncio.create_task(reader.run(stop))
    async with client_of(public) as people, client_of(agent) as agents:
        yield House(
            engine=engine,
            blobs=blobs,
            public=public,
            agent=agent,
            people=people,
            agents=agents,
            kicks=kicks,
        )
    stop.set()
    await reading


def client_of(app: FastAPI, token: str | None = TOKEN) -> httpx.AsyncClient:
    """Connect to an application; its bugs come as answers, as they would over a socket."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://test",
        headers={"authorization": f"Bearer {token}"} if token else {},
    )


async def _no() -> bool:
    return False
