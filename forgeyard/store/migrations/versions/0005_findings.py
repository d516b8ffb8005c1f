"""What reconciliations found; since when a runner does not report a lease that it holds."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add a table, and a column that the release before this one leaves alone."""
    op.add_column("leases", sa.Column("unreported_since", sa.BigInteger(), nullable=True))
    op.create_table(
        "findings",
        sa.Column(
            "finding_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        *(
            sa.Column(name, sa.Text(), nullable=False)
            for name in ("kind", "entity", "found", "expected", "outcome")
        ),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("finding_id", name=op.f("pk_findings")),
    )
    op.create_index("ix_findings_kind_entity", "findings", ["kind", "entity"])
    op.create_index("ix_findings_seen_at", "findings", ["seen_at"])


def downgrade() -> None:
    """Take them away again."""
    op.drop_table("findings")
    with op.batch_alter_table("leases") as leases:
        leases.drop_column("unreported_since")
