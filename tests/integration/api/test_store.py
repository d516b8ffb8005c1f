"""A store that may be an older one, over HTTP: no agent is refused, people are told what to do."""

import httpx
import pytest
import sqlalchemy as sa

from forgeyard.model.protocol import MARK_HEADER
from forgeyard.store import lineage, tables
from forgeyard.store.engine import read, write
from tests import backups
from tests.builders import RNG
from tests.integration.api.house import Held, House, a_document

pytestmark = pytest.mark.integration
WHY = {"reason": "last night's dump", "actor": "ops"}


def marked(house: House) -> dict[str, str]:
    """Let the store leave a mark; return the header of an agent that was given it."""
    with write(house.engine) as connection:
        lineage.leave_mark(connection, rng=RNG)
    with read(house.engine) as connection:
        return {MARK_HEADER: lineage.current(connection).mark}


async def lost(house: House) -> tuple[Held, dict[str, str]]:
    """Give out a lease after a backup, and put the backup back; nobody has noticed yet."""
    marked(house)
    copy = backups.take(house.engine)
    held = await house.accepted()
    header = marked(house)
    backups.put_back(house.engine, copy)
    return held, header


async def store(house: House) -> dict:
    answer = await house.people.get("/v1/store")
    assert answer.status_code == 200, answer.text
    return answer.json()


CALLS = {
    "accept": ("leases/{lease}/accept", {}),
    "progress": ("leases/{lease}/progress", {"phase": "running"}),
    "complete": ("leases/{lease}/complete", {"outcome": "succeeded"}),
    "poll": ("sessions/{session}/poll?wait_ms=10", None),
    "log": ("leases/{lease}/logs?session_id={session}&epoch=1&sequence=1", None),
}


async def call(house: House, held: Held, name: str, header: dict[str, str]) -> httpx.Response:
    path, body = CALLS[name]
    path = path.format(lease=held.lease_id, session=held.session_id)
    said = None if body is None else {**held.holder, **body}
    return await house.agents.post(f"/agent/v1/{path}", json=said, headers=header)


@pytest.mark.parametrize("name", list(CALLS))
async def test_whatever_an_agent_says_first_it_is_asked_to_come_again(
    house: House, name: str
) -> None:
    held, header = await lost(house)
    answer = await call(house, held, name, header)
    assert answer.status_code == 503, answer.text
    assert answer.json()["code"] == "store.held"
    assert answer.headers["retry-after"]
    found = await store(house)
    assert found["held"]
    assert held.lease_id in found["held_by"] or held.session_id in found["held_by"]


async def test_without_a_mark_of_this_store_agents_are_refused_as_ever(house: House) -> None:
    held, _ = await lost(house)
    for header in ({}, {MARK_HEADER: "str_other.0.9.x"}, {MARK_HEADER: "x" * 150}):
        assert (await call(house, held, "progress", header)).status_code == 404
        assert (await call(house, held, "poll", header)).status_code == 409
    assert not (await store(house))["held"]


async def test_an_endless_mark_is_refused(house: House) -> None:
    session_id = await house.register()
    answer = await house.agents.post(
        f"/agent/v1/sessions/{session_id}/heartbeat", json={}, headers={MARK_HEADER: "x" * 201}
    )
    assert answer.status_code == 422


async def test_registering_with_a_lost_mark_holds_the_store_and_fences_nobody(
    house: House,
) -> None:
    held = await house.accepted()
    copy = backups.take(house.engine)
    header = marked(house)
    backups.put_back(house.engine, copy)
    house.agents.headers.update(header)
    await house.register()
    assert (await store(house))["held"]
    with read(house.engine) as connection:
        query = sa.select(tables.leases.c.state).where(tables.leases.c.lease_id == held.lease_id)
        assert connection.execute(query).scalar_one() == "active"


async def test_a_stale_completion_is_kept_by_its_agent_while_the_store_is_held(
    house: House,
) -> None:
    """The store knows the offer alone, for the acceptance was lost."""
    session_id = await house.register()
    await house.submit()
    (held,) = await house.offered(session_id)
    copy = backups.take(house.engine)
    await house.tell(held, "accept")
    header = marked(house)
    backups.put_back(house.engine, copy)
    assert (await call(house, held, "complete", header)).status_code == 503
    assert (await house.people.post("/v1/store/confirm", json=WHY)).status_code == 200
    answer = await call(house, held, "complete", header)
    assert answer.json() == {"verdict": "stale_rejected"}


async def test_held_no_run_is_accepted_and_everybody_is_told_why(house: House) -> None:
    assert (await house.people.get("/readyz")).json()["held"] is False
    answer = await house.people.post("/v1/store/hold", json=WHY)
    assert (answer.json()["reason"], answer.json()["held_by"]) == ("last night's dump", "ops")
    ready = await house.people.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "held")
    assert ready.json()["held"] is True
    refused = await house.people.post(
        "/v1/runs", json={"document": a_document(), "submitted_by": "tester"}
    )
    assert refused.status_code == 503
    assert refused.json()["detail"] == "the store is held: last night's dump"
    assert "forgeyard store confirm" in refused.json()["allowed"]
    status = (await house.people.get("/v1/scheduler/status")).json()
    assert status["store_hold"] == "the store is held: last night's dump"
    checks = (await house.people.get("/v1/scheduler/doctor")).json()["checks"]
    (check,) = (one for one in checks if one["name"] == "store")
    assert (check["verdict"], "last night's dump" in check["sentence"]) == ("fail", True)
    assert "forgeyard_store_held 1.0" in (await house.people.get("/metrics")).text


async def test_a_confirmed_store_takes_runs_again(house: House) -> None:
    await house.people.post("/v1/store/hold", json=WHY)
    answer = await house.people.post("/v1/store/confirm", json=WHY)
    assert answer.status_code == 200
    assert answer.json()["era"] == (await store(house))["era"] > 0
    assert "forgeyard_store_held 0.0" in (await house.people.get("/metrics")).text
    await house.submit()
    again = await house.people.post("/v1/store/confirm", json=WHY)
    assert (again.status_code, again.json()["detail"]) == (409, "the store is not held")


@pytest.mark.parametrize("verb", ["hold", "confirm"])
async def test_a_reason_is_a_must(house: House, verb: str) -> None:
    assert (await house.people.post(f"/v1/store/{verb}", json={})).status_code == 422
    assert (await house.people.post(f"/v1/store/{verb}", json={"reason": ""})).status_code == 422
