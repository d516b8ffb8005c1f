"""Tokens of people and programs, who uploaded a blob, and an audit trail that stays as it is."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_SEALED = ("audit", "audit_chain")


def upgrade() -> None:
    """Add the tables, and let the database refuse whoever changes a line of the trail."""
    _create_tokens()
    op.create_table(
        "blob_owners",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"], ["blobs.digest"], name="fk_blob_owners_digest", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("digest", "tenant_id", name="pk_blob_owners"),
    )
    op.add_column("audit", sa.Column("principal", sa.Text(), server_default="", nullable=False))
    op.add_column("audit", sa.Column("before_digest", sa.Text(), nullable=True))
    op.add_column("audit", sa.Column("after_digest", sa.Text(), nullable=True))
    op.create_table(
        "audit_chain",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("audit_id", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_chain"),
        sa.UniqueConstraint("audit_id", name="uq_audit_chain_audit_id"),
    )
    if op.get_context().dialect.name == "postgresql":
        _seal_postgresql()
    else:
        _seal_sqlite()


def _create_tokens() -> None:
    op.create_table(
        "api_tokens",
        sa.Column("token_id", sa.Text(), nullable=False),
        sa.Column("secret_digest", sa.Text(), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("permissions", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), server_default="", nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("last_used_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("token_id", name="pk_api_tokens"),
    )


def _seal_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION forgeyard_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN RAISE EXCEPTION 'the audit trail only grows'; END $$"
    )
    for table in _SEALED:
        op.execute(
            f"CREATE TRIGGER {table}_only_grows"
            f" BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION forgeyard_refuse_change()"
        )


def _seal_sqlite() -> None:
    for table in _SEALED:
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_refuses_{event.lower()} BEFORE {event} ON {table}"
                " BEGIN SELECT RAISE(ABORT, 'the audit trail only grows'); END"
            )


def downgrade() -> None:
    """Take them away again; the lines of the trail stay."""
    if op.get_context().dialect.name == "postgresql":
        for table in _SEALED:
            op.execute(f"DROP TRIGGER {table}_only_grows ON {table}")
        op.execute("DROP FUNCTION forgeyard_refuse_change()")
    else:
        for event in ("update", "delete"):
            op.execute(f"DROP TRIGGER audit_refuses_{event}")
    op.drop_table("audit_chain")
    for column in ("after_digest", "before_digest", "principal"):
        op.drop_column("audit", column)
    op.drop_table("blob_owners")
    op.drop_table("api_tokens")
