"""Bodies made to hurt: each is refused quickly, with a problem, and nothing is stored."""

import json

import pytest

from forgeyard.store import tables
from tests.integration.api.house import House, a_document

pytestmark = pytest.mark.integration
JSON = {"content-type": "application/json"}


def _nested(depth: int, opening: str = "[", inside: str = "", closing: str = "]") -> bytes:
    return (opening * depth + inside + closing * depth).encode()


def _submit(document: bytes) -> bytes:
    return b'{"document": ' + document + b', "submitted_by": "x"}'


DEPTHS = (50, 200, 250, 260, 500, 900, 990, 1_100, 5_000, 200_000)
BOMBS = {
    **{f"lists {depth}": _nested(depth) for depth in DEPTHS},
    **{f"objects {depth}": _nested(depth, '{"a":', "1", "}") for depth in DEPTHS},
    **{f"document {depth}": _submit(_nested(depth, '{"jobs":', "1", "}")) for depth in DEPTHS},
    **{
        f"env {depth}": _submit(
            b'{"jobs":{"a":{"steps":[{"run":"true"}],"env":'
            + _nested(depth, '{"a":', "1", "}")
            + b"}}}"
        )
        for depth in DEPTHS
    },
    "unclosed": b"[" * 200_000,
    "huge integer": _submit(b'{"jobs": ' + b"9" * 10_000 + b"}"),
    "huge timeout": _submit(b'{"timeout": ' + b"9" * 4_000 + b', "jobs": {}}'),
    "huge exponent": _submit(b'{"jobs": 1e999999}'),
    "not a number": _submit(b'{"jobs": NaN}'),
    "invalid UTF-8": b'{"document": "\xff\xfe"}',
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "a string": b'"x"',
    "a list for a document": _submit(b"[]"),
    "cut off": b'{"document": {',
    "NUL in a name": _submit(b'{"name": "a\\u0000b", "jobs": {"a": {"steps": [{"run": "x"}]}}}'),
    "NUL in a key": _submit(b'{"jobs": {"a\\u0000": {"steps": [{"run": "x"}]}}}'),
    "lone surrogate": _submit(b'{"name": "\\ud800", "jobs": {"a": {"steps": [{"run": "x"}]}}}'),
    "surrogate in a submitter": b'{"document": {"jobs": {}}, "submitted_by": "\\ud800"}',
    "surrogate for a digest": b'{"document": {"jobs": {}}, "source_digest": "\\ud800"}',
    "surrogate in a key": b'{"document": {"jobs": {}}, "\\ud800": 1}',
    "surrogate in a script": _submit(b'{"jobs": {"a": {"steps": [{"run": "\\udfff"}]}}}'),
}


async def test_a_hostile_body_is_refused_and_stores_nothing(sqlite_house: House) -> None:
    for name, body in BOMBS.items():
        for path in ("/v1/runs", "/v1/runs:check"):
            answer = await sqlite_house.people.post(path, content=body, headers=JSON)
            assert answer.status_code in (400, 413, 422), (name, answer.text[:500])
            assert answer.headers["content-type"] == "application/problem+json", name
            assert len(answer.content) < 4_000, name
    assert sqlite_house.count(tables.runs) == 0
    assert sqlite_house.kicks == []


async def test_a_hostile_message_of_an_agent_is_refused(sqlite_house: House) -> None:
    for name, body in BOMBS.items():
        for path in ("/agent/v1/sessions", "/agent/v1/renewals", "/agent/v1/leases/x/complete"):
            answer = await sqlite_house.agents.post(path, content=body, headers=JSON)
            assert answer.status_code in (400, 413, 422), (name, answer.text[:500])


async def test_a_body_over_a_mebibyte_is_refused_before_it_is_parsed(
    sqlite_house: House,
) -> None:
    body = b"[" * (2**20 + 1)
    answer = await sqlite_house.people.post("/v1/runs", content=body, headers=JSON)
    assert answer.status_code == 413
    assert answer.json()["code"] == "request.too_large"


async def test_a_mebibyte_of_labels_is_refused(sqlite_house: House) -> None:
    labels = {f"label-{number}": "x" * 100 for number in range(9_000)}
    document = a_document(build={"requires": {"labels": labels}})
    answer = await sqlite_house.people.post("/v1/runs", json={"document": document})
    assert answer.status_code in (413, 422)
    assert sqlite_house.count(tables.runs) == 0


async def test_a_form_or_plain_text_is_not_taken_for_json(sqlite_house: House) -> None:
    body = json.dumps({"document": a_document()})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = await sqlite_house.people.post(
            "/v1/runs", content=body, headers={"content-type": kind}
        )
        assert answer.status_code == 422
    assert sqlite_house.count(tables.runs) == 0


PATHS = (
    "/v1/runs/%00",
    "/v1/runs/run_%00/history",
    "/v1/runs/%ff%fe",
    "/v1/runs/..%2f..%2fetc",
    "/v1/runs/%25",
    "/v1/runs/_",
    "/v1/runs/run_x/logs?job=%00",
    "/v1/runs/run_x/logs?after=%00",
    "/v1/runs/run_x/artifacts/%00/%00",
    "/v1/jobs/%00/scheduling",
    "/v1/runs?before=%00",
    "/v1/runs?before=%F0%9F%92%A5",
    f"/v1/runs/{'x' * 5_000}",
)
FIELDS: tuple[dict[str, object], ...] = (
    {"submitted_by": "a\x00b"},
    {"submitted_by": ""},
    {"submitted_by": "x" * 201},
    {"source_digest": "sha256:\x00"},
    {"surprise": 1},
)
REGISTRATIONS: tuple[dict[str, object], ...] = (
    {"runner_name": "a\x00b"},
    {"runner_name": "../../etc"},
    {"total": {"cpu": 10**30, "memory": 1, "disk": 1, "slots": 1}},
    {"total": {"cpu": -1, "memory": 1, "disk": 1, "slots": 1}},
    {"total": {"cpu": 1.5, "memory": 1, "disk": 1, "slots": 1}},
    {"protocol_version": 99},
    {"capabilities": {"os_version": "a\x00b"}},
    {"capabilities": {"labels": {"\x00": "a"}}},
)


async def test_a_hostile_path_is_refused(house: House) -> None:
    for path in PATHS:
        answer = await house.people.get(path)
        assert answer.status_code in (404, 422), (path, answer.text)
        assert answer.headers["content-type"] == "application/problem+json", path


async def test_a_field_that_cannot_be_stored_is_refused(house: House) -> None:
    for fields in FIELDS:
        answer = await house.people.post("/v1/runs", json={"document": a_document(), **fields})
        assert answer.status_code in (404, 422), (fields, answer.text)
    assert house.count(tables.runs) == 0


async def test_a_registration_that_cannot_be_is_refused(house: House) -> None:
    body = {
        "runner_name": "runner-1",
        "capabilities": {},
        "total": {"cpu": 1_000, "memory": 2**30, "disk": 2**30, "slots": 1},
        "headroom": {},
    }
    for fields in REGISTRATIONS:
        answer = await house.agents.post("/agent/v1/sessions", json={**body, **fields})
        storable = "capabilities" in fields  # JSON text keeps an escaped NUL
        assert answer.status_code == (201 if storable else 422), (fields, answer.text)
