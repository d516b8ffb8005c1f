"""Fleets, the machines that may exist, and what was decided about them."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Add the tables, and what counts the jobs of a runner."""
    _create_fleets()
    _create_instances()
    _create_decisions()
    _create_wishes()
    _create_providers()
    op.add_column("runners", sa.Column("jobs_left", sa.BigInteger(), nullable=True))
    op.add_column(
        "runners",
        sa.Column("freed_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
    )


def _create_fleets() -> None:
    op.create_table(
        "fleet_allocations",
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("demand", sa.Text(), server_default="{}", nullable=False),
        sa.Column("allocation", sa.Text(), server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("partition", name="pk_fleet_allocations"),
    )
    op.create_table(
        "fleets",
        sa.Column("fleet_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("live", sa.BigInteger(), server_default=sa.text("1"), nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("class_id", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("state_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("health", sa.Text(), server_default="healthy", nullable=False),
        sa.Column("health_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("numbered", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("decisions", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("tended_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("fleet_id", name="pk_fleets"),
        sa.UniqueConstraint("name", "live", name="uq_fleets_name_live"),
    )


def _create_instances() -> None:
    op.create_table(
        "capacity_instances",
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.Column("fleet_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("class_id", sa.Text(), nullable=False),
        sa.Column("capacity", sa.Text(), nullable=False),
        sa.Column("offering", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("made_for", sa.Text(), server_default="", nullable=False),
        sa.Column("may_exist", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("generation", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("operation", sa.Text(), server_default="pending", nullable=False),
        sa.Column("provider_ref", sa.Text(), nullable=True),
        sa.Column("runner_name", sa.Text(), nullable=False),
        sa.Column("runner_id", sa.Text(), nullable=True),
        sa.Column("calls", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=True),
        sa.Column("requested_at", sa.BigInteger(), nullable=False),
        sa.Column("running_at", sa.BigInteger(), nullable=True),
        sa.Column("enrolled_at", sa.BigInteger(), nullable=True),
        sa.Column("healthy_at", sa.BigInteger(), nullable=True),
        sa.Column("drained_at", sa.BigInteger(), nullable=True),
        sa.Column("ending_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("drain_reason", sa.Text(), nullable=True),
        sa.Column("pinned_until", sa.BigInteger(), nullable=True),
        sa.Column("pin_reason", sa.Text(), nullable=True),
        sa.Column("interrupted_at", sa.BigInteger(), nullable=True),
        sa.Column("machine", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column("asked_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("looked_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("released_at", sa.BigInteger(), nullable=True),
        sa.Column("missing_since", sa.BigInteger(), nullable=True),
        sa.Column("sightings", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("tended_until", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(
            ["fleet_id"], ["fleets.fleet_id"], name="fk_capacity_instances_fleet_id"
        ),
        sa.PrimaryKeyConstraint("instance_id", name="pk_capacity_instances"),
        sa.UniqueConstraint("fleet_id", "number", name="uq_capacity_instances_fleet_id_number"),
        sa.UniqueConstraint("runner_name", name="uq_capacity_instances_runner_name"),
    )
    op.create_index("ix_capacity_instances_ended_at", "capacity_instances", ["ended_at"])
    op.create_index(
        "ix_capacity_instances_fleet_id_state", "capacity_instances", ["fleet_id", "state"]
    )
    op.create_index("ix_capacity_instances_runner_id", "capacity_instances", ["runner_id"])


def _create_decisions() -> None:
    op.create_table(
        "fleet_decisions",
        sa.Column("fleet_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("wanted", sa.BigInteger(), nullable=False),
        sa.Column("usable", sa.BigInteger(), nullable=False),
        sa.Column("launched", sa.BigInteger(), nullable=False),
        sa.Column("drained", sa.BigInteger(), nullable=False),
        sa.Column("demand_id", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["fleet_id"], ["fleets.fleet_id"], name="fk_fleet_decisions_fleet_id"
        ),
        sa.PrimaryKeyConstraint("fleet_id", "number", name="pk_fleet_decisions"),
    )
    op.create_index("ix_fleet_decisions_at", "fleet_decisions", ["at"])
    op.create_table(
        "fleet_spend",
        sa.Column("fleet_id", sa.Text(), nullable=False),
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("micros", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("counted_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["fleet_id"], ["fleets.fleet_id"], name="fk_fleet_spend_fleet_id"),
        sa.PrimaryKeyConstraint("fleet_id", "day", name="pk_fleet_spend"),
    )


def _create_wishes() -> None:
    op.create_table(
        "fleet_overrides",
        sa.Column("override_id", sa.Text(), nullable=False),
        sa.Column("fleet_id", sa.Text(), nullable=False),
        sa.Column("override", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["fleet_id"], ["fleets.fleet_id"], name="fk_fleet_overrides_fleet_id"
        ),
        sa.PrimaryKeyConstraint("override_id", name="pk_fleet_overrides"),
    )
    op.create_index("ix_fleet_overrides_fleet_id", "fleet_overrides", ["fleet_id"])
    op.create_table(
        "fleet_reservations",
        sa.Column("reservation_id", sa.Text(), nullable=False),
        sa.Column("fleet_id", sa.Text(), nullable=False),
        sa.Column("reservation", sa.Text(), nullable=False),
        sa.Column("starts_at", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.Column("cancelled_at", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["fleet_id"], ["fleets.fleet_id"], name="fk_fleet_reservations_fleet_id"
        ),
        sa.PrimaryKeyConstraint("reservation_id", name="pk_fleet_reservations"),
    )
    op.create_index("ix_fleet_reservations_fleet_id", "fleet_reservations", ["fleet_id"])


def _create_providers() -> None:
    op.create_table(
        "provider_breakers",
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("fleet_id", sa.Text(), nullable=False),
        sa.Column("offering", sa.Text(), nullable=False),
        sa.Column("failures", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("open_until", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("code", sa.Text(), server_default="", nullable=False),
        sa.Column("text", sa.Text(), server_default="", nullable=False),
        sa.Column("at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("frozen", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("looked_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("checks", sa.Text(), server_default="[]", nullable=False),
        sa.Column("checked_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("provider", "fleet_id", "offering", name="pk_provider_breakers"),
    )
    op.create_table(
        "provider_sightings",
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("sightings", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("provider", "ref", name="pk_provider_sightings"),
    )


def downgrade() -> None:
    """Take them away again."""
    op.drop_column("runners", "freed_at")
    op.drop_column("runners", "jobs_left")
    for table in (
        *("fleet_spend", "fleet_reservations", "fleet_overrides", "fleet_decisions"),
        *("capacity_instances", "provider_sightings", "provider_breakers", "fleets"),
        "fleet_allocations",
    ):
        op.drop_table(table)
