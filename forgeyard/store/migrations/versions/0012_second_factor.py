"""Which machines of a cloud have enrolled, and how often others tried in their place."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the table, the count, and an index for retention."""
    op.create_table(
        "enrolled_machines",
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("enrolment_id", sa.Text(), nullable=False),
        sa.Column("launched_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("machine", name="pk_enrolled_machines"),
    )
    op.add_column(
        "enrolments",
        sa.Column("refusals", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
    )
    op.create_index("ix_certificates_enrolment_id", "certificates", ["enrolment_id"])


def downgrade() -> None:
    """Take them away again."""
    op.drop_index("ix_certificates_enrolment_id", "certificates")
    op.drop_column("enrolments", "refusals")
    op.drop_table("enrolled_machines")
