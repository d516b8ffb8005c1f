"""Temporal's Web UI and command line may have payloads opened by whoever holds the token."""

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from temporalio.api.common.v1 import Payload

from activities.connection import payload_codec
from activities.encryption import EncryptionCodec
from forgeyard.api.app import create_app
from forgeyard.config import Config, TemporalConfig
from forgeyard.trust.sealing import add_key
from tests.integration.api.house import House, client_of

pytestmark = pytest.mark.integration
UI = "https://temporal.example.org"
Body = dict[str, list[dict[str, object]]]


@pytest.fixture
def codec(tmp_path: Path) -> EncryptionCodec:
    """Seal with one key."""
    file = tmp_path / "codec.keys"
    add_key(file)
    found = payload_codec(TemporalConfig(codec_keys_file=str(file)))
    assert found is not None
    return found


@pytest.fixture
async def people(
    sqlite_house: House, codec: EncryptionCodec, tmp_path: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """Talk to an API that has keys."""
    config = Config(data_dir=tmp_path, temporal=TemporalConfig(ui_url=f"{UI}/"))
    deps = replace(sqlite_house.public.state.dependencies, codec=codec, config=config)
    async with client_of(create_app(deps)) as client:
        yield client


def written(*payloads: Payload) -> Body:
    """Write payloads as Temporal's programs do."""
    return {
        "payloads": [
            {
                "metadata": {
                    name: base64.b64encode(value).decode()
                    for name, value in payload.metadata.items()
                },
                "data": base64.b64encode(payload.data).decode(),
            }
            for payload in payloads
        ]
    }


PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"hello"')


async def test_what_workers_sealed_is_opened(
    people: httpx.AsyncClient, codec: EncryptionCodec
) -> None:
    sealed = await codec.encode([PLAIN, PLAIN])
    answer = await people.post("/v1/codec/decode", json=written(*sealed, PLAIN))
    assert answer.status_code == 200
    assert answer.json() == written(PLAIN, PLAIN, PLAIN)


async def test_what_an_operator_writes_is_sealed(
    people: httpx.AsyncClient, codec: EncryptionCodec
) -> None:
    answer = await people.post("/v1/codec/encode", json=written(PLAIN))
    assert answer.status_code == 200
    (given,) = answer.json()["payloads"]
    metadata = {name: base64.b64decode(value) for name, value in given["metadata"].items()}
    assert metadata["encoding"] == b"binary/encrypted"
    sealed = Payload(metadata=metadata, data=base64.b64decode(given["data"]))
    assert await codec.decode([sealed]) == [PLAIN]


async def test_nobody_without_the_token_has_anything_opened(
    people: httpx.AsyncClient, codec: EncryptionCodec
) -> None:
    sealed = written(*await codec.encode([PLAIN]))
    for path in ("/v1/codec/decode", "/v1/codec/encode"):
        for headers in ({"authorization": ""}, {"authorization": "Bearer nothing"}):
            answer = await people.post(path, json=sealed, headers={**headers, "origin": UI})
            assert answer.status_code == 401
            assert "hello" not in answer.text


async def test_pages_of_the_web_ui_may_ask_and_no_others(people: httpx.AsyncClient) -> None:
    question = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-namespace",
        "authorization": "",
    }
    granted = await people.options("/v1/codec/decode", headers={**question, "origin": UI})
    assert granted.status_code == 200
    assert granted.headers["access-control-allow-origin"] == UI
    assert "access-control-allow-credentials" not in granted.headers
    for origin in ("https://evil.example.org", "null", f"{UI}.evil.example.org"):
        refused = await people.options("/v1/codec/decode", headers={**question, "origin": origin})
        assert "access-control-allow-origin" not in refused.headers
    elsewhere = await people.options("/v1/runs", headers={**question, "origin": UI})
    assert elsewhere.status_code == 401
    assert "access-control-allow-origin" not in elsewhere.headers


async def test_the_page_may_read_the_answer(people: httpx.AsyncClient) -> None:
    answer = await people.post("/v1/codec/decode", json=written(PLAIN), headers={"origin": UI})
    assert answer.headers["access-control-allow-origin"] == UI
    foreign = await people.post(
        "/v1/codec/decode", json=written(PLAIN), headers={"origin": "https://evil.example.org"}
    )
    assert "access-control-allow-origin" not in foreign.headers


async def test_what_cannot_be_opened_is_refused_with_the_reason(
    people: httpx.AsyncClient, codec: EncryptionCodec
) -> None:
    (sealed,) = await codec.encode([PLAIN])
    unknown = Payload(
        metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"\xff\x00gone"},
        data=sealed.data,
    )
    changed = Payload(metadata=sealed.metadata, data=sealed.data[:-1])
    nothing = Payload(metadata={"encoding": b"binary/encrypted"})
    for payload in (unknown, changed, nothing):
        answer = await people.post("/v1/codec/decode", json=written(payload))
        assert answer.status_code == 422
        assert answer.json()["code"] == "codec.unreadable"
    for rubbish in ({"data": "%%%"}, {"metadata": {"encoding": "é"}}):
        answer = await people.post("/v1/codec/decode", json={"payloads": [rubbish]})
        assert answer.status_code == 422


async def test_without_keys_plain_payloads_are_shown_and_none_are_sealed(
    sqlite_house: House,
) -> None:
    shown = await sqlite_house.people.post("/v1/codec/decode", json=written(PLAIN))
    assert shown.json() == written(PLAIN)
    refused = await sqlite_house.people.post("/v1/codec/encode", json=written(PLAIN))
    assert refused.status_code == 404
