"""Signing on with ID tokens of a real issuer: which are good, for whom, and for what."""

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from joserfc.jwk import RSAKey

from forgeyard.api.sign_on import KeyBook
from forgeyard.config import OidcConfig
from forgeyard.errors import Forbidden, InvalidRequest, Unavailable
from forgeyard.model.permission import INSIDE_A_TENANT, ROLES, Role
from forgeyard.store import tables
from forgeyard.store.engine import read
from forgeyard.trust.destinations import checked_issuer, demand_open
from tests import idp as issuers
from tests.callers import a_queue, id_of
from tests.idp import CLIENT, Idp, by_hand
from tests.integration.api.house import House, client_of, open_house

pytestmark = pytest.mark.integration
PATH = "/v1/login/oidc"
HOUR = 3_600


@pytest.fixture
def idp() -> Iterator[Idp]:
    with issuers.running() as found:
        yield found


def config(idp: Idp, **changed: object) -> OidcConfig:
    chosen = {"issuer": idp.url, "client_id": CLIENT, "roles": issuers.ROLES, **changed}
    return OidcConfig.model_validate(chosen)


@pytest.fixture
async def signing(sqlite_engine: sa.Engine, tmp_path: Path, idp: Idp) -> AsyncIterator[House]:
    """Open an API that takes the issuer's tokens."""
    async with open_house(sqlite_engine, tmp_path, oidc=config(idp)) as opened:
        yield opened


async def offer(house: House, token: str, **fields: object) -> httpx.Response:
    """Bring an ID token, as nobody."""
    async with client_of(house.public, None) as nobody:
        return await nobody.post(PATH, json={"id_token": token, **fields})


async def test_a_good_id_token_becomes_a_short_lived_token_that_is_on_record(
    signing: House, idp: Idp
) -> None:
    async with client_of(signing.public, None) as nobody:
        assert (await nobody.get(PATH)).json() == {"issuer": idp.url, "client_id": CLIENT}
    for kid in idp.keys:
        answer = await offer(signing, idp.token(kid))
        assert answer.status_code == 201, answer.text
    made = answer.json()
    assert made["expires_at"] - made["created_at"] == 8 * HOUR * 1000
    async with client_of(signing.public, made["token"]) as client:
        me = (await client.get("/v1/whoami")).json()
        assert (await client.get("/v1/tokens")).status_code == 403
    assert (me["principal"], me["kind"], me["tenant"]) == ("oidc:u-1", "user", None)
    assert me["grants"] == sorted(ROLES[Role.SUBMITTER])
    audit = tables.audit
    query = sa.select(audit).where(audit.c.target == id_of(made["token"]))
    with read(signing.engine) as connection:
        (line,) = connection.execute(query).mappings()
    assert (line["action"], line["channel"], line["actor"]) == (
        "token.create",
        "oidc",
        "ann@example.org",
    )
    assert line["principal"] == "user:oidc:u-1"
    assert idp.url in line["detail"]


async def test_who_asks_for_less_time_gets_less_and_nobody_gets_more(
    signing: House, idp: Idp
) -> None:
    for wanted, got in ((60_000, 60_000), (365 * 86_400_000, 8 * HOUR * 1000)):
        made = (await offer(signing, idp.token(), lifetime_ms=wanted)).json()
        assert made["expires_at"] - made["created_at"] == got


