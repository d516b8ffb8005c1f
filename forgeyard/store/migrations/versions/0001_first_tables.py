"""Every table of the first release, and the default scope of each level."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
SCOPES = (
    ("tnt_default", 0, "tenant", None),
    ("org_default", 1, "organization", "tnt_default"),
    ("prj_default", 2, "project", "org_default"),
    ("pol_default", 3, "pool", "tnt_default"),
    ("que_default", 4, "queue", "prj_default"),
)


def _text(name: str, *, nullable: bool = False, default: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable, server_default=default)


def _number(name: str, *, nullable: bool = False, default: int | None = None) -> sa.Column[int]:
    value = None if default is None else sa.text(str(default))
    return sa.Column(name, sa.BigInteger(), nullable=nullable, server_default=value)


def _texts(*names: str, nullable: bool = False) -> list[sa.Column[str]]:
    return [_text(name, nullable=nullable) for name in names]


def _numbers(*names: str, nullable: bool = False) -> list[sa.Column[int]]:
    return [_number(name, nullable=nullable) for name in names]


def upgrade() -> None:
    """Create the tables, referred to before referring."""
    _create_audit()
    _create_blobs()
    _create_cycles()
    _create_deadlines()
    _create_history()
    _create_idempotency_keys()
    _create_liveness()
    _create_outbox()
    _create_runners()
    _create_runs()
    _create_scopes()
    _create_wakes()
    _create_agent_sessions()
    _create_cycle_plan()
    _create_jobs()
    _create_attempts()
    _create_job_needs()
    _create_refusals()
    _create_artifacts()
    _create_leases()
    _create_log_chunks()
    _create_reservations()
    _insert_scopes()


def downgrade() -> None:
    """Drop everything, referring before referred to."""
    for table in (
        "reservations",
        "log_chunks",
        "leases",
        "artifacts",
        "refusals",
        "job_needs",
        "attempts",
        "jobs",
        "cycle_plan",
        "agent_sessions",
        "wakes",
        "scopes",
        "runs",
        "runners",
        "outbox",
        "liveness",
        "idempotency_keys",
        "history",
        "deadlines",
        "cycles",
        "blobs",
        "audit",
    ):
        op.drop_table(table)


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("audit_id", SERIAL, nullable=False, autoincrement=True),
        _number("at"),
        *_texts("actor", "channel", "action", "target", "detail"),
        sa.PrimaryKeyConstraint("audit_id", name="pk_audit"),
    )


def _create_blobs() -> None:
    op.create_table(
        "blobs",
        _text("digest"),
        *_numbers("size_bytes", "created_at", "used_at"),
        sa.PrimaryKeyConstraint("digest", name="pk_blobs"),
    )


def _create_cycles() -> None:
    op.create_table(
        "cycles",
        sa.Column("cycle_id", SERIAL, nullable=False, autoincrement=True),
        *_texts("partition", "policy_digest", "snapshot_digest"),
        *_numbers("eligible", "runners", "planned"),
        _number("granted", nullable=True),
        _number("created_at"),
        _number("committed_at", nullable=True),
        sa.PrimaryKeyConstraint("cycle_id", name="pk_cycles"),
    )
    op.create_index("ix_cycles_partition_created_at", "cycles", ["partition", "created_at"])


def _create_deadlines() -> None:
    op.create_table(
        "deadlines",
        *_texts("kind", "entity_id", "partition"),
        _number("due_at"),
        sa.PrimaryKeyConstraint("kind", "entity_id", name="pk_deadlines"),
    )
    op.create_index("ix_deadlines_partition_due_at", "deadlines", ["partition", "due_at"])


def _create_history() -> None:
    op.create_table(
        "history",
        sa.Column("history_id", SERIAL, nullable=False, autoincrement=True),
        *_texts("kind", "entity_id"),
        *_texts("run_id", "before", nullable=True),
        _text("after"),
        _number("version"),
        _text("reason"),
        _number("at"),
        sa.PrimaryKeyConstraint("history_id", name="pk_history"),
    )
    op.create_index("ix_history_kind_entity_id", "history", ["kind", "entity_id"])
    op.create_index("ix_history_run_id", "history", ["run_id"])


def _create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        *_texts("key", "body_digest", "run_id"),
        _number("created_at"),
        sa.PrimaryKeyConstraint("key", name="pk_idempotency_keys"),
    )


def _create_liveness() -> None:
    op.create_table(
        "liveness",
        _text("service"),
        _number("beat_at"),
        _number("gaps", default=0),
        sa.PrimaryKeyConstraint("service", name="pk_liveness"),
    )


def _create_outbox() -> None:
    op.create_table(
        "outbox",
        *_texts("event_id", "stream"),
        _number("sequence"),
        *_texts("kind", "payload"),
        _number("created_at"),
        _number("claimed_until", default=0),
        _number("tries", default=0),
        _number("delivered_at", nullable=True),
        sa.PrimaryKeyConstraint("event_id", name="pk_outbox"),
        sa.UniqueConstraint("stream", "sequence", name="uq_outbox_stream_sequence"),
    )
    op.create_index("ix_outbox_delivered_at_created_at", "outbox", ["delivered_at", "created_at"])


def _create_runners() -> None:
    op.create_table(
        "runners",
        *_texts("runner_id", "name", "state"),
        _number("version", default=1),
        _text("session_id", nullable=True),
        *_texts("pool_id", "trust", "capabilities", "capability_digest"),
        *_numbers(
            "total_cpu_milli",
            "total_memory_bytes",
            "total_disk_bytes",
            "total_slots",
            "headroom_cpu_milli",
            "headroom_memory_bytes",
            "headroom_disk_bytes",
            "headroom_slots",
        ),
        _number("reserved_cpu_milli", default=0),
        _number("reserved_memory_bytes", default=0),
        _number("reserved_disk_bytes", default=0),
        _number("reserved_slots", default=0),
        _text("pressure"),
        _number("drain_requested", default=0),
        _text("drain_reason", nullable=True),
        _number("suspect", default=0),
        *_numbers("registered_at", "last_seen_at"),
        sa.PrimaryKeyConstraint("runner_id", name="pk_runners"),
        sa.CheckConstraint(
            "reserved_cpu_milli >= 0 "
            "AND reserved_memory_bytes >= 0 "
            "AND reserved_disk_bytes >= 0 "
            "AND reserved_slots >= 0",
            name=op.f("ck_runners_reserved_not_negative"),
        ),
        sa.UniqueConstraint("name", name="uq_runners_name"),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        *_texts("run_id", "name", "state"),
        _number("version", default=1),
        *_texts("partition", "tenant_id", "document"),
        *_texts("source_digest", "rerun_of", nullable=True),
        _text("submitted_by"),
        *_numbers("timeout_ms", "open_jobs"),
        _number("failed_jobs", default=0),
        *_texts("ending", "note", nullable=True),
        _number("created_at"),
        *_numbers("started_at", "finished_at", nullable=True),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
    )
    op.create_index("ix_runs_created_at", "runs", ["created_at"])
    op.create_index("ix_runs_source_digest", "runs", ["source_digest"])
    op.create_index("ix_runs_state", "runs", ["state"])


def _create_scopes() -> None:
    op.create_table(
        "scopes",
        _text("scope_id"),
        _number("level"),
        *_texts("kind", "name"),
        _text("parent_id", nullable=True),
        _number("version", default=1),
        sa.PrimaryKeyConstraint("scope_id", name="pk_scopes"),
    )


def _create_wakes() -> None:
    op.create_table(
        "wakes",
        _text("partition"),
        _number("generation", default=0),
        _number("signalled", default=0),
        _number("signalled_at", default=0),
        _text("reason", default=""),
        sa.PrimaryKeyConstraint("partition", name="pk_wakes"),
    )


def _create_agent_sessions() -> None:
    op.create_table(
        "agent_sessions",
        *_texts("session_id", "runner_id", "state"),
        _number("version", default=1),
        _number("losses", default=0),
        *_numbers("opened_at", "last_seen_at"),
        _number("ended_at", nullable=True),
        sa.PrimaryKeyConstraint("session_id", name="pk_agent_sessions"),
        sa.ForeignKeyConstraint(
            ["runner_id"], ["runners.runner_id"], name="fk_agent_sessions_runner_id"
        ),
    )
    op.create_index(
        "ix_agent_sessions_state_last_seen_at", "agent_sessions", ["state", "last_seen_at"]
    )


def _create_cycle_plan() -> None:
    op.create_table(
        "cycle_plan",
        sa.Column("cycle_id", SERIAL, nullable=False),
        _number("position"),
        *_texts("job_id", "attempt_id", "lease_id", "candidates"),
        *_texts("verdict", "runner_id", nullable=True),
        sa.PrimaryKeyConstraint("cycle_id", "position", name="pk_cycle_plan"),
        sa.ForeignKeyConstraint(
            ["cycle_id"], ["cycles.cycle_id"], name="fk_cycle_plan_cycle_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_cycle_plan_job_id", "cycle_plan", ["job_id"])


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        *_texts("job_id", "run_id", "name"),
        _number("position"),
        _text("state"),
        _number("version", default=1),
        *_texts("partition", "tenant_id", "queue_id", "spec", "condition"),
        _number("continue_on_error", default=0),
        *_texts("priority", "requirement_class"),
        *_numbers("cpu_milli", "memory_bytes", "disk_bytes", "slots", "waiting_needs"),
        _number("epoch", default=0),
        _number("attempts_made", default=0),
        _number("attempts_charged", default=0),
        *_texts(
            "cancel_reason", "reused_from", "failure_class", "message", "diagnosis", nullable=True
        ),
        _number("created_at"),
        *_numbers("eligible_at", "leased_at", "finished_at", nullable=True),
        sa.PrimaryKeyConstraint("job_id", name="pk_jobs"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.run_id"], name="fk_jobs_run_id", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("run_id", "name", name="uq_jobs_run_id_name"),
    )
    op.create_index("ix_jobs_reused_from", "jobs", ["reused_from"])
    op.create_index("ix_jobs_state_partition", "jobs", ["state", "partition"])


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        *_texts("attempt_id", "job_id", "run_id", "partition"),
        _number("number"),
        _text("state"),
        _number("version", default=1),
        *_texts("runner_id", "session_id", "capability_digest", "trust", "policy_digest"),
        _number("score"),
        _text("failure_class", nullable=True),
        _number("exit_code", nullable=True),
        *_texts("message", "steps", nullable=True),
        *_numbers(
            "wall_ms",
            "cpu_ms",
            "peak_memory_bytes",
            "bytes_fetched",
            "bytes_uploaded",
            nullable=True,
        ),
        _number("log_bytes", default=0),
        _number("created_at"),
        *_numbers(
            "accepted_at", "started_at", "uploading_at", "finished_at", "settled_at", nullable=True
        ),
        sa.PrimaryKeyConstraint("attempt_id", name="pk_attempts"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name="fk_attempts_job_id", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("job_id", "number", name="uq_attempts_job_id_number"),
    )
    op.create_index("ix_attempts_run_id", "attempts", ["run_id"])


def _create_job_needs() -> None:
    op.create_table(
        "job_needs",
        *_texts("job_id", "need_id"),
        _number("position"),
        sa.PrimaryKeyConstraint("job_id", "need_id", name="pk_job_needs"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name="fk_job_needs_job_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_job_needs_need_id", "job_needs", ["need_id"])


def _create_refusals() -> None:
    op.create_table(
        "refusals",
        *_texts("job_id", "runner_id", "reason"),
        _number("until_at"),
        sa.PrimaryKeyConstraint("job_id", "runner_id", name="pk_refusals"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name="fk_refusals_job_id", ondelete="CASCADE"
        ),
    )


def _create_artifacts() -> None:
    op.create_table(
        "artifacts",
        *_texts("attempt_id", "name", "job_id", "run_id", "path", "digest"),
        *_numbers("size_bytes", "created_at"),
        sa.PrimaryKeyConstraint("attempt_id", "name", name="pk_artifacts"),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.attempt_id"],
            name="fk_artifacts_attempt_id",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_artifacts_digest", "artifacts", ["digest"])
    op.create_index("ix_artifacts_job_id", "artifacts", ["job_id"])
    op.create_index("ix_artifacts_run_id", "artifacts", ["run_id"])


def _create_leases() -> None:
    op.create_table(
        "leases",
        *_texts("lease_id", "attempt_id", "job_id", "runner_id", "session_id"),
        _number("epoch"),
        _text("state"),
        _number("version", default=1),
        _number("cancel_requested", default=0),
        *_numbers("grace_ms", "offered_at"),
        _number("accepted_at", nullable=True),
        _number("expires_at"),
        _number("ended_at", nullable=True),
        sa.PrimaryKeyConstraint("lease_id", name="pk_leases"),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.attempt_id"], name="fk_leases_attempt_id", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("attempt_id", name="uq_leases_attempt_id"),
        sa.UniqueConstraint("job_id", "epoch", name="uq_leases_job_id_epoch"),
    )
    op.create_index("ix_leases_session_id_state", "leases", ["session_id", "state"])
    op.create_index("ix_leases_state_expires_at", "leases", ["state", "expires_at"])


def _create_log_chunks() -> None:
    op.create_table(
        "log_chunks",
        _text("attempt_id"),
        _number("sequence"),
        _text("step"),
        _number("at"),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", "sequence", name="pk_log_chunks"),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.attempt_id"],
            name="fk_log_chunks_attempt_id",
            ondelete="CASCADE",
        ),
    )


def _create_reservations() -> None:
    op.create_table(
        "reservations",
        *_texts("lease_id", "runner_id"),
        *_numbers("cpu_milli", "memory_bytes", "disk_bytes", "slots"),
        sa.PrimaryKeyConstraint("lease_id", name="pk_reservations"),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.lease_id"], name="fk_reservations_lease_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_reservations_runner_id", "reservations", ["runner_id"])


def _insert_scopes() -> None:
    columns = (_text("scope_id"), _number("level"), _text("kind"), _text("name"))
    scopes = sa.table("scopes", *columns, _text("parent_id", nullable=True))
    rows = [
        {"scope_id": key, "level": level, "kind": kind, "name": "default", "parent_id": parent}
        for key, level, kind, parent in SCOPES
    ]
    op.bulk_insert(scopes, rows)
