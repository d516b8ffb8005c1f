"""The agent API: a lease from offer to completion, and who may not touch it."""

import asyncio
import json

import httpx
import pytest
import sqlalchemy as sa

from forgeyard.store import codec, tables
from forgeyard.store.engine import read, write
from tests.builders import a_registration
from tests.integration.api.house import Held, House, a_document, digest_of

pytestmark = pytest.mark.integration
OUTPUT = {"outputs": [{"name": "wheel", "path": "dist/*.whl"}]}


async def test_a_lease_goes_from_offer_to_success(house: House) -> None:
    source = b"the source"
    await house.people.put(f"/v1/blobs/{digest_of(source)}", content=source)
    session_id = await house.register()
    run = await house.submit(
        a_document(build=OUTPUT, test={"needs": "build"}), source_digest=digest_of(source)
    )
    (held,) = await house.offered(session_id)
    assert held.offer["run_name"] == "demo"
    assert [one["origin"] for one in held.offer["inputs"]] == ["source"]
    kicks = len(house.kicks)
    accepted = await house.tell(held, "accept")
    assert accepted.status_code == 200
    assert accepted.json()["ttl"] > 0
    fetched = await house.agents.get(
        f"/agent/v1/leases/{held.lease_id}/inputs/{digest_of(source)}", params=held.holder
    )
    assert (fetched.status_code, fetched.content) == (200, source)
    assert (await house.tell(held, "progress", phase="running")).status_code == 204
    assert await house.log(held, 1, b"hello\n") == 204
    renewal = {"lease_id": held.lease_id, "epoch": held.epoch}
    renewed = await house.agents.post(
        "/agent/v1/renewals", json={"session_id": session_id, "leases": [renewal]}
    )
    assert renewed.json()["leases"][0]["verdict"] == "renewed"
    assert (await house.tell(held, "progress", phase="uploading_outputs")).status_code == 204
    assert (await house.upload(held, "wheel", b"the wheel")).status_code == 204
    assert len(house.kicks) == kicks  # Temporal hears of nothing but the end
    done = await house.tell(held, "complete", outcome="succeeded")
    assert done.json() == {"verdict": "accepted"}
    assert len(house.kicks) == kicks + 1
    again = await house.tell(held, "complete", outcome="succeeded")
    assert again.json() == {"verdict": "duplicate_accepted"}

    (following,) = await house.offered(session_id)
    assert following.offer["spec"]["name"] == "test"
    origins = [one["origin"] for one in following.offer["inputs"]]
    assert origins == ["source", "build/wheel"]
    assert (await house.tell(following, "accept")).status_code == 200
    wheel = await house.agents.get(
        f"/agent/v1/leases/{following.lease_id}/inputs/{digest_of(b'the wheel')}",
        params=following.holder,
    )
    assert wheel.content == b"the wheel"
    await house.tell(following, "complete", outcome="succeeded")
    shown = (await house.people.get(f"/v1/runs/{run['run_id']}")).json()
    assert shown["state"] == "succeeded"


async def test_a_failure_is_reported_with_its_class(sqlite_house: House) -> None:
    held = await sqlite_house.accepted()
    answer = await sqlite_house.tell(
        held, "complete", outcome="failed", failure_class="user_command", exit_code=3
    )
    assert answer.json() == {"verdict": "accepted"}
    with read(sqlite_house.engine) as connection:
        row = connection.execute(sa.select(tables.attempts)).mappings().one()
    assert (row["state"], row["failure_class"], row["exit_code"]) == ("failed", "user_command", 3)


async def test_success_without_a_required_output_is_invalid(sqlite_house: House) -> None:
    held = await sqlite_house.accepted(a_document(build=OUTPUT))
    answer = await sqlite_house.tell(held, "complete", outcome="succeeded")
    assert answer.json() == {"verdict": "invalid_rejected"}


async def test_an_offer_can_be_turned_down(sqlite_house: House) -> None:
    session_id = await sqlite_house.register()
    run = await sqlite_house.submit()
    (held,) = await sqlite_house.offered(session_id)
    answer = await sqlite_house.tell(held, "reject", reason="draining", detail="going home")
    assert answer.status_code == 204
    shown = (await sqlite_house.people.get(f"/v1/runs/{run['run_id']}")).json()
    assert shown["jobs"][0]["state"] == "eligible"
    wrong = await sqlite_house.tell(held, "reject", reason="bored")
    assert (wrong.status_code, wrong.json()["field"]) == (422, "reason")


