"""`forgeyard login --oidc` and `--device` against a real API and a real issuer."""

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from forgeyard.cli import single_sign_on
from forgeyard.config import OidcConfig
from forgeyard.errors import Forbidden, Unavailable
from forgeyard.trust import issuer
from tests import idp as issuers
from tests.idp import CLIENT, Idp
from tests.integration.cli.house import House, open_house

pytestmark = pytest.mark.integration


@pytest.fixture
def idp() -> Iterator[Idp]:
    with issuers.running() as found:
        yield found


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep logins in a file of the test's own, away from the data directory."""
    path = tmp_path / "config" / "credentials.json"
    monkeypatch.setenv("FORGEYARD_CREDENTIALS", str(path))
    monkeypatch.setenv("FORGEYARD_DATA_DIR", str(tmp_path / "elsewhere"))
    return path


@pytest.fixture
def house(
    sqlite_engine: sa.Engine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    idp: Idp,
    credentials: Path,
) -> Iterator[House]:
    """Open a system that takes the issuer's tokens."""
    oidc = OidcConfig(issuer=idp.url, client_id=CLIENT, roles=issuers.ROLES)
    with open_house(sqlite_engine, tmp_path / "data", capsys, oidc=oidc) as opened:
        yield opened


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a program go where a browser would; remember where it was sent."""
    seen: list[str] = []

    def go(url: str) -> bool:
        seen.append(url)
        threading.Thread(target=_follow, args=(url,), daemon=True).start()
        return True

    monkeypatch.setattr("webbrowser.open", go)
    return seen


def _follow(url: str) -> None:
    back = httpx.get(url, trust_env=False).headers["location"]
    # Browsers ask for more than they were sent to.
    assert httpx.get(httpx.URL(back).join("/favicon.ico"), trust_env=False).status_code == 404
    httpx.get(back, trust_env=False)


def test_a_login_in_the_browser_is_kept_and_used(
    house: House, credentials: Path, browser: list[str]
) -> None:
    said = house.run("login", "--url", house.api_url, "--oidc")
    assert said.code == 0, said.err
    assert "oidc:u-1" in said.out
    assert browser[0] in said.err, "whoever has no browser here can open it elsewhere"
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o600
    assert "oidc:u-1" in house.run("whoami").out
    kept = credentials.read_text()
    assert "fya_" in kept
    assert "eyJ" not in kept + said.out + said.err


def test_an_answer_to_another_login_is_not_believed(
    house: House, credentials: Path, browser: list[str], idp: Idp
) -> None:
    idp.state_sent = "of somebody else"
    said = house.run("login", "--url", house.api_url, "--oidc")
    assert (said.code, "state" in said.err) == (5, True)
    assert "/token" not in idp.asked
    idp.state_sent, idp.claims["nonce"] = None, "of somebody else"
    said = house.run("login", "--url", house.api_url, "--oidc")
    assert (said.code, "nonce" in said.err) == (5, True)
    idp.claims.clear()
    idp.refusal = "access_denied"
    said = house.run("login", "--url", house.api_url, "--oidc")
    assert (said.code, "access_denied" in said.err) == (5, True)
    assert not credentials.exists()


def test_nobody_waits_for_a_browser_for_ever(idp: Idp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webbrowser.open", lambda _url: False)
    with pytest.raises(Unavailable):
        single_sign_on.by_browser(issuer.describe(idp.url), CLIENT, wait_s=0.2)


def test_a_login_by_a_code_is_kept(house: House, credentials: Path) -> None:
    said = house.run("login", "--url", house.api_url, "--device")
    assert said.code == 0, said.err
    assert "WDJB-MJHT" in said.err
    assert "fya_" in credentials.read_text()


def test_polls_wait_as_long_as_they_are_told_and_end_with_a_refusal(idp: Idp) -> None:
    """RFC 8628: pending means again, slow_down five seconds more from then on."""
    slept: list[float] = []
    metadata = issuer.describe(idp.url)
    idp.polls = ["authorization_pending", "slow_down", "authorization_pending"]
    assert single_sign_on.by_device(metadata, CLIENT, sleep=slept.append).id_token
    assert slept == [1, 1, 6, 6]
    for why in ("access_denied", "expired_token"):
        idp.polls = ["authorization_pending", why]
        with pytest.raises(Forbidden, match=why):
            single_sign_on.by_device(metadata, CLIENT, sleep=slept.append)


def test_who_has_no_role_keeps_nothing(house: House, credentials: Path, idp: Idp) -> None:
    idp.claims["groups"] = ["strangers"]
    said = house.run("login", "--url", house.api_url, "--device")
    assert (said.code, "groups" in said.err) == (5, True)
    assert not credentials.exists()


def test_one_way_to_log_in_is_chosen(house: House) -> None:
    assert house.run("login", "--url", house.api_url).code == 2
    assert house.run("login", "--url", house.api_url, "--oidc", "--device").code == 2
