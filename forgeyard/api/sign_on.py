"""Signing on with a token of the operator's OpenID issuer, for which one of ours is given.

People come with it from `forgeyard login`, programs from wherever they run. What an operator has
mapped to no role gets nothing.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, cast

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request
from pydantic import Field

from forgeyard import clock, entropy
from forgeyard.api.dependencies import ApiDependencies, Deps
from forgeyard.api.runs import Body
from forgeyard.api.tokens import TokenMade
from forgeyard.config import OidcConfig
from forgeyard.errors import Forbidden, NotFound, TooLarge, Unauthenticated, Unavailable
from forgeyard.model.caller import Caller, PrincipalKind
from forgeyard.model.permission import Role, granted
from forgeyard.store import tokens
from forgeyard.store.shares import Intent
from forgeyard.store.tokens import SHORTEST_MS, NewToken, TokenView
from forgeyard.trust import id_tokens, issuer
from forgeyard.trust.id_tokens import Claims, Expected, PublicKey

PATH: Final = "/v1/login/oidc"
CHANNEL: Final = "oidc"
FRESH_S: Final = 3_600.0
"""How long the issuer's keys are taken for what they were."""
ONCE_IN_S: Final = 60.0
"""How often at most the issuer is asked for its keys, whatever strangers send."""
AT_ONCE: Final = 4
MOST_OF_ONE: Final = 200
"""How many live tokens one subject may have, lest one fills the table for everybody."""
LONGEST_SUBJECT: Final = 180

open_router = APIRouter(tags=["tokens"])


