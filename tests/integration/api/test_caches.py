"""Caches over the agent API: found, kept once, fenced, and never across trust classes."""

from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from forgeyard.config import LimitsConfig
from forgeyard.model.capability import TrustClass
from forgeyard.store import tables
from forgeyard.store.engine import read, write
from tests.integration.api.house import Held, House, a_document, digest_of, open_house

pytestmark = pytest.mark.integration
PIP = {"caches": {"pip": {"path": ".cache", "key": "a.lock"}}}
KEY = digest_of(b"key")


def trusting(trust: str) -> dict[str, object]:
    """Write a run whose job has a cache and needs a trust class."""
    return a_document(build={**PIP, "requires": {"trust": trust}})


async def ask(
    house: House, held: Held, method: str, *, name: str = "pip", key: str = KEY, data: bytes = b""
) -> httpx.Response:
    """Look up, fetch or save."""
    digest = {"digest": digest_of(data)} if method == "PUT" else {}
    return await house.agents.request(
        method,
        f"/agent/v1/leases/{held.lease_id}/caches/{name}/{key}",
        params={**held.holder, **digest},
        content=data if method == "PUT" else None,
    )


async def test_what_one_job_saved_the_next_one_finds(house: House) -> None:
    first = await house.accepted(a_document(build=PIP))
    for method in ("HEAD", "GET"):
        assert (await ask(house, first, method)).status_code == 404
    assert (await ask(house, first, "PUT", data=b"wheels")).status_code == 204
    second = await house.accepted(a_document(build=PIP), runner="runner-2")
    found = await ask(house, second, "HEAD")
    assert found.status_code == 200
    assert found.headers["etag"] == f'"{digest_of(b"wheels")}"'
    assert found.headers["content-length"] == "6"
    assert (await ask(house, second, "GET")).content == b"wheels"
    assert (await ask(house, second, "GET", key=digest_of(b"other"))).status_code == 404


async def test_the_first_one_stays_and_the_second_is_answered_as_done(house: House) -> None:
    held = await house.accepted(a_document(build=PIP))
    for data in (b"first", b"first", b"second"):
        assert (await ask(house, held, "PUT", data=data)).status_code == 204
    assert (await ask(house, held, "GET")).content == b"first"
    assert house.count(tables.caches) == 1


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("untrusted_general", "trusted_internal"),
        ("trusted_internal", "untrusted_general"),
        ("trusted_internal", "signing_restricted"),
    ],
)
async def test_what_another_trust_class_saved_is_never_found(
    house: House, writer: str, reader: str
) -> None:
    planted = await house.accepted(trusting(writer), trust=TrustClass(writer))
    assert (await ask(house, planted, "PUT", data=b"planted")).status_code == 204
    assert (await ask(house, planted, "GET")).status_code == 200
    held = await house.accepted(trusting(reader), runner="runner-2", trust=TrustClass(reader))
    assert (await ask(house, held, "HEAD")).status_code == 404
    assert (await ask(house, held, "GET")).status_code == 404
    assert (await ask(house, held, "PUT", data=b"own")).status_code == 204
    assert (await ask(house, held, "GET")).content == b"own"
    assert (await ask(house, planted, "GET")).content == b"planted"


async def test_the_class_that_counts_is_that_of_the_grant(house: House) -> None:
    """A runner that registers with another class since does not take its lease along."""
    held = await house.accepted(trusting("untrusted_general"), trust=TrustClass.UNTRUSTED_GENERAL)
    with write(house.engine) as connection:
        connection.execute(sa.update(tables.runners).values(trust="trusted_internal"))
    assert (await ask(house, held, "PUT", data=b"planted")).status_code == 204
    with read(house.engine) as connection:
        trust = connection.execute(sa.select(tables.caches.c.trust)).scalar_one()
    assert trust == "untrusted_general"


async def test_a_hit_opens_no_other_blob(sqlite_house: House) -> None:
    first = await sqlite_house.accepted(a_document(build=PIP))
    await ask(sqlite_house, first, "PUT", data=b"wheels")
    answer = await sqlite_house.agents.get(
        f"/agent/v1/leases/{first.lease_id}/inputs/{digest_of(b'wheels')}", params=first.holder
    )
    assert answer.status_code == 403
    second = await sqlite_house.accepted(
        a_document(build={"caches": {"npm": {"path": "x", "key": "y"}}}), runner="runner-2"
    )
    assert (await ask(sqlite_house, second, "GET", name="npm")).status_code == 404
    undeclared = await ask(sqlite_house, second, "GET")
    assert (undeclared.status_code, undeclared.json()["allowed"]) == (422, "npm")


