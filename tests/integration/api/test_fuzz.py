"""S22: thousands of requests drawn from each API's own document, to handlers with work to do."""

import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from starlette.types import ASGIApp, Receive, Scope, Send

from forgeyard.api.agent_callers import CERTIFICATE
from forgeyard.config import ApiConfig
from forgeyard.model.permission import Permission
from forgeyard.store.engine import write
from forgeyard.trust import certificates, keys
from forgeyard.trust.requests import write_request
from tests.callers import a_queue, a_token, id_of
from tests.integration.api.fuzzing import BODY, Known, Told, fuzz, operations
from tests.integration.api.house import House, a_document, client_of, digest_of, open_house
from tests.serving import make_authority, now_ms, register
from tests.trusting import der_of, invite, redeem

pytestmark = pytest.mark.integration
DATA = b"some bytes"
DIGEST = digest_of(DATA)
QUEUE = "acme/core/web/main"
WORK = {
    "outputs": [{"name": "wheel", "path": "dist/*.whl"}],
    "caches": {"pip": {"path": ".cache", "key": "a.lock"}},
}
BRIEF = ApiConfig(long_poll_s=0.02)
BY_CERTIFICATE = ApiConfig(long_poll_s=0.02, agent_identity="certificate")
NEVER_2XX: Mapping[str, frozenset[str]] = {
    # No issuer is configured here; test_sign_on.py has one.
    "public": frozenset({"GET /v1/login/oidc", "POST /v1/login/oidc"}),
    "agent": frozenset(),
}


class Presenting:
    """Stand where the listener stands: with a certificate that TLS has checked."""

    def __init__(self, app: ASGIApp, der: bytes) -> None:
        self._app = app
        self._der = der

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})[CERTIFICATE] = self._der
        await self._app(scope, receive, send)


@pytest.fixture
def renew(sqlite_engine: sa.Engine, sqlite_template: Path) -> Callable[[], None]:
    """Put an empty store in the place of the one that was; nobody may be at work then."""
    path = Path(str(sqlite_engine.url.database))

    def again() -> None:
        sqlite_engine.dispose()
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
        shutil.copyfile(sqlite_template, path)

    return again


async def people_know(house: House, path: str) -> Known:
    """Let there be something of everything that people's routes are about; say what."""
    held = await house.accepted(a_document(build=WORK))
    assert (await house.people.put(f"/v1/blobs/{DIGEST}", content=DATA)).status_code == 201
    a_queue(house.engine, QUEUE)
    assert await house.log(held, 1, DATA) == 204
    assert (await house.upload(held, "wheel", DATA)).status_code == 204
    (run,) = (await house.people.get("/v1/runs")).json()["runs"]
    detail = (await house.people.get(f"/v1/runs/{run['run_id']}")).json()
    with write(house.engine) as connection:
        enrolment = invite(connection, "machine-1", needs_approval=True)
        redeem(connection, enrolment, "sha256/one")
    hour = {"starts_at": now_ms() + 3_600_000, "ends_at": now_ms() + 7_200_000}
    window = await house.people.post(
        "/v1/pools/default/maintenance", json={"reason": "a test", **hour}
    )
    policy = "/policy" in path
    names = {"/v1/pools": "default", "/v1/runners": "runner-1", "/v1/runs/{run_id}/art": "wheel"}
    fresh = path in ("/v1/pools", "/v1/enrolments")
    return {
        "run_id": run["run_id"],
        "job_id": detail["jobs"][0]["job_id"],
        "digest": DIGEST,
        "source_digest": DIGEST,
        "path": QUEUE,
        "queue": QUEUE,
        "token_id": id_of(a_token(house.engine, Permission.RUN_READ)),
        "enrolment_id": enrolment.enrolment_id,
        "window_id": window.json()["window_id"],
        "key": "sha256/one",
        "grouping": "tenant",
        "job": "build",
        "name": "mac"
        if fresh
        else next((n for p, n in names.items() if path.startswith(p)), "build"),
        "runner": "runner-1",
        "runner_name": "machine-2",
        "document": {"batch": 5} if policy else a_document(),
        "expected_version": 0 if policy else 1,
        "partition": "default",
        "reason": "a test",
        "actor": "ann",
        "state": "unhealthy" if "set-state" in path else "running",
        "permissions": ["run.read"],
        "principal": "bob",
        "payloads": [],
        "before": None,
        "owner": None,
        "tenant": None,
        "sharing": "shared",
        "spillover": False,
        "Idempotency-Key": "once",
        BODY: DATA,
        **hour,
    }


