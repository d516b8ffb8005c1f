"""S7: who may do what, on every route there is; the list of them is the application's own."""

import re
from collections.abc import Mapping

import httpx
import pytest
import sqlalchemy as sa
from fastapi import APIRouter, Depends, FastAPI

from forgeyard.api.auth import OPEN_PATHS
from forgeyard.api.callers import Anybody, declared, demand_declared, needs
from forgeyard.errors import Corrupt
from forgeyard.model.image import RunnerImage
from forgeyard.model.permission import EVERYTHING, INSIDE_A_TENANT, Permission
from forgeyard.store import images, tables
from forgeyard.store.engine import read, write
from forgeyard.store.shares import Intent
from tests import access_page
from tests.callers import a_queue, a_token, expire, id_of, revoke
from tests.integration.api.house import House, a_document, client_of, digest_of
from tests.serving import make_authority
from tests.trusting import invite, redeem

pytestmark = pytest.mark.integration
OURS, THEIRS = "acme/core/web/main", "umbra/core/web/main"
BECAUSE = {"reason": "for a test"}
IMAGE, ANOTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
A_FLEET = {
    "name": "build",
    "capacity": {"resources": {"cpu": 4, "memory": "8Gi", "slots": 4}},
}
BODIES: Mapping[str, Mapping[str, object]] = {
    "POST /v1/runs": {"document": a_document(), "queue": OURS},
    "POST /v1/runs:check": {"document": a_document(), "queue": OURS},
    "POST /v1/jobs/{job_id}:reprioritise": {**BECAUSE, "adjustment": 1},
    "POST /v1/runs/{run_id}:reprioritise": {**BECAUSE, "adjustment": 1},
    "PUT /v1/scopes/{path:path}": {**BECAUSE, "expected_version": 1},
    "POST /v1/scopes/{path:path}:pause": BECAUSE,
    "POST /v1/scopes/{path:path}:resume": BECAUSE,
    "POST /v1/policy:check": {"document": {}},
    "PUT /v1/policy": {**BECAUSE, "document": {"batch": 5}, "expected_version": 0},
    "POST /v1/pools": {**BECAUSE, "name": "mac"},
    "PUT /v1/pools/{name}": BECAUSE,
    "POST /v1/pools/{name}:drain": BECAUSE,
    "POST /v1/pools/{name}:undrain": BECAUSE,
    "POST /v1/pools/{name}:assign": {**BECAUSE, "runner": "runner-1"},
    "POST /v1/pools/{name}/maintenance": {
        **BECAUSE,
        "starts_at": 4_102_444_800_000,
        "ends_at": 4_102_448_400_000,
    },
    "POST /v1/pools/maintenance/{window_id}:cancel": BECAUSE,
    "POST /v1/runners/{name}:set-state": {**BECAUSE, "state": "unhealthy"},
    "POST /v1/store/hold": BECAUSE,
    "POST /v1/store/confirm": BECAUSE,
    "POST /v1/tokens": {
        **BECAUSE,
        "principal": "x",
        "permissions": ["token.manage"],
        "lifetime_ms": 60_000,
    },
    "POST /v1/tokens/{token_id}:revoke": BECAUSE,
    "POST /v1/enrolments": {**BECAUSE, "runner_name": "machine"},
    "POST /v1/enrolments/{enrolment_id}:approve": {**BECAUSE, "key": "sha256/one"},
    "POST /v1/enrolments/{enrolment_id}:cancel": BECAUSE,
    "POST /v1/runners/{name}:revoke": BECAUSE,
    "POST /v1/runners/{name}:admit": BECAUSE,
    "PUT /v1/fleets/{name}": {**BECAUSE, "document": A_FLEET},
    "POST /v1/fleets/{name}:activate": BECAUSE,
    "POST /v1/fleets/{name}:delete": BECAUSE,
    "POST /v1/fleets/{name}:drain": BECAUSE,
    "POST /v1/fleets/{name}:freeze": BECAUSE,
    "POST /v1/fleets/{name}:scale": {**BECAUSE, "max": 5},
    "POST /v1/fleets/{name}:scale-up-only": BECAUSE,
    "POST /v1/fleets/{name}:simulate": {"max": 5, "for_ms": 60_000},
    "POST /v1/fleets/{name}:unscale": BECAUSE,
    "POST /v1/fleets/{name}/reservations": {
        **BECAUSE,
        "quantity": 2,
        "starts_at": 4_102_444_800_000,
        "ends_at": 4_102_448_400_000,
    },
    "POST /v1/fleets/reservations/{reservation_id}:cancel": BECAUSE,
    "POST /v1/fleets/{name}/rollout": {**BECAUSE, "image": IMAGE},
    "POST /v1/fleets/{name}/rollout:pause": BECAUSE,
    "POST /v1/fleets/{name}/rollout:resume": BECAUSE,
    "POST /v1/fleets/{name}/rollout:rollback": BECAUSE,
    "POST /v1/images": {**BECAUSE, "digest": f"sha256:{'c' * 64}"},
    "PUT /v1/images/aliases/{alias}": {**BECAUSE, "image": IMAGE},
    "POST /v1/images/{image}:compromise": {**BECAUSE, "severity": "critical"},
    "POST /v1/images/{image}:retire": BECAUSE,
    "POST /v1/images/{image}:trust": BECAUSE,
    "POST /v1/instances/{instance_id}:drain": BECAUSE,
    "POST /v1/instances/{instance_id}:pin": BECAUSE,
    "POST /v1/instances/{instance_id}:release": BECAUSE,
    "POST /v1/instances/{instance_id}:unpin": BECAUSE,
    "POST /v1/providers/{provider}:freeze": BECAUSE,
    "POST /v1/providers/{provider}:thaw": BECAUSE,
    "POST /v1/codec/decode": {"payloads": []},
    "POST /v1/codec/encode": {"payloads": []},
}
"""What routes want to hear that take no empty body."""
UNRECORDED = {
    *("HEAD /v1/blobs/{digest}", "PUT /v1/blobs/{digest}", "POST /v1/runs", "POST /v1/runs:check"),
    *("POST /v1/codec/decode", "POST /v1/codec/encode", "POST /v1/fleets/{name}:simulate"),
    *("POST /v1/runs/{run_id}:rerun-failed", "POST /v1/policy:check", "POST /v1/audit:verify"),
}
"""Requests that are no GET and change nothing that others rely on; a run is a record of itself."""
FUTILE = {
    "POST /v1/pools/maintenance/{window_id}:cancel",
    "POST /v1/fleets/reservations/{reservation_id}:cancel",
    *(f"POST /v1/instances/{{instance_id}}:{verb}" for verb in ("drain", "pin")),
    *(f"POST /v1/instances/{{instance_id}}:{verb}" for verb in ("release", "unpin")),
}
"""What finds nothing to do here; the tests of its noun see its line in the trail."""
NAMES = {"/v1/pools": "default", "/v1/runners": "runner-1"}
EARLY = ("PUT", "POST /v1/jobs", ":reprioritise", "{name}:cancel")
LATE = ("admit", "hold", "confirm", ":activate", ":delete")
"""In which order routes are tried, so that one leaves the next something to do."""
OF_NOBODY = {"GET /v1/runs", "GET /v1/scopes", "GET /v1/whoami"}
"""What a caller of any tenant may ask, and is told its own part of."""


