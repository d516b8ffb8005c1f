"""Nothing is done for anybody without the token, whatever routes there will ever be."""

import re

import httpx
import pytest
from fastapi import FastAPI

from forgeyard.api.auth import OPEN_PATHS
from tests.integration.api.house import House, client_of

pytestmark = pytest.mark.integration
DEGRADED = {"status": "degraded", "database": True, "temporal": False, "held": False}


def _operations(app: FastAPI) -> list[tuple[str, str]]:
    """List every documented method and path, with something in place of each parameter."""
    return [
        (method.upper(), re.sub(r"\{[^}]+\}", "x", path))
        for path, operations in app.openapi()["paths"].items()
        for method in operations
    ]


def _mounted(app: FastAPI) -> set[str]:
    """List the paths of every route, documented or not."""
    found: set[str] = set()
    waiting = list(app.routes)
    while waiting:
        route = waiting.pop()
        router = getattr(route, "original_router", None)
        waiting += router.routes if router else []
        # The document does not tell that a parameter may hold slashes.
        found |= {route.path.replace(":path}", "}")} if hasattr(route, "path") else set()
    return found


@pytest.mark.parametrize("which", ["public", "agent"])
async def test_every_route_answers_401_without_the_token(sqlite_house: House, which: str) -> None:
    app: FastAPI = getattr(sqlite_house, which)
    operations = _operations(app)
    assert len(operations) > 10
    async with client_of(app, token=None) as nobody:
        for method, path in operations:
            for headers in ({}, {"authorization": "Bearer nothing"}):
                answer = await nobody.request(method, path, headers=headers, content=b"{}")
                if path in OPEN_PATHS:
                    assert answer.status_code != 401, path
                else:
                    assert answer.status_code == 401, (method, path)
                    if method != "HEAD":
                        assert answer.json()["code"] == "auth.unauthenticated"
    assert sqlite_house.kicks == []


@pytest.mark.parametrize("which", ["public", "agent"])
async def test_no_route_is_missing_from_the_document(sqlite_house: House, which: str) -> None:
    app: FastAPI = getattr(sqlite_house, which)
    documented = set(app.openapi()["paths"])
    assert len(documented) > 10
    assert _mounted(app) == documented | {"/openapi.json"}


@pytest.mark.parametrize(
    "path", ["/", "/openapi.json", "/docs", "/nothing", "/healthz/", "/healthz%2f"]
)
async def test_what_is_no_route_is_shut_too(sqlite_house: House, path: str) -> None:
    async with client_of(sqlite_house.public, token=None) as nobody:
        assert (await nobody.get(path)).status_code == 401


@pytest.mark.parametrize("which", ["public", "agent"])
async def test_a_token_in_the_url_opens_nothing(sqlite_house: House, which: str) -> None:
    async with client_of(getattr(sqlite_house, which), token=None) as nobody:
        answer = await nobody.get("/v1/runs", params={"token": "sesame-open"})
        assert answer.status_code == 401


def _is_problem(answer: httpx.Response) -> bool:
    problem = answer.json()
    return (
        answer.headers["content-type"] == "application/problem+json"
        and problem["status"] == answer.status_code
        and problem["type"] == f"urn:forgeyard:problem:{problem['code']}"
        and problem["request_id"] == answer.headers["x-request-id"]
        and bool(problem["title"])
        and bool(problem["detail"])
    )


async def test_the_frameworks_own_errors_are_problems_too(sqlite_house: House) -> None:
    people = sqlite_house.people
    nowhere = await people.get("/v1/nothing")
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "route.not_found")
    wrong = await people.delete("/v1/runs")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "route.method_not_allowed")
    assert "allow" in wrong.headers
    invalid = await people.get("/v1/runs", params={"limit": "many"})
    assert (invalid.status_code, invalid.json()["code"]) == (422, "request.invalid")
    assert invalid.json()["field"] == "query.limit"
    assert invalid.json()["value"] == "many"
    async with client_of(sqlite_house.public, token=None) as nobody:
        refused = await nobody.get("/v1/runs")
    for answer in (nowhere, wrong, invalid, refused):
        assert _is_problem(answer), answer.text


async def test_a_bug_is_answered_without_its_text_and_with_a_request_id(
    sqlite_house: House, caplog: pytest.LogCaptureFixture
) -> None:
    @sqlite_house.public.get("/v1/bug")
    def bug() -> None:
        raise KeyError("hunter2")

    answer = await sqlite_house.people.get("/v1/bug", headers={"x-request-id": "mine-1"})
    assert answer.status_code == 500
    assert _is_problem(answer)
    assert answer.json()["code"] == "forgeyard.internal"
    assert answer.json()["request_id"] == "mine-1"
    assert "hunter2" not in answer.text
    assert "mine-1" in caplog.text


async def test_anybody_may_ask_whether_it_is_alive(sqlite_house: House) -> None:
    for app in (sqlite_house.public, sqlite_house.agent):
        async with client_of(app, token=None) as nobody:
            assert (await nobody.get("/healthz")).json() == {"status": "ok"}
            ready = await nobody.get("/readyz")
            assert ready.status_code == 200
            assert ready.json() == {
                "status": "degraded",
                "database": True,
                "temporal": False,
                "held": False,
            }


async def test_the_run_file_schema_is_open(sqlite_house: House) -> None:
    async with client_of(sqlite_house.public, token=None) as nobody:
        answer = await nobody.get("/v1/schema/runfile.json")
    assert answer.status_code == 200
    assert "jobs" in answer.json()["properties"]
