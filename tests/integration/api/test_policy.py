"""The scheduling policy over HTTP: read, check, set, and what agents notice of it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from forgeyard.api.policy_cache import PolicyCache
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import policies
from forgeyard.store.engine import read, write
from tests.integration.api.house import House

pytestmark = pytest.mark.integration
QUICK = {"lease": {"execution_ttl": "20s", "renew_every": "5s"}}
WISH = {"document": QUICK, "reason": "a smaller fleet", "actor": "ann", "expected_version": 0}


async def shown(house: House) -> dict:
    answer = await house.people.get("/v1/policy")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_policy_is_read_set_and_remembered(house: House) -> None:
    before = await shown(house)
    assert before["version"] == 0
    assert before["digest"] == SchedulingPolicy().digest()
    answer = await house.people.put("/v1/policy", json=WISH)
    assert answer.status_code == 200, answer.text
    after = answer.json()
    assert after == await shown(house)
    assert after["version"] == 1
    assert after["document"]["lease"]["execution_ttl"] == 20_000
    assert after["document"]["batch"] == 200, "what is left out has its default"
    (version,) = (await house.people.get("/v1/policy/history")).json()
    assert (version["version"], version["actor"], version["reason"]) == (
        1,
        "ann",
        "a smaller fleet",
    )
    assert house.audited() == ["policy.set"]
    assert house.kicks, "the wake is relayed at once"


async def test_the_same_request_twice_sets_one_version(sqlite_house: House) -> None:
    first = await sqlite_house.people.put("/v1/policy", json=WISH)
    again = await sqlite_house.people.put("/v1/policy", json=WISH)
    assert (again.status_code, again.json()) == (200, first.json())


async def test_who_comes_second_is_told_of_the_version_in_force(sqlite_house: House) -> None:
    await sqlite_house.people.put("/v1/policy", json=WISH)
    answer = await sqlite_house.people.put("/v1/policy", json={**WISH, "document": {"batch": 1}})
    assert answer.status_code == 409
    assert answer.json()["field"] == "expected_version"
    assert "version 1 is in force" in answer.json()["detail"]


async def test_checking_a_policy_stores_nothing(sqlite_house: House) -> None:
    checked = await sqlite_house.people.post("/v1/policy:check", json={"document": {"batch": 5}})
    assert checked.status_code == 200, checked.text
    assert checked.json()["document"]["batch"] == 5
    assert (await shown(sqlite_house))["version"] == 0


REFUSED = [
    ({"batch": 0}, "batch"),
    ({"bath": 1}, "bath"),
    ({"lease": {"offer_ttl": "30"}}, "lease.offer_ttl"),
    ({"lease": {"execution_ttl": "20s"}}, "lease.renew_every"),
]


@pytest.mark.parametrize(("document", "field"), REFUSED)
async def test_a_policy_that_is_not_allowed_is_refused_by_field(
    sqlite_house: House, document: dict, field: str
) -> None:
    requests = (
        await sqlite_house.people.post("/v1/policy:check", json={"document": document}),
        await sqlite_house.people.put("/v1/policy", json={**WISH, "document": document}),
    )
    for answer in requests:
        assert answer.status_code == 422
        assert (answer.json()["code"], answer.json()["field"]) == ("policy.invalid", field)
        assert answer.json()["allowed"]
    assert (await shown(sqlite_house))["version"] == 0


@pytest.mark.parametrize(
    "missing", [{"reason": ""}, {"expected_version": -1}, {"document": []}, {"colour": "red"}]
)
async def test_setting_a_policy_wants_a_reason_and_what_was_seen(
    sqlite_house: House, missing: dict
) -> None:
    answer = await sqlite_house.people.put("/v1/policy", json={**WISH, **missing})
    assert answer.status_code == 422
    assert answer.json()["field"] == next(iter(missing))


@pytest.mark.requirement("MOD-005")
async def test_a_changed_ttl_reaches_the_agent_with_its_next_renewal(house: House) -> None:
    held = await house.accepted()
    renewal = {
        "session_id": held.session_id,
        "leases": [{"lease_id": held.lease_id, "epoch": held.epoch}],
    }
    before = await house.agents.post("/agent/v1/renewals", json=renewal)
    assert before.json()["leases"][0]["ttl"] == 60_000, before.text
    await house.people.put("/v1/policy", json=WISH)
    after = await house.agents.post("/agent/v1/renewals", json=renewal)
    assert after.json()["leases"][0]["ttl"] == 20_000


@contextmanager
def statements(engine: sa.Engine) -> Iterator[list[str]]:
    """Note what is asked of the database."""
    seen: list[str] = []

    def note(_c: object, _u: object, statement: str, *_: object) -> None:
        seen.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    yield seen
    sa.event.remove(engine, "before_cursor_execute", note)


def set_elsewhere(engine: sa.Engine, batch: int) -> None:
    """Set a policy as another process does."""
    with write(engine) as connection:
        policies.set_policy(
            connection,
            SchedulingPolicy(batch=batch),
            expected_version=batch - 1,
            actor="ann",
            channel="test",
            reason="a test",
            built_in=SchedulingPolicy(),
        )


def test_a_policy_that_is_fresh_costs_no_statement(sqlite_engine: sa.Engine) -> None:
    cache = PolicyCache(SchedulingPolicy(), fresh_s=60)
    with read(sqlite_engine) as connection, statements(sqlite_engine) as seen:
        cache.read(connection)
        assert len(seen) == 1
        for _ in range(100):
            cache.read(connection)
        assert len(seen) == 1


def test_a_policy_set_by_another_process_is_seen_once_ours_is_stale(
    sqlite_engine: sa.Engine,
) -> None:
    patient = PolicyCache(SchedulingPolicy(), fresh_s=60)
    curious = PolicyCache(SchedulingPolicy(), fresh_s=0)
    with read(sqlite_engine) as connection:
        assert patient.read(connection) == curious.read(connection)
    set_elsewhere(sqlite_engine, 1)
    with read(sqlite_engine) as connection:
        assert curious.read(connection).batch == 1
        assert patient.read(connection).batch == 200
        patient.forget()
        assert patient.read(connection).batch == 1
