"""Images of runners, their rollouts, and which caches come from whom."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the tables, and the columns that tell what an image or a runner has left behind."""
    _create_images()
    _create_rollouts()
    for name in ("image", "seen_image"):
        column = sa.Column(name, sa.Text(), server_default="", nullable=False)
        op.add_column("capacity_instances", column)
    op.create_index("ix_capacity_instances_image", "capacity_instances", ["image"])
    op.add_column("runners", sa.Column("distrusted_from", sa.BigInteger(), nullable=True))
    op.add_column("runners", sa.Column("distrusted_reason", sa.Text(), nullable=True))
    op.add_column("caches", sa.Column("runner_id", sa.Text(), nullable=True))


def _create_images() -> None:
    op.create_table(
        "runner_images",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("state_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("severity", sa.Text(), nullable=True),
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_runner_images"),
    )
    op.create_table(
        "image_aliases",
        sa.Column("alias", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"], ["runner_images.digest"], name="fk_image_aliases_digest"
        ),
        sa.PrimaryKeyConstraint("alias", name="pk_image_aliases"),
    )


def _create_rollouts() -> None:
    op.create_table(
        "fleet_rollouts",
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("fleet_id", sa.Text(), nullable=False),
        sa.Column("live", sa.BigInteger(), server_default=sa.text("1"), nullable=True),
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("state_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("paused", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("pause_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("stage_at", sa.BigInteger(), nullable=False),
        sa.Column("tended_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["fleet_id"], ["fleets.fleet_id"], name="fk_fleet_rollouts_fleet_id"
        ),
        sa.PrimaryKeyConstraint("rollout_id", name="pk_fleet_rollouts"),
        sa.UniqueConstraint("fleet_id", "live", name="uq_fleet_rollouts_fleet_id_live"),
    )


def downgrade() -> None:
    """Take them away again."""
    op.drop_column("caches", "runner_id")
    op.drop_column("runners", "distrusted_reason")
    op.drop_column("runners", "distrusted_from")
    op.drop_index("ix_capacity_instances_image", "capacity_instances")
    op.drop_column("capacity_instances", "seen_image")
    op.drop_column("capacity_instances", "image")
    for table in ("fleet_rollouts", "image_aliases", "runner_images"):
        op.drop_table(table)
