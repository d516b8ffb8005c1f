"""The whole process over real sockets: both listeners, and what runs beside them."""

import asyncio
import contextlib
import gc
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from activities.connection import connect
from forgeyard.api.auth import ensure_token
from forgeyard.api.serve import Listening, serve
from forgeyard.config import (
    ApiConfig,
    Config,
    LimitsConfig,
    MetricsConfig,
    StoreConfig,
    TemporalConfig,
)
from forgeyard.errors import PortTaken
from forgeyard.store import codec, tables
from forgeyard.store.engine import read, write
from tests.builders import a_registration
from tests.integration.api.house import a_document, digest_of
from tests.integration.temporal.server import Server
from tests.scraping import a_free_port, scrape, scraped
from worker.wiring import register_search_attributes

pytestmark = pytest.mark.integration
DEGRADED = {"status": "degraded", "database": True, "temporal": False, "held": False}


def _config(url: str, folder: Path, *, temporal: str = "127.0.0.1:1") -> Config:
    return Config(
        data_dir=folder,
        store=StoreConfig(url=url),
        api=ApiConfig(port=0, agent_port=0, poll_ms=10, long_poll_s=30),
        temporal=TemporalConfig(address=temporal),
    )


@asynccontextmanager
async def _served(
    config: Config, stop: asyncio.Event | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Serve, and connect to both listeners with the token that was made."""
    stop = stop or asyncio.Event()
    found: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(config, stop, client=None, listening=found.set_result))
    await asyncio.wait((serving, found), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving
    where = await found
    headers = {"authorization": f"Bearer {ensure_token(config.token_path())}"}
    async with (
        httpx.AsyncClient(base_url=where.api_url, headers=headers, timeout=30) as people,
        httpx.AsyncClient(base_url=where.agent_url, headers=headers, timeout=30) as agents,
    ):
        yield people, agents
        stop.set()
        await asyncio.wait_for(serving, 20)


async def _until(condition: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "never happened"
        await asyncio.sleep(0.05)


async def _register(agents: httpx.AsyncClient) -> str:
    answer = await agents.post(
        "/agent/v1/sessions",
        content=codec.encode(a_registration()),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 201, answer.text
    return answer.json()["session_id"]


async def test_a_port_of_its_own_publishes_metrics_to_anybody_and_nothing_else(
    sqlite_url: str, tmp_path: Path
) -> None:
    port = a_free_port()
    config = _config(sqlite_url, tmp_path).model_copy(
        update={"metrics": MetricsConfig(api_port=port)}
    )
    async with _served(config) as (people, _agents):
        found = await asyncio.to_thread(scrape, port)
        gated = scraped((await people.get("/metrics")).text)
    assert found.value("forgeyard_store_up") == gated.value("forgeyard_store_up") == 1
    assert found.families.keys() == gated.families.keys()
    assert "forgeyard_renewal_beat_age_seconds" in found.families
    with pytest.raises(httpx.ConnectError):
        await asyncio.to_thread(scrape, port)


async def test_everything_but_scheduling_works_while_temporal_is_down(
    database_url: str, tmp_path: Path
) -> None:
    async with _served(_config(database_url, tmp_path)) as (people, agents):
        ready = await people.get("/readyz")
        assert ready.status_code == 200
        assert ready.json() == {
            "status": "degraded",
            "database": True,
            "temporal": False,
            "held": False,
        }
        data = b"source" * 10_000
        put = await people.put(f"/v1/blobs/{digest_of(data)}", content=data)
        assert put.status_code == 201
        body = {"document": a_document(), "source_digest": digest_of(data)}
        run = await people.post("/v1/runs", json=body)
        assert run.status_code == 201
        session_id = await _register(agents)
        url = f"/agent/v1/sessions/{session_id}"
        assert (await agents.post(f"{url}/heartbeat", json={})).status_code == 200
        assert (await agents.post(f"{url}/poll", params={"wait_ms": 0})).json()["offers"] == []
        cancelled = await people.post(f"/v1/runs/{run.json()['run_id']}:cancel", json={})
        assert cancelled.json()["state"] == "cancelled"


async def test_the_renewal_service_beats_before_it_is_heard(
    sqlite_engine: sa.Engine, sqlite_url: str, tmp_path: Path
) -> None:
    async with _served(_config(sqlite_url, tmp_path)) as (people, _):
        assert (await people.get("/healthz")).status_code == 200
        with read(sqlite_engine) as connection:
            row = connection.execute(sa.select(tables.liveness)).mappings().one()
        assert row["service"] == "renewal"


async def test_the_two_listeners_serve_different_routes(sqlite_url: str, tmp_path: Path) -> None:
    async with _served(_config(sqlite_url, tmp_path)) as (people, agents):
        assert (await people.get("/v1/runs")).status_code == 200
        assert (await agents.get("/v1/runs")).status_code == 404
        assert (await people.post("/agent/v1/renewals", json={})).status_code == 404


async def test_no_answer_waits_for_the_acknowledgement_of_its_first_half(
    sqlite_url: str, tmp_path: Path
) -> None:
    """Headers and body are two writes; with Nagle's algorithm the second comes 40 ms later."""
    async with _served(_config(sqlite_url, tmp_path)) as (people, agents):
        for client in (people, agents):
            await client.get("/healthz")
            undelayed = [
                bool(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                for one in gc.get_objects()
                if isinstance(one, socket.socket) and _is_served_at(one, client.base_url.port)
            ]
            assert undelayed == [True]


def _is_served_at(one: socket.socket, port: int | None) -> bool:
    """Tell the server's end of a connection from everything else that is open."""
    if one.fileno() < 0 or one.family != socket.AF_INET:
        return False
    with contextlib.suppress(OSError):
        return one.getsockname()[1] == port and one.getpeername()[1] != port
    return False


async def test_stopping_does_not_wait_for_those_who_wait(sqlite_url: str, tmp_path: Path) -> None:
    async with _served(_config(sqlite_url, tmp_path)) as (_, agents):
        session_id = await _register(agents)
        poll = asyncio.create_task(
            agents.post(f"/agent/v1/sessions/{session_id}/poll", params={"wait_ms": 30_000})
        )
        await asyncio.sleep(0.1)
        began = time.monotonic()
    answer = await poll
    assert (answer.status_code, answer.json()["offers"]) == (200, [])
    assert time.monotonic() - began < 10


async def test_a_taken_port_is_named(sqlite_url: str, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for field in ("port", "agent_port"):
            free = _config(sqlite_url, tmp_path)
            config = free.model_copy(update={"api": free.api.model_copy(update={field: port})})
            with pytest.raises(PortTaken) as caught:
                await serve(config, asyncio.Event(), client=None)
            assert caught.value.field == f"api.{field}"
            assert str(port) in caught.value.message


async def test_a_refused_body_still_gets_its_refusal_over_a_socket(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with _served(_config(sqlite_url, tmp_path)) as (people, _):
        for size in (2**20 + 1, 3 * 2**20):
            answer = await people.post("/v1/runs", content=b"x" * size)
            assert answer.status_code == 413
        nobody = await people.post(
            "/v1/runs", content=b"x" * 2**20, headers={"authorization": "Bearer nothing"}
        )
        assert nobody.status_code == 401
        assert (await people.get("/v1/runs")).status_code == 200


async def test_a_refused_upload_still_gets_its_refusal_over_a_socket(
    sqlite_url: str, tmp_path: Path
) -> None:
    free = _config(sqlite_url, tmp_path)
    config = free.model_copy(update={"limits": LimitsConfig(source=1_000)})
    async with _served(config) as (people, _):
        url = f"/v1/blobs/{digest_of(b'x')}"
        for size in (1_001, 6 * 2**20):
            answer = await people.put(url, content=b"x" * size)
            assert answer.status_code == 413
        assert (await people.put(url, content=b"x")).status_code == 201


async def test_an_upload_that_breaks_off_leaves_nothing(sqlite_url: str, tmp_path: Path) -> None:
    async with _served(_config(sqlite_url, tmp_path)) as (people, _):
        digest = digest_of(b"x" * 1_000)
        url = people.base_url
        token = people.headers["authorization"]
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            f"PUT /v1/blobs/{digest} HTTP/1.1\r\nhost: x\r\nauthorization: {token}\r\n"
            f"content-length: 1000\r\n\r\n{'x' * 10}".encode()
        )
        await writer.drain()
        incoming = tmp_path / "blobs" / "incoming"

        async def arrives() -> bool:
            return any(incoming.iterdir())

        async def gone() -> bool:
            return not any(incoming.iterdir())

        await _until(arrives)
        writer.close()
        await writer.wait_closed()
        del reader
        await _until(gone)
        assert (await people.head(f"/v1/blobs/{digest}")).status_code == 404


async def test_temporal_is_found_again_by_itself_and_hears_what_it_missed(
    sqlite_engine: sa.Engine, sqlite_url: str, tmp_path: Path
) -> None:
    server = Server()

    async def is_ready() -> bool:
        return (await people.get("/readyz")).json()["status"] == "ready"

    async def is_told() -> bool:
        with read(sqlite_engine) as connection:
            wake = connection.execute(sa.select(tables.wakes)).mappings().one()
        return wake["signalled"] == wake["generation"] > 0

    async with _served(_config(sqlite_url, tmp_path, temporal=server.address)) as (people, _):
        await people.post("/v1/runs", json={"document": a_document()})
        assert not await is_ready()
        assert not await is_told()
        server.start()
        try:
            await _until(is_ready)
            settings = TemporalConfig(address=server.address)
            await register_search_attributes(await connect(settings))
            await people.post("/v1/runs", json={"document": a_document()})
            await _until(is_told)
        finally:
            server.kill()
        answer = await people.post("/v1/runs", json={"document": a_document()})
        assert answer.status_code == 201
        assert not await is_ready()


async def test_a_database_that_goes_away_and_comes_back_is_survived(
    sqlite_engine: sa.Engine, sqlite_url: str, tmp_path: Path
) -> None:
    async with _served(_config(sqlite_url, tmp_path)) as (people, agents):
        session_id = await _register(agents)
        with write(sqlite_engine) as connection:
            connection.execute(sa.text("ALTER TABLE leases RENAME TO away"))
        url = f"/agent/v1/sessions/{session_id}/poll"
        lost = await agents.post(url, params={"wait_ms": 100})
        assert lost.status_code == 200
        with write(sqlite_engine) as connection:
            connection.execute(sa.text("ALTER TABLE away RENAME TO leases"))
        assert (await agents.post(url, params={"wait_ms": 100})).status_code == 200
        assert (await people.get("/v1/runs")).status_code == 200


async def test_asked_to_end_it_is_unready_first_and_serves_on_for_a_while(
    sqlite_url: str, tmp_path: Path
) -> None:
    free = _config(sqlite_url, tmp_path)
    config = free.model_copy(update={"api": free.api.model_copy(update={"leave_s": 10.0})})
    stop = asyncio.Event()
    async with _served(config, stop) as (people, agents):
        session_id = await _register(agents)
        path = f"/agent/v1/sessions/{session_id}/poll"
        poll = asyncio.create_task(agents.post(path, params={"wait_ms": 30_000}))
        await asyncio.sleep(0.1)
        stop.set()
        await asyncio.sleep(0.1)
        ready = await people.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "leaving")
        submitted = await people.post("/v1/runs", json={"document": a_document()})
        assert submitted.status_code == 201
        assert not poll.done(), poll.result().text
    assert (await poll).status_code == 200


async def test_an_upload_under_way_is_finished_and_a_follower_answered_before_the_end(
    sqlite_url: str, tmp_path: Path
) -> None:
    stop, data = asyncio.Event(), b"x" * 100_000
    sent = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield data[:50_000]
        sent.set()
        await asyncio.sleep(1.0)
        assert stop.is_set()
        yield data[50_000:]

    async with _served(_config(sqlite_url, tmp_path), stop) as (people, _):
        run = (await people.post("/v1/runs", json={"document": a_document()})).json()["run_id"]
        following = asyncio.create_task(
            people.get(f"/v1/runs/{run}/logs", params={"wait_ms": 30_000})
        )
        length = {"content-length": str(len(data))}
        url = f"/v1/blobs/{digest_of(data)}"
        upload = asyncio.create_task(people.put(url, content=slowly(), headers=length))
        await sent.wait()
        stop.set()
        assert (await asyncio.wait_for(following, 10)).json()["ended"] is False
        assert (await upload).status_code == 201
