"""Scopes, queues of runs, elevated priorities and reordering, as a caller of the API meets them."""

import pytest

from tests.integration.api.house import House, a_document

pytestmark = pytest.mark.integration
PATH = "/v1/scopes/acme/core/web/main"
WHY = {"reason": "a new team", "actor": "ada"}


async def declare(house: House, **shares: object) -> dict:
    body = {**WHY, "expected_version": 0, "parents": True, **shares}
    answer = await house.people.put(PATH, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.requirement("FAR-004", "QUO-005")
async def test_a_queue_is_declared_changed_and_listed(house: House) -> None:
    made = await declare(house, weight=3)
    assert (made["path"], made["version"], made["shares"]["weight"]) == (
        "acme/core/web/main",
        1,
        3,
    )
    body = {**WHY, "expected_version": 1, "max_jobs": 2, "burst_percent": 50}
    changed = (await house.people.put(PATH, json=body)).json()
    assert (changed["version"], changed["shares"]["max_jobs"]) == (2, 2)
    assert (await house.people.get(PATH)).json() == changed
    listed = (await house.people.get("/v1/scopes")).json()
    assert changed in listed
    stale = await house.people.put(PATH, json=body)
    assert (stale.status_code, stale.json()["field"]) == (409, "expected_version")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": 1001}, "weight"),
        ({"max_jobs": -1}, "max_jobs"),
        ({"burst_percent": 1001}, "burst_percent"),
        ({"reason": ""}, "reason"),
        ({"weigth": 3}, "weigth"),
    ],
)
async def test_shares_out_of_range_are_refused_by_name(
    house: House, change: dict[str, object], field: str
) -> None:
    body = {**WHY, "expected_version": 0, "parents": True, **change}
    answer = await house.people.put(PATH, json=body)
    assert answer.status_code == 422
    assert field in answer.json()["field"]


@pytest.mark.parametrize("path", ["a//b", "a/b/c/d/e", "-x", "pool:", "a%00b", "x" * 65])
async def test_a_path_that_names_no_scope_is_refused(house: House, path: str) -> None:
    answer = await house.people.put(f"/v1/scopes/{path}", json={**WHY, "expected_version": 0})
    assert answer.status_code in (404, 422), answer.text


async def test_an_unknown_scope_is_named_with_near_ones(house: House) -> None:
    await declare(house)
    answer = await house.people.get("/v1/scopes/acme/core/web/mian")
    assert answer.status_code == 404
    assert "acme/core/web/main" in answer.json()["allowed"]


async def test_a_paused_queue_shows_its_note_to_those_who_wait(house: House) -> None:
    await house.register()
    await declare(house)
    run = await house.submit(queue="acme/core/web/main")
    assert run["queue"] == "acme/core/web/main"
    paused = await house.people.post("/v1/scopes/acme:pause", json={**WHY, "note": "until nine"})
    assert (paused.json()["paused"], paused.json()["note"]) == (True, "until nine")
    assert house.schedule() == 0
    job_id = run["jobs"][0]["job_id"]
    told = (await house.people.get(f"/v1/jobs/{job_id}/scheduling")).json()
    assert told["code"] == "QUEUE_PAUSED"
    assert told["queue"] == ["acme", "core", "web", "main"]
    assert told["sentence"] == "Waiting: tenant acme is paused: until nine."
    (queue, _) = (await house.people.get("/v1/scheduler/queues")).json()
    assert (queue["path"], queue["paused"], queue["note"]) == (run["queue"], True, "until nine")
    resumed = await house.people.post("/v1/scopes/acme:resume", json=WHY)
    assert resumed.json()["paused"] is False
    assert house.schedule() == 1
    assert house.audited()[-2:] == ["scope.pause", "scope.resume"]


async def test_the_document_may_name_the_queue_and_the_request_beats_it(house: House) -> None:
    await declare(house)
    document = {**a_document(), "queue": "acme/core/web/main"}
    assert (await house.submit(document))["queue"] == "acme/core/web/main"
    other = "default/default/default/default"
    assert (await house.submit(document, queue=other))["queue"] == other
    body = {"document": a_document(), "queue": "acme/core/web/nope"}
    answer = await house.people.post("/v1/runs", json=body)
    assert (answer.status_code, answer.json()["field"]) == (404, "queue")


@pytest.mark.requirement("FAR-007", "FAR-021", "ACC-019")
async def test_an_emergency_is_refused_without_a_reason_and_audited_with_one(
    house: House,
) -> None:
    document = a_document(fix={"priority": "emergency"}, test={})
    answer = await house.people.post("/v1/runs", json={"document": document})
    assert (answer.status_code, answer.json()["code"]) == (403, "auth.forbidden")
    assert answer.json()["field"] == "jobs.fix.priority"
    assert "run.elevate" not in house.audited()
    run = await house.submit(document, elevate="the site is down")
    assert {job["name"]: job["priority"] for job in run["jobs"]} == {
        "fix": "emergency",
        "test": "normal",
    }
    assert house.audited() == ["run.elevate"]


@pytest.mark.requirement("FAR-007", "ACC-019")
async def test_the_policy_may_keep_emergencies_from_everybody(house: House) -> None:
    policy = {"document": {"priorities": {"free": 100, "elevated": 200}}, "reason": "x"}
    set_it = await house.people.put("/v1/policy", json={**policy, "expected_version": 0})
    assert set_it.status_code == 200, set_it.text
    for priority, status in (("normal", 201), ("high", 201), ("emergency", 403)):
        body = {"document": a_document(fix={"priority": priority}), "elevate": "because"}
        answer = await house.people.post("/v1/runs", json=body)
        assert answer.status_code == status, answer.text


@pytest.mark.requirement("FAR-039", "FAR-040")
async def test_a_waiting_job_is_pushed_ahead_with_a_reason(house: House) -> None:
    run = await house.submit(a_document(a={}, b={}))
    job_id = run["jobs"][1]["job_id"]
    url = f"/v1/jobs/{job_id}:reprioritise"
    for wish in ({"reason": "x"}, {"priority": "high"}, {"reason": "x", "adjustment": 401}):
        assert (await house.people.post(url, json=wish)).status_code == 422
    wish = {**WHY, "priority": "high", "adjustment": -5}
    changed = (await house.people.post(url, json=wish)).json()
    assert (changed["priority"], changed["adjustment"], changed["state"]) == (
        "high",
        -5,
        "eligible",
    )
    told = (await house.people.get(f"/v1/jobs/{job_id}/scheduling")).json()
    assert (told["position"], told["priority"]["adjustment"]) == (1, -5)
    assert house.audited() == ["job.reprioritise"]
    everything = await house.people.post(
        f"/v1/runs/{run['run_id']}:reprioritise", json={**WHY, "adjustment": 7}
    )
    assert [job["adjustment"] for job in everything.json()] == [7, 7]
    gone = await house.people.post("/v1/jobs/job_nope:reprioritise", json=wish)
    assert gone.status_code == 404
