"""Fleets over HTTP: what is asked of them comes true, who may ask it, and what nobody is told."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from forgeyard.api.callers import declared
from forgeyard.errors import Denied
from forgeyard.fleet.ports import Check, CheckLevel, Machine
from forgeyard.model.capacity import MachineState
from forgeyard.model.permission import Permission
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import breakers, fleet_tables, machines, provider_checks
from forgeyard.store.engine import database_now, read, write
from tests import access_page
from tests.builders import RNG
from tests.callers import a_token
from tests.integration.api.house import House, a_document, client_of

pytestmark = pytest.mark.integration
WHY = {"reason": "a test"}
DOCUMENT = {
    "name": "builders",
    "capacity": {
        "resources": {"cpu": 4, "memory": "8Gi", "disk": "20Gi", "slots": 4},
        "trust": "trusted_internal",
    },
    "scaling": {"max": 10},
}
P = Permission
OPENS: Mapping[Permission, set[str]] = {
    P.FLEET_READ: {
        *("GET /v1/fleets", "GET /v1/fleets:doctor", "GET /v1/fleets/{name}"),
        *(
            "GET /v1/fleets/{name}/analytics",
            "GET /v1/fleets/{name}/capacity",
            "GET /v1/fleets/{name}/decisions",
        ),
        *("GET /v1/fleets/{name}/forecast", "GET /v1/fleets/{name}/reservations"),
        *("GET /v1/fleets/{name}/rollout", "POST /v1/fleets/{name}:simulate"),
        *("GET /v1/instances/{instance_id}", "GET /v1/capacity-demand"),
        *("GET /v1/images", "GET /v1/images/{image}"),
    },
    P.FLEET_MANAGE: {"PUT /v1/fleets/{name}", "POST /v1/fleets/{name}:delete"},
    P.FLEET_SCALE: {
        *("POST /v1/fleets/{name}:scale", "POST /v1/fleets/{name}:unscale"),
        *("POST /v1/instances/{instance_id}:pin", "POST /v1/instances/{instance_id}:unpin"),
    },
    P.FLEET_DRAIN: {
        *("POST /v1/fleets/{name}:drain", "POST /v1/instances/{instance_id}:drain"),
        "POST /v1/instances/{instance_id}:release",
    },
    P.FLEET_FREEZE: {
        *("POST /v1/fleets/{name}:freeze", "POST /v1/fleets/{name}:scale-up-only"),
        *("POST /v1/fleets/{name}:activate", "POST /v1/providers/{provider}:freeze"),
        "POST /v1/providers/{provider}:thaw",
    },
    P.FLEET_RESERVATION_MANAGE: {
        "POST /v1/fleets/{name}/reservations",
        "POST /v1/fleets/reservations/{reservation_id}:cancel",
    },
    P.FLEET_IMAGE_MANAGE: {
        *("POST /v1/images", "PUT /v1/images/aliases/{alias}", "POST /v1/images/{image}:trust"),
        *("POST /v1/images/{image}:compromise", "POST /v1/images/{image}:retire"),
        "POST /v1/fleets/{name}/rollout",
        *(f"POST /v1/fleets/{{name}}/rollout:{verb}" for verb in ("pause", "resume", "rollback")),
    },
}


async def applied(house: House) -> str:
    answer = await house.people.put("/v1/fleets/builders", json={**WHY, "document": DOCUMENT})
    assert answer.status_code == 200, answer.text
    return str((await told(house, "/v1/fleets/builders"))["fleet"]["fleet_id"])


async def told(house: House, path: str) -> Any:
    answer = await house.people.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def asked(house: House, path: str, **said: object) -> Any:
    answer = await house.people.post(path, json={**WHY, **said})
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def decide(house: House, fleet_id: str) -> contracts.FleetTick:
    tending = FleetActivities(house.engine, SchedulingPolicy(), {}, Rhythm(), rng=RNG)
    return tending.tick_fleet(contracts.Fleet(fleet_id=fleet_id, partition="default"))


@pytest.mark.requirement("API-006", "API-007", "API-008", "API-009", "API-011", "API-012")
async def test_a_fleet_is_scaled_and_frozen_and_its_machines_and_demand_are_shown(
    sqlite_house: House,
) -> None:
    house = sqlite_house
    assert await told(house, "/v1/fleets") == []
    own = await applied(house)
    await house.submit(a_document(build={}))
    assert (await told(house, "/v1/capacity-demand"))["classes"] == []
    await asked(house, "/v1/fleets/builders:freeze")
    assert decide(house, own).launched == 0, "frozen, it makes nothing"
    (waiting,) = (await told(house, "/v1/capacity-demand"))["classes"]
    assert (waiting["count"], waiting["requested"]["slots"]) == (1, 1)
    assert await told(house, f"/v1/fleets/{own}/capacity") == []
    await asked(house, "/v1/fleets/builders:activate")
    await asked(house, f"/v1/fleets/{own}:scale", min=3, max=3)
    assert decide(house, own).launched == 3
    machines = await told(house, "/v1/fleets/builders/capacity")
    assert [one["state"] for one in machines] == ["requested"] * 3
    (listed,) = await told(house, "/v1/fleets")
    assert listed == {**await told(house, f"/v1/fleets/{own}"), "now": listed["now"]}
    assert (listed["machines"], listed["fleet"]["state"]) == ({"requested": 3}, "active")
    assert (listed["override"]["min"], listed["override"]["max"]) == (3, 3)
    assert (await house.people.get("/v1/fleets/nobody")).status_code == 404


@pytest.mark.requirement("API-010")
async def test_a_fleet_that_drains_makes_nothing_and_lets_all_go(sqlite_house: House) -> None:
    own = await applied(sqlite_house)
    await asked(sqlite_house, "/v1/fleets/builders:scale", min=2)
    assert decide(sqlite_house, own).launched == 2
    await asked(sqlite_house, "/v1/fleets/builders:drain")
    tick = decide(sqlite_house, own)
    assert (tick.launched, tick.wanted, tick.state) == (0, 0, "draining")
    (last, *_) = await told(sqlite_house, "/v1/fleets/builders/decisions")
    assert "draining" in {one["kind"] for one in last["decision"]["clamps"]}


@pytest.mark.requirement(
    "API-013", "API-014", "API-015", "API-016", "API-017", "API-018", "API-019"
)
async def test_each_permission_of_fleets_opens_its_routes_and_no_other(
    sqlite_house: House,
) -> None:
    own = {permission: set[str]() for permission in OPENS}
    nouns = r"/v1/(fleets|instances|providers|images|capacity-demand)"
    routes = [one for one in access_page.routes() if re.match(nouns, one[2].path)]
    for permission, opened in own.items():
        token = a_token(sqlite_house.engine, permission)
        async with client_of(sqlite_house.public, token) as client:
            for what, method, route in routes:
                answer = await client.request(method, re.sub(r"\{\w+\}", "x", route.path), json={})
                if answer.status_code != 403:
                    opened.add(what)
                else:
                    assert answer.json()["value"] == declared(route)[0]
    assert own == OPENS


@pytest.mark.requirement("API-020")
async def test_what_a_provider_says_of_credentials_is_shown_to_nobody(
    sqlite_house: House,
) -> None:
    """Adapters repeat what their cloud says; keys in it are taken out before they are kept."""
    house, own = sqlite_house, await applied(sqlite_house)
    await asked(house, "/v1/fleets/builders:scale", min=2)
    decide(house, own)
    canary = "AKIA" + "CANARY7ANDMORE12"
    said = f"key {canary} may not run instances"
    with write(house.engine) as connection:
        now = database_now(connection)
        bad = Check(name="credentials", level=CheckLevel.FAILED, text=said)
        provider_checks.keep(connection, "local", (bad,), now=now)
        breakers.failed(connection, "local", own, "default", Denied(said), now=now)
        query = sa.select(fleet_tables.capacity_instances)
        one, other = (dict(row) for row in connection.execute(query).mappings())
        machines.refused(connection, one, said)
        there = Machine(ref="i-1", state=MachineState.PENDING, tags={}, detail=said)
        machines.seen(connection, other, there, now=now)
    decide(house, own)
    pages = [
        (await house.people.get(path)).text
        for path in (
            *("/v1/fleets", "/v1/fleets:doctor", f"/v1/fleets/{own}"),
            *(f"/v1/fleets/{own}/capacity", f"/v1/fleets/{own}/decisions"),
            f"/v1/instances/{one['instance_id']}",
        )
    ]
    shown = "\n".join(pages)
    assert shown.count("may not run instances") >= 5, "what else it says is shown"
    assert canary not in shown
    with read(house.engine) as connection:
        for table in fleet_tables.fleets.metadata.sorted_tables:
            for row in connection.execute(sa.select(table)):
                assert canary not in str(tuple(row)), table.name
