"""What the demand of fleets needed, for forecasts."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "fleet_history",
        sa.Column("fleet_id", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("needed", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["fleet_id"], ["fleets.fleet_id"], name="fk_fleet_history_fleet_id"
        ),
        sa.PrimaryKeyConstraint("fleet_id", "at", name="pk_fleet_history"),
    )
    op.create_index("ix_fleet_history_at", "fleet_history", ["at"])


def downgrade() -> None:
    """Take it away again."""
    op.drop_table("fleet_history")
