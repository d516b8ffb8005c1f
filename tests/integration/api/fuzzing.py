"""Requests that schemathesis draws from an API's own document, sent to the application itself.

In two requests of three, what is named in the path is put there from what the store holds, and in
one of three so is everything else that the request names: handlers find what they are asked about.
Answers are counted, and what no client should ever see is kept.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import requests
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks

Known = Mapping[str, Any]
"""What there is, by the name of the parameter or field that names it."""
BODY = "body"
"""The name of the bodies to send as a whole, by their media type."""
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
PROBLEM = "application/problem+json"
HELD = "store.held"
"""The one 503 that a caller can bring about: it shows a mark that this store never gave."""
Send = Callable[[requests.PreparedRequest], httpx.Response]


@dataclass(kw_only=True)
class Told:
    """What was answered so far."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    held: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """Tell how many requests there were."""
        return self.statuses.total()

    def of(self, hundred: int) -> int:
        """Count the answers of 2xx or 4xx."""
        return sum(n for (_, status), n in self.statuses.items() if status // 100 == hundred)

    def unserved(self) -> set[str]:
        """Name the routes that were asked and never once did what they are for."""
        served = {route for route, status in self.statuses if status < 300}
        return {route for route, _ in self.statuses} - served

    def __str__(self) -> str:
        each: Counter[int] = Counter()
        for (_, status), count in self.statuses.items():
            each[status] += count
        found = ", ".join(f"{count} of {status}" for status, count in sorted(each.items()))
        return f"{self.cases} cases on {len({one for one, _ in self.statuses})} routes: {found}"


def operations(app: FastAPI) -> Iterator[Any]:
    """List what the document of an application offers."""
    for found in schemathesis.openapi.from_dict(app.openapi()).get_all_operations():
        yield found.ok()


async def fuzz(
    client: httpx.AsyncClient,
    operation: Any,
    known: Known,
    told: Told,
    *,
    cases: int,
    begin: int,
) -> None:
    """Send so many requests to one route, the same ones for the same number to begin with."""
    loop = asyncio.get_running_loop()
    turns = iter(range(2**31))

    def send(request: requests.PreparedRequest) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(_ask(client, request), loop).result(60)

    @seed(begin)
    @settings(
        max_examples=cases,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=drawn(operation))
    def each(case: Any) -> None:
        turn = next(turns) % 3
        put(case.path_parameters, known if turn < 2 else {})
        if turn == 0:
            put(case.query, known)
            put(case.body, known)
            case.body = known[BODY].get(case.media_type, case.body)
        judge(case, send, told)

    await asyncio.to_thread(each)


async def _ask(client: httpx.AsyncClient, request: requests.PreparedRequest) -> httpx.Response:
    body = request.body or b""
    content = body.encode(errors="surrogatepass") if isinstance(body, str) else body
    # What is drawn for this one would hide the client's own; other tests try wrong credentials.
    drawn = request.headers.items()
    headers = {name: value for name, value in drawn if name.lower() != "authorization"}
    return await client.request(
        str(request.method), str(request.url), headers=headers, content=content
    )


def drawn(operation: Any) -> st.SearchStrategy[Any]:
    """Draw requests that keep to the document and, where one can, such that do not."""
    good = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if not any((operation.path_parameters, operation.query, operation.headers, operation.body)):
        return good
    return good | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)


def put(part: object, known: Known) -> None:
    """Let a part of a request name what there is; whatever else it says stays."""
    if isinstance(part, dict):
        part.update({name: value for name, value in known.items() if name in part})


def judge(case: Any, send: Send, told: Told) -> None:
    """Send a request and look at the answer: no error of the server, and as documented."""
    route = f"{case.method} {case.path}"
    request = requests.Request(**case.as_transport_kwargs(base_url="http://test")).prepare()
    answer = send(request)
    told.statuses[route, answer.status_code] += 1
    if answer.status_code == 503 and answer.json()["code"] == HELD:
        told.held += 1
        return
    wrong = fault(case, answer)
    if wrong:
        said = f"{request.method} {request.url} {request.headers} {request.body!r:.500}"
        told.faults.append(f"{answer.status_code} {said} -> {wrong:.500}")


def fault(case: Any, answer: httpx.Response) -> str:
    """Say what is wrong with an answer, if anything."""
    if answer.status_code >= 500:
        return answer.text
    if answer.status_code >= 400 and answer.headers.get("content-type") != PROBLEM:
        return f"no problem but {answer.headers.get('content-type')}"
    try:
        case.validate_response(answer, checks=CHECKS)
    except FailureGroup as failures:
        return "; ".join(f"{one.title}: {one.message:.200}" for one in failures.exceptions)
    return ""