def _bad(idp: Idp) -> dict[str, str]:
    now = int(time.time())
    other = RSAKey.generate_key(2048)
    public = idp.keys["one"].as_pem(private=False)
    strangers = Idp(url=idp.url, keys={"one": other})
    with_jwk = {"alg": "RS256", "jwk": other.as_dict(private=False)}
    return {
        "aud": idp.token(aud="somebody-else"),
        "aud list": idp.token(aud=["somebody-else", "another"]),
        "no aud": idp.token(aud=None),
        "iss": idp.token(iss="https://issuer.example"),
        "no iss": idp.token(iss=None),
        "expired": idp.token(iat=now - 900, exp=now - 90),
        "no exp": idp.token(exp=None),
        "exp is no number": idp.token(exp="later"),
        "nbf": idp.token(nbf=now + 120),
        "iat": idp.token(iat=now + 120),
        "no iat": idp.token(iat=None),
        "no sub": idp.token(sub=None),
        "sub with a line break": idp.token(sub="a\nb"),
        "long sub": idp.token(sub="a" * 300),
        "alg none": by_hand({"alg": "none", "kid": "one"}, idp.said()),
        "alg none, no kid": by_hand({"alg": "none"}, idp.said()),
        "HS256 with the public key": by_hand({"alg": "HS256", "kid": "one"}, idp.said(), public),
        "another's key": strangers.token(),
        "key in the token": by_hand(with_jwk, idp.said(), b"x"),
        "key of the other kind": by_hand({"alg": "ES256", "kid": "one"}, idp.said(), b"x"),
        "crit": by_hand({"alg": "RS256", "kid": "one", "crit": ["x"], "x": 1}, idp.said(), b"x"),
        "cut": idp.token()[:-20],
        "changed": _changed(idp.token()),
        "nothing": "nothing",
        "dots": "..",
        "no text": "é.é.é",
    }


def _changed(token: str) -> str:
    header, _, signature = token.split(".")
    claims = {"sub": "u-2", "groups": ["ci-admins"]}
    return f"{header}.{issuers.unpadded(json.dumps(claims).encode())}.{signature}"


async def test_an_id_token_with_anything_wrong_about_it_opens_nothing(
    signing: House, idp: Idp
) -> None:
    """Neither `none` nor a HMAC under the public key, no foreign key, no other time or place."""
    for what, token in _bad(idp).items():
        answer = await offer(signing, token)
        assert answer.status_code == 401, (what, answer.text)
        assert token not in answer.text
    assert signing.count(tables.api_tokens) == 0
    assert idp.asked.count("/keys") <= 1


async def test_a_minute_of_skew_is_forgiven(signing: House, idp: Idp) -> None:
    now = int(time.time())
    for claims in ({"exp": now - 30}, {"nbf": now + 30}, {"iat": now + 30}):
        assert (await offer(signing, idp.token(**claims))).status_code == 201, claims


async def test_an_answer_to_another_login_is_refused(signing: House, idp: Idp) -> None:
    token = idp.token(nonce="mine")
    assert (await offer(signing, token, nonce="mine")).status_code == 201
    assert (await offer(signing, token, nonce="other")).status_code == 401
    assert (await offer(signing, idp.token(), nonce="mine")).status_code == 401


async def test_what_is_mapped_to_nothing_gets_nothing(signing: House, idp: Idp) -> None:
    for groups in (None, [], ["strangers"], "strangers", 7, {"devs": True}, [["devs"]]):
        answer = await offer(signing, idp.token(groups=groups))
        assert answer.status_code == 403, (groups, answer.text)
    assert (await offer(signing, idp.token(groups="devs"))).status_code == 201


async def test_a_value_may_lead_into_a_tenant_and_the_first_of_several_counts(
    signing: House, idp: Idp
) -> None:
    absent = await offer(signing, idp.token(groups=["acme-devs"]))
    assert absent.status_code == 404, "there is no such tenant yet"
    a_queue(signing.engine, "acme/core/web/main")
    made = (await offer(signing, idp.token(groups=["acme-devs"]))).json()
    assert made["tenant"] == "acme"
    assert set(made["grants"]) == ROLES[Role.OPERATOR] & INSIDE_A_TENANT
    both = (await offer(signing, idp.token(groups=["acme-devs", "devs"]))).json()
    assert (both["tenant"], both["role"]) == (None, "submitter")


