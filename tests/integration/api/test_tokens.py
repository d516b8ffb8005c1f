"""Tokens over HTTP: made, shown once, felt when revoked; and tenants that do not touch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.api.callers import CallerBook
from forgeyard.errors import StoreUnavailable
from forgeyard.model.caller import HOST
from forgeyard.model.permission import INSIDE_A_TENANT, ROLES, Permission, Role
from forgeyard.store import tables
from forgeyard.store.engine import database_now, read, write
from tests.callers import a_queue, a_token, id_of, revoke
from tests.integration.api.house import TOKEN, House, a_document, client_of, digest_of

pytestmark = pytest.mark.integration
YEAR_MS = 365 * 86_400_000
WANTED = {
    "principal": "ci",
    "kind": "service",
    "role": "submitter",
    "lifetime_ms": 3_600_000,
    "reason": "the pipeline",
    "actor": "alice",
}


def dumped(engine: sa.Engine) -> str:
    """Write down every row of every table, as a thief of the database would."""
    with read(engine) as connection:
        return "\n".join(
            str(tuple(row))
            for table in tables.metadata.sorted_tables
            for row in connection.execute(sa.select(table))
        )


async def test_a_token_is_shown_once_and_no_dump_of_the_database_holds_it(
    sqlite_house: House,
) -> None:
    """S1, for people: what opens the API is in no table."""
    made = await sqlite_house.people.post("/v1/tokens", json=WANTED)
    assert made.status_code == 201
    token = made.json()["token"]
    async with client_of(sqlite_house.public, token) as client:
        me = (await client.get("/v1/whoami")).json()
    assert (me["principal"], me["kind"], me["tenant"]) == ("ci", "service", None)
    assert me["grants"] == sorted(ROLES[Role.SUBMITTER])
    listed = await sqlite_house.people.get("/v1/tokens")
    assert [one["token_id"] for one in listed.json()] == [made.json()["token_id"]]
    secret = token.split("_", 2)[2]
    for seen in (listed.text, dumped(sqlite_house.engine)):
        assert id_of(token) in seen
        assert secret not in seen


async def test_making_and_revoking_tokens_is_on_record_with_whose_token_did_it(
    sqlite_house: House,
) -> None:
    manager = a_token(
        sqlite_house.engine, Permission.TOKEN_MANAGE, Permission.RUN_READ, principal="bob"
    )
    async with client_of(sqlite_house.public, manager) as client:
        wanted = {**WANTED, "role": None, "permissions": ["run.read"]}
        made = (await client.post("/v1/tokens", json=wanted)).json()
        body = {"reason": "it leaked", "actor": "mallory"}
        path = f"/v1/tokens/{made['token_id']}:revoke"
        assert (await client.post(path, json=body)).json()["is_live"] is False
        assert (await client.post(path, json=body)).status_code == 200, "again is harmless"
    audit = tables.audit
    query = sa.select(audit).where(audit.c.target == made["token_id"]).order_by(audit.c.audit_id)
    with read(sqlite_house.engine) as connection:
        created, revoked = connection.execute(query).mappings()
    assert (created["action"], created["actor"]) == ("token.create", "alice")
    assert (revoked["action"], revoked["actor"]) == ("token.revoke", "mallory")
    assert created["principal"] == revoked["principal"] == "user:bob"
    assert "the pipeline" in created["detail"]
    assert "it leaked" in revoked["detail"]


async def test_nobody_gives_what_they_do_not_have(sqlite_house: House) -> None:
    manager = a_token(sqlite_house.engine, Permission.TOKEN_MANAGE, Permission.RUN_READ)
    async with client_of(sqlite_house.public, manager) as client:
        answer = await client.post("/v1/tokens", json=WANTED)
    assert answer.status_code == 403
    assert "run.submit" in answer.json()["value"]


NONSENSE: list[tuple[dict[str, object], str]] = [
    ({"lifetime_ms": YEAR_MS + 1}, "lifetime_ms"),
    ({"lifetime_ms": 1}, "lifetime_ms"),
    ({"role": None}, "permissions"),
    ({"role": "autoscaler", "tenant": "acme"}, "permissions"),
    ({"permissions": ["policy.set"], "tenant": "acme"}, "permissions"),
    ({"role": "king"}, "role"),
    ({"permissions": ["everything"]}, "permissions.0"),
    ({"principal": "a b"}, "principal"),
    ({"reason": ""}, "reason"),
]


async def test_a_token_that_makes_no_sense_is_refused(sqlite_house: House) -> None:
    a_queue(sqlite_house.engine, "acme/core/web/main")
    for changed, field in NONSENSE:
        answer = await sqlite_house.people.post("/v1/tokens", json={**WANTED, **changed})
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text


async def test_every_token_expires_and_belongs_to_a_tenant_that_exists(
    sqlite_house: House,
) -> None:
    without = {name: value for name, value in WANTED.items() if name != "lifetime_ms"}
    assert (await sqlite_house.people.post("/v1/tokens", json=without)).status_code == 422
    lost = await sqlite_house.people.post("/v1/tokens", json={**WANTED, "tenant": "nobody"})
    assert (lost.status_code, lost.json()["field"]) == (404, "tenant")


async def test_a_role_for_a_tenant_brings_only_what_stays_inside(sqlite_house: House) -> None:
    a_queue(sqlite_house.engine, "acme/core/web/main")
    token = a_token(sqlite_house.engine, role=Role.ADMIN, tenant="acme")
    async with client_of(sqlite_house.public, token) as client:
        assert (await client.get("/v1/whoami")).json()["grants"] == sorted(INSIDE_A_TENANT)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def _counted(engine: sa.Engine) -> Callable[[], int]:
    """Count the statements that an engine runs from now on."""
    count = [0]

    @sa.event.listens_for(engine, "before_cursor_execute")
    def _note(*_arguments: object) -> None:
        count[0] += 1

    return lambda: count[0]


async def test_a_token_that_is_known_costs_no_query_and_is_refused_within_five_seconds_of_its_end(
    engine: sa.Engine,
) -> None:
    moved = Clock()
    book = CallerBook(engine, host_token=TOKEN, monotonic=moved)
    token = a_token(engine, Permission.RUN_READ)
    assert await book.find(TOKEN) == HOST
    assert (found := await book.find(token)) is not None
    assert found.permissions == {Permission.RUN_READ}
    statements = _counted(engine)
    for _ in range(50):
        assert await book.find(token) == found
        assert await book.find(TOKEN) == HOST
        assert await book.find("nothing") is None
    assert statements() == 0
    revoke(engine, token)
    moved.now += 5.0
    assert await book.find(token) is None


async def test_a_token_is_not_remembered_beyond_its_end(sqlite_engine: sa.Engine) -> None:
    moved = Clock()
    book = CallerBook(sqlite_engine, host_token=TOKEN, monotonic=moved)
    token = a_token(sqlite_engine, Permission.RUN_READ)
    table = tables.api_tokens
    with write(sqlite_engine) as connection:
        soon = database_now(connection) + 1_500
        connection.execute(sa.update(table).values(expires_at=soon))
    assert await book.find(token) is not None
    statements = _counted(sqlite_engine)
    moved.now += 1.6
    await book.find(token)
    assert statements() > 0, "it was asked for again"


async def test_the_last_use_is_written_at_most_once_a_minute(engine: sa.Engine) -> None:
    moved = Clock()
    book = CallerBook(engine, host_token=TOKEN, monotonic=moved)
    token = a_token(engine, Permission.RUN_READ)
    used = sa.select(tables.api_tokens.c.last_used_at)
    seen: list[int | None] = []
    for _ in range(3):
        with read(engine) as connection:
            seen.append(connection.execute(used).scalar_one())
        await book.find(token)
        moved.now += 5.0
    assert seen[0] is None
    assert seen[1] is not None
    assert seen[1] == seen[2]
    with write(engine) as connection:
        connection.execute(sa.update(tables.api_tokens).values(last_used_at=seen[1] - 60_001))
    await book.find(token)
    with read(engine) as connection:
        assert connection.execute(used).scalar_one() >= seen[1]


async def test_without_the_store_a_token_is_neither_good_nor_bad(tmp_path: Path) -> None:
    gone = sa.create_engine(f"sqlite:///{tmp_path}/nowhere/file.db")
    book = CallerBook(gone, host_token=TOKEN)
    with pytest.raises(StoreUnavailable):
        await book.find(f"fya_{'0' * 26}_{'x' * 43}")
    assert await book.find(TOKEN) == HOST, "whoever repairs it gets in"


@pytest.mark.requirement("FAR-007", "ACC-019")
async def test_asking_for_urgency_takes_a_permission_beside_the_reason(
    sqlite_house: House,
) -> None:
    """FAR-007: a submitter cannot make an emergency of a run, at its start or later."""
    urgent = a_document(build={"priority": "emergency"})
    plain, allowed = (
        a_token(sqlite_house.engine, *given, role=Role.SUBMITTER)
        for given in ((Permission.JOB_REPRIORITISE,), (Permission.PRIORITY_ELEVATE,))
    )
    body = {"document": urgent, "elevate": "the site is down"}
    async with client_of(sqlite_house.public, plain) as client:
        refused = await client.post("/v1/runs", json=body)
        assert (refused.status_code, refused.json()["value"]) == (403, "priority.elevate")
        run = (await client.post("/v1/runs", json={"document": a_document()})).json()
        wish = {"reason": "please", "priority": "emergency"}
        later = await client.post(f"/v1/runs/{run['run_id']}:reprioritise", json=wish)
        assert (later.status_code, later.json()["value"]) == (403, "priority.elevate")
        job_id = run["jobs"][0]["job_id"]
        later = await client.post(f"/v1/jobs/{job_id}:reprioritise", json=wish)
        assert (later.status_code, later.json()["value"]) == (403, "priority.elevate")
    async with client_of(sqlite_house.public, allowed) as client:
        assert (await client.post("/v1/runs", json=body)).status_code == 201


async def test_a_run_is_in_the_name_of_the_token_and_not_of_who_it_says(
    sqlite_house: House,
) -> None:
    token = a_token(sqlite_house.engine, role=Role.SUBMITTER, principal="carol")
    body = {"document": a_document(), "submitted_by": "the boss"}
    async with client_of(sqlite_house.public, token) as client:
        assert (await client.post("/v1/runs", json=body)).json()["submitted_by"] == "carol"
    assert (await sqlite_house.submit(submitted_by="dave"))["submitted_by"] == "dave"


@pytest.fixture
async def two(sqlite_house: House) -> tuple[House, str, str]:
    """Two tenants with a queue each, and a token of each."""
    for queue in ("acme/core/web/main", "umbra/core/web/main"):
        a_queue(sqlite_house.engine, queue)
    ours, theirs = (
        a_token(sqlite_house.engine, *INSIDE_A_TENANT, tenant=name) for name in ("acme", "umbra")
    )
    return sqlite_house, ours, theirs


async def test_who_knows_the_digest_of_a_source_does_not_have_it(
    two: tuple[House, str, str],
) -> None:
    house, ours, theirs = two
    source = b"a trade secret"
    digest = digest_of(source)
    async with client_of(house.public, ours) as owner, client_of(house.public, theirs) as other:
        assert (await owner.put(f"/v1/blobs/{digest}", content=source)).status_code == 201
        body = {"document": a_document(), "source_digest": digest, "queue": "umbra/core/web/main"}
        assert (await other.head(f"/v1/blobs/{digest}")).status_code == 404
        stolen = await other.post("/v1/runs", json=body)
        assert (stolen.status_code, stolen.json()["field"]) == (404, "source_digest")
        # Whoever sends the bytes has them.
        assert (await other.put(f"/v1/blobs/{digest}", content=source)).status_code == 201
        assert (await other.head(f"/v1/blobs/{digest}")).status_code == 200
        assert (await other.post("/v1/runs", json=body)).status_code == 201


async def test_a_key_of_one_tenant_says_nothing_to_another(two: tuple[House, str, str]) -> None:
    house, ours, theirs = two
    runs = []
    for token, name in ((ours, "acme"), (theirs, "umbra")):
        body = {"document": a_document(), "queue": f"{name}/core/web/main"}
        async with client_of(house.public, token) as client:
            for _ in range(2):
                answer = await client.post(
                    "/v1/runs", json=body, headers={"idempotency-key": "the-same"}
                )
                runs.append((answer.status_code, answer.json()["run_id"]))
    assert [status for status, _ in runs] == [201, 200, 201, 200]
    assert runs[0][1] == runs[1][1] != runs[2][1] == runs[3][1]


async def test_a_concurrency_group_of_one_tenant_stops_no_run_of_another(
    two: tuple[House, str, str],
) -> None:
    house, ours, theirs = two
    group = {"group": "deploy", "cancel-in-progress": True}
    views = []
    for token, name in ((ours, "acme"), (theirs, "umbra")):
        document = {**a_document(), "concurrency": group}
        body = {"document": document, "queue": f"{name}/core/web/main"}
        async with client_of(house.public, token) as client:
            answer = await client.post("/v1/runs", json=body)
            assert answer.status_code == 201, answer.text
            views.append(answer.json())
    first = (await house.people.get(f"/v1/runs/{views[0]['run_id']}")).json()
    assert (first["state"], first["ending"]) == ("queued", None)
    assert views[1]["waits_for"] is None


async def test_a_tenant_lists_its_own_runs_and_scopes_and_no_others(
    two: tuple[House, str, str],
) -> None:
    house, ours, theirs = two
    body = {"document": a_document(), "queue": "acme/core/web/main"}
    async with client_of(house.public, ours) as owner, client_of(house.public, theirs) as other:
        run = (await owner.post("/v1/runs", json=body)).json()
        assert [one["run_id"] for one in (await owner.get("/v1/runs")).json()["runs"]] == [
            run["run_id"]
        ]
        assert (await other.get("/v1/runs")).json()["runs"] == []
        beginning = run["run_id"][:20]
        assert (await owner.get(f"/v1/runs/{beginning}")).status_code == 200
        assert (await other.get(f"/v1/runs/{beginning}")).status_code == 404
        assert (await other.get("/v1/runs", params={"before": run["run_id"]})).status_code == 422
        paths = [one["path"] for one in (await other.get("/v1/scopes")).json()]
        assert paths == ["umbra", "umbra/core", "umbra/core/web", "umbra/core/web/main"]
        no_queue = await other.post("/v1/runs", json={"document": a_document()})
        assert (no_queue.status_code, no_queue.json()["allowed"]) == (404, "umbra/core/web/main")


async def test_a_tenant_does_not_set_its_own_share(two: tuple[House, str, str]) -> None:
    house, ours, _ = two
    body = {"reason": "more", "weight": 1_000, "expected_version": 1}
    async with client_of(house.public, ours) as owner:
        assert (await owner.put("/v1/scopes/acme", json=body)).status_code == 403
        assert (await owner.post("/v1/scopes/acme:resume", json=body)).status_code in (403, 422)
        assert (await owner.put("/v1/scopes/acme/core", json=body)).status_code == 200
        for path in ("everything", "pool:default", "umbra"):
            assert (await owner.put(f"/v1/scopes/{path}", json=body)).status_code == 404
