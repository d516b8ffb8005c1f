"""Runs over HTTP: submitted once, checked, shown, stopped, run again."""

import asyncio

import pytest
import sqlalchemy as sa

from forgeyard.store import tables
from forgeyard.store.engine import read, write
from tests.integration.api.house import House, a_document, digest_of

pytestmark = pytest.mark.integration


def _states(view: dict) -> dict[str, str]:
    return {job["name"]: job["state"] for job in view["jobs"]}


async def test_a_submitted_run_is_shown_and_listed(house: House) -> None:
    document = a_document(build={}, test={"needs": "build"})
    answer = await house.people.post("/v1/runs", json={"document": document})
    assert answer.status_code == 201
    run = answer.json()
    assert answer.headers["location"] == f"/v1/runs/{run['run_id']}"
    assert (run["name"], run["state"]) == ("demo", "queued")
    assert _states(run) == {"build": "eligible", "test": "pending"}
    assert (await house.people.get(f"/v1/runs/{run['run_id']}")).json() == run
    listed = (await house.people.get("/v1/runs")).json()
    assert [item["run_id"] for item in listed["runs"]] == [run["run_id"]]
    assert len(house.kicks) == 1


async def test_the_same_key_and_body_start_one_run(house: House) -> None:
    document = a_document(build={"env": {"A": "1", "B": "2"}})
    turned = a_document(build={"env": {"B": "2", "A": "1"}})
    headers = {"idempotency-key": "release-1"}
    first = await house.people.post("/v1/runs", json={"document": document}, headers=headers)
    again = await house.people.post("/v1/runs", json={"document": turned}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["run_id"] == again.json()["run_id"]
    assert again.headers["location"] == first.headers["location"]
    assert house.count(tables.runs) == 1


async def test_the_same_key_with_another_body_is_refused(sqlite_house: House) -> None:
    headers = {"idempotency-key": "release-1"}
    await sqlite_house.people.post("/v1/runs", json={"document": a_document()}, headers=headers)
    other = a_document(other={})
    answer = await sqlite_house.people.post("/v1/runs", json={"document": other}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency.mismatch")
    assert answer.json()["field"] == "Idempotency-Key"
    assert sqlite_house.count(tables.runs) == 1


async def test_one_key_sent_many_times_at_once_starts_one_run(house: House) -> None:
    headers = {"idempotency-key": "release-1"}
    body = {"document": a_document()}
    answers = await asyncio.gather(
        *(house.people.post("/v1/runs", json=body, headers=headers) for _ in range(8))
    )
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert house.count(tables.runs) == 1


@pytest.mark.parametrize("key", ["", "two words", "x" * 201, "é"])
async def test_a_malformed_idempotency_key_is_refused(sqlite_house: House, key: str) -> None:
    answer = await sqlite_house.people.post(
        "/v1/runs",
        json={"document": a_document()},
        headers={"idempotency-key": key.encode("latin-1")},
    )
    assert answer.status_code == 422
    assert sqlite_house.count(tables.runs) == 0


async def test_checking_stores_nothing(sqlite_house: House) -> None:
    document = a_document(build={}, test={"needs": ["build"]})
    answer = await sqlite_house.people.post("/v1/runs:check", json={"document": document})
    assert answer.status_code == 200
    assert answer.json() == {"name": "demo", "jobs": 2, "needs": 1}
    assert sqlite_house.count(tables.runs) == 0
    assert sqlite_house.kicks == []


@pytest.mark.parametrize(
    ("jobs", "field"),
    [
        ({"a": {"needs": "b"}, "b": {"needs": "a"}}, "jobs.a.needs"),
        ({"a": {"needs": "missing"}}, "jobs.a.needs"),
        ({"a": {"stepz": []}}, "jobs.a.stepz"),
        ({"a": {"resources": {"cpu": "lots"}}}, "jobs.a.resources.cpu"),
        ({"a": {"resources": {"memory": "999999Pi"}}}, "jobs.a.resources.memory"),
        ({"a": {"outputs": [{"name": "x", "path": "../secret"}]}}, "jobs.a.outputs.0.path"),
        ({"a": {"outputs": [{"name": "x", "path": "/etc/shadow"}]}}, "jobs.a.outputs.0.path"),
    ],
)
async def test_a_bad_document_names_the_field_and_stores_nothing(
    sqlite_house: House, jobs: dict[str, dict[str, object]], field: str
) -> None:
    for path in ("/v1/runs", "/v1/runs:check"):
        answer = await sqlite_house.people.post(path, json={"document": a_document(**jobs)})
        assert answer.status_code == 422, answer.text
        assert answer.json()["field"] == field
    assert sqlite_house.count(tables.runs) == 0
    assert sqlite_house.count(tables.jobs) == 0


GIT = {"git": "https://example.org/app.git", "ref": "main", "commit": "a" * 40}


@pytest.mark.requirement("RUN-008")
async def test_a_commit_is_kept_with_the_files_uploaded_for_it(house: House) -> None:
    content = b"source"
    digest = digest_of(content)
    await house.people.put(f"/v1/blobs/{digest}", content=content)
    run = await house.submit({**a_document(), "source": GIT}, source_digest=digest)
    kept = {"repository": GIT["git"], "ref": "main", "commit": GIT["commit"]}
    assert run["git"] == kept
    (listed,) = (await house.people.get("/v1/runs")).json()["runs"]
    assert listed["git"] == kept
    session = await house.register()
    assert house.schedule() == 1
    (offer,) = (await house.poll(session))["offers"]
    assert offer["git"] == kept


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"commit": None}, "source.commit"),
        ({}, "source_digest"),
        ({"commit": "abc"}, "source.commit"),
        ({"git": "https://ann:hunter2@example.org/a"}, "source_digest"),
    ],
)
async def test_a_repository_alone_is_no_source_for_the_server(
    sqlite_house: House, changed: dict[str, str | None], field: str
) -> None:
    """It fetches nothing: the commit must be named, and its files uploaded."""
    source = {name: value for name, value in {**GIT, **changed}.items() if value}
    document = {**a_document(), "source": source}
    answer = await sqlite_house.people.post("/v1/runs", json={"document": document})
    assert answer.status_code == 422
    assert answer.json()["field"] == field
    assert sqlite_house.count(tables.runs) == 0


