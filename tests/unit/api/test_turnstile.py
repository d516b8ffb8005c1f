"""So many requests at a time; the next is told to come again, and is let in once one has left."""

import asyncio

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from forgeyard.api.requests import RequestIds
from forgeyard.api.turnstile import Turnstile


class Room:
    """An application that answers once it is told to."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[str] = asyncio.Queue()
        self.open = asyncio.Event()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self.entered.put_nowait(scope["path"])
        await self.open.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def client(room: Room) -> httpx.AsyncClient:
    app = RequestIds(Turnstile(room, at_once=2), draw=lambda: "req_drawn")
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def two_inside(room: Room, client: httpx.AsyncClient) -> list[asyncio.Task[httpx.Response]]:
    tasks = [asyncio.ensure_future(client.post("/agent/v1/sessions")) for _ in range(2)]
    for _ in tasks:
        await room.entered.get()
    return tasks


async def test_who_finds_no_room_is_told_at_once_to_come_again() -> None:
    room = Room()
    async with client(room) as caller:
        inside = await two_inside(room, caller)
        refused = await caller.post("/agent/v1/sessions")
        assert (refused.status_code, refused.json()["code"]) == (503, "api.crowded")
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["content-type"] == "application/problem+json"
        room.open.set()
        assert [answer.status_code for answer in await asyncio.gather(*inside)] == [204, 204]
        assert (await caller.post("/agent/v1/sessions")).status_code == 204


async def test_who_gives_up_leaves_room_for_another() -> None:
    room = Room()
    async with client(room) as caller:
        first, second = await two_inside(room, caller)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        room.open.set()
        assert (await caller.post("/agent/v1/sessions")).status_code == 204
        await second


@pytest.mark.parametrize(
    "path",
    [
        "/healthz",
        "/readyz",
        "/metrics",
        "/agent/v1/renewals",
        "/agent/v1/sessions/ses_1/poll",
        "/v1/runs/run_1/logs",
        "/agent/v1/leases/lse_1/inputs/sha256:1",
        "/v1/runs/run_1/outputs/build/app",
    ],
)
async def test_some_are_let_in_however_many_there_are(path: str) -> None:
    room = Room()
    async with client(room) as caller:
        inside = await two_inside(room, caller)
        third = asyncio.ensure_future(caller.get(path))
        assert await room.entered.get() == path
        room.open.set()
        assert (await third).status_code == 204
        await asyncio.gather(*inside)
