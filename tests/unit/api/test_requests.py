"""What stands before the routes: the body limit, the gate, the request ids."""

import asyncio
import json
import re
from collections.abc import AsyncIterator

import httpx
from starlette.types import Receive, Scope, Send

from forgeyard.api.auth import TokenGate
from forgeyard.api.requests import BodyLimit, RequestIds


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the size of the body, read the ordinary way."""
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def _client(limit: int = 100, timeout_s: float = 5.0) -> httpx.AsyncClient:
    limited = BodyLimit(
        _echo, limit=limit, streams=(re.compile(r"/stream/[^/]+"),), timeout_s=timeout_s
    )
    gated = TokenGate(limited, token="sesame", open_paths={"/open"})
    app = RequestIds(gated, draw=lambda: "req_drawn")
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://test",
        headers={"authorization": "Bearer sesame"},
    )


async def _pieces(count: int, size: int = 50) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * size


async def test_a_body_within_the_limit_arrives_whole() -> None:
    async with _client() as client:
        answer = await client.post("/any", content=_pieces(2))
    assert (answer.status_code, answer.text) == (200, "100")


async def test_a_body_that_says_it_is_too_large_is_refused() -> None:
    async with _client() as client:
        answer = await client.post("/any", content=b"x" * 101)
    assert answer.status_code == 413
    assert answer.json()["code"] == "request.too_large"


async def test_a_body_that_turns_out_too_large_is_refused() -> None:
    async with _client() as client:
        answer = await client.post("/any", content=_pieces(1_000))
    assert answer.status_code == 413


async def test_an_absurd_content_length_is_refused() -> None:
    async with _client() as client:
        answer = await client.post("/any", content=b"x", headers={"content-length": "9" * 400})
    assert answer.status_code == 413


async def test_a_stream_passes_whatever_its_size_but_only_by_put() -> None:
    async with _client() as client:
        assert (await client.put("/stream/a", content=_pieces(10))).text == "500"
        assert (await client.post("/stream/a", content=_pieces(10))).status_code == 413
        assert (await client.put("/stream/a/b", content=_pieces(10))).status_code == 413


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    never = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield b"x"
        await never.wait()

    async with _client(timeout_s=0.01) as client:
        answer = await client.post("/any", content=stuck())
    assert answer.status_code == 408
    assert answer.json()["code"] == "request.too_slow"


async def test_a_request_without_the_token_is_refused_before_its_body_is_read() -> None:
    async def explode() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    async with _client() as client:
        answer = await client.post("/any", content=explode(), headers={"authorization": ""})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"


async def test_only_the_exact_token_opens() -> None:
    async with _client() as client:
        for given in ("Bearer sesam", "Bearer sesame!", "Basic sesame", "sesame", "Bearer", "é"):
            header = {"authorization": given.encode("latin-1")}
            assert (await client.get("/any", headers=header)).status_code == 401, given
        ok = await client.get("/any", headers={"authorization": "bearer  sesame "})
        assert ok.status_code == 200


async def test_open_paths_are_exact() -> None:
    async with _client() as client:
        client.headers.pop("authorization")
        assert (await client.get("/open")).status_code == 200
        for path in ("/open/", "/open/x", "/OPEN", "//open"):
            assert (await client.get(path)).status_code == 401, path


async def test_every_answer_carries_a_request_id() -> None:
    async with _client() as client:
        assert (await client.get("/any")).headers["x-request-id"] == "req_drawn"
        refused = await client.get("/any", headers={"authorization": ""})
    assert refused.headers["x-request-id"] == "req_drawn"
    assert json.loads(refused.text)["request_id"] == "req_drawn"


async def test_a_callers_request_id_is_kept_if_it_is_well_formed() -> None:
    async with _client() as client:
        good = await client.get("/any", headers={"x-request-id": "abc-1.2_Z"})
        bad = await client.get("/any", headers={"x-request-id": "a" * 65})
        worse = await client.get("/any", headers={"x-request-id": "a b"})
    assert good.headers["x-request-id"] == "abc-1.2_Z"
    assert bad.headers["x-request-id"] == "req_drawn"
    assert worse.headers["x-request-id"] == "req_drawn"
