"""API tokens: made, listed, revoked, and what the one that a request came with may do."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from forgeyard import entropy
from forgeyard.api.callers import Anybody, CallerBook, TokenManager, needs
from forgeyard.api.dependencies import Deps
from forgeyard.api.intents import Because
from forgeyard.model.caller import PrincipalKind
from forgeyard.model.permission import Permission, Role
from forgeyard.store import tokens
from forgeyard.store.engine import read
from forgeyard.store.tokens import LONGEST_MS, SHORTEST_MS, NewToken, TokenView

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])
self_router = APIRouter(tags=["tokens"])
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$")]
Tenant = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
TokenPath = Annotated[str, Path(max_length=64)]


class CreateToken(Because):
    """Whom a token is for, what it may do, and for how long; with a tenant, only inside that."""

    principal: Name
    kind: PrincipalKind = PrincipalKind.USER
    role: Role | None = None
    permissions: Annotated[tuple[Permission, ...], Field(max_length=len(Permission))] = ()
    tenant: Tenant | None = None
    lifetime_ms: Annotated[int, Field(ge=SHORTEST_MS, le=LONGEST_MS)]
    note: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")] = ""

    @property
    def wanted(self) -> NewToken:
        """Say it as the store takes it."""
        return NewToken(**{name: getattr(self, name) for name in NewToken.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMade(TokenView):
    """A new token, and the text that opens the API; it is never shown again."""

    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhoAmI:
    """Who asks, by the token that came with the request."""

    principal: str
    kind: PrincipalKind
    tenant: str | None
    token_id: str
    """Empty for the token of the API's data directory."""
    expires_at: int | None
    grants: tuple[Permission, ...]


@router.post("", status_code=201)
def create_token(message: CreateToken, deps: Deps, who: TokenManager) -> TokenMade:
    """Make a token; the answer alone tells its text."""
    with deps.change_for(who) as connection:
        view, text = tokens.create(
            connection,
            message.wanted,
            entropy.token(),
            by=who,
            intent=message.intent,
            rng=deps.rng,
        )
    return TokenMade(**{name: getattr(view, name) for name in TokenView.__slots__}, token=text)


@router.get("", dependencies=[needs(Permission.TOKEN_MANAGE)])
def list_tokens(deps: Deps, ended: Annotated[bool, Query()] = False) -> tuple[TokenView, ...]:
    """List the tokens that are good, or those that are not any more; the newest first."""
    with read(deps.engine) as connection:
        return tokens.list_tokens(connection, ended=ended)


@router.post("/{token_id}:revoke")
def revoke_token(
    token_id: TokenPath, message: Because, request: Request, deps: Deps, who: TokenManager
) -> TokenView:
    """End a token's life: no API process lets it in any more after a few seconds."""
    with deps.change_for(who) as connection:
        view = tokens.revoke(connection, token_id, intent=message.intent)
    callers: CallerBook = request.app.state.callers
    callers.forget()
    return view


@self_router.get("/v1/whoami")
def whoami(who: Anybody) -> WhoAmI:
    """Tell whose token this is, and what it may do."""
    return WhoAmI(
        principal=who.principal,
        kind=who.kind,
        tenant=who.tenant_name,
        token_id=who.token_id,
        expires_at=who.expires_at,
        grants=tuple(sorted(who.permissions)),
    )
