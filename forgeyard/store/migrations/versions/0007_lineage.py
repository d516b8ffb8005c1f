"""What tells a store from an older copy of itself."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the tables; the first mark gives the store its identity."""
    op.create_table(
        "lineage",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("store_id", sa.Text(), nullable=False),
        sa.Column("era", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("held_at", sa.BigInteger(), nullable=True),
        sa.Column("held_reason", sa.Text(), nullable=True),
        sa.Column("held_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_lineage"),
    )
    op.create_table(
        "store_marks",
        sa.Column("value", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("value", name="pk_store_marks"),
    )
    op.create_table(
        "store_claims",
        sa.Column("lease_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lease_id", name="pk_store_claims"),
    )


def downgrade() -> None:
    """Take them away again."""
    op.drop_table("store_claims")
    op.drop_table("store_marks")
    op.drop_table("lineage")
