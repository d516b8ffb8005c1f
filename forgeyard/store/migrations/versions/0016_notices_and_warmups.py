"""When machines that are taken away go, how warm-ups went, and whose machine is no more."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None
TABLE = "capacity_instances"


def upgrade() -> None:
    """Add the columns."""
    for name in ("leaves_at", "warmed_at"):
        op.add_column(TABLE, sa.Column(name, sa.BigInteger(), nullable=True))
    op.add_column(TABLE, sa.Column("warmup", sa.Text(), server_default="", nullable=False))
    op.add_column("runners", sa.Column("retired_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Take them away again."""
    op.drop_column("runners", "retired_at")
    for name in ("warmup", "warmed_at", "leaves_at"):
        op.drop_column(TABLE, name)
