"""People and programs for tests: tokens of every sort, made in the store itself."""

import sqlalchemy as sa

from forgeyard import entropy
from forgeyard.model.caller import HOST, PrincipalKind
from forgeyard.model.permission import Permission, Role
from forgeyard.store import shares, tables, tokens
from forgeyard.store.engine import write
from forgeyard.store.shares import Intent, Shares
from forgeyard.store.tokens import NewToken
from tests.builders import RNG

INTENT = Intent(actor="tester", channel="test", reason="for a test")
DAY_MS = 86_400_000


def a_token(
    engine: sa.Engine,
    *permissions: Permission,
    principal: str = "somebody",
    kind: PrincipalKind = PrincipalKind.USER,
    role: Role | None = None,
    tenant: str | None = None,
    lifetime_ms: int = DAY_MS,
) -> str:
    """Make a token; return its text."""
    wanted = NewToken(
        principal=principal,
        kind=kind,
        role=role,
        permissions=permissions,
        tenant=tenant,
        lifetime_ms=lifetime_ms,
    )
    with write(engine) as connection:
        _, text = tokens.create(
            connection, wanted, entropy.token(), by=HOST, intent=INTENT, rng=RNG
        )
    return text


def id_of(token: str) -> str:
    """Tell a token's id from its text."""
    return "_".join(token.split("_")[:2])


def revoke(engine: sa.Engine, token: str) -> None:
    """End a token's life."""
    with write(engine) as connection:
        tokens.revoke(connection, id_of(token), intent=INTENT)


def expire(engine: sa.Engine, token: str) -> None:
    """Let a token have expired a moment ago."""
    table = tables.api_tokens
    with write(engine) as connection:
        connection.execute(
            sa.update(table).where(table.c.token_id == id_of(token)).values(expires_at=1)
        )


def a_queue(engine: sa.Engine, path: str) -> str:
    """Declare a queue and the scopes around it."""
    with write(engine) as connection:
        shares.create_with_parents(connection, path, Shares(), intent=INTENT, rng=RNG)
    return path
