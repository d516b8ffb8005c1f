"""What is wrong with a request is said with its place, and nothing is stored."""

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from tests.acceptance.conftest import Forgeyard

pytestmark = pytest.mark.integration
STEP = "steps: [{run: 'true'}]"
NINES = "\n".join(
    f"  l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9 if n else ['x'] * 9)}]" for n in range(9)
)

REFUSED = {
    "cycle": (
        f"jobs:\n  a: {{needs: b, {STEP}}}\n  b: {{needs: a, {STEP}}}\n",
        ("forgeyard.yaml:2:", "a → b → a"),
    ),
    "missing need": (f"jobs:\n  a: {{needs: [nobody], {STEP}}}\n", ("nobody", "jobs.a.needs")),
    "impossible resource": (
        f"jobs:\n  a:\n    resources: {{memory: 12 apples}}\n    {STEP}\n",
        ("forgeyard.yaml:3:", "jobs.a.resources.memory", "12 apples", "512K"),
    ),
    "unknown key": (f"jobs:\n  a:\n    nedes: []\n    {STEP}\n", ("forgeyard.yaml:3:", "nedes")),
    "duplicate key": (f"jobs:\n  a: {{{STEP}}}\n  a: {{{STEP}}}\n", ("forgeyard.yaml:3:", "a")),
    "a megabyte of labels": (
        "jobs:\n  a:\n    requires:\n      labels:\n"
        + "".join(f"        l{n}: {'x' * 90}\n" for n in range(10_000))
        + f"    {STEP}\n",
        ("labels",),
    ),
    "yaml bomb": (
        f"x:\n{NINES}\njobs: {{a: {{{STEP}}}}}\n",
        ("too many values", "forgeyard.yaml:"),
    ),
    "path out of the workspace": (
        f"jobs:\n  a:\n    {STEP}\n    outputs: {{passwords: ../../etc/passwd}}\n",
        ("jobs.a.outputs", "../../etc/passwd"),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_run_file_is_refused_with_its_place_and_stores_nothing(
    system: Forgeyard, what: str
) -> None:
    text, said = REFUSED[what]
    project = system.project(what.replace(" ", "-"), text)
    before = _runs(system)
    answer = system.type("run", "submit", str(project / "forgeyard.yaml"), "--no-source")
    assert answer.code == 2, answer.out + answer.err
    for words in said:
        assert words in answer.err
    assert _runs(system) == before


def test_the_api_refuses_the_same_documents(system: Forgeyard) -> None:
    with _client(system) as client:
        document = {"jobs": {"a": {"needs": "a", "steps": [{"run": "true"}]}}}
        answer = client.post("/v1/runs", json={"document": document, "submitted_by": "t"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["field"] == "jobs.a.needs"


def test_a_blob_that_is_not_what_its_digest_says_is_refused(system: Forgeyard) -> None:
    digest = f"sha256:{hashlib.sha256(b'promised').hexdigest()}"
    with _client(system) as client:
        answer = client.put(f"/v1/blobs/{digest}", content=b"delivered")
        assert answer.status_code == 422
        assert answer.json()["code"] == "blob.wrong_digest"
        assert client.head(f"/v1/blobs/{digest}").status_code == 404


def test_unknown_things_are_not_found(system: Forgeyard) -> None:
    assert system.type("run", "show", "run_00000000000000000000000000").code == 3
    assert system.type("scheduler", "explain-job", "job_00000000000000000000000000").code == 3
    assert system.type("run", "check", "no-such-file.yaml").code in {2, 3}


def test_a_wrong_token_is_denied(system: Forgeyard) -> None:
    answer = system.type("run", "list", FORGEYARD_TOKEN="wrong")
    assert answer.code == 5
    assert "token" in answer.err


def test_a_second_start_in_the_same_directory_is_refused_and_harms_nothing(
    system: Forgeyard,
) -> None:
    answer = system.type("up")
    assert answer.code == 4
    assert "another" in answer.err
    assert system.type("run", "list", "--json").code == 0


def test_without_a_system_the_command_says_so() -> None:
    with TemporaryDirectory() as empty:
        lonely = Forgeyard(
            home=Path(empty), environment={"FORGEYARD_TOKEN": "x", "FORGEYARD_API__PORT": "1"}
        )
        answer = lonely.type("run", "list")
    assert answer.code == 7, answer.err


def _runs(system: Forgeyard) -> object:
    with _client(system) as client:
        return client.get("/v1/runs").raise_for_status().json()["runs"]


def _client(system: Forgeyard) -> httpx.Client:
    status = json.loads((system.home / "data" / "endpoints.json").read_text())
    token = (system.home / "data" / "token").read_text().strip()
    return httpx.Client(
        base_url=status["api_url"],
        headers={"authorization": f"Bearer {token}"},
        trust_env=False,
        timeout=20,
    )
