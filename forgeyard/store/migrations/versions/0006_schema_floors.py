"""Which releases a schema still serves, said by the revisions that take something away."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the table; without a row every release since this one is served."""
    op.create_table(
        "schema_floors",
        sa.Column("revision", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name="pk_schema_floors"),
    )


def downgrade() -> None:
    """Take it away again."""
    op.drop_table("schema_floors")
