"""Connections to Temporal over TLS, with certificates and API keys (S16); what is refused and why.

The dev server speaks no TLS and knows no authoriser, so Caddy stands before it.
"""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from activities import production
from activities.connection import connect, connect_later, read_access
from forgeyard.config import Config, Profile, StoreConfig, TemporalConfig
from forgeyard.errors import Corrupt, Forbidden, NotFound, UnfitForProduction
from tests.integration.temporal.front import NAME, Pki, another_key, foreign, fronted
from tests.integration.temporal.server import Server
from worker.main import connected, run_worker

pytestmark = pytest.mark.integration
KEY = "key-7d1f0c"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Make an authority for the module."""
    return Pki.create(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def mutual(pki: Pki, temporal_server: Server) -> Iterator[str]:
    """Serve who shows a certificate."""
    with fronted(pki, temporal_server.address, mutual=True) as address:
        yield address


@pytest.fixture(scope="module")
def keyed(pki: Pki, temporal_server: Server) -> Iterator[str]:
    """Serve who sends the API key."""
    with fronted(pki, temporal_server.address, api_key=KEY) as address:
        yield address


def secret_file(folder: Path, content: str, mode: int = 0o600) -> str:
    """Write a file with this mode."""
    path = folder / "secret"
    path.write_text(content)
    path.chmod(mode)
    return str(path)


async def answers(client: Client) -> bool:
    """Ask something small."""
    return await client.service_client.check_health()


def with_certificate(address: str, pki: Pki, shown: tuple[Path, Path]) -> TemporalConfig:
    """Configure a certificate."""
    return TemporalConfig(
        address=address,
        ca_file=str(pki.trusted),
        server_name=NAME,
        cert_file=str(shown[0]),
        key_file=str(shown[1]),
    )


async def test_who_shows_a_certificate_is_served(mutual: str, pki: Pki, tmp_path: Path) -> None:
    config = with_certificate(mutual, pki, pki.shown_by_a_client(tmp_path))
    assert await answers(await connect(config))
    assert await answers(await connect_later(config))


async def test_who_shows_none_or_a_foreign_one_is_not(
    mutual: str, pki: Pki, tmp_path: Path
) -> None:
    nothing = TemporalConfig(address=mutual, ca_file=str(pki.trusted), server_name=NAME)
    for config in (
        nothing,
        with_certificate(mutual, pki, foreign(tmp_path)),
        TemporalConfig(address=mutual),
    ):
        with pytest.raises(RuntimeError):
            await asyncio.wait_for(connect(config), 60)


async def test_a_server_that_nobody_we_trust_vouches_for_is_not_spoken_to(
    keyed: str, pki: Pki, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    stranger = Pki.create(tmp_path / "other")
    key = secret_file(tmp_path, KEY)
    for config in (
        TemporalConfig(address=keyed, tls=True, server_name=NAME, api_key_file=key),
        TemporalConfig(
            address=keyed, ca_file=str(stranger.trusted), server_name=NAME, api_key_file=key
        ),
        TemporalConfig(address=keyed, ca_file=str(pki.trusted), api_key_file=key),
    ):
        with pytest.raises(RuntimeError):
            await asyncio.wait_for(connect(config), 60)


async def test_the_api_key_opens_and_another_does_not(keyed: str, pki: Pki, tmp_path: Path) -> None:
    config = TemporalConfig(
        address=keyed,
        ca_file=str(pki.trusted),
        server_name=NAME,
        api_key_file=secret_file(tmp_path, f"{KEY}\n"),
    )
    assert await answers(await connect(config))
    secret_file(tmp_path, "another")
    wrong = await connect_later(config)
    with pytest.raises((RPCError, RuntimeError)):
        await answers(wrong)


@pytest.mark.parametrize("field", ["ca_file", "cert_file", "key_file", "api_key_file"])
def test_a_file_that_is_missing_is_named(field: str, pki: Pki, tmp_path: Path) -> None:
    certificate, key = pki.shown_by_a_client(tmp_path)
    given = {"cert_file": str(certificate), "key_file": str(key)}
    gone = str(tmp_path / "gone.pem")
    with pytest.raises(NotFound, match=r"gone\.pem"):
        read_access(TemporalConfig.model_validate({**given, field: gone}))


def test_a_key_that_others_may_read_is_refused(pki: Pki, tmp_path: Path) -> None:
    shown = pki.shown_by_a_client(tmp_path)
    shown[1].chmod(0o644)
    with pytest.raises(Forbidden, match="others may read"):
        read_access(with_certificate("x:1", pki, shown))
    with pytest.raises(Forbidden, match="others may read"):
        read_access(TemporalConfig(api_key_file=secret_file(tmp_path, KEY, 0o604)))


def test_a_file_that_holds_something_else_is_refused(pki: Pki, tmp_path: Path) -> None:
    certificate, key = pki.shown_by_a_client(tmp_path)
    rubbish = secret_file(tmp_path, "rubbish")
    with pytest.raises(Corrupt, match="no certificate"):
        read_access(TemporalConfig(ca_file=rubbish))
    with pytest.raises(Corrupt, match="no private key"):
        read_access(with_certificate("x:1", pki, (certificate, Path(rubbish))))
    with pytest.raises(Corrupt, match="not the one of the certificate"):
        read_access(with_certificate("x:1", pki, (certificate, another_key(tmp_path))))
    for empty in ("", "two\nlines"):
        with pytest.raises(Forbidden, match="holds no key"):
            read_access(TemporalConfig(api_key_file=secret_file(tmp_path, empty)))
    assert key.exists()


def test_nothing_is_read_or_demanded_unless_it_is_configured() -> None:
    assert read_access(TemporalConfig()).tls is None


async def test_a_worker_whose_certificate_is_missing_ends_with_that_reason(
    tmp_path: Path, sqlite_url: str
) -> None:
    config = Config(
        data_dir=tmp_path,
        store=StoreConfig(url=sqlite_url),
        temporal=TemporalConfig(ca_file=str(tmp_path / "gone.pem")),
    )
    with pytest.raises(NotFound, match=r"gone\.pem"):
        await asyncio.wait_for(run_worker(config, asyncio.Event()), 60)


def in_production(temporal: TemporalConfig, url: str = "postgresql://x/y") -> Config:
    """Configure a production system."""
    return Config(profile=Profile.PRODUCTION, temporal=temporal, store=StoreConfig(url=url))


async def test_a_production_worker_refuses_the_dev_server(temporal_server: Server) -> None:
    config = in_production(TemporalConfig(address=temporal_server.address))
    with pytest.raises(UnfitForProduction, match="development server"):
        await asyncio.wait_for(connected(config, asyncio.Event()), 60)
    trying_out = config.model_copy(update={"profile": Profile.DEVELOPMENT})
    assert await connected(trying_out, asyncio.Event()) is not None


@pytest.mark.parametrize("url", ["", "sqlite:////tmp/x.db"])
async def test_a_production_worker_refuses_sqlite(url: str) -> None:
    with pytest.raises(UnfitForProduction, match="PostgreSQL"):
        await run_worker(in_production(TemporalConfig(), url), asyncio.Event())
    production.demand_store(in_production(TemporalConfig()))


async def test_an_open_authoriser_is_found_by_walking_through_it(
    temporal_server: Server, keyed: str, mutual: str, pki: Pki, tmp_path: Path
) -> None:
    (open_to_all,) = await production.open_doors(TemporalConfig(address=temporal_server.address))
    assert "anybody who reaches it" in open_to_all
    with_key = TemporalConfig(
        address=keyed,
        ca_file=str(pki.trusted),
        server_name=NAME,
        api_key_file=secret_file(tmp_path, KEY),
    )
    shown = with_certificate(mutual, pki, pki.shown_by_a_client(tmp_path))
    for guarded in (with_key, shown):
        for _ in range(5):
            # On a machine that does much else, nobody may answer in time.
            if found := await production.open_doors(guarded):
                break
        (too_wide,) = found
        assert "this process" in too_wide
    secret_file(tmp_path, "another")
    assert await production.open_doors(with_key) == ()


async def test_the_worker_says_so_when_it_starts(
    temporal_server: Server, pki: Pki, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "worker.main")
    # A server that does not tell what it is may be a production one.
    with fronted(pki, temporal_server.address, denied="GetClusterInfo") as address:
        temporal = TemporalConfig(address=address, ca_file=str(pki.trusted), server_name=NAME)
        assert await connected(in_production(temporal), asyncio.Event()) is not None
    assert "its authoriser is open" in caplog.text