async def test_credentials_in_a_url_are_refused_and_not_repeated(sqlite_house: House) -> None:
    source = {**GIT, "git": "https://ann:hunter2@example.org/a"}
    body = {"document": {**a_document(), "source": source}, "source_digest": digest_of(b"x")}
    answer = await sqlite_house.people.post("/v1/runs", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "source.git")
    assert "hunter2" not in answer.text
    assert sqlite_house.count(tables.runs) == 0


async def test_a_source_must_have_been_uploaded(sqlite_house: House) -> None:
    digest = digest_of(b"source")
    body = {"document": a_document(), "source_digest": digest}
    missing = await sqlite_house.people.post("/v1/runs", json=body)
    assert (missing.status_code, missing.json()["field"]) == (404, "source_digest")
    assert sqlite_house.count(tables.runs) == 0
    put = await sqlite_house.people.put(f"/v1/blobs/{digest}", content=b"source")
    assert put.status_code == 201
    assert (await sqlite_house.people.post("/v1/runs", json=body)).status_code == 201


async def test_a_refused_submit_does_not_use_up_its_key(sqlite_house: House) -> None:
    headers = {"idempotency-key": "release-1"}
    bad = {"document": a_document(), "source_digest": digest_of(b"never")}
    assert (
        await sqlite_house.people.post("/v1/runs", json=bad, headers=headers)
    ).status_code == 404
    good = {"document": a_document()}
    assert (
        await sqlite_house.people.post("/v1/runs", json=good, headers=headers)
    ).status_code == 201


async def test_a_beginning_of_an_id_is_enough_if_no_other_run_shares_it(
    sqlite_house: House,
) -> None:
    run = await sqlite_house.submit()
    for prefix in (run["run_id"][:-4], run["run_id"][:12], run["run_id"].removeprefix("run_")[:14]):
        answer = await sqlite_house.people.get(f"/v1/runs/{prefix}")
        assert answer.status_code == 200, prefix
        assert answer.json()["run_id"] == run["run_id"]


