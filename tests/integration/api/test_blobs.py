"""Blobs and artifacts over HTTP: verified, bounded, unable to leave their directory."""

import hashlib
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.config import LimitsConfig
from forgeyard.store import tables
from tests.integration.api.house import House, a_document, digest_of, open_house

pytestmark = pytest.mark.integration
OUTPUT = {"outputs": [{"name": "wheel", "path": "dist/*.whl"}]}


def _files(house: House, folder: Path) -> list[str]:
    return [path.name for path in (folder / "blobs").rglob("*") if path.is_file()]


async def test_a_blob_is_stored_once_and_found_again(house: House) -> None:
    data, digest = b"some source", digest_of(b"some source")
    assert (await house.people.head(f"/v1/blobs/{digest}")).status_code == 404
    for _ in range(2):
        answer = await house.people.put(f"/v1/blobs/{digest}", content=data)
        assert (answer.status_code, answer.json()) == (201, {"digest": digest, "size": len(data)})
    found = await house.people.head(f"/v1/blobs/{digest}")
    assert found.status_code == 200
    assert found.headers["content-length"] == str(len(data))
    assert house.count(tables.blobs) == 1


async def test_the_wrong_digest_leaves_nothing(sqlite_house: House, tmp_path: Path) -> None:
    answer = await sqlite_house.people.put(
        f"/v1/blobs/{digest_of(b'promised')}", content=b"delivered"
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "blob.wrong_digest")
    assert _files(sqlite_house, tmp_path) == []
    assert sqlite_house.count(tables.blobs) == 0


async def _endless(piece: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield piece


async def test_a_blob_over_the_limit_leaves_nothing(sqlite_house: House, tmp_path: Path) -> None:
    url = f"/v1/blobs/{digest_of(b'x')}"
    declared = await sqlite_house.people.put(url, content=b"x" * (2**20 + 1))
    found_out = await sqlite_house.people.put(url, content=_endless(b"x" * 2**16, 20))
    for answer in (declared, found_out):
        assert (answer.status_code, answer.json()["code"]) == (413, "request.too_large")
    assert _files(sqlite_house, tmp_path) == []


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:..%2f..%2f..%2fetc%2fpasswd",
        "..%2f..%2ftoken",
        "sha256:" + "A" * 64,
        "sha256:" + "0" * 63,
        "sha256:" + "0" * 65,
        "md5:" + "0" * 32,
        "sha256:" + "0" * 63 + "%00",
        "sha256:" + "0" * 64 + "%0a",
        "%2e%2e",
    ],
)
async def test_what_is_no_digest_never_becomes_a_path(
    sqlite_house: House, tmp_path: Path, digest: str
) -> None:
    for method in ("PUT", "HEAD"):
        answer = await sqlite_house.people.request(method, f"/v1/blobs/{digest}", content=b"x")
        assert answer.status_code in (404, 422), method
    assert _files(sqlite_house, tmp_path) == []


async def test_an_upload_is_never_held_in_memory(sqlite_engine: sa.Engine, tmp_path: Path) -> None:
    piece, count = b"\x5a" * 2**20, 48
    digest = f"sha256:{hashlib.sha256(piece * count).hexdigest()}"
    limits = LimitsConfig(source=64 * 2**20)
    async with open_house(sqlite_engine, tmp_path, limits=limits) as house:
        tracemalloc.start()
        answer = await house.people.put(f"/v1/blobs/{digest}", content=_endless(piece, count))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert answer.status_code == 201
    assert peak < 12 * 2**20


async def test_an_artifact_is_listed_and_sent_with_its_digest_as_etag(house: House) -> None:
    held = await house.accepted(a_document(build=OUTPUT))
    run = f"/v1/runs/{held.offer['run_id']}"
    assert (await house.upload(held, "wheel", b"the wheel")).status_code == 204
    assert (await house.people.get(f"{run}/artifacts")).json() == []
    await house.tell(held, "complete", outcome="succeeded")
    (listed,) = (await house.people.get(f"{run}/artifacts")).json()
    assert (listed["job"], listed["name"], listed["size_bytes"]) == ("build", "wheel", 9)
    answer = await house.people.get(f"{run}/artifacts/build/wheel")
    assert answer.content == b"the wheel"
    assert answer.headers["etag"] == f'"{digest_of(b"the wheel")}"'
    assert answer.headers["content-length"] == "9"
    assert answer.headers["content-disposition"] == 'attachment; filename="build-wheel.tar.gz"'
    again = await house.people.get(
        f"{run}/artifacts/build/wheel", headers={"if-none-match": answer.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    assert (await house.people.get(f"{run}/artifacts/build/other")).status_code == 404


async def test_a_damaged_artifact_never_arrives_whole(sqlite_house: House, tmp_path: Path) -> None:
    held = await sqlite_house.accepted(a_document(build=OUTPUT))
    await sqlite_house.upload(held, "wheel", b"the wheel")
    await sqlite_house.tell(held, "complete", outcome="succeeded")
    (file,) = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    file.write_bytes(b"the eel..")
    url = f"/v1/runs/{held.offer['run_id']}/artifacts/build/wheel"
    answer = await sqlite_house.people.get(url)
    assert answer.content != b"the eel.."
    file.unlink()
    assert (await sqlite_house.people.get(url)).status_code == 404
