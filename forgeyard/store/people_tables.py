"""Tables about who may do what, who has uploaded what, and the chain that seals the audit trail."""

import sqlalchemy as sa

from forgeyard.store.table_parts import SERIAL, metadata, number, text

api_tokens = sa.Table(
    "api_tokens",
    metadata,
    sa.Column("token_id", sa.Text, primary_key=True),
    text("secret_digest"),  # SHA-256 of 256 drawn bits, so nothing can be guessed from it
    text("principal"),
    text("kind"),  # PrincipalKind
    text("role", nullable=True),
    text("permissions"),  # beyond those of the role, JSON
    text("tenant_id", nullable=True),  # NULL: everybody's
    text("note", default=""),
    text("created_by"),
    number("created_at"),
    number("expires_at"),
    number("last_used_at", nullable=True),
    number("revoked_at", nullable=True),
)

blob_owners = sa.Table(
    "blob_owners",
    metadata,
    # A tenant that has shown that it has these bytes.
    sa.Column(
        "digest", sa.Text, sa.ForeignKey("blobs.digest", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("tenant_id", sa.Text, primary_key=True),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("audit_id", SERIAL, primary_key=True, autoincrement=True),
    number("at"),
    text("actor"),  # as claimed
    text("channel"),
    text("action"),
    text("target"),
    text("detail"),
    text("principal", default=""),  # whose token it was; nobody's if the system acts by itself
    text("before_digest", nullable=True),  # of what was changed
    text("after_digest", nullable=True),
)

audit_chain = sa.Table(
    "audit_chain",
    metadata,
    # Without gaps; each hash covers a line of the trail and the hash before it.
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    number("audit_id"),
    text("hash"),
    sa.UniqueConstraint("audit_id"),
)
