"""S22: thousands of requests drawn from each API's own document, to handlers with work to do."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from starlette.types import ASGIApp, Receive, Scope, Send

from forgeyard.api.agent_callers import CERTIFICATE
from forgeyard.config import ApiConfig
from forgeyard.fleet.view import Launch
from forgeyard.model.capacity import ScaleReason
from forgeyard.model.fleet import WarmUp
from forgeyard.store import fleets, machines
from forgeyard.store.engine import database_now, write
from forgeyard.store.fleet_tables import capacity_instances
from forgeyard.store.shares import Intent
from forgeyard.trust import certificates, keys
from forgeyard.trust.requests import write_request
from tests.builders import RNG, a_fleet_spec
from tests.integration.api.furnished import (
    BYTES,
    DATA,
    DIGEST,
    WORK,
    a_codec,
    copy,
    furnish,
    job_of,
    known_at,
    open_up,
    put_back,
)
from tests.integration.api.fuzzing import BODY, Known, Told, fuzz, operations
from tests.integration.api.house import House, a_document, client_of, open_house
from tests.serving import make_authority, now_ms, register
from tests.trusting import der_of

pytestmark = pytest.mark.integration
BRIEF = ApiConfig(long_poll_s=0.02)
BY_CERTIFICATE = ApiConfig(long_poll_s=0.02, agent_identity="certificate")
CASES = 10
LEAST: Mapping[str, int] = {"public": 900, "agent": 150}
"""How many requests there are with so many to each route; a few know only one."""
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
    if job_of(accepted) != "build":
        accepted, offered = offered, accepted
    assert (await house.tell(accepted, "accept")).status_code == 200
    where = f"/agent/v1/leases/{accepted.lease_id}/caches/pip/{DIGEST}"
    saved = await house.agents.put(
        where, params={**accepted.holder, "digest": DIGEST}, content=DATA
    )
    assert saved.status_code == 204, saved.text
    warm_up(house, "runner-1")
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
        BODY: {BYTES: DATA},
    }


def warm_up(house: House, runner_name: str) -> None:
    """Put a runner on a machine of a fleet that names the cache."""
    spec = a_fleet_spec(warmup=WarmUp(caches=("pip",)))
    launch = Launch(offering=spec.offerings[0].name, reason=ScaleReason.MANUAL)
    why = Intent(actor="ann", channel="cli", reason="a test")
    with write(house.engine) as connection:
        fleets.apply(connection, spec, why, expected_version=None, rng=RNG)
        fleet, now = fleets.find(connection, spec.name), database_now(connection)
        (made,) = machines.intend(connection, fleet, spec, [launch], now=now, rng=RNG)
        own = capacity_instances.c.instance_id == made
        named = sa.update(capacity_instances).where(own).values(runner_name=runner_name)
        connection.execute(named)


async def fuzz_people(house: House, told: Told, store: Path, **how: int) -> None:
    """Furnish a store once, and begin at each route with what was there then."""
    known = await furnish(house)
    furnished = store.with_name("furnished.db")
    copy(store, furnished)
    for operation in operations(house.public):
        put_back(house.engine, furnished)
        await open_up(house, operation.path)
        await fuzz(house.people, operation, known_at(operation.path, known), told, **how)


async def fuzz_agents(house: House, told: Told, store: Path, **how: int) -> None:
    """Begin at each route with a new runner and its leases: sessions do not wait."""
    empty = store.with_name("empty.db")
    copy(store, empty)
    for operation in operations(house.agent):
        put_back(house.engine, empty)
        async with runner_of(house) as (speaking, session_id):
            known = await agents_know(speaking, session_id, operation.path)
            await fuzz(speaking.agents, operation, known, told, **how)


FUZZ = {"public": (BRIEF, fuzz_people), "agent": (BY_CERTIFICATE, fuzz_agents)}


@pytest.mark.parametrize("which", FUZZ)
async def test_no_drawn_request_brings_about_an_error_of_ours(
    sqlite_engine: sa.Engine,
    tmp_path: Path,
    which: str,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> None:
    """S22: no 5xx, and every answer is of the type and the shape that the document says."""
    api, fuzz_all = FUZZ[which]
    cases, begin = (pytestconfig.getoption(f"--{name}") for name in ("fuzz-cases", "chaos-seed"))
    told = Told()
    make_authority(tmp_path)
    store = Path(str(sqlite_engine.url.database))
    async with open_house(sqlite_engine, tmp_path, api=api, codec=a_codec(tmp_path)) as house:
        await fuzz_all(house, told, store, cases=cases, begin=begin)
    record_property(f"S22 {which}", f"{told}; {told.held} held; {told.unserved()} never served")
    assert told.faults == [], "\n".join(told.faults[:20])
    assert told.cases >= LEAST[which] * min(cases, CASES) // CASES
    assert told.of(2) * 4 >= told.cases, "too few that were served, to have tried the handlers"
    assert told.unserved() <= NEVER_2XX[which]