async def test_an_undeclared_cache_or_a_malformed_key_is_refused(sqlite_house: House) -> None:
    held = await sqlite_house.accepted()
    answer = await ask(sqlite_house, held, "PUT", data=b"x")
    assert (answer.status_code, answer.json()["field"]) == (422, "name")
    assert (await ask(sqlite_house, held, "PUT", key="sha256:x", data=b"x")).status_code == 422
    assert not sqlite_house.blobs.exists(digest_of(b"x"))


async def test_a_cache_must_hash_to_its_digest_and_fit(sqlite_house: House) -> None:
    held = await sqlite_house.accepted(a_document(build=PIP))
    url = f"/agent/v1/leases/{held.lease_id}/caches/pip/{KEY}"
    params = {**held.holder, "digest": digest_of(b"promised")}
    wrong = await sqlite_house.agents.put(url, params=params, content=b"delivered")
    assert (wrong.status_code, wrong.json()["code"]) == (422, "blob.wrong_digest")
    large = await ask(sqlite_house, held, "PUT", data=b"x" * (2**20 + 1))
    assert large.status_code == 413
    assert sqlite_house.count(tables.caches) == 0


async def test_a_cache_may_be_larger_than_any_other_request(
    sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    limits = LimitsConfig(request_body=10_000, output=2**20)
    async with open_house(sqlite_engine, tmp_path, limits=limits) as house:
        held = await house.accepted(a_document(build=PIP))
        assert (await ask(house, held, "PUT", data=b"x" * 50_000)).status_code == 204
        assert (await ask(house, held, "GET")).content == b"x" * 50_000


@pytest.mark.parametrize("method", ["HEAD", "GET", "PUT"])
async def test_only_the_holder_of_a_live_lease_may(sqlite_house: House, method: str) -> None:
    held = await sqlite_house.accepted(a_document(build=PIP))
    await ask(sqlite_house, held, "PUT", key=digest_of(b"other"), data=b"wheels")
    stranger = await sqlite_house.register("runner-2")
    others = {
        403: Held(lease_id=held.lease_id, session_id=stranger, epoch=held.epoch, offer=held.offer),
        409: Held(
            lease_id=held.lease_id,
            session_id=held.session_id,
            epoch=held.epoch + 1,
            offer=held.offer,
        ),
    }
    for status, other in others.items():
        assert (await ask(sqlite_house, other, method, data=b"x")).status_code == status
    await sqlite_house.tell(held, "complete", outcome="failed")
    assert (await ask(sqlite_house, held, method, data=b"x")).status_code == 409
    assert sqlite_house.count(tables.caches) == 1
    assert not sqlite_house.blobs.exists(digest_of(b"x"))


async def test_what_retention_or_damage_took_is_a_miss_and_can_be_saved_anew(house: House) -> None:
    held = await house.accepted(a_document(build=PIP))
    await ask(house, held, "PUT", data=b"wheels")
    with write(house.engine) as connection:
        connection.execute(sa.delete(tables.blobs))
    assert (await ask(house, held, "HEAD")).status_code == 404
    await ask(house, held, "PUT", data=b"other wheels")
    house.blobs.delete(digest_of(b"other wheels"))
    assert (await ask(house, held, "GET")).status_code == 404
    await ask(house, held, "PUT", data=b"third wheels")
    assert (await ask(house, held, "GET")).content == b"third wheels"


async def test_damaged_bytes_are_never_whole_and_are_forgotten(
    sqlite_house: House, tmp_path: Path
) -> None:
    held = await sqlite_house.accepted(a_document(build=PIP))
    await ask(sqlite_house, held, "PUT", data=b"wheels")
    (blob,) = (path for path in (tmp_path / "blobs" / "sha256").rglob("*") if path.is_file())
    blob.chmod(0o600)
    blob.write_bytes(b"wheelz")
    answer = await ask(sqlite_house, held, "GET")
    assert answer.content != b"wheels"
    assert answer.content != b"wheelz"
    assert sqlite_house.count(tables.caches) == 0
    await ask(sqlite_house, held, "PUT", data=b"wheels")
    assert (await ask(sqlite_house, held, "GET")).content == b"wheels"
