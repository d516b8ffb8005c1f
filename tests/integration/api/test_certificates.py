"""The agents' listener under TLS, as serve runs it: who gets in, and whose leases are whose."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from cryptography.x509 import Certificate

from forgeyard import clock
from forgeyard.api.agent_app import assemble
from forgeyard.api.auth import OPEN_PATHS
from forgeyard.api.enrolling import OPEN_TO_STRANGERS
from forgeyard.api.serve import serve
from forgeyard.api.tls import demand_closed
from forgeyard.errors import InvalidRequest, NotFound, Unavailable
from forgeyard.store import tables
from forgeyard.store.engine import read
from forgeyard.trust import certificates, keys
from forgeyard.trust.certificates import Signer
from forgeyard.trust.requests import write_request
from tests.integration.api.house import digest_of
from tests.serving import Place, config_of, make_authority, now_ms, register, served
from tests.trusting import an_authority

pytestmark = pytest.mark.integration
HOUR = timedelta(hours=1)
FORGED = {
    "X-Client-Cert": "spiffe://x/runner/rnr_1",
    "X-Client-Verify": "SUCCESS",
    "X-Forwarded-Client-Cert": "URI=spiffe://x/runner/rnr_1",
    "X-Ssl-Client-Verify": "SUCCESS",
    "Forgeyard-Certificate": "rnr_1",
}


@pytest.fixture
def with_authority(tmp_path: Path) -> Path:
    """Make an authority and the listener's certificate in a data directory."""
    make_authority(tmp_path)
    return tmp_path


@pytest.fixture
async def place(with_authority: Path, engine: sa.Engine) -> AsyncIterator[Place]:
    """Serve until the test ends."""
    url = engine.url.render_as_string(hide_password=False)
    async with served(config_of(with_authority, url), engine) as made:
        yield made


@pytest.mark.requirement("BOO-007")
async def test_whoever_has_no_certificate_gets_none_of_the_routes(place: Place) -> None:
    """S12 and S7: nothing, a bearer token, and headers that a proxy might set."""
    token = place.people.headers["authorization"]
    async with place.nobody(**FORGED, authorization=token) as stranger:
        tried = 0
        for path, operations in assemble().openapi()["paths"].items():
            for method in operations:
                if path in OPEN_PATHS | OPEN_TO_STRANGERS:
                    continue
                answer = await stranger.request(method, path.replace("{", "").replace("}", ""))
                assert answer.status_code == 401, (method, path)
                tried += 1
        assert tried > 12
        assert (await stranger.get("/agent/v1/nothing")).status_code == 401
        assert (await stranger.get("/readyz")).status_code == 200


async def refused(client: httpx.AsyncClient) -> int | None:
    """Tell how a client is refused: by TLS itself, or with a status."""
    async with client:
        try:
            return (await client.post("/agent/v1/sessions", json={})).status_code
        except httpx.HTTPError:
            return None


@pytest.mark.parametrize("kind", ["other authority", "over", "not yet", "of a server"])
async def test_a_certificate_that_is_not_good_is_refused(place: Place, kind: str) -> None:
    """S12."""
    key, now, signer = keys.new_key(), clock.now(), place.authority.signer(now=clock.now())
    public, name = key.public_key(), "spiffe://x/runner/rnr_1"

    def client(by: Signer, begins: timedelta) -> Certificate:
        return certificates.client(public, name, by=by, now=now + begins, lasts=HOUR)

    other = an_authority()
    made = {
        "other authority": lambda: [client(other, timedelta(0)), other.certificate],
        "over": lambda: [client(signer, -2 * HOUR), signer.certificate],
        "not yet": lambda: [client(signer, 2 * HOUR), signer.certificate],
        "of a server": lambda: [
            certificates.server(public, ["127.0.0.1"], by=signer, now=now, lasts=HOUR),
            signer.certificate,
        ],
    }[kind]()
    assert await refused(place.client(made, key)) in (None, 401)
    good = [client(signer, timedelta(0)), signer.certificate]
    assert await refused(place.client(good, key)) == 422


async def test_a_runner_is_enrolled_registers_and_is_admitted(place: Place) -> None:
    agent = await place.enrolled("build-7")
    async with agent:
        answer = await register(agent, "build-7")
        assert answer.status_code == 201, answer.text
        assert answer.json()["admission"] == "pending"
        session = answer.json()["session_id"]
        answer = await agent.post(f"/agent/v1/sessions/{session}/heartbeat", json={})
        assert answer.status_code == 200, answer.text
    (runner,) = (await place.people.get("/v1/runners")).json()
    assert (runner["state"], runner["admission"]) == ("online", "verified")
    (view,) = (await place.people.get("/v1/enrolments")).json()
    assert view["state"] == "used"


