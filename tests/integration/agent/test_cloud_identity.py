"""A machine proves by its cloud's word which one it is: service, agent and server are real."""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from forgeyard import clock, telemetry
from forgeyard.agent import cloud_identity
from forgeyard.agent.credentials import Credentials, Wallet
from forgeyard.agent.enrolling import Invitation, obtain
from forgeyard.errors import Forbidden, Unavailable
from forgeyard.machine_settings import AgentConfig
from forgeyard.model.enrolment import Cloud
from tests.aws import (
    ACCOUNT,
    INSTANCE,
    RECORDED,
    REGION,
    Metadata,
    a_document,
    a_key,
    certificate_file,
    metadata_service,
    signed,
)
from tests.serving import Place, config_of, make_authority, served

pytestmark = pytest.mark.integration
MACHINE = {"account": ACCOUNT, "region": REGION, "instance": INSTANCE}
WAIT_S = 60


@pytest.fixture
async def place(tmp_path: Path, sqlite_engine: sa.Engine) -> AsyncIterator[Place]:
    """Serve, with the certificates of two regions, until the test ends."""
    folder = tmp_path / "server"
    folder.mkdir()
    make_authority(folder)
    url = sqlite_engine.url.render_as_string(hide_password=False)
    regions = {
        REGION: certificate_file(folder, a_key()),
        "us-west-2": str(RECORDED / "us-west-2.pem"),
    }
    async with served(config_of(folder, url, aws_certificates=regions), sqlite_engine) as made:
        yield made


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    """Be the metadata service of the machine that is meant."""
    with metadata_service(signed(a_document())) as made:
        yield made


async def invited(place: Place, name: str = "ec2-7", **machine: object) -> dict[str, Any]:
    grant = {"expects": {"machine": {**MACHINE, **machine}}}
    wish = {"runner_name": name, "reason": "a test", "grant": grant}
    made = await place.people.post("/v1/enrolments", json=wish)
    assert made.status_code == 201, made.text
    return made.json()


def config_for(metadata: Metadata) -> AgentConfig:
    return AgentConfig(cloud_identity=Cloud.AWS, metadata_url=metadata.url)


async def get(place: Place, folder: Path, made: dict[str, Any], config: AgentConfig) -> Credentials:
    wallet = Wallet(folder)
    invitation = Invitation(
        token=made["token"], pin=made["pin"], evidence=cloud_identity.source(config)
    )
    return await obtain(wallet, (place.url,), invitation, now=clock.now, rng=random.Random(1))


def unproved(doubt: str) -> float:
    found = telemetry.REGISTRY.get_sample_value(
        "forgeyard_enrolment_unproved_total", {"doubt": doubt}
    )
    return found or 0.0


async def test_the_machine_that_was_meant_gets_its_certificate(
    place: Place, metadata: Metadata, tmp_path: Path
) -> None:
    has = await get(place, tmp_path, await invited(place), config_for(metadata))
    assert has.runner_name == "ec2-7"
    assert metadata.asked == [
        f"PUT {cloud_identity.TOKEN}",
        f"GET {cloud_identity.DOCUMENT}",
    ]


async def test_a_machine_that_is_not_told_to_asks_no_metadata_service_and_is_refused(
    place: Place, metadata: Metadata, tmp_path: Path
) -> None:
    before, silent = unproved("missing"), AgentConfig(metadata_url=metadata.url)
    made = await invited(place)
    with pytest.raises(Forbidden, match="did not prove"):
        await get(place, tmp_path, made, silent)
    assert metadata.asked == []
    assert unproved("missing") == before + 1
    (view,) = (await place.people.get("/v1/enrolments")).json()
    assert (view["state"], view["refusals"], view["key"]) == ("open", 1, None)
    trail = (await place.people.get("/v1/audit", params={"action": "enrolment.refuse"})).json()
    assert [line["target"] for line in trail["lines"]] == [view["enrolment_id"]]


@pytest.mark.parametrize(
    ("evidence", "doubt"),
    [
        (signed(a_document(), a_key(1)), "forged"),
        (signed(a_document(accountId="210987654321")), "other_account"),
        (signed(a_document(instanceId="i-0fffffffffffffff0")), "other_instance"),
        (signed(a_document(age=timedelta(hours=2))), "stale"),
        (signed(a_document(region="mars-1")), "unknown_region"),
        ((RECORDED / "us-west-2.rsa2048").read_text(), "other_account"),
        ("!", "unreadable"),
    ],
)
async def test_a_machine_that_was_not_meant_is_refused_and_not_told_who_was(
    place: Place, tmp_path: Path, evidence: str, doubt: str
) -> None:
    """Not even by what AWS really signed, for a machine of somebody else's."""
    before, made = unproved(doubt), await invited(place)
    with metadata_service(evidence) as metadata, pytest.raises(Forbidden) as refused:
        await get(place, tmp_path, made, config_for(metadata))
    assert ACCOUNT not in str(refused.value)
    assert INSTANCE not in str(refused.value)
    assert unproved(doubt) == before + 1


