"""Everything that either API takes is bounded, on every route: inventories from the documents.

Nothing here names a route, so a new one is looked at as well (S6, S10, S19).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from forgeyard.api import agent_app, app
from forgeyard.store import tables
from tests.integration.api.house import House

pytestmark = pytest.mark.integration
JSON = {"content-type": "application/json"}
METHODS = ("get", "head", "post", "put", "patch", "delete")
WEIGHED_WHOLE = {
    *("Submit.document", "SetPolicy.document", "CheckPolicy.document", "ApplyFleet.document"),
    "SimulateFleet.document",
}
"""Documents of their own, bounded by the size of the body and by what compiles them."""
DEPTHS = (60, 300, 1_000, 5_000, 200_000)
BODIES: Mapping[str, bytes] = {
    **{f"lists {depth}": b"[" * depth + b"]" * depth for depth in DEPTHS},
    **{f"objects {depth}": b'{"a":' * depth + b"1" + b"}" * depth for depth in DEPTHS},
    "unclosed": b'{"a":' * 200_000,
    "digits": b"9" * 10_000,
    "digits in a field": b'{"epoch": ' + b"9" * 10_000 + b"}",
    "exponent": b'{"epoch": 1e999999}',
    "not a number": b'{"epoch": NaN}',
    "no text": b"\xff\xfe\x00",
    "NUL": b'{"reason": "\\u0000", "actor": "\\u0000", "session_id": "\\u0000", "epoch": 1}',
    "surrogate": b'{"reason": "\\ud800", "actor": "\\ud800", "session_id": "\\ud800", "epoch": 1}',
    "labels": b'{"labels": {' + b",".join(b'"l%d": "x"' % n for n in range(50_000)) + b"}}",
    "tags": b'{"tags": [' + b",".join(b'"x"' for _ in range(100_000)) + b"]}",
    "long text": b'{"reason": "' + b"x" * 900_000 + b'"}',
    "twice": b'{"epoch": 1, "epoch": 2}',
    "scalar": b"true",
}
NAMES = ("%00", "a%00b", "x" * 4_096, "..%2f..%2fetc", "%ED%A0%80", "%ff%fe", "9" * 10_000, "-1")


def operations(application: FastAPI) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """List every documented operation."""
    for path, found in application.openapi()["paths"].items():
        for method, operation in found.items():
            assert method in METHODS
            yield method.upper(), path, operation


def at(path: str, value: str = "x") -> str:
    """Put something in place of each parameter of a path."""
    return re.sub(r"\{[^}]+\}", value, path)


def unbounded(document: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Name every text, list and mapping in a schema that may be as long as it likes."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if path.count(f"<{name}>") == 0:
            inner = document["components"]["schemas"][name]
            yield from unbounded(document, inner, f"{path}<{name}>{name}")
        return
    for kind in ("anyOf", "allOf", "oneOf"):
        for inner in schema.get(kind, ()):
            yield from unbounded(document, inner, path)
    limits = {
        "string": ("maxLength", "enum", "const", "pattern", "format"),
        "array": ("maxItems",),
        "object": ("maxProperties",) if schema.get("additionalProperties") else (),
    }.get(str(schema.get("type")), ())
    if limits and not any(limit in schema for limit in limits):
        yield path.rpartition(">")[2]
    yield from _inside(document, schema, path)


def _inside(document: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    parts = {f"{path}.{name}": inner for name, inner in schema.get("properties", {}).items()}
    parts |= {f"{path}[{n}]": inner for n, inner in enumerate(schema.get("prefixItems", ()))}
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            parts[f"{path}.{name}"] = schema[name]
    for name, inner in parts.items():
        yield from unbounded(document, inner, name)


@pytest.mark.parametrize("which", ["public", "agent"])
def test_no_text_list_or_mapping_in_a_request_is_without_a_limit(which: str) -> None:
    document = documents()[which]
    found: set[str] = set()
    looked_at = 0
    for path, known in document["paths"].items():
        for method, operation in known.items():
            bodies = operation.get("requestBody", {}).get("content", {})
            schemas = {
                **{f"{kind} body": body.get("schema", {}) for kind, body in bodies.items()},
                **{one["name"]: one["schema"] for one in operation.get("parameters", ())},
            }
            for name, schema in schemas.items():
                if name != "application/octet-stream body":
                    looked_at += 1
                    found |= set(unbounded(document, schema, f"{method} {path} {name}"))
    assert looked_at > 20
    assert found - WEIGHED_WHOLE == set()


def test_the_inventory_sees_what_has_no_limit() -> None:
    open_ended = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"}}}
    assert set(unbounded({}, open_ended, "x")) == {"x.a", "x.b"}


def documents() -> dict[str, dict[str, Any]]:
    """Render both documents."""
    return {"public": app.assemble().openapi(), "agent": agent_app.assemble().openapi()}


def is_refused(answer: httpx.Response) -> bool:
    """Tell whether this is a refusal in our shape, and a short one."""
    return (
        400 <= answer.status_code < 500
        and answer.headers["content-type"] == "application/problem+json"
        and len(answer.content) < 4_000
    )


@pytest.mark.parametrize("which", ["public", "agent"])
async def test_a_hostile_body_is_refused_on_every_route(sqlite_house: House, which: str) -> None:
    client = sqlite_house.people if which == "public" else sqlite_house.agents
    tried = 0
    for method, path, operation in operations(getattr(sqlite_house, which)):
        kinds = operation.get("requestBody", {}).get("content", {})
        if "application/json" not in kinds:
            continue
        for name, body in BODIES.items():
            answer = await client.request(method, at(path), content=body, headers=JSON)
            assert is_refused(answer), (method, path, name, answer.status_code, answer.text[:300])
            tried += 1
    assert tried > 5 * len(BODIES)
    assert sqlite_house.count(tables.runs) == 0


@pytest.mark.parametrize("which", ["public", "agent"])
async def test_a_body_over_the_limit_is_refused_before_anything_reads_it(
    sqlite_house: House, which: str
) -> None:
    client = sqlite_house.people if which == "public" else sqlite_house.agents
    body = b"[" * (2**20 + 1)
    streams = 0
    for method, path, _ in operations(getattr(sqlite_house, which)):
        if method in ("GET", "HEAD"):
            continue
        answer = await client.request(method, at(path), content=body, headers=JSON)
        streams += answer.status_code != 413
        assert answer.status_code == 413 or method == "PUT", (method, path, answer.status_code)
        assert is_refused(answer), (method, path)
    assert streams <= 2


@pytest.mark.parametrize("which", ["public", "agent"])
async def test_a_hostile_name_or_number_in_a_url_breaks_nothing(
    sqlite_house: House, which: str
) -> None:
    client = sqlite_house.people if which == "public" else sqlite_house.agents
    for method, path, operation in operations(getattr(sqlite_house, which)):
        if "poll" in path or path.endswith("/logs"):
            continue  # these wait for news; their parameters are shared with others
        queries = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
        for hostile in NAMES:
            everything = "&".join(f"{name}={hostile}" for name in queries)
            for url in (at(path, hostile), f"{at(path)}?{everything}"):
                answer = await client.request(method, url, content=b"{}", headers=JSON)
                assert answer.status_code < 500, (method, url[:200], answer.text[:300])