async def test_a_machine_whose_clock_is_off_gets_no_certificate(place: Place) -> None:
    made = await place.invited("build-7")
    answer = await place.enrol(made["token"], keys.new_key(), clock_ms=now_ms() - 400_000)
    assert answer.status_code == 422
    assert answer.json()["field"] == "clock_ms"
    assert (await place.enrol(made["token"], keys.new_key())).status_code == 201


@pytest.mark.case("FLT-006")
async def test_a_token_that_comes_with_another_key_shuts_the_runner_out(place: Place) -> None:
    """S1."""
    made, key = await place.invited("build-7"), keys.new_key()
    first = await place.enrol(made["token"], key)
    agent = place.client(certificates.read(first.json()["certificate"].encode(), "x"), key)
    async with agent:
        assert (await register(agent, "build-7")).status_code == 201
        answer = await place.enrol(made["token"], keys.new_key())
        assert answer.status_code == 403
        await until_shut(agent)
    (runner,) = (await place.people.get("/v1/runners")).json()
    assert runner["admission"] == "quarantined"


@pytest.mark.case("FLT-087")
async def test_a_runner_learns_the_token_of_no_other_whomever_it_asks(place: Place) -> None:
    """Not even an operator is shown one again, and the tables hold none."""
    theirs, mine = await place.invited("two"), await place.enrolled("one")
    _, _, secret = theirs["token"].split("_", 2)
    listed = (await place.people.get("/v1/enrolments")).json()
    (named,) = [one["enrolment_id"] for one in listed if one["runner_name"] == "two"]
    bearer = place.people.headers["authorization"]
    async with mine, httpx.AsyncClient(base_url=place.people.base_url) as nobody:
        for path in ("/v1/enrolments", f"/v1/enrolments/{named}"):
            for client, statuses in ((mine, {404}), (nobody, {401})):
                assert (await client.get(path)).status_code in statuses
        again = await mine.get("/v1/enrolments", headers={"authorization": bearer})
        assert again.status_code == 404, "what people ask is not served where agents are"
        asked = await mine.post("/agent/v1/enrolments", json={"token": ""})
        assert asked.status_code in (401, 422)
    assert secret not in (await place.people.get("/v1/enrolments")).text
    with read(place.engine) as connection:
        rows = [
            repr(tuple(row))
            for table in tables.metadata.sorted_tables
            for row in connection.execute(sa.select(table))
        ]
    assert any(named in row for row in rows)
    assert not any(secret in row for row in rows)


async def until_shut(agent: httpx.AsyncClient) -> float:
    """Wait until a connected runner is refused; tell how many seconds that took."""
    began = clock.monotonic()
    while (await register(agent, "build-7")).status_code != 401:
        assert clock.monotonic() - began < 30, "still let in"
        await asyncio.sleep(0.1)
    return clock.monotonic() - began


@pytest.mark.requirement("CLI-018")
async def test_a_revocation_is_felt_on_a_connection_that_is_open(
    place: Place, record_property: Any
) -> None:
    """S14: within five seconds."""
    agent = await place.enrolled("build-7")
    async with agent:
        assert (await register(agent, "build-7")).status_code == 201
        answer = await place.people.post("/v1/runners/build-7:revoke", json={"reason": "stolen"})
        assert answer.status_code == 200, answer.text
        seconds = await until_shut(agent)
    record_property("revoked to refused", f"{seconds:.1f} s")
    with read(place.engine) as connection:
        query = sa.select(tables.audit.c.action).order_by(tables.audit.c.audit_id)
        assert list(connection.execute(query).scalars()) == ["enrolment.mint", "runner.revoke"]


async def test_the_next_certificate_is_had_over_the_one_in_use(place: Place) -> None:
    agent, key = await place.enrolled("build-7"), keys.new_key()
    request = {"request": write_request(key)}
    async with agent:
        first = await agent.post("/agent/v1/identity:renew", json=request)
        again = await agent.post("/agent/v1/identity:renew", json=request)
        assert first.status_code == 200, first.text
        assert first.json() == again.json()
        assert first.json()["generation"] == 2
        async with place.client(
            certificates.read(first.json()["certificate"].encode(), "x"), key
        ) as renewed:
            assert (await register(renewed, "build-7")).status_code == 201
        copy = {"request": write_request(keys.new_key())}
        assert (await agent.post("/agent/v1/identity:renew", json=copy)).status_code == 403
        await until_shut(agent)


