"""A machine gets its certificate, keeps it, has the next one in time; at a real listener."""

import asyncio
import random
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from forgeyard import clock
from forgeyard.agent.client import AgentClient
from forgeyard.agent.credentials import Credentials, Wallet, trusting
from forgeyard.agent.enrolling import Invitation, Keeper, obtain
from forgeyard.errors import Corrupt, Forbidden, Unauthenticated
from forgeyard.model.enrolment import Enrol, Renewal
from forgeyard.trust.certificates import SKEW
from forgeyard.trust.requests import write_request
from tests.serving import Place, config_of, make_authority, now_ms, served

pytestmark = pytest.mark.integration
RNG = random.Random(1)
PIN = f"sha256/{'A' * 43}="


@pytest.fixture
async def place(tmp_path: Path, sqlite_engine: sa.Engine) -> AsyncIterator[Place]:
    """Serve until the test ends."""
    folder = tmp_path / "server"
    folder.mkdir()
    make_authority(folder)
    url = sqlite_engine.url.render_as_string(hide_password=False)
    async with served(config_of(folder, url), sqlite_engine) as made:
        yield made


@pytest.fixture
def wallet(tmp_path: Path) -> Wallet:
    """Give an empty wallet."""
    made = Wallet(tmp_path)
    made.open()
    return made


async def invitation(place: Place, name: str = "build-7", **wish: object) -> Invitation:
    made = await place.people.post(
        "/v1/enrolments", json={"runner_name": name, "reason": "a test", **wish}
    )
    assert made.status_code == 201, made.text
    return Invitation(token=made.json()["token"], pin=made.json()["pin"])


async def get(place: Place, wallet: Wallet, invited: Invitation | None) -> Credentials:
    return await obtain(wallet, (place.url,), invited, now=clock.now, rng=RNG)


async def listed(place: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await place.people.get("/v1/enrolments")).json()
    return found


async def test_a_certificate_is_kept_and_needs_no_token_afterwards(
    place: Place, wallet: Wallet, tmp_path: Path
) -> None:
    has = await get(place, wallet, await invitation(place))
    assert has.runner_name == "build-7"
    assert await get(place, wallet, None) == has
    files = list((tmp_path / "identity").iterdir())
    assert [file.name for file in files] == ["identity.json"]
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "identity").stat().st_mode) == 0o700
    assert "PRIVATE" not in repr(has)


async def test_without_a_certificate_and_a_token_nothing_can_be_done(
    place: Place, wallet: Wallet
) -> None:
    with pytest.raises(Unauthenticated, match="no certificate"):
        await get(place, wallet, None)


async def test_a_server_with_another_root_is_not_told_the_token(
    place: Place, wallet: Wallet
) -> None:
    invited = await invitation(place)
    with pytest.raises(Forbidden, match="not the one that was expected"):
        await get(place, wallet, Invitation(token=invited.token, pin=PIN))
    (view,) = await listed(place)
    assert (view["state"], view["key"]) == ("open", None)


async def test_an_answer_that_was_lost_is_given_again(place: Place, wallet: Wallet) -> None:
    invited = await invitation(place)
    enrolment = (await listed(place))[0]["enrolment_id"]
    request = write_request(wallet.next_key(enrolment))
    async with AgentClient((place.url,), tls=trusting(await bundle(place))) as client:
        lost = await client.enrol(Enrol(token=invited.token, request=request, clock_ms=now_ms()))
    has = await get(place, wallet, invited)
    assert getattr(lost, "certificate", None) == has.certificate


async def bundle(place: Place) -> str:
    async with place.nobody() as stranger:
        found: str = (await stranger.get("/agent/v1/authority")).json()["certificates"]
    return found


async def test_the_next_certificate_replaces_the_one_in_use(place: Place, wallet: Wallet) -> None:
    has = await get(place, wallet, await invitation(place))
    async with AgentClient((place.url,), tls=has.context()) as client:
        keeper = Keeper(wallet, has, client, now=clock.now, rng=RNG)
        await keeper.renew()
        await keeper.renew()
    stored = wallet.stored()
    assert stored is not None
    assert stored.generation == has.generation + 2
    assert len({has.key, stored.key}) == 2


async def test_a_next_certificate_whose_answer_was_lost_is_given_again(
    place: Place, wallet: Wallet
) -> None:
    has = await get(place, wallet, await invitation(place))
    async with AgentClient((place.url,), tls=has.context()) as client:
        request = write_request(wallet.next_key(has.enrolment))
        lost = await client.renew_identity(Renewal(request=request))
        await Keeper(wallet, has, client, now=clock.now, rng=RNG).renew()
    stored = wallet.stored()
    assert stored is not None
    assert stored.certificate == lost.certificate


async def test_the_next_one_is_due_between_half_and_two_thirds_of_its_life(
    place: Place, wallet: Wallet
) -> None:
    has = await get(place, wallet, await invitation(place))
    life = (has.ends - has.begins - SKEW).total_seconds()
    began = has.begins + SKEW
    async with AgentClient((place.url,), tls=has.context()) as client:
        keeper = Keeper(wallet, has, client, now=lambda: began, rng=RNG)
        dues = [keeper.due_in() / life for _ in range(200)]
    assert 0.5 <= min(dues) < 0.55
    assert 0.62 < max(dues) <= 0.67


async def test_another_invitation_enrols_the_machine_anew(place: Place, wallet: Wallet) -> None:
    first = await get(place, wallet, await invitation(place))
    again = await invitation(place, generation=2)
    second = await get(place, wallet, again)
    assert second.generation == first.generation + 1
    assert await get(place, wallet, again) == second


async def test_a_machine_waits_until_an_operator_has_compared_its_key(
    place: Place, wallet: Wallet
) -> None:
    waiting = asyncio.create_task(get(place, wallet, await invitation(place, needs_approval=True)))
    began = clock.monotonic()
    while (view := (await listed(place))[0])["state"] != "to_approve":
        assert clock.monotonic() - began < 30, view
        await asyncio.sleep(0.1)
    assert not waiting.done()
    approved = await place.people.post(
        f"/v1/enrolments/{view['enrolment_id']}:approve",
        json={"key": view["key"], "reason": "compared"},
    )
    assert approved.status_code == 200, approved.text
    assert (await asyncio.wait_for(waiting, 30)).runner_name == "build-7"


def test_an_identity_that_cannot_be_read_is_said_to_be_so(wallet: Wallet, tmp_path: Path) -> None:
    file = tmp_path / "identity" / "identity.json"
    file.touch(mode=0o600)
    file.write_text("{}")
    with pytest.raises(Corrupt, match="holds no identity"):
        wallet.stored()


def test_an_identity_that_others_may_read_is_not_used(wallet: Wallet, tmp_path: Path) -> None:
    file = tmp_path / "identity" / "identity.json"
    file.write_text("{}")
    file.chmod(0o644)
    with pytest.raises(Forbidden, match="others may read"):
        wallet.stored()
