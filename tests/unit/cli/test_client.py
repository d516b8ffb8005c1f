"""The wire: problems become typed errors by their code, and every failure has an exit code."""

import json
from collections.abc import Callable

import httpx
import pytest

from forgeyard import errors
from forgeyard.cli.client import Client, path_of, problem, shaped
from forgeyard.cli.endpoint import Endpoint
from forgeyard.cli.shapes import Run
from forgeyard.errors import (
    Corrupt,
    ForgeyardError,
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
    StaleRejected,
    Unauthenticated,
    Unavailable,
)

ENDPOINT = Endpoint(urls=("http://127.0.0.1:8700",), token="sesame")


def a_client(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    """Open a connection to a server that answers so."""
    return Client(ENDPOINT, transport=httpx.MockTransport(answer))


def a_problem(status: int, **fields: str) -> bytes:
    """Write problem+json."""
    return json.dumps({"title": "A title", "status": status, **fields}).encode()


@pytest.mark.parametrize(
    ("status", "code", "kind", "exit_code"),
    [
        (422, "idempotency.mismatch", IdempotencyMismatch, 2),
        (409, "lease.stale", StaleRejected, 4),
        (404, "forgeyard.not_found", NotFound, 3),
        (401, "auth.unauthenticated", Unauthenticated, 5),
        (503, "store.unavailable", errors.StoreUnavailable, 7),
        (500, "accounting.corrupt", errors.AccountingCorrupt, 70),
        (413, "request.too_large", errors.TooLarge, 2),
    ],
)
def test_a_problem_becomes_the_error_of_its_code(
    status: int, code: str, kind: type[ForgeyardError], exit_code: int
) -> None:
    body = a_problem(status, code=code, detail="said so", field="jobs", value="x", allowed="y")
    error = problem(status, body)
    assert type(error) is kind
    assert error.exit_code == exit_code
    assert (error.message, error.field, error.value, error.allowed) == ("said so", "jobs", "x", "y")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, NotFound), (403, errors.Forbidden), (409, errors.Conflict), (418, errors.Rejected)],
)
def test_a_code_from_a_newer_server_falls_back_to_its_status(
    status: int, kind: type[ForgeyardError]
) -> None:
    assert type(problem(status, a_problem(status, code="brand.new"))) is kind


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"null", b"[" * 5_000, b"\xff"])
def test_an_error_that_is_no_problem_still_is_an_error(body: bytes) -> None:
    assert type(problem(502, body)) is Unavailable
    assert type(problem(500, body)) is Corrupt
    assert "500" in problem(500, body).message


def test_the_request_id_of_a_problem_is_kept() -> None:
    error = problem(500, a_problem(500, request_id="req_1"))
    assert error.__notes__ == ["request req_1"]


def test_every_code_stands_for_one_error_only() -> None:
    kinds: list[type[ForgeyardError]] = [ForgeyardError]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    own = [kind for kind in kinds if kind.__module__ == "forgeyard.errors"]
    assert len({kind.code for kind in own}) == len(own)


def test_the_token_goes_along_and_the_answer_comes_back() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer sesame"
        assert request.url.params["limit"] == "3"
        assert "state" not in request.url.params
        return httpx.Response(200, json={"a": 1})

    with a_client(answer) as client:
        assert client.get("/v1/runs", limit=3, state=None) == {"a": 1}


def test_an_answer_without_a_body_is_nothing() -> None:
    with a_client(lambda _: httpx.Response(204)) as client:
        assert client.post("/v1/runners/x:drain", {}) is None


def test_an_answer_that_is_not_json_is_refused() -> None:
    with (
        a_client(lambda _: httpx.Response(200, text="<html>")) as client,
        pytest.raises(Corrupt, match="JSON"),
    ):
        client.get("/v1/runs")


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (httpx.ConnectError("refused"), "nothing answers"),
        (httpx.ReadTimeout("slow"), "in time"),
        (httpx.RemoteProtocolError("gone"), "broke"),
    ],
)
def test_a_server_that_is_away_is_unavailable(failure: Exception, said: str) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise failure

    with a_client(answer) as client, pytest.raises(Unavailable, match=said) as caught:
        client.get("/v1/runs")
    assert caught.value.exit_code == 7


def test_a_blob_is_asked_for_before_it_is_sent() -> None:
    statuses = {"sha256:a": 200, "sha256:b": 404, "sha256:c": 401}

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(statuses[request.url.path.rpartition("/")[2]])

    with a_client(answer) as client:
        assert client.has_blob("sha256:a")
        assert not client.has_blob("sha256:b")
        with pytest.raises(Unauthenticated):
            client.has_blob("sha256:c")


