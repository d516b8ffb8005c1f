"""The API as a process serves it under TLS, for tests of who gets in."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
from cryptography.x509 import Certificate

from forgeyard import clock
from forgeyard.api.auth import ensure_token
from forgeyard.api.serve import Listening, serve
from forgeyard.config import ApiConfig, Config, StoreConfig, TemporalConfig
from forgeyard.store import codec
from forgeyard.trust import certificates, keys
from forgeyard.trust.authority import Authority
from forgeyard.trust.keys import PrivateKey
from forgeyard.trust.requests import write_request
from tests.builders import a_registration


def make_authority(folder: Path) -> Authority:
    """Make an authority and the listener's certificate in a data directory."""
    authority = Authority(folder / "ca")
    authority.create("x", now=clock.now())
    authority.server(["127.0.0.1", "localhost"], now=clock.now())
    return authority


@dataclass(frozen=True, kw_only=True)
class Place:
    """A running API, its authority, and the folder that keys of clients are put into."""

    authority: Authority
    people: httpx.AsyncClient
    url: str
    folder: Path
    engine: sa.Engine

    def client(self, chain: list[Certificate], key: PrivateKey) -> httpx.AsyncClient:
        """Connect with a certificate."""
        file = self.folder / f"{chain[0].serial_number}.pem"
        file.write_bytes(keys.written(key) + certificates.written(chain))
        context = self.context()
        context.load_cert_chain(file)
        return httpx.AsyncClient(base_url=self.url, verify=context, timeout=30)

    def nobody(self, **headers: str) -> httpx.AsyncClient:
        """Connect without one."""
        return httpx.AsyncClient(
            base_url=self.url, verify=self.context(), headers=headers, timeout=30
        )

    def context(self) -> ssl.SSLContext:
        root = certificates.written([self.authority.root()]).decode()
        return ssl.create_default_context(cadata=root)

    async def invited(self, name: str) -> dict[str, Any]:
        wish = {"runner_name": name, "reason": "a test"}
        answer = await self.people.post("/v1/enrolments", json=wish)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def enrolled(self, name: str) -> httpx.AsyncClient:
        """Invite a runner, and connect with the certificate that it gets."""
        made, key = await self.invited(name), keys.new_key()
        answer = await self.enrol(made["token"], key)
        assert answer.status_code == 201, answer.text
        chain = certificates.read(answer.json()["certificate"].encode(), name)
        return self.client(chain, key)

    async def enrol(self, token: str, key: PrivateKey, **changed: object) -> httpx.Response:
        body = {"token": token, "request": write_request(key), "clock_ms": now_ms(), **changed}
        async with self.nobody() as stranger:
            return await stranger.post("/agent/v1/enrolments", json=body)


def now_ms() -> int:
    return int(clock.now().timestamp() * 1000)


async def register(agent: httpx.AsyncClient, name: str) -> httpx.Response:
    said = codec.encode(a_registration(name)).replace('"clock_ms":null', f'"clock_ms":{now_ms()}')
    return await agent.post(
        "/agent/v1/sessions", content=said, headers={"content-type": "application/json"}
    )


def config_of(folder: Path, url: str, **api: Any) -> Config:
    chosen = {"port": 0, "agent_port": 0, "poll_ms": 10, "agent_identity": "certificate", **api}
    return Config(
        data_dir=folder,
        store=StoreConfig(url=url),
        api=ApiConfig(**chosen),
        temporal=TemporalConfig(address="127.0.0.1:1"),
    )


@asynccontextmanager
async def served(config: Config, engine: sa.Engine) -> AsyncIterator[Place]:
    """Serve under TLS."""
    authority = Authority(config.authority_dir())
    stop, found = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(config, stop, listening=found.set_result))
    await asyncio.wait((serving, found), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving
    where: Listening = await found
    headers = {"authorization": f"Bearer {ensure_token(config.token_path())}"}
    async with httpx.AsyncClient(base_url=where.api_url, headers=headers, timeout=30) as people:
        yield Place(
            authority=authority,
            people=people,
            url=where.agent_url,
            folder=config.data_dir,
            engine=engine,
        )
        stop.set()
        await asyncio.wait_for(serving, 30)