def _bodies(session_id: str) -> Mapping[str, dict[str, object]]:
    """Write what each route wants to hear, in the name of a session."""
    holder = {"session_id": session_id, "epoch": 1}
    return {
        "/agent/v1/sessions/{session_id}/heartbeat": {},
        "/agent/v1/sessions/{session_id}/warmup": {},
        "/agent/v1/leases/{lease_id}/accept": holder,
        "/agent/v1/leases/{lease_id}/reject": {**holder, "reason": "local_policy", "detail": "x"},
        "/agent/v1/leases/{lease_id}/progress": {**holder, "phase": "running"},
        "/agent/v1/leases/{lease_id}/complete": {**holder, "outcome": "succeeded"},
        "/agent/v1/renewals": {
            "session_id": session_id,
            "leases": [{"lease_id": "lse_x", "epoch": 1}],
        },
    }


OWN = {"/agent/v1/sessions", "/agent/v1/identity:renew"}
"""Routes that speak of the caller itself."""


@pytest.mark.parametrize("whose", ["other", "own"])
async def test_no_route_does_anything_with_the_session_of_another_runner(
    place: Place, whose: str
) -> None:
    """S5: over the table of routes, with a certificate that is good for a runner of its own.

    The same requests in the name of the own session are refused by no route for whose they are.
    """
    one, two = await place.enrolled("one"), await place.enrolled("two")
    async with one, two:
        sessions = {
            "own": (await register(two, "two")).json()["session_id"],
            "other": (await register(one, "one")).json()["session_id"],
        }
        session_id, digest = sessions[whose], digest_of(b"x")
        bodies, tried = _bodies(session_id), 0
        holder = {"session_id": session_id, "epoch": "1", "digest": digest, "sequence": "0"}
        for path, operations in assemble().openapi()["paths"].items():
            if path in OPEN_PATHS | OPEN_TO_STRANGERS | OWN:
                continue
            filled = path.format(
                session_id=session_id, lease_id="lse_x", name="x", digest=digest, key=digest
            )
            for method in operations:
                body = bodies.get(path)
                query = {"wait_ms": "0"} if body is not None or "sessions" in path else holder
                answer = await two.request(method, filled, params=query, json=body)
                expected = answer.status_code == 403
                assert expected is (whose == "other"), (method, path, answer.text)
                tried += 1
        assert tried == len(bodies) + 10


async def test_the_listener_does_not_start_without_an_authority(
    tmp_path: Path, sqlite_url: str
) -> None:
    """S12: certificates are demanded, and nothing says which are good."""
    with pytest.raises(NotFound, match="forgeyard ca"):
        await serve(config_of(tmp_path, sqlite_url), asyncio.Event())


async def test_agents_elsewhere_are_not_served_by_the_token(
    tmp_path: Path, sqlite_url: str
) -> None:
    config = config_of(tmp_path, sqlite_url, agent_identity="token", agent_host="0.0.0.0")
    with pytest.raises(InvalidRequest, match="forgeyard ca init"):
        await serve(config, asyncio.Event())


async def test_a_listener_that_lets_strangers_in_ends_the_process(place: Place) -> None:
    """The self-test at start-up, against a server that has no gate."""

    async def no_gate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 422 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(no_gate, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match="422 to who has no certificate"):
            await demand_closed(f"http://127.0.0.1:{port}", asyncio.Event())
    await asyncio.wait_for(demand_closed(place.url, asyncio.Event()), 30)


async def test_a_new_certificate_of_the_listener_is_taken_up_while_it_runs(place: Place) -> None:
    def serial() -> int:
        host, port = place.url.removeprefix("https://").split(":")
        pem = ssl.get_server_certificate((host, int(port)))
        return certificates.read(pem.encode(), "x")[0].serial_number

    before = await asyncio.to_thread(serial)
    place.authority.server(["127.0.0.1"], now=clock.now())
    began = clock.monotonic()
    while await asyncio.to_thread(serial) == before:
        assert clock.monotonic() - began < 60, "the old one is still in use"
        await asyncio.sleep(0.2)


async def test_runners_of_a_new_issuing_authority_are_let_in_beside_those_of_the_old(
    place: Place,
) -> None:
    old = await place.enrolled("old")
    place.authority.rotate(None, now=clock.now())
    new = await place.enrolled("new")
    async with old, new:
        assert (await register(old, "old")).status_code == 201
        began = clock.monotonic()
        while (answer := await register_or_none(new, "new")) != 201:
            assert clock.monotonic() - began < 60, answer
            await asyncio.sleep(0.2)


async def register_or_none(agent: httpx.AsyncClient, name: str) -> int | None:
    try:
        return (await register(agent, name)).status_code
    except httpx.HTTPError:
        return None