class LogIn(Body):
    """An ID token, and how long ours is to be good; the nonce of whoever asked for one."""

    id_token: Annotated[str, Field(min_length=1, max_length=id_tokens.LONGEST)]
    nonce: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    lifetime_ms: Annotated[int, Field(ge=SHORTEST_MS)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOnShown:
    """Where to get an ID token that is good here, and as which client."""

    issuer: str
    client_id: str


class KeyBook:
    """Knows the keys of the issuer, which it asks rarely; for several threads."""

    def __init__(self, url: str, monotonic: Callable[[], float] = clock.monotonic) -> None:
        self._url = url
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._keys_url = ""
        self._keys: dict[str, PublicKey] = {}
        self._good_until = self._ask_again_at = float("-inf")

    def find(self, name: str) -> PublicKey | None:
        """Find a key of the issuer by its name; None if it has no such key.

        Raises:
            Unavailable: the issuer has to be asked, and does not answer or was asked just now.
        """
        with self._lock:
            now = self._monotonic()
            is_known = name in self._keys and now < self._good_until
            if not is_known and now >= self._ask_again_at:
                self._ask_again_at = now + ONCE_IN_S
                self._keys = id_tokens.keys_in(issuer.fetch(self._where()))
                self._good_until = now + FRESH_S
            if now >= self._good_until:
                raise Unavailable("the issuer's keys cannot be had now", field="oidc.issuer")
            return self._keys.get(name)

    def _where(self) -> str:
        if not self._keys_url:
            self._keys_url = issuer.describe(self._url).keys_url
        return self._keys_url


class SignOn:
    """Turns good ID tokens into tokens of ours, if the operator has named an issuer."""

    def __init__(self, config: OidcConfig) -> None:
        self.config = config
        self.limiter = CapacityLimiter(AT_ONCE)
        self._keys = KeyBook(config.issuer)

    def demand_configured(self) -> None:
        """Insist that there is an issuer.

        Raises:
            NotFound: there is none.
        """
        if not self.config.issuer:
            raise NotFound("there is no single sign-on here", field="oidc.issuer")

    def exchange(self, message: LogIn, deps: ApiDependencies) -> TokenMade:
        """Give a token of ours for a good ID token. Blocks.

        Raises:
            Unauthenticated: the ID token is not good.
            Forbidden: nothing that it says is mapped to a role.
            Unavailable: the issuer's keys cannot be had.
            TooLarge: the same subject has too many tokens.
        """
        claims = self._verified(message)
        role, tenant = self._grant(claims)
        principal = f"oidc:{_subject(claims)}"
        who = Caller(
            principal=principal,
            kind=PrincipalKind.USER,
            permissions=granted(role, (), tenant=tenant),
        )
        longest = self.config.token_s * 1000
        wanted = NewToken(
            principal=principal,
            kind=PrincipalKind.USER,
            role=role,
            permissions=(),
            tenant=tenant,
            lifetime_ms=min(message.lifetime_ms or longest, longest),
            note=_email(claims),
        )
        return _made(deps, wanted, who, reason=f"signed on by {self.config.issuer}")

    def _verified(self, message: LogIn) -> Claims:
        key = self._keys.find(id_tokens.key_name(message.id_token))
        if key is None:
            raise Unauthenticated("the issuer has no key of this name", field="id_token")
        expected = Expected(
            issuer=self.config.issuer,
            audience=self.config.audience or self.config.client_id,
            nonce=message.nonce,
        )
        return id_tokens.verify(message.id_token, key, expected, now=clock.now())

    def _grant(self, claims: Claims) -> tuple[Role, str | None]:
        said = claims.get(self.config.roles_claim)
        listed = cast("list[object]", said) if isinstance(said, list) else [said]
        values = {one for one in listed if isinstance(one, str)}
        for value in self.config.roles:
            if value in values:
                return self.config.grant(value)
        raise Forbidden(
            f"nothing in the claim {self.config.roles_claim!r} of this ID token has a role here",
            field=self.config.roles_claim,
            allowed="a value that the operator has mapped to a role",
        )


def _subject(claims: Claims) -> str:
    found = claims["sub"]
    if not isinstance(found, str) or not found.isascii() or not found.isprintable():
        raise Unauthenticated("the subject of this ID token is no name", field="sub")
    if not 0 < len(found) <= LONGEST_SUBJECT:
        raise Unauthenticated("the subject of this ID token is too long", field="sub")
    return found


def _email(claims: Claims) -> str:
    found = claims.get("email")
    is_good = (
        claims.get("email_verified") is True and isinstance(found, str) and found.isprintable()
    )
    return str(found)[:200] if is_good else ""


def _made(deps: ApiDependencies, wanted: NewToken, who: Caller, *, reason: str) -> TokenMade:
    intent = Intent(actor=wanted.note or wanted.principal, channel=CHANNEL, reason=reason)
    with deps.change_for(who) as connection:
        if tokens.count_of(connection, wanted.principal) >= MOST_OF_ONE:
            raise TooLarge(
                f"{wanted.principal} has too many tokens",
                field="id_token",
                allowed=f"{MOST_OF_ONE} that are live; ask for a shorter lifetime_ms",
            )
        view, text = tokens.create(
            connection, wanted, entropy.token(), by=who, intent=intent, rng=deps.rng
        )
    return TokenMade(**{name: getattr(view, name) for name in TokenView.__slots__}, token=text)


@open_router.get(PATH)
async def show_sign_on(request: Request) -> SignOnShown:
    """Tell which issuer's ID tokens are good here."""
    sign_on: SignOn = request.app.state.sign_on
    sign_on.demand_configured()
    return SignOnShown(issuer=sign_on.config.issuer, client_id=sign_on.config.client_id)


@open_router.post(PATH, status_code=201)
async def sign_on_with_id_token(message: LogIn, request: Request, deps: Deps) -> TokenMade:
    """Give a token of the API for an ID token of the configured issuer."""
    sign_on: SignOn = request.app.state.sign_on
    sign_on.demand_configured()
    # Threads of its own: an issuer that hangs must not hold those of the other routes.
    return await to_thread.run_sync(
        lambda: sign_on.exchange(message, deps), limiter=sign_on.limiter
    )