async def test_an_ambiguous_beginning_names_the_candidates(house: House) -> None:
    first, second = await house.submit(), await house.submit()
    for call in (
        house.people.get(f"/v1/runs/{first['run_id'][:8]}"),
        house.people.get(f"/v1/runs/{first['run_id'][:8]}/logs"),
        house.people.post(f"/v1/runs/{first['run_id'][:8]}:cancel", json={}),
    ):
        answer = await call
        assert answer.status_code == 422, answer.text
        assert first["run_id"] in answer.json()["allowed"]
        assert second["run_id"] in answer.json()["allowed"]
    states = [
        (await house.people.get(f"/v1/runs/{r['run_id']}")).json()["state"] for r in (first, second)
    ]
    assert states == ["queued", "queued"]


async def test_wildcards_in_an_id_mean_nothing(house: House) -> None:
    await house.submit()
    for wild in ("%25", "run%25", "run_%25", "____", "run?"):
        assert (await house.people.get(f"/v1/runs/{wild}")).status_code == 404, wild


async def test_what_does_not_exist_is_404_everywhere(sqlite_house: House) -> None:
    people = sqlite_house.people
    for path in ("", "/history", "/logs", "/artifacts", "/artifacts/a/b"):
        answer = await people.get(f"/v1/runs/run_01NOTHING{path}")
        assert answer.status_code == 404, path
    for path in (":cancel", ":rerun-failed", "/jobs/a:cancel"):
        answer = await people.post(f"/v1/runs/run_01NOTHING{path}", json={})
        assert answer.status_code == 404, path
    assert (await people.get("/v1/jobs/job_01NOTHING/scheduling")).status_code == 404
    assert (await people.post("/v1/runners/nobody:drain", json={})).status_code == 404


async def test_pages_of_runs_join_without_gap_or_overlap(house: House) -> None:
    ids = [(await house.submit())["run_id"] for _ in range(5)]
    found: list[str] = []
    before: str | None = None
    for _ in range(5):
        page = (
            await house.people.get(
                "/v1/runs", params={"limit": 2, **({"before": before} if before else {})}
            )
        ).json()
        found += [run["run_id"] for run in page["runs"]]
        before = page["next"]
        if before is None:
            break
    assert found == ids[::-1]


async def test_runs_are_listed_by_state(sqlite_house: House) -> None:
    first, second = await sqlite_house.submit(), await sqlite_house.submit()
    await sqlite_house.people.post(f"/v1/runs/{first['run_id']}:cancel", json={})
    for state, run in (("cancelled", first), ("queued", second)):
        page = (await sqlite_house.people.get("/v1/runs", params={"state": state})).json()
        assert [item["run_id"] for item in page["runs"]] == [run["run_id"]]
    wrong = await sqlite_house.people.get("/v1/runs", params={"state": "happy"})
    assert wrong.status_code == 422


async def test_cancelling_is_audited_with_reason_actor_and_channel(house: House) -> None:
    run = await house.submit(a_document(build={}, test={"needs": "build"}))
    body = {"reason": "wrong branch", "actor": "ada"}
    answer = await house.people.post(f"/v1/runs/{run['run_id']}:cancel", json=body)
    assert answer.status_code == 200
    assert answer.json()["state"] == "cancelled"
    assert set(_states(answer.json()).values()) == {"cancelled"}
    with read(house.engine) as connection:
        row = connection.execute(sa.select(tables.audit)).mappings().one()
    assert (row["actor"], row["channel"], row["target"]) == ("ada", "api", run["run_id"])
    assert "wrong branch" in row["detail"]
    again = await house.people.post(f"/v1/runs/{run['run_id']}:cancel", json=body)
    assert again.status_code == 409


async def test_one_job_can_be_cancelled(sqlite_house: House) -> None:
    run = await sqlite_house.submit(a_document(one={}, two={}))
    answer = await sqlite_house.people.post(f"/v1/runs/{run['run_id']}/jobs/one:cancel", json={})
    assert answer.status_code == 200
    assert _states(answer.json()) == {"one": "cancelled", "two": "eligible"}
    missing = await sqlite_house.people.post(f"/v1/runs/{run['run_id']}/jobs/three:cancel", json={})
    assert missing.status_code == 404


async def test_only_what_failed_runs_again(sqlite_house: House) -> None:
    run = await sqlite_house.submit(a_document(one={}, two={}))
    early = await sqlite_house.people.post(f"/v1/runs/{run['run_id']}:rerun-failed")
    assert early.status_code == 409
    await sqlite_house.people.post(f"/v1/runs/{run['run_id']}:cancel", json={})
    answer = await sqlite_house.people.post(
        f"/v1/runs/{run['run_id']}:rerun-failed", json={"actor": "ada"}
    )
    assert answer.status_code == 201
    again = answer.json()
    assert again["rerun_of"] == run["run_id"]
    assert _states(again) == {"one": "eligible", "two": "eligible"}
    assert answer.headers["location"] == f"/v1/runs/{again['run_id']}"