async def test_a_machine_that_cannot_be_checked_is_not_invited(place: Place) -> None:
    grant = {"expects": {"machine": {**MACHINE, "region": "mars-1"}}}
    wish = {"runner_name": "ec2-7", "reason": "a test", "grant": grant}
    refused = await place.people.post("/v1/enrolments", json=wish)
    assert refused.status_code == 422
    assert "api.aws_certificates" in refused.json()["allowed"]


async def test_a_service_that_is_not_ready_is_asked_again(
    place: Place, metadata: Metadata, tmp_path: Path
) -> None:
    metadata.statuses = [503]
    await get(place, tmp_path, await invited(place), config_for(metadata))
    assert len(metadata.asked) == 3


@pytest.mark.parametrize("status", [302, 403, 404])
async def test_a_service_that_answers_something_else_is_not_asked_again(
    metadata: Metadata, status: int
) -> None:
    """A redirect is followed nowhere."""
    metadata.statuses = [200, status]
    with pytest.raises(Forbidden, match=str(status)):
        await cloud_identity.of_aws(metadata.url)
    assert len(metadata.asked) == 2


@pytest.mark.parametrize("answer", ["x" * 8_193, "é"])
async def test_an_answer_that_is_no_document_is_not_passed_on(answer: str) -> None:
    with metadata_service(answer) as metadata, pytest.raises(Forbidden):
        await cloud_identity.of_aws(metadata.url)


async def test_nobody_at_the_address_is_a_passing_state_and_no_address_is_not() -> None:
    with pytest.raises(Unavailable):
        await cloud_identity.of_aws("http://127.0.0.1:1")
    for url in ("ftp://127.0.0.1", "nowhere"):
        with pytest.raises(Forbidden):
            await cloud_identity.of_aws(url)


async def typed(place: Place, *words: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "forgeyard.cli.main", *words),
        cwd=place.folder,
        env={
            **{name: value for name, value in os.environ.items() if "FORGEYARD" not in name},
            "FORGEYARD_DATA_DIR": str(place.folder),
            **environment,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def test_a_real_agent_comes_in_by_what_an_operator_typed(
    place: Place, metadata: Metadata, tmp_path: Path
) -> None:
    """The command that `runner invite` prints is the one that is run."""
    wish = ("--aws-account", ACCOUNT, "--aws-instance", INSTANCE, "--launched-within", "10m")
    asked = await typed(
        place,
        *("runner", "invite", "ec2-7", *wish, "--token-out", "invited", "--reason", "a test"),
        *("--url", str(place.people.base_url)),
    )
    said = (await asyncio.wait_for(asked.communicate(), WAIT_S))[0].decode()
    assert asked.returncode == 0, said
    command = said.split("forgeyard agent ")[1].split()
    assert command[-2:] == ["--cloud-identity", "aws"]
    words = [place.url if word.startswith("https://HOST") else word for word in command]
    agent = await typed(
        place,
        *("agent", *words, "--work-dir", str(tmp_path / "work")),
        FORGEYARD_AGENT__METADATA_URL=metadata.url,
        FORGEYARD_AGENT__HEADROOM_MEMORY="0",
        FORGEYARD_AGENT__HEADROOM_DISK="0",
    )
    try:
        await asyncio.wait_for(admitted(place, "ec2-7"), WAIT_S)
    finally:
        agent.terminate()
        talked = (await asyncio.wait_for(agent.communicate(), WAIT_S))[0].decode()
    assert agent.returncode == 0, talked
    assert len(metadata.asked) == 2


async def admitted(place: Place, name: str) -> None:
    while True:
        runners = (await place.people.get("/v1/runners")).json()
        if any(one["name"] == name and one["admission"] == "verified" for one in runners):
            return
        await asyncio.sleep(0.1)


async def test_an_account_goes_before_what_lies_in_it(place: Place) -> None:
    asked = await typed(
        place,
        *("runner", "invite", "ec2-7", "--aws-instance", INSTANCE, "--reason", "a test"),
        *("--url", str(place.people.base_url)),
    )
    said = (await asyncio.wait_for(asked.communicate(), WAIT_S))[0].decode()
    assert asked.returncode == 2
    assert "--aws-account" in said