def _calls(house: House, held: Held) -> dict[str, httpx.Request]:
    """Make one valid request for every route that is about a lease."""
    base = f"/agent/v1/leases/{held.lease_id}"
    holder, digest = held.holder, digest_of(b"x")
    build = house.agents.build_request
    return {
        "accept": build("POST", f"{base}/accept", json=holder),
        "reject": build("POST", f"{base}/reject", json={**holder, "reason": "draining"}),
        "progress": build("POST", f"{base}/progress", json={**holder, "phase": "running"}),
        "complete": build("POST", f"{base}/complete", json={**holder, "outcome": "succeeded"}),
        "logs": build("POST", f"{base}/logs", params={**holder, "sequence": 1}, content=b"x"),
        "outputs/{name}": build(
            "PUT", f"{base}/outputs/wheel", params={**holder, "digest": digest}, content=b"x"
        ),
        "inputs/{digest}": build("GET", f"{base}/inputs/{digest}", params=holder),
        "caches/{name}/{key}": build(
            "PUT", f"{base}/caches/pip/{digest}", params={**holder, "digest": digest}, content=b"x"
        ),
    }


async def test_no_call_about_a_lease_works_for_another_runner(house: House) -> None:
    held = await house.accepted(a_document(build=OUTPUT))
    stranger = await house.register("runner-2")
    as_stranger = Held(
        lease_id=held.lease_id, session_id=stranger, epoch=held.epoch, offer=held.offer
    )
    calls = _calls(house, as_stranger)
    prefix = "/agent/v1/leases/{lease_id}/"
    routes = {
        path.removeprefix(prefix)
        for path in house.agent.openapi()["paths"]
        if path.startswith(prefix)
    }
    assert routes == set(calls), "a route about a lease that this test does not try"
    for name, request in calls.items():
        answer = await house.agents.send(request)
        assert (answer.status_code, answer.json()["code"]) == (403, "auth.forbidden"), name
    assert house.count(tables.artifacts) == 0
    assert house.count(tables.log_chunks) == 0
    assert house.count(tables.caches) == 0
    assert not house.blobs.exists(digest_of(b"x"))
    assert (await house.tell(held, "progress", phase="running")).status_code == 204


async def test_an_old_epoch_is_refused_everywhere(sqlite_house: House) -> None:
    held = await sqlite_house.accepted(a_document(build=OUTPUT))
    old = Held(
        lease_id=held.lease_id, session_id=held.session_id, epoch=held.epoch + 1, offer=held.offer
    )
    for name, request in _calls(sqlite_house, old).items():
        answer = await sqlite_house.agents.send(request)
        if name == "complete":
            assert answer.json() == {"verdict": "stale_rejected"}
        else:
            assert (answer.status_code, answer.json()["code"]) == (409, "lease.stale"), name
    assert "attempt.late_result_rejected" in sqlite_house.audited()
    assert not sqlite_house.blobs.exists(digest_of(b"x"))


async def test_a_refused_accept_is_audited_although_the_caller_gets_an_error(
    house: House,
) -> None:
    session_id = await house.register()
    await house.submit()
    (held,) = await house.offered(session_id)
    with write(house.engine) as connection:
        connection.execute(sa.update(tables.leases).values(expires_at=1))
    answer = await house.tell(held, "accept")
    assert (answer.status_code, answer.json()["code"]) == (409, "lease.stale")
    assert house.audited() == ["lease.stale_accept"]


async def test_a_renewal_after_expiry_is_stale(sqlite_house: House) -> None:
    held = await sqlite_house.accepted()
    with write(sqlite_house.engine) as connection:
        connection.execute(sa.update(tables.leases).values(expires_at=1, grace_ms=0))
    answer = await sqlite_house.agents.post(
        "/agent/v1/renewals",
        json={
            "session_id": held.session_id,
            "leases": [{"lease_id": held.lease_id, "epoch": held.epoch}],
        },
    )
    assert answer.status_code == 200
    assert answer.json()["leases"][0]["verdict"] == "stale"


async def test_an_unknown_lease_or_session_is_refused(sqlite_house: House) -> None:
    agents = sqlite_house.agents
    holder = {"session_id": "ses_x", "epoch": 1}
    assert (await agents.post("/agent/v1/leases/x/accept", json=holder)).status_code == 404
    for path in ("heartbeat", "poll"):
        answer = await agents.post(f"/agent/v1/sessions/ses_x/{path}", json={})
        assert (answer.status_code, answer.json()["code"]) == (409, "lease.stale"), path


