"""What the scheduler lets be seen, and runners looked after."""

import pytest

from tests.integration.api.house import House, a_document

pytestmark = pytest.mark.integration


def _job(view: dict, name: str = "build") -> str:
    return next(job["job_id"] for job in view["jobs"] if job["name"] == name)


async def _explained(house: House, job_id: str) -> dict:
    answer = await house.people.get(f"/v1/jobs/{job_id}/scheduling")
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.requirement("API-004")
async def test_a_waiting_job_is_explained_with_every_reason(house: House) -> None:
    await house.register()
    run = await house.submit(
        a_document(build={"resources": {"memory": "64Gi"}, "requires": {"platform": "macos"}})
    )
    found = await _explained(house, _job(run))
    assert found["state"] == "eligible"
    assert found["permanent"] is True
    assert found["winner"] is None
    (runner,) = found["runners"]
    codes = {reason["code"] for reason in runner["rejections"]}
    assert {"platform_mismatch", "insufficient_memory"} <= codes


@pytest.mark.requirement("ACC-033", "DIA-004")
async def test_an_explanation_comes_as_text_with_policy_and_parking(house: House) -> None:
    await house.register()
    run = await house.submit(a_document(build={"resources": {"memory": "64Gi"}}))
    house.schedule()
    found = await _explained(house, _job(run))
    assert found["parked"]["generation"] == 1
    assert found["policy_version"] == 0
    assert "parked    for" in found["text"]
    assert "policy    built in, sha256:" in found["text"]
    assert "(never)" in found["text"]


@pytest.mark.requirement("POL-002")
async def test_a_suggestion_says_on_how_many_attempts_it_rests(house: House) -> None:
    run = await house.submit(a_document(build={}))
    answer = await house.people.get(f"/v1/jobs/{_job(run)}/suggestion")
    assert answer.status_code == 200
    assert (answer.json()["attempts"], answer.json()["memory"]) == (0, None)
    assert (await house.people.get("/v1/jobs/job_0/suggestion")).status_code == 404


async def test_a_job_is_explained_in_every_state(sqlite_house: House) -> None:
    session_id = await sqlite_house.register()
    run = await sqlite_house.submit(a_document(build={}, test={"needs": "build"}))
    waiting = await _explained(sqlite_house, _job(run))
    assert waiting["winner"] == "runner-1"
    assert waiting["sentence"].startswith("Goes to runner-1")
    pending = await _explained(sqlite_house, _job(run, "test"))
    assert (pending["state"], pending["sentence"]) == ("pending", "The job waits for build.")
    (held,) = await sqlite_house.offered(session_id)
    await sqlite_house.tell(held, "accept")
    running = await _explained(sqlite_house, _job(run))
    assert running["sentence"].startswith("Attempt 1 was placed on runner-1")
    assert [attempt["runner"] for attempt in running["attempts"]] == ["runner-1"]
    await sqlite_house.tell(held, "complete", outcome="succeeded")
    assert (await _explained(sqlite_house, _job(run)))["state"] == "succeeded"


@pytest.mark.requirement("API-001", "API-002", "API-003")
async def test_status_queues_and_capacity_can_be_read(house: House) -> None:
    await house.accepted(a_document(build={}, test={"needs": "build"}))
    status = (await house.people.get("/v1/scheduler/status")).json()
    assert status["partition"] == "default"
    assert status["last_cycle"]["granted"] == 1
    assert status["ui_url"].startswith("http")
    assert status["namespace"] == "default"
    (queue,) = (await house.people.get("/v1/scheduler/queues")).json()
    assert (queue["pending"], queue["running"]) == (1, 1)
    capacity = (await house.people.get("/v1/scheduler/capacity")).json()
    assert capacity["reserved"]["cpu"] == 500
    (runner,) = (await house.people.get("/v1/scheduler/runners")).json()
    assert [placed["job"] for placed in runner["placed"]] == ["build"]


async def test_a_drained_runner_takes_nothing_until_it_is_undrained(sqlite_house: House) -> None:
    session_id = await sqlite_house.register()
    await sqlite_house.submit()
    answer = await sqlite_house.people.post(
        "/v1/runners/runner-1:drain", json={"reason": "patching"}
    )
    assert (answer.status_code, answer.json()) == (200, {"runner": "runner-1", "cancelled": 0})
    (runner,) = (await sqlite_house.people.get("/v1/runners")).json()
    assert (runner["state"], runner["drain_reason"]) == ("draining", "patching")
    assert sqlite_house.schedule() == 0
    answer = await sqlite_house.people.post("/v1/runners/runner-1:undrain", json={})
    assert answer.status_code == 204
    assert sqlite_house.schedule() == 1
    assert len((await sqlite_house.poll(session_id))["offers"]) == 1
    assert sqlite_house.audited() == ["runner.drain", "runner.undrain"]


@pytest.mark.requirement("RUN-003")
async def test_draining_with_cancel_active_cancels_the_jobs_and_says_how_many(house: House) -> None:
    held = await house.accepted()
    wish = {"reason": "disk on fire", "actor": "ann", "cancel_active": True}
    answer = await house.people.post("/v1/runners/runner-1:drain", json=wish)
    assert (answer.status_code, answer.json()) == (200, {"runner": "runner-1", "cancelled": 1})
    run = (await house.people.get(f"/v1/runs/{held.offer['run_id']}")).json()
    assert run["jobs"][0]["cancel_reason"] == "disk on fire"
    assert (await house.poll(held.session_id))["cancel"] == [held.lease_id]
    assert sorted(house.audited()) == ["job.cancel", "runner.drain"]
