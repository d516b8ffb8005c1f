"""Shares, quotas and pauses of scopes; pools; keys; devices; held room; parked classes."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

LONGEST = 4_800_000
"""The three default timeouts of a job, added up."""
DIMENSIONS = ("cpu_milli", "memory_bytes", "disk_bytes", "slots")
_OF_SCOPES = ("weight", "burst_percent", "paused", "finish_tag", "clock")
_LIMITS = ("max_jobs", "max_cpu_milli", "max_memory_bytes")
_OF_JOBS = (
    *("preempted_at", "has_inputs", "lasts_ms", "adjustment"),
    *("scheduling_class", "wishes"),
)
_PATH = ("organization_id", "project_id")
_HOLDERS = {
    "tenant_id": "tnt_default",
    "organization_id": "org_default",
    "project_id": "prj_default",
    "queue_id": "que_default",
    "pool_id": "pol_default",
}


def _text(name: str, *, nullable: bool = False, default: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable, server_default=default)


def _number(name: str, *, nullable: bool = False, default: int | None = None) -> sa.Column[int]:
    value = None if default is None else sa.text(str(default))
    return sa.Column(name, sa.BigInteger(), nullable=nullable, server_default=value)


def upgrade() -> None:
    """Add what is new; what exists belongs to the default scopes and holds no device."""
    _grow_scopes()
    _grow_jobs()
    _grow_leases()
    _grow_reservations()
    _grow_runners()
    op.add_column("cycles", _text("pressure", default=""))
    op.add_column("cycles", _text("backfill", nullable=True))
    _create_pools()
    _create_holds()
    _create_parking()


def _grow_scopes() -> None:
    for name in _OF_SCOPES:
        op.add_column("scopes", _number(name, default=1 if name == "weight" else 0))
    for name in _LIMITS:
        op.add_column("scopes", _number(name, nullable=True))
    op.add_column("scopes", _text("note", nullable=True))
    op.execute(
        "INSERT INTO scopes (scope_id, level, kind, name, parent_id)"
        " VALUES ('scp_root', -1, 'root', 'everything', NULL)"
    )
    op.execute("UPDATE scopes SET parent_id = 'scp_root' WHERE level = 0")


def _grow_jobs() -> None:
    op.add_column("jobs", _text("organization_id", default="org_default"))
    op.add_column("jobs", _text("project_id", default="prj_default"))
    op.add_column("jobs", _text("wishes", default="{}"))
    op.add_column("jobs", _text("scheduling_class", nullable=True))
    op.add_column("jobs", _number("adjustment", default=0))
    op.add_column("jobs", _number("lasts_ms", default=LONGEST))
    op.add_column("jobs", _number("has_inputs", default=1))
    op.add_column("jobs", _number("preempted_at", nullable=True))
    op.add_column("leases", _text("preempted_for", nullable=True))


def _grow_leases() -> None:
    op.add_column("leases", _text("charged", nullable=True))


def _grow_reservations() -> None:
    for name, default in _HOLDERS.items():
        op.add_column("reservations", _text(name, default=default))
    op.add_column("reservations", _number("ends_by", default=0))


def _grow_runners() -> None:
    op.add_column("runners", _text("location", default="{}"))
    op.add_column("attempts", _text("pool_id", default="pol_default"))
    op.add_column("runners", _number("declared_unhealthy", default=0))
    op.add_column("runners", _text("declared_reason", nullable=True))
    op.add_column("runners", _text("pool_wish", default=""))
    op.add_column("runners", _text("holdings", nullable=True))
    op.add_column("runners", _text("health", default="healthy"))
    op.add_column("runners", _text("health_reason", nullable=True))
    op.add_column("runners", _number("penalty", default=0))
    op.add_column("runners", _number("penalty_at", default=0))
    op.add_column("runners", _number("reported_at", default=0))
    op.add_column("runners", _number("changed_at", default=0))
    op.execute("UPDATE runners SET reported_at = registered_at")
    op.create_index("ix_runners_changed_at", "runners", ["changed_at"])


def _create_pools() -> None:
    op.create_table(
        "pools",
        _text("pool_id"),
        _text("name"),
        _number("version", default=1),
        _text("owner_id", nullable=True),
        _text("trust", nullable=True),
        _text("sharing", default="shared"),
        _number("spillover", default=0),
        _text("state", default="open"),
        _text("reason", nullable=True),
        _number("created_at"),
        sa.PrimaryKeyConstraint("pool_id", name="pk_pools"),
        sa.UniqueConstraint("name", name="uq_pools_name"),
    )
    op.execute("INSERT INTO pools (pool_id, name, created_at) VALUES ('pol_default', 'default', 0)")
    op.create_table(
        "maintenance_windows",
        _text("window_id"),
        _text("pool_id"),
        _number("starts_at"),
        _number("ends_at"),
        _text("reason"),
        _text("actor"),
        sa.PrimaryKeyConstraint("window_id", name="pk_maintenance_windows"),
    )
    op.create_index("ix_maintenance_windows_pool_id", "maintenance_windows", ["pool_id"])


def _create_holds() -> None:
    op.create_table(
        "key_holds",
        _text("key_name"),
        _text("lease_id"),
        _text("job_id"),
        sa.PrimaryKeyConstraint("key_name", name="pk_key_holds"),
    )
    op.create_index("ix_key_holds_lease_id", "key_holds", ["lease_id"])
    op.create_table(
        "device_holds",
        _text("lease_id"),
        _text("device_id"),
        _text("runner_id"),
        _number("share"),
        sa.PrimaryKeyConstraint("lease_id", "device_id", name="pk_device_holds"),
    )
    op.create_index("ix_device_holds_runner_id", "device_holds", ["runner_id"])
    op.create_index(
        "ux_device_holds_whole",
        "device_holds",
        ["runner_id", "device_id"],
        unique=True,
        postgresql_where=sa.text("share = 1000"),
        sqlite_where=sa.text("share = 1000"),
    )
    op.add_column("cycle_plan", _text("devices", nullable=True))
    op.create_table(
        "habits",
        _text("project_id"),
        _text("run_name"),
        _text("job_name"),
        _text("what"),
        _text("value"),
        _number("noted_at"),
        sa.PrimaryKeyConstraint("project_id", "run_name", "job_name", "what", name="pk_habits"),
    )
    op.create_index("ix_habits_job_name", "habits", ["job_name"])
    op.create_table(
        "held_room",
        _text("job_id"),
        _text("kind"),
        _text("partition"),
        _text("runner_id"),
        *(_number(name) for name in DIMENSIONS),
        _number("since_at"),
        _number("deadline_at"),
        sa.PrimaryKeyConstraint("job_id", name="pk_held_room"),
    )
    op.create_index("ix_held_room_runner_id", "held_room", ["runner_id"])


def _create_parking() -> None:
    op.create_table(
        "service_health",
        _text("service"),
        _text("problem"),
        _number("since_at"),
        sa.PrimaryKeyConstraint("service", name="pk_service_health"),
    )
    op.create_table(
        "generations",
        _text("name"),
        _number("value", default=0),
        sa.PrimaryKeyConstraint("name", name="pk_generations"),
    )
    op.create_table(
        "parked_classes",
        _text("partition"),
        _text("requirement_class"),
        _number("generation"),
        _text("diagnosis"),
        _number("since_at"),
        _number("until_at", nullable=True),
        sa.PrimaryKeyConstraint("partition", "requirement_class", name="pk_parked_classes"),
    )
    op.drop_index("ix_jobs_state_partition", "jobs")
    op.create_index(
        "ix_jobs_state_partition_class", "jobs", ["state", "partition", "requirement_class"]
    )
    op.create_index(
        "ix_jobs_class_queue_leased_at", "jobs", ["requirement_class", "queue_id", "leased_at"]
    )
    op.create_index("ix_jobs_queue_name", "jobs", ["queue_id", "name", "job_id"])


def downgrade() -> None:
    """Take it away again."""
    for name in ("queue_name", "class_queue_leased_at", "state_partition_class"):
        op.drop_index(f"ix_jobs_{name}", "jobs")
    op.create_index("ix_jobs_state_partition", "jobs", ["state", "partition"])
    for table in (
        "service_health",
        "parked_classes",
        "generations",
        "held_room",
        "habits",
        "device_holds",
        "key_holds",
        "maintenance_windows",
        "pools",
    ):
        op.drop_table(table)
    with op.batch_alter_table("attempts") as attempts:
        attempts.drop_column("pool_id")
    with op.batch_alter_table("cycle_plan") as cycle_plan:
        cycle_plan.drop_column("devices")
    with op.batch_alter_table("runners") as runners:
        for name in ("pool_wish", "declared_reason", "declared_unhealthy"):
            runners.drop_column(name)
        runners.drop_index("ix_runners_changed_at")
        for name in (
            "changed_at",
            "reported_at",
            "penalty_at",
            "penalty",
            "health_reason",
            "health",
            "holdings",
            "location",
        ):
            runners.drop_column(name)
    with op.batch_alter_table("leases") as leases:
        leases.drop_column("charged")
    with op.batch_alter_table("reservations") as reservations:
        for name in ("ends_by", *_HOLDERS):
            reservations.drop_column(name)
    with op.batch_alter_table("jobs") as jobs:
        for name in (*_OF_JOBS, *_PATH):
            jobs.drop_column(name)
    with op.batch_alter_table("cycles") as cycles:
        cycles.drop_column("backfill")
        cycles.drop_column("pressure")
    with op.batch_alter_table("leases") as leases:
        leases.drop_column("preempted_for")
    op.execute("UPDATE scopes SET parent_id = NULL WHERE level = 0")
    op.execute("DELETE FROM scopes WHERE scope_id = 'scp_root'")
    with op.batch_alter_table("scopes") as scopes:
        for name in ("note", *_LIMITS, *_OF_SCOPES):
            scopes.drop_column(name)