@asynccontextmanager
async def runner_of(house: House) -> AsyncIterator[tuple[House, str]]:
    """Enrol a runner, let its session be open, and speak with its certificate from then on."""
    async with client_of(house.agent, None) as stranger:
        key = keys.new_key()
        body = {"token": await invited(house, "runner-1"), "request": write_request(key)}
        answer = await stranger.post("/agent/v1/enrolments", json={**body, "clock_ms": now_ms()})
        assert answer.status_code == 201, answer.text
    chain = certificates.read(answer.json()["certificate"].encode(), "runner-1")
    presenting = httpx.ASGITransport(
        Presenting(house.agent, der_of(chain[0])), raise_app_exceptions=False
    )
    async with httpx.AsyncClient(transport=presenting, base_url="http://test") as agents:
        answer = await register(agents, "runner-1")
        assert answer.status_code == 201, answer.text
        session_id = answer.json()["session_id"]
        answer = await agents.post(f"/agent/v1/sessions/{session_id}/heartbeat", json={})
        assert answer.status_code == 200, answer.text
        yield replace(house, agents=agents), session_id


async def invited(house: House, name: str) -> str:
    """Invite a machine; return its token."""
    wish = {"runner_name": name, "reason": "a test"}
    answer = await house.people.post("/v1/enrolments", json=wish)
    assert answer.status_code == 201, answer.text
    return answer.json()["token"]


async def agents_know(house: House, session_id: str, path: str) -> Known:
    """Let the runner have leases, one of them accepted; say what it can speak of."""
    assert (await house.people.put(f"/v1/blobs/{DIGEST}", content=DATA)).status_code == 201
    await house.submit(a_document(build=WORK, test={}), source_digest=DIGEST)
    accepted, offered = await house.offered(session_id)
    if accepted.offer["job_name"] != "build":
        accepted, offered = offered, accepted
    assert (await house.tell(accepted, "accept")).status_code == 200
    where = f"/agent/v1/leases/{accepted.lease_id}/caches/pip/{DIGEST}"
    saved = await house.agents.put(
        where, params={**accepted.holder, "digest": DIGEST}, content=DATA
    )
    assert saved.status_code == 204, saved.text
    held = offered if path.endswith(("/accept", "/reject")) else accepted
    return {
        "lease_id": held.lease_id,
        "session_id": session_id,
        "epoch": held.epoch,
        "leases": [{"lease_id": accepted.lease_id, "epoch": accepted.epoch}],
        "name": "pip" if "/caches/" in path else "wheel",
        "key": DIGEST,
        "digest": DIGEST,
        "sequence": 1,
        "step": "run",
        "runner_name": "runner-1",
        "protocol_version": 1,
        "total": {"cpu": 4_000, "memory": 2**33, "disk": 2**33, "slots": 4},
        "headroom": {},
        "capabilities": {},
        "clock_ms": now_ms(),
        "token": await invited(house, "runner-2") if path.endswith("/enrolments") else "",
        "request": write_request(keys.new_key()),
        "phase": "running",
        BODY: DATA,
    }


async def fuzz_people(house: House, operation: Any, told: Told, **how: int) -> None:
    known = await people_know(house, operation.path)
    await fuzz(house.people, operation, known, told, **how)


async def fuzz_agents(house: House, operation: Any, told: Told, **how: int) -> None:
    async with runner_of(house) as (speaking, session_id):
        known = await agents_know(speaking, session_id, operation.path)
        await fuzz(speaking.agents, operation, known, told, **how)


FUZZ = {"public": (BRIEF, fuzz_people, 300), "agent": (BY_CERTIFICATE, fuzz_agents, 100)}


@pytest.mark.parametrize("which", FUZZ)
async def test_no_drawn_request_brings_about_an_error_of_ours(
    sqlite_engine: sa.Engine,
    renew: Callable[[], None],
    tmp_path: Path,
    which: str,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> None:
    """S22: no 5xx, and every answer is of the type and the shape that the document says."""
    api, fuzz_one, least = FUZZ[which]
    cases, begin = (pytestconfig.getoption(f"--{name}") for name in ("fuzz-cases", "chaos-seed"))
    told = Told()
    make_authority(tmp_path)
    async with open_house(sqlite_engine, tmp_path, api=api) as house:
        for operation in operations(getattr(house, which)):
            renew()
            await fuzz_one(house, operation, told, cases=cases, begin=begin)
    record_property(f"S22 {which}", f"{told}; {told.held} held; {told.unserved()} never served")
    assert told.faults == [], "\n".join(told.faults[:20])
    assert told.of(2) >= least
    assert told.unserved() <= NEVER_2XX[which]