async def test_a_new_session_ends_the_old_one(sqlite_house: House) -> None:
    old = await sqlite_house.register()
    waiting = asyncio.create_task(
        sqlite_house.agents.post(f"/agent/v1/sessions/{old}/poll", params={"wait_ms": 10_000})
    )
    await asyncio.sleep(0.05)
    new = await sqlite_house.register()
    answer = await waiting
    assert (answer.status_code, answer.json()["code"]) == (409, "lease.stale")
    assert new != old
    beat = await sqlite_house.agents.post(f"/agent/v1/sessions/{new}/heartbeat", json={})
    assert beat.json() == {"drain": False, "abandon": [], "store_mark": ""}


async def test_a_heartbeat_names_the_leases_that_are_gone(sqlite_house: House) -> None:
    held = await sqlite_house.accepted()
    answer = await sqlite_house.agents.post(
        f"/agent/v1/sessions/{held.session_id}/heartbeat", json={"held": [held.lease_id, "lse_x"]}
    )
    assert answer.json()["abandon"] == ["lse_x"]


async def test_a_poll_waits_until_an_offer_comes(house: House) -> None:
    session_id = await house.register()
    waiting = asyncio.create_task(house.poll(session_id, wait_ms=10_000))
    await house.submit()
    await asyncio.to_thread(house.schedule)
    assert len((await waiting)["offers"]) == 1


async def test_a_poll_brings_cancellations_and_drains(sqlite_house: House) -> None:
    held = await sqlite_house.accepted()
    run_id = str(held.offer["run_id"])
    waiting = asyncio.create_task(sqlite_house.poll(held.session_id, wait_ms=10_000))
    await sqlite_house.people.post(f"/v1/runs/{run_id}:cancel", json={})
    assert (await waiting)["cancel"] == [held.lease_id]
    draining = asyncio.create_task(sqlite_house.poll(held.session_id, wait_ms=10_000))
    answer = await sqlite_house.people.post(
        "/v1/runners/runner-1:drain", json={"reason": "patching"}
    )
    assert answer.status_code == 200
    assert (await draining)["drain"] is True


async def test_an_empty_poll_returns_in_time(sqlite_house: House) -> None:
    session_id = await sqlite_house.register()
    assert await sqlite_house.poll(session_id, wait_ms=0) == {
        "offers": [],
        "cancel": [],
        "drain": False,
        "leaving": None,
    }


async def test_closing_a_session_gives_its_leases_back(sqlite_house: House) -> None:
    held = await sqlite_house.accepted()
    answer = await sqlite_house.agents.delete(f"/agent/v1/sessions/{held.session_id}")
    assert answer.status_code == 204
    assert (await sqlite_house.tell(held, "progress", phase="running")).status_code == 409
    runners = (await sqlite_house.people.get("/v1/runners")).json()
    assert [runner["state"] for runner in runners] == ["offline"]


async def test_an_output_must_be_declared_and_hash_to_its_digest(sqlite_house: House) -> None:
    held = await sqlite_house.accepted(a_document(build=OUTPUT))
    unknown = await sqlite_house.upload(held, "other", b"x")
    assert (unknown.status_code, unknown.json()["allowed"]) == (422, "wheel")
    wrong = await sqlite_house.agents.put(
        f"/agent/v1/leases/{held.lease_id}/outputs/wheel",
        params={**held.holder, "digest": digest_of(b"promised")},
        content=b"delivered",
    )
    assert (wrong.status_code, wrong.json()["code"]) == (422, "blob.wrong_digest")
    large = await sqlite_house.upload(held, "wheel", b"x" * (2**20 + 1))
    assert (large.status_code, large.json()["code"]) == (413, "request.too_large")
    assert sqlite_house.count(tables.artifacts) == 0
    assert sqlite_house.count(tables.blobs) == 0
    assert (await sqlite_house.upload(held, "wheel", b"good")).status_code == 204
    assert (await sqlite_house.upload(held, "wheel", b"good")).status_code == 204
    other = await sqlite_house.upload(held, "wheel", b"another")
    assert other.status_code == 409


async def test_a_lease_reads_its_own_inputs_only(sqlite_house: House) -> None:
    held = await sqlite_house.accepted()
    secret = b"somebody else's source"
    await sqlite_house.people.put(f"/v1/blobs/{digest_of(secret)}", content=secret)
    answer = await sqlite_house.agents.get(
        f"/agent/v1/leases/{held.lease_id}/inputs/{digest_of(secret)}", params=held.holder
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "auth.forbidden")


