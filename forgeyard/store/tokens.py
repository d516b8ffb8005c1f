"""API tokens: made for a person or a program, shown once, and kept as a digest only.

A token is `fya_ID_SECRET`. The secret is 256 bits that the operating system drew, so a plain
digest of it tells nothing to whoever reads the database.
"""

import hashlib
import hmac
import random
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from forgeyard.errors import Forbidden, InvalidRequest, NotFound, TooLarge
from forgeyard.model.caller import Caller, PrincipalKind, Tenant
from forgeyard.model.permission import Permission, Role, check_grant, granted
from forgeyard.store import changes, codec, tables
from forgeyard.store.births import draw_id
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now
from forgeyard.store.shares import Intent

PREFIX: Final = "fya"
SHAPE: Final = re.compile(rf"({PREFIX}_[0-9A-HJKMNP-TV-Z]{{26}})_([A-Za-z0-9_-]{{43}})")
LONGEST_MS: Final = 365 * 86_400_000
SHORTEST_MS: Final = 60_000
USE_NOTED_MS: Final = 60_000
"""How often at most a token's last use is written."""
MOST_LIVE: Final = 10_000
MOST_LISTED: Final = 1_000
_tokens, _scopes = tables.api_tokens, tables.scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """Whom a token is for, what it may do, and for how long; `tenant` is a tenant's name."""

    principal: str
    kind: PrincipalKind
    role: Role | None
    permissions: tuple[Permission, ...]
    tenant: str | None
    lifetime_ms: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """A token without its secret; `grants` is all that it may do."""

    token_id: str
    principal: str
    kind: PrincipalKind
    role: Role | None
    permissions: tuple[Permission, ...]
    """Beyond those of its role."""
    grants: tuple[Permission, ...]
    tenant: str | None
    note: str
    created_by: str
    created_at: int
    expires_at: int
    last_used_at: int | None
    """Written at most once a minute."""
    revoked_at: int | None
    is_live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A caller whose token is good, and for how long it still is."""

    caller: Caller
    left_ms: int
    use_is_noted: bool


def create(
    connection: sa.Connection,
    wanted: NewToken,
    secret: str,
    *,
    by: Caller,
    intent: Intent,
    rng: random.Random,
) -> tuple[TokenView, str]:
    """Make a token that may do no more than its maker; return it, and the text to show once.

    Raises:
        InvalidRequest: it would live too long, or what it may do is nothing or beyond its tenant.
        Forbidden: its maker may not do all of that.
        NotFound: there is no such tenant.
        TooLarge: there are too many tokens.
    """
    _check_lifetime(wanted.lifetime_ms)
    _check_not_more(by, check_grant(wanted.role, wanted.permissions, tenant=wanted.tenant))
    now = database_now(connection)
    _check_room(connection, now=now)
    token_id = draw_id(PREFIX, now=now, rng=rng)
    row = {
        "token_id": token_id,
        "secret_digest": _digest(secret),
        "principal": wanted.principal,
        "kind": wanted.kind.value,
        "role": wanted.role,
        "permissions": codec.encode(wanted.permissions, tuple[Permission, ...]),
        "tenant_id": _tenant_id(connection, wanted.tenant),
        "note": wanted.note,
        "created_by": by.name,
        "created_at": now,
        "expires_at": now + wanted.lifetime_ms,
    }
    connection.execute(sa.insert(_tokens).values(row))
    view = show(connection, token_id)
    said = f"{wanted.kind}:{wanted.principal}, {wanted.tenant or 'no tenant'}"
    _tell(connection, "token.create", view, intent, said=said, now=now)
    return view, f"{token_id}_{secret}"


def _check_lifetime(lifetime_ms: int) -> None:
    if not SHORTEST_MS <= lifetime_ms <= LONGEST_MS:
        raise InvalidRequest(
            "a token lives for a minute at least, and for a year at most",
            field="lifetime_ms",
            value=lifetime_ms,
            allowed=f"{SHORTEST_MS} to {LONGEST_MS}",
        )


def _check_not_more(by: Caller, wanted: Collection[Permission]) -> None:
    beyond = sorted(set(wanted) - by.permissions)
    if beyond or by.tenant is not None:
        raise Forbidden(
            f"{by.name} cannot give what it does not have: {beyond[0] if beyond else 'freedom'}",
            field="permissions",
            value=", ".join(beyond) or None,
            allowed=", ".join(sorted(by.permissions)),
        )


def _check_room(connection: sa.Connection, *, now: int) -> None:
    query = sa.select(sa.func.count()).select_from(_tokens).where(_is_live(now))
    if connection.execute(query).scalar_one() >= MOST_LIVE:
        raise TooLarge(
            "there are too many tokens", field="principal", allowed=f"{MOST_LIVE} that are live"
        )


def _tenant_id(connection: sa.Connection, name: str | None) -> str | None:
    if name is None:
        return None
    query = sa.select(_scopes.c.scope_id).where(_scopes.c.kind == "tenant", _scopes.c.name == name)
    found = connection.execute(query).scalar_one_or_none()
    if found is None:
        raise NotFound(f"there is no tenant {name!r}", field="tenant", value=name)
    return str(found)


def show(connection: sa.Connection, token_id: str) -> TokenView:
    """Show one token.

    Raises:
        NotFound: there is no such token.
    """
    query = _query().where(_tokens.c.token_id == token_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFound(f"no token {token_id!a}", field="token_id", value=ascii(token_id))
    return _view(dict(row), now=database_now(connection))


def list_tokens(connection: sa.Connection, *, ended: bool) -> tuple[TokenView, ...]:
    """List the live tokens, or those that were revoked or have expired; the newest first."""
    now = database_now(connection)
    live = _is_live(now)
    query = _query().where(~live if ended else live)
    query = query.order_by(_tokens.c.token_id.desc()).limit(MOST_LISTED)
    return tuple(_view(dict(row), now=now) for row in connection.execute(query).mappings())


def count_of(connection: sa.Connection, principal: str) -> int:
    """Count the live tokens of a principal."""
    now = database_now(connection)
    query = sa.select(sa.func.count()).select_from(_tokens).where(_is_live(now))
    return connection.execute(query.where(_tokens.c.principal == principal)).scalar_one()


def revoke(connection: sa.Connection, token_id: str, *, intent: Intent) -> TokenView:
    """End a token's life; ending it again is harmless.

    Raises:
        NotFound: there is no such token.
    """
    now = database_now(connection)
    query = sa.update(_tokens).where(_tokens.c.token_id == token_id, _tokens.c.revoked_at.is_(None))
    changed = connection.execute(query.values(revoked_at=now)).rowcount
    view = show(connection, token_id)
    if changed:
        _tell(
            connection, "token.revoke", view, intent, said=f"{view.kind}:{view.principal}", now=now
        )
    return view


def look_up(connection: sa.Connection, token: str) -> Found | None:
    """Find whose token this is; None if it never was one, or is none any more."""
    shape = SHAPE.fullmatch(token)
    if shape is None:
        return None
    token_id, secret = shape.groups()
    found = connection.execute(_LOOK_UP, {"own_id": token_id}).mappings().one_or_none()
    if found is None or not hmac.compare_digest(found["secret_digest"], _digest(secret)):
        return None
    row: Row = dict(found)
    now = database_now(connection)
    tenant = _tenant(row)
    if row["revoked_at"] is not None or row["expires_at"] <= now or tenant == _GONE:
        return None
    caller = Caller(
        principal=row["principal"],
        kind=PrincipalKind(row["kind"]),
        permissions=_grants(row),
        tenant=tenant,
        token_id=token_id,
        expires_at=row["expires_at"],
    )
    used = row["last_used_at"]
    noted = used is not None and now - used < USE_NOTED_MS
    return Found(caller=caller, left_ms=row["expires_at"] - now, use_is_noted=noted)


def note_use(connection: sa.Connection, token_id: str) -> None:
    """Write down that a token is in use."""
    now = database_now(connection)
    query = sa.update(_tokens).where(_tokens.c.token_id == token_id)
    connection.execute(query.values(last_used_at=now))


_GONE: Final = Tenant(tenant_id="", name="")


def _tenant(row: Row) -> Tenant | None:
    if row["tenant_id"] is None:
        return None
    if row["tenant"] is None:
        return _GONE
    return Tenant(tenant_id=row["tenant_id"], name=row["tenant"])


def _query() -> sa.Select[Any]:
    joined = _tokens.outerjoin(_scopes, _scopes.c.scope_id == _tokens.c.tenant_id)
    return sa.select(_tokens, _scopes.c.name.label("tenant")).select_from(joined)


_LOOK_UP: Final = _query().where(_tokens.c.token_id == sa.bindparam("own_id"))


def _is_live(now: int) -> sa.ColumnElement[bool]:
    return _tokens.c.revoked_at.is_(None) & (_tokens.c.expires_at > now)


def _grants(row: Row) -> frozenset[Permission]:
    role = Role(row["role"]) if row["role"] else None
    return granted(role, _permissions(row), tenant=row["tenant_id"])


def _permissions(row: Row) -> tuple[Permission, ...]:
    return codec.decode(tuple[Permission, ...], row["permissions"])


def _view(row: Row, *, now: int) -> TokenView:
    plain = (
        *("token_id", "principal", "tenant", "note", "created_by", "created_at"),
        *("expires_at", "last_used_at", "revoked_at"),
    )
    return TokenView(
        kind=PrincipalKind(row["kind"]),
        role=Role(row["role"]) if row["role"] else None,
        permissions=_permissions(row),
        grants=tuple(sorted(_grants(row))),
        is_live=row["revoked_at"] is None and row["expires_at"] > now,
        **{name: row[name] for name in plain},
    )


def _digest(secret: str) -> str:
    return f"sha256:{hashlib.sha256(secret.encode()).hexdigest()}"


def _tell(
    connection: sa.Connection, action: str, view: TokenView, intent: Intent, *, said: str, now: int
) -> None:
    changes.audit(
        connection,
        actor=intent.actor,
        channel=intent.channel,
        action=action,
        target=view.token_id,
        detail=f"{said}, may {', '.join(view.grants)}: {intent.reason}",
        now=now,
    )