async def test_one_subject_cannot_fill_the_table(
    signing: House, idp: Idp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forgeyard.api.sign_on.MOST_OF_ONE", 2)
    codes = [(await offer(signing, idp.token())).status_code for _ in range(3)]
    assert codes == [201, 201, 413]
    assert (await offer(signing, idp.token(sub="u-2"))).status_code == 201


async def test_without_an_issuer_there_is_no_sign_on(sqlite_house: House, idp: Idp) -> None:
    async with client_of(sqlite_house.public, None) as nobody:
        assert (await nobody.get(PATH)).status_code == 404
    assert (await offer(sqlite_house, idp.token())).status_code == 404
    assert idp.asked == []


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_rotated_key_is_found_and_strangers_cannot_make_us_ask_more_than_once_a_minute(
    idp: Idp,
) -> None:
    moved = Clock()
    book = KeyBook(idp.url, moved)
    assert book.find("one") is not None
    idp.keys = {"three": RSAKey.generate_key(2048)}
    for _ in range(20):
        assert book.find("three") is None
        assert book.find("drawn by a stranger") is None
    assert idp.asked.count("/keys") == 1
    moved.now += 61
    assert book.find("three") is not None
    assert book.find("one") is None, "what the issuer withdrew is good no more"
    assert idp.asked.count("/keys") == 2
    assert idp.asked.count("/.well-known/openid-configuration") == 1


def test_a_withdrawn_key_is_good_for_an_hour_at_most(idp: Idp) -> None:
    moved = Clock()
    book = KeyBook(idp.url, moved)
    assert book.find("one") is not None
    del idp.keys["one"]
    moved.now += 3_601
    assert book.find("one") is None


SPOILT: dict[str, Callable[[Idp], tuple[int, dict[str, str], bytes]]] = {
    "too large": lambda idp: (200, {}, b'{"keys": [], "pad": "' + b"x" * 300_000 + b'"}'),
    "elsewhere": lambda idp: (302, {"location": f"{idp.url}/hidden"}, b""),
    "an error": lambda idp: (500, {}, b"{}"),
    "no JSON": lambda idp: (200, {}, b"<html>"),
    "deep": lambda idp: (200, {}, b"[" * 200_000),
    "a list": lambda idp: (200, {}, b"[]"),
    "no keys": lambda idp: (200, {}, b"{}"),
}


@pytest.mark.parametrize("what", SPOILT)
@pytest.mark.parametrize("path", ["/keys", "/.well-known/openid-configuration"])
def test_an_issuer_that_answers_strangely_is_away(idp: Idp, what: str, path: str) -> None:
    moved = Clock()
    book = KeyBook(idp.url, moved)
    idp.spoilt[path] = SPOILT[what](idp)
    for _ in range(3):
        with pytest.raises(Unavailable):
            book.find("one")
    assert idp.asked.count(path) == 1, "a failure is not asked for again at once"
    assert "/hidden" not in idp.asked
    idp.spoilt.clear()
    moved.now += 61
    assert book.find("one") is not None


def test_an_issuer_that_names_metadata_as_the_place_of_its_keys_is_refused(idp: Idp) -> None:
    """S17: the issuer is the operator's, what it points to is not."""
    document = {"issuer": idp.url, "jwks_uri": "https://169.254.169.254/keys"}
    body = json.dumps(document).encode()
    idp.spoilt["/.well-known/openid-configuration"] = (200, {}, body)
    with pytest.raises(Forbidden):
        KeyBook(idp.url).find("one")
    document["jwks_uri"] = "http://192.0.2.1/keys"
    idp.spoilt["/.well-known/openid-configuration"] = (200, {}, json.dumps(document).encode())
    with pytest.raises(InvalidRequest):
        KeyBook(idp.url).find("one")


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "169.254.0.1", "fe80::1%eth0", "fd00:ec2::254", "fd20:ce::254"),
        *("::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "0.0.0.0", "::"),
        "100.100.100.200",
    ],
)
def test_no_form_of_a_metadata_address_is_spoken_to(address: str) -> None:
    """S17"""
    with pytest.raises(Forbidden):
        demand_open(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "::1", "2001:db8::1", "192.0.2.1"])
def test_other_addresses_are(address: str) -> None:
    demand_open(address)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://issuer.example",
            "ftp://issuer.example",
            "https://",
            "issuer.example",
            "https://h:x",
        ),
        *("https://user:secret@issuer.example", "https://issuer.example/#a", "https://h:0", ""),
    ],
)
def test_an_issuer_speaks_https(url: str) -> None:
    with pytest.raises(InvalidRequest):
        checked_issuer(url)


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": "http://issuer.example"},
        {"client_id": ""},
        {"roles": {"devs": "king"}},
        {"roles": {"devs": "autoscaler@acme"}},
        {"token_s": 12 * HOUR + 1},
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(idp: Idp, wrong: dict[str, object]) -> None:
    with pytest.raises((ValueError, InvalidRequest)):
        config(idp, **wrong)