async def test_a_log_chunk_is_bounded_and_stored_once(sqlite_house: House) -> None:
    held = await sqlite_house.accepted()
    assert await sqlite_house.log(held, 1, b"x" * (64 * 2**10)) == 204
    assert await sqlite_house.log(held, 1, b"other") == 204
    assert await sqlite_house.log(held, 2, b"x" * (64 * 2**10 + 1)) == 413
    assert await sqlite_house.log(held, -1, b"x") == 422
    assert sqlite_house.count(tables.log_chunks) == 1


def a_report(equipment: dict[str, object]) -> dict[str, object]:
    """Write a registration as JSON, with this equipment instead of its own."""
    message = json.loads(codec.encode(a_registration()))
    message["capabilities"]["equipment"] = equipment
    return message


@pytest.mark.parametrize(
    ("equipment", "field"),
    [
        ({"cpu_features": ["x"] * 513}, "cpu_features"),
        ({"cpu_features": ["x" * 129]}, "cpu_features"),
        ({"runtimes": [{"name": "x"}] * 33}, "runtimes"),
        ({"sandboxes": ["chroot"]}, "sandboxes"),
        ({"devices": [{"kind": "x"}] * 65}, "devices"),
        ({"devices": [{"kind": "x", "count": 0}]}, "devices"),
        ({"gpus": [{}] * 65}, "gpus"),
        ({"gpus": [{"memory": -1}]}, "gpus"),
        ({"gpus": [{"provenance": "hearsay"}]}, "gpus"),
        ({"gpus": [{"provenance": "verified"}]}, "capabilities.provenance"),
    ],
)
async def test_a_report_beyond_its_limits_is_refused_and_names_the_field(
    sqlite_house: House, equipment: dict[str, object], field: str
) -> None:
    answer = await sqlite_house.agents.post("/agent/v1/sessions", json=a_report(equipment))
    assert answer.status_code in (400, 422), answer.text
    assert field in answer.json()["field"]
    assert (await sqlite_house.people.get("/v1/runners")).json() == []


async def test_what_a_newer_agent_reports_beyond_what_is_known_is_passed_over(
    sqlite_house: House,
) -> None:
    message = a_report({"cpu_features": ["avx2"], "quantum_units": [1]})
    answer = await sqlite_house.agents.post("/agent/v1/sessions", json=message)
    assert answer.status_code == 201, answer.text
    (runner,) = (await sqlite_house.people.get("/v1/runners")).json()
    has = runner["capabilities"]["equipment"]
    assert has["cpu_features"] == ["avx2"]
    assert "quantum_units" not in has


@pytest.mark.case("SP-021")
async def test_amounts_of_a_report_may_be_text_and_are_never_rounded_up(house: House) -> None:
    body = {
        "runner_name": "runner-1",
        "capabilities": {},
        "total": {"cpu": "3.5", "memory": "644245094400m", "disk": "0.5Gi", "slots": 2},
        "headroom": {"memory": "1024001m"},
    }
    session = await house.agents.post("/agent/v1/sessions", json=body)
    assert session.status_code == 201, session.text
    (runner,) = (await house.people.get("/v1/runners")).json()
    assert runner["total"] == {"cpu": 3_500, "memory": 644_245_094, "disk": 2**29, "slots": 2}
    assert runner["allocatable"]["memory"] == 644_245_094 - 1_025
    report = {name: body[name] for name in ("capabilities", "total", "headroom")}
    beat = f"/agent/v1/sessions/{session.json()['session_id']}/heartbeat"
    larger = {**report, "total": {"cpu": 4_000, "memory": "1.5Ti", "slots": 2}}
    assert (await house.agents.post(beat, json={"report": larger})).status_code == 200
    (runner,) = (await house.people.get("/v1/runners")).json()
    assert runner["total"]["memory"] == 1_649_267_441_664
    for amounts in ({"memory": "512m"}, {"memory": "much"}, {"cpu": ""}, {"memory": "100mB"}):
        wrong = {**report, "total": amounts}
        (field,) = amounts
        answers = (
            await house.agents.post("/agent/v1/sessions", json={**body, "total": amounts}),
            await house.agents.post(beat, json={"report": wrong}),
        )
        for answer in answers:
            assert (answer.status_code, answer.json()["field"]) == (422, f"total.{field}")


@pytest.mark.requirement("SCO-010")
async def test_holdings_that_are_too_large_are_refused_with_their_field(house: House) -> None:
    session_id = await house.register()
    beat = f"/agent/v1/sessions/{session_id}/heartbeat"
    objects = {f"sha256:{n}": 1 for n in range(257)}
    answer = await house.agents.post(beat, json={"holdings": {"objects": objects}})
    assert answer.status_code == 422
    assert answer.json()["field"].startswith("holdings.objects")
    assert (await house.agents.post(beat, json={})).status_code == 200
