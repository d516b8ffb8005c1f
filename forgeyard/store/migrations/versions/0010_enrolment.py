"""Who may become a runner, the certificates given out, and how far each runner has come."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the tables; every runner that there is was let in by the token of the data directory."""
    op.create_table(
        "enrolments",
        sa.Column("enrolment_id", sa.Text(), nullable=False),
        sa.Column("binding", sa.Text(), nullable=False),
        sa.Column("runner_name", sa.Text(), nullable=False),
        sa.Column("mark", sa.Text(), nullable=False),
        sa.Column("grants", sa.Text(), nullable=False),
        sa.Column("needs_approval", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("window_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        *(
            sa.Column(name, sa.BigInteger(), nullable=True)
            for name in ("opens_at", "approved_at", "cancelled_at", "used_at")
        ),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("runner_id", sa.Text(), nullable=True),
        sa.Column("alarmed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("enrolment_id", name="pk_enrolments"),
        sa.UniqueConstraint("binding", name="uq_enrolments_binding"),
    )
    op.create_table(
        "certificates",
        sa.Column("serial", sa.Text(), nullable=False),
        sa.Column("runner_id", sa.Text(), nullable=False),
        sa.Column("enrolment_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("pem", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.Column("replaced_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("serial", name="pk_certificates"),
        sa.UniqueConstraint("key", name="uq_certificates_key"),
    )
    op.create_index("ix_certificates_runner_id", "certificates", ["runner_id"])
    op.create_index("ix_certificates_ends_at", "certificates", ["ends_at"])
    admission = sa.Column("admission", sa.Text(), server_default="verified", nullable=False)
    op.add_column("runners", admission)
    op.add_column("runners", sa.Column("admission_reason", sa.Text(), nullable=True))
    op.add_column("runners", sa.Column("enrolment_id", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take them away again."""
    with op.batch_alter_table("runners") as runners:
        for name in ("enrolment_id", "admission_reason", "admission"):
            runners.drop_column(name)
    op.drop_table("certificates")
    op.drop_table("enrolments")
