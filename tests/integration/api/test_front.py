"""Agents behind Caddy, with the very file of deploy/: what it passes on, what nobody forges."""

import base64
import socket
import subprocess
import sysconfig
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from forgeyard import clock
from forgeyard.api.front import SECRET, SHOWN, is_ours
from forgeyard.api.tls import agent_tls
from forgeyard.errors import Forbidden, InvalidRequest
from forgeyard.trust import certificates, keys
from forgeyard.trust.certificates import SKEW
from tests.integration.temporal.server import free_port
from tests.serving import Place, config_of, make_authority, register, served
from tests.trusting import an_authority, der_of

pytestmark = pytest.mark.integration
CADDYFILE = Path(__file__).parents[3] / "deploy" / "caddy" / "Caddyfile"
WORD = "w" * 40


@contextmanager
def caddy(folder: Path, upstream: str) -> Iterator[str]:
    """Run the front; tell where it listens."""
    port = free_port()
    environment = {
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
        "FORGEYARD_NAME": "localhost",
        "FORGEYARD_AGENT_PORT": str(port),
        "FORGEYARD_CA": str(folder / "ca"),
        "FORGEYARD_UPSTREAM": upstream,
        "FORGEYARD_FRONT_SECRET_FILE": str(folder / "word"),
    }
    command = (Path(sysconfig.get_path("scripts")) / "caddy", "run", "--config", CADDYFILE)
    with (folder / "caddy.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        until_listening(process, port, folder)
        yield f"https://localhost:{port}"
    finally:
        process.kill()
        process.wait()


def until_listening(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, (folder / "caddy.log").read_text()
        assert time.monotonic() < deadline, "Caddy does not listen"
        time.sleep(0.05)


@pytest.fixture
async def behind(tmp_path: Path, sqlite_engine: sa.Engine) -> AsyncIterator[Place]:
    """Serve on loopback without TLS, for a front that is to come."""
    authority = make_authority(tmp_path)
    trusted = certificates.written(authority.bundle(now=clock.now()))
    (tmp_path / "ca" / "trusted.pem").write_bytes(trusted)
    keys.save_private(tmp_path / "word", WORD.encode())
    url = sqlite_engine.url.render_as_string(hide_password=False)
    chosen = {"agent_identity": "front", "front_secret_file": str(tmp_path / "word")}
    async with served(config_of(tmp_path, url, **chosen), sqlite_engine) as made:
        yield made


@pytest.fixture
def place(behind: Place) -> Iterator[Place]:
    """Put the front before it."""
    with caddy(behind.folder, behind.url.removeprefix("http://")) as url:
        yield replace(behind, url=url)


async def test_a_runner_is_enrolled_and_registers_through_the_front(place: Place) -> None:
    async with await place.enrolled("build-7") as agent:
        answer = await register(agent, "build-7")
        assert answer.status_code == 201, answer.text
        assert answer.json()["admission"] == "pending"
        await place.people.post("/v1/runners/build-7:revoke", json={"reason": "stolen"})
        began = clock.monotonic()
        while (await register(agent, "build-7")).status_code != 401:
            assert clock.monotonic() - began < 30, "still let in"


async def shown(place: Place) -> str:
    """Give a good certificate of a runner as the front writes it."""
    made, key = await place.invited("build-8"), keys.new_key()
    answer = await place.enrol(made["token"], key)
    (own, *_) = certificates.read(answer.json()["certificate"].encode(), "x")
    return base64.b64encode(der_of(own)).decode()


async def test_headers_that_an_agent_sends_are_not_the_fronts(place: Place) -> None:
    """S12: with a good certificate of somebody else, and even with the word."""
    forged = {SHOWN: await shown(place), SECRET: WORD}
    async with place.nobody(**forged) as stranger:
        assert (await stranger.post("/agent/v1/sessions", json={})).status_code == 401
    async with await place.enrolled("build-7") as agent:
        agent.headers.update(forged)
        answer = await register(agent, "build-7")
        assert answer.json()["admission"] == "pending"


async def test_beside_the_front_only_its_word_counts(place: Place, behind: Place) -> None:
    good = await shown(place)
    foreign = base64.b64encode(der_of(_foreign())).decode()
    tried = [
        ({SHOWN: good, SECRET: WORD}, 422),
        ({SHOWN: good}, 401),
        ({SHOWN: good, SECRET: f"{WORD}x"}, 401),
        ({SHOWN: foreign, SECRET: WORD}, 401),
        ({SHOWN: "nothing", SECRET: WORD}, 401),
        ({SHOWN: "A" * 40_000, SECRET: WORD}, 401),
        ({SECRET: WORD}, 401),
    ]
    async with httpx.AsyncClient(base_url=behind.url, timeout=30) as local:
        for headers, expected in tried:
            answer = await local.post("/agent/v1/sessions", json={}, headers=headers)
            assert answer.status_code == expected, headers


def _foreign() -> certificates.Certificate:
    return certificates.client(
        keys.new_key().public_key(),
        "spiffe://x/runner/rnr_1",
        by=an_authority(),
        now=clock.now(),
        lasts=SKEW,
    )


def test_what_is_no_certificate_is_not_ours() -> None:
    assert not is_ours(b"nothing", (an_authority().certificate,))


def test_a_listener_behind_a_front_is_out_of_reach_for_others(tmp_path: Path) -> None:
    config = config_of(tmp_path, "sqlite://", agent_identity="front", agent_host="0.0.0.0")
    with pytest.raises(InvalidRequest, match="out of reach"):
        agent_tls(config)


@pytest.mark.parametrize(
    ("word", "mode", "error"), [("short", 0o600, InvalidRequest), (WORD, 0o644, Forbidden)]
)
def test_a_word_that_is_short_or_open_to_others_is_refused(
    tmp_path: Path, word: str, mode: int, error: type[Exception]
) -> None:
    make_authority(tmp_path)
    file = tmp_path / "word"
    file.write_text(word)
    file.chmod(mode)
    chosen = {"agent_identity": "front", "front_secret_file": str(file)}
    with pytest.raises(error):
        agent_tls(config_of(tmp_path, "sqlite://", **chosen))