ROUTES = access_page.routes()
SHUT = [one for one in ROUTES if one[2].path not in OPEN_PATHS]
SOURCE = b"somebody's sources"


def _turn(what: str) -> int:
    early = next((turn for turn, part in enumerate(EARLY) if part in what), len(EARLY))
    return early + sum(1 + turn for turn, part in enumerate(LATE) if part in what)


class Callers:
    """One client for each sort of caller, and a run, a job and a source of a tenant."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.run_id = self.job_id = self.token_id = self.enrolment_id = ""

    async def settle(self) -> None:
        engine = self.house.engine
        for queue in (OURS, THEIRS):
            a_queue(engine, queue)
        digest = digest_of(SOURCE)
        owner = a_token(engine, *INSIDE_A_TENANT, tenant="acme")
        async with client_of(self.house.public, owner) as client:
            assert (await client.put(f"/v1/blobs/{digest}", content=SOURCE)).status_code == 201
            document = a_document(build={}, test={})
            body = {"document": document, "queue": OURS, "source_digest": digest}
            run = (await client.post("/v1/runs", json=body)).json()
        self.run_id, self.job_id = run["run_id"], run["jobs"][0]["job_id"]
        self.token_id = id_of(a_token(engine, Permission.RUN_READ))
        await self.house.register("runner-1")
        make_authority(self.house.public.state.dependencies.config.data_dir)
        with write(engine) as connection:
            enrolment = invite(connection, "machine-1", needs_approval=True)
            redeem(connection, enrolment, "sha256/one")
            ann = Intent(actor="ann", channel="cli", reason="for a test")
            for image in (IMAGE, ANOTHER):
                images.add(connection, RunnerImage(digest=image), ann)
        self.enrolment_id = enrolment.enrolment_id

    async def ask(self, token: str | None, what: str, method: str, path: str) -> httpx.Response:
        """Ask what a route is for, about what belongs to the first tenant."""
        named = {
            "run_id": self.run_id,
            "job_id": self.job_id,
            "digest": digest_of(SOURCE),
            "path:path": OURS,
            "token_id": self.token_id,
            "enrolment_id": self.enrolment_id,
            "grouping": "tenant",
            "image": ANOTHER,
            "name": next((name for noun, name in NAMES.items() if noun in path), "build"),
        }
        target = re.sub(r"\{([^}]+)\}", lambda found: named.get(found[1], "build"), path)
        body = BODIES.get(what)
        async with client_of(self.house.public, token) as client:
            if body is None:
                return await client.request(method, target)
            return await client.request(method, target, json=body)


@pytest.fixture
async def callers(sqlite_house: House) -> Callers:
    found = Callers(sqlite_house)
    await found.settle()
    return found


async def test_nobody_gets_in_without_a_good_token(callers: Callers) -> None:
    """S7: no token, one that never was, an expired and a revoked one, on every route."""
    engine = callers.house.engine
    expired, revoked = (a_token(engine, *EVERYTHING) for _ in range(2))
    expire(engine, expired)
    revoke(engine, revoked)
    unknown = f"{revoked[:-1]}{'x' if revoked[-1] != 'x' else 'y'}"
    assert len(SHUT) > 40
    for what, method, route in SHUT:
        for token in (None, "nothing", unknown, expired, revoked):
            answer = await callers.ask(token, what, method, route.path)
            assert answer.status_code == 401, (what, token)


async def test_every_permission_but_the_needed_one_is_not_enough(callers: Callers) -> None:
    """S7: 403, on every route, whatever it would say of the rest of the request."""
    engine = callers.house.engine
    lacking = {one: a_token(engine, *(EVERYTHING - {one})) for one in EVERYTHING}
    for what, method, route in SHUT:
        (needed,) = declared(route)
        if needed is None:
            assert what == "GET /v1/whoami", "only this one may be open to whoever is somebody"
            continue
        answer = await callers.ask(lacking[needed], what, method, route.path)
        assert answer.status_code == 403, what
        if method != "HEAD":
            assert answer.json()["value"] == needed


async def test_what_a_route_needs_is_enough_and_what_it_changes_is_on_record(
    callers: Callers,
) -> None:
    """A permission alone opens its routes; whatever they change says whose token changed it."""
    engine = callers.house.engine
    having = {one: a_token(engine, one, principal=one) for one in EVERYTHING}
    futile = set[str]()
    for what, method, route in sorted(SHUT, key=lambda one: _turn(one[0])):
        (needed,) = declared(route)
        if needed is None:
            continue
        before = _principals(callers.house)
        answer = await callers.ask(having[needed], what, method, route.path)
        assert answer.status_code not in (401, 403), (what, answer.text)
        if method == "GET" or what in UNRECORDED:
            continue
        if not answer.is_success:
            futile.add(what)
            continue
        added = _principals(callers.house)[len(before) :]
        assert added, f"{what} left no line in the audit trail"
        assert set(added) == {f"user:{needed}"}, (what, added)
    assert futile == FUTILE


def _principals(house: House) -> list[str]:
    """Tell whose token each line of the audit trail names."""
    audit = tables.audit
    with read(house.engine) as connection:
        query = sa.select(audit.c.principal).order_by(audit.c.audit_id)
        return list(connection.execute(query).scalars())


async def test_what_is_another_tenants_is_not_there(callers: Callers) -> None:
    """404 for what belongs to somebody else, 403 for what belongs to no tenant; never a hint."""
    stranger = a_token(callers.house.engine, *INSIDE_A_TENANT, tenant="umbra")
    for what, method, route in SHUT:
        answer = await callers.ask(stranger, what, method, route.path)
        (needed,) = declared(route)
        if what == "PUT /v1/blobs/{digest}":
            continue  # whoever sends the bytes has them; the next test is about that
        if what in OF_NOBODY:
            assert answer.status_code == 200, what
            assert callers.run_id not in answer.text
            assert "acme" not in answer.text
        elif needed in INSIDE_A_TENANT:
            assert answer.status_code == 404, (what, answer.status_code, answer.text)
            # What was asked for may be repeated, and nothing else is told.
            told = answer.text.replace(OURS, "").replace(callers.run_id, "")
            assert "acme" not in told, (what, told)
        else:
            assert answer.status_code == 403, what


async def test_the_owner_finds_what_the_stranger_does_not(callers: Callers) -> None:
    """The 404s above are no misspelt paths: to its own tenant each of them is there."""
    owner = a_token(callers.house.engine, *INSIDE_A_TENANT, tenant="acme")
    for what, method, route in SHUT:
        if declared(route)[0] in INSIDE_A_TENANT and "/{job}/{name}" not in route.path:
            answer = await callers.ask(owner, what, method, route.path)
            assert answer.status_code not in (401, 403, 404), (what, answer.text)


def test_a_route_that_declares_no_permission_keeps_the_application_from_starting() -> None:
    router = APIRouter()

    @router.get("/v1/forgotten", dependencies=[Depends(lambda: None)])
    def forgotten() -> None: ...

    with pytest.raises(Corrupt, match="forgotten"):
        demand_declared([router])


def test_a_route_that_declares_two_things_keeps_the_application_from_starting() -> None:
    router = APIRouter()

    @router.get("/v1/twice", dependencies=[needs(Permission.RUN_READ)])
    def twice(_who: Anybody) -> None: ...

    with pytest.raises(Corrupt, match="twice"):
        demand_declared([router])


def test_every_route_declares_what_it_needs_and_the_open_ones_are_listed() -> None:
    undeclared = {route.path for _, _, route in ROUTES if not declared(route)}
    assert undeclared == OPEN_PATHS


async def test_the_documents_of_the_api_are_for_whoever_is_somebody(callers: Callers) -> None:
    """S7: what the framework adds by itself is behind the gate as well."""
    public: FastAPI = callers.house.public
    async with client_of(public, a_token(callers.house.engine, Permission.RUN_READ)) as client:
        assert (await client.get("/openapi.json")).status_code == 200
    async with client_of(public, "nothing") as client:
        assert (await client.get("/openapi.json")).status_code == 401


def test_the_page_about_access_is_current() -> None:
    assert access_page.main(["--check"]) == 0, "run python -m tests.access_page"