def test_an_upload_says_its_size_and_sends_its_bytes() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["content-length"] == "4"
        assert request.read() == b"abcd"
        return httpx.Response(201, json={})

    with a_client(answer) as client:
        client.put_blob("sha256:a", 4, iter([b"ab", b"cd"]))


def test_a_download_that_is_refused_is_the_servers_error() -> None:
    body = a_problem(404, code="forgeyard.not_found", detail="no such artifact")
    with (
        a_client(lambda _: httpx.Response(404, content=body)) as client,
        pytest.raises(NotFound, match="no such artifact"),
        client.download("/v1/runs/x/artifacts/a/b"),
    ):
        raise AssertionError("nothing may be read")


def test_names_are_quoted_into_paths_and_never_become_other_paths() -> None:
    assert path_of("v1", "runs", "a/b?c#d%") == "/v1/runs/a%2Fb%3Fc%23d%25"
    for name in ("", "  ", ".", ".."):
        with pytest.raises(InvalidRequest):
            path_of("v1", "runs", name)


def test_a_shape_ignores_what_it_does_not_name_and_misses_what_it_does() -> None:
    answer = {"run_id": "run_1", "name": "ci", "state": "queued", "created_at": 1, "novel": True}
    assert shaped(Run, answer).run_id == "run_1"
    with pytest.raises(Corrupt, match="created_at"):
        shaped(Run, {"run_id": "run_1", "name": "ci", "state": "queued"})


def test_a_token_never_shows_in_a_traceback() -> None:
    assert "sesame" not in repr(ENDPOINT)


def test_certificates_are_verified_however_the_scheme_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    def remember(*_: object, **given: object) -> None:
        asked.append(given["verify"])

    monkeypatch.setattr(httpx, "Client", remember)
    for url in ("https://ci.example", "HTTPS://ci.example", "http://ci.example"):
        Client(Endpoint(urls=(url,), token="sesame"))
    assert asked == [True, True, False]


TWO = Endpoint(urls=("http://one:1", "http://two:2"), token="sesame")


class Servers:
    """Two servers, the first of which fails in a given way."""

    def __init__(self, failure: httpx.TransportError | httpx.Response) -> None:
        self.asked: list[str] = []
        self._failure = failure

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Answer as the one that was asked."""
        self.asked.append(request.url.host)
        if request.url.host == "two":
            return httpx.Response(200, json={})
        if isinstance(self._failure, httpx.Response):
            return self._failure
        raise self._failure

    def client(self) -> Client:
        """Connect to both."""
        return Client(TWO, transport=httpx.MockTransport(self.answer))


@pytest.mark.parametrize("failure", [httpx.ConnectError("no"), httpx.ConnectTimeout("no")])
def test_what_reaches_nobody_goes_to_the_next_address_and_stays_there(
    failure: httpx.TransportError,
) -> None:
    servers = Servers(failure)
    with servers.client() as client:
        client.post("/v1/runs", {})
        client.get("/v1/runs")
    assert servers.asked == ["one", "two", "two"]


def test_a_question_that_broke_off_is_asked_again_elsewhere_but_never_a_change() -> None:
    servers = Servers(httpx.ReadError("reset"))
    with servers.client() as client:
        client.get("/v1/runs")
    assert servers.asked == ["one", "two"]
    servers = Servers(httpx.ReadError("reset"))
    with servers.client() as client:
        with pytest.raises(Unavailable, match="http://one:1 broke"):
            client.post("/v1/runs", {})
        client.post("/v1/runs", {})
    assert servers.asked == ["one", "two"]


def test_who_says_that_it_cannot_is_not_asked_the_next_time() -> None:
    servers = Servers(httpx.Response(503, content=b""))
    with servers.client() as client:
        with pytest.raises(Unavailable):
            client.get("/v1/runs")
        client.get("/v1/runs")
    assert servers.asked == ["one", "two"]


def test_addresses_that_all_fail_are_each_asked_once() -> None:
    asked: list[str] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        raise httpx.ConnectError("no")

    client = Client(TWO, transport=httpx.MockTransport(refuse))
    with client, pytest.raises(Unavailable, match="nothing answers at http://two:2"):
        client.get("/v1/runs")
    assert asked == ["one", "two"]