async def test_history_tells_every_change(sqlite_house: House) -> None:
    run = await sqlite_house.submit()
    await sqlite_house.people.post(f"/v1/runs/{run['run_id']}:cancel", json={"reason": "enough"})
    lines = (await sqlite_house.people.get(f"/v1/runs/{run['run_id']}/history")).json()
    changes = [(line["kind"], line["after"]) for line in lines]
    assert changes[0] == ("run", "queued")
    assert ("job", "cancelled") in changes
    assert ("run", "cancelled") in changes


async def test_a_database_that_is_away_is_503_and_a_later_call_works(
    sqlite_house: House,
) -> None:
    with write(sqlite_house.engine) as connection:
        connection.execute(sa.text("ALTER TABLE runs RENAME TO away"))
    answer = await sqlite_house.people.get("/v1/runs")
    assert answer.status_code == 503
    assert answer.json()["code"] == "store.unavailable"
    assert answer.headers["retry-after"] == "1"
    with write(sqlite_house.engine) as connection:
        connection.execute(sa.text("ALTER TABLE away RENAME TO runs"))
    assert (await sqlite_house.people.get("/v1/runs")).status_code == 200


async def test_the_cells_of_a_matrix_come_with_their_values(house: House) -> None:
    matrix = {"matrix": {"os": ["linux", "macos"]}, "max-parallel": 1}
    step = {"run": "echo ${{ matrix.os }}"}
    document = a_document(test={"strategy": matrix, "steps": [step]})
    run = await house.submit(document)
    assert [(job["name"], job["matrix"], job["matrix_values"]) for job in run["jobs"]] == [
        ("test-linux", "test", {"os": "linux"}),
        ("test-macos", "test", {"os": "macos"}),
    ]
    assert _states(run) == {"test-linux": "eligible", "test-macos": "pending"}
    document["jobs"]["test"]["strategy"]["matrix"]["os"].append(3.1)
    answer = await house.people.post("/v1/runs:check", json={"document": document})
    assert answer.status_code == 422
    assert answer.json()["field"] == "jobs.test.strategy.matrix.os.2"


async def test_a_run_of_a_group_waits_and_is_superseded_over_http(house: House) -> None:
    document = {**a_document(), "concurrency": {"group": "deploy", "cancel-in-progress": False}}
    first, second = await house.submit(document), await house.submit(document)
    assert (second["waits_for"], second["ready_at"]) == (first["run_id"], None)
    assert second["concurrency_group"] == "deploy"
    last = await house.submit(
        {**document, "concurrency": {**document["concurrency"], "cancel-in-progress": True}}
    )
    assert (last["waits_for"], _states(last)) == (None, {"build": "eligible"})
    listed = (await house.people.get("/v1/runs", params={"state": "superseded"})).json()["runs"]
    assert {one["run_id"]: one["note"] for one in listed} == {
        run["run_id"]: f"superseded by {last['run_id']}" for run in (first, second)
    }


@pytest.mark.case("SP-065")
@pytest.mark.requirement("ELG-018")
async def test_a_property_that_nobody_knows_is_refused_and_one_that_nobody_has_waits(
    house: House,
) -> None:
    await house.register()
    unknown = a_document(odd={"requires": {"quantum": True}})
    answer = await house.people.post("/v1/runs", json={"document": unknown})
    assert (answer.status_code, answer.json()["field"]) == (422, "jobs.odd.requires.quantum")
    assert house.count(tables.runs) == 0
    absent = a_document(odd={"requires": {"labels": {"quantum": "yes"}}})
    waiting = await house.submit(absent)
    sound = await house.submit()
    assert house.schedule() == 1, "the cycle goes on with whom it can place"
    jobs = [
        (await house.people.get(f"/v1/runs/{run['run_id']}")).json()["jobs"][0]
        for run in (waiting, sound)
    ]
    assert [job["state"] for job in jobs] == ["eligible", "leased"]
    assert "label quantum=yes" in jobs[0]["waiting"]
