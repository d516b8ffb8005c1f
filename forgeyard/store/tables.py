"""Table definitions, shared by queries and migrations.

Instants are epoch milliseconds by the database's clock; every row that has a state has a version.
"""

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)
# SQLite counts rows only in a column declared INTEGER.
SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _text(name: str, *, nullable: bool = False, default: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable, server_default=default)


def _number(name: str, *, nullable: bool = False, default: int | None = None) -> sa.Column[int]:
    value = None if default is None else sa.text(str(default))
    return sa.Column(name, sa.BigInteger, nullable=nullable, server_default=value)


scopes = sa.Table(
    "scopes",
    metadata,
    sa.Column("scope_id", sa.Text, primary_key=True),
    _number("level"),  # 0 tenant, 1 organisation, 2 project, 3 pool, 4 queue: the order of locks
    _text("kind"),
    _text("name"),
    _text("parent_id", nullable=True),
    _number("version", default=1),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    _text("name"),
    _text("state"),
    _number("version", default=1),
    _text("partition"),
    _text("tenant_id"),
    _text("document"),  # the run file as submitted, JSON
    _text("source_digest", nullable=True),
    _text("git", nullable=True),  # GitSource, JSON: where the source came from
    _text("concurrency_group", nullable=True),
    _number("cancel_in_progress", default=0),
    _text("rerun_of", nullable=True),
    _text("submitted_by"),
    _number("timeout_ms"),
    _number("open_jobs"),  # jobs not yet in a final state
    _number("failed_jobs", default=0),  # final, not good, and not continue_on_error
    _text("ending", nullable=True),  # why it is being cancelled: user, timeout, superseded
    _text("note", nullable=True),
    _number("created_at"),
    _number("ready_at", nullable=True),  # NULL: it waits for another run of its group
    _number("started_at", nullable=True),
    _number("finished_at", nullable=True),
    sa.Index("ix_runs_created_at", "created_at"),
    sa.Index("ix_runs_concurrency_group_state", "concurrency_group", "state"),
    sa.Index("ix_runs_state", "state"),
    sa.Index("ix_runs_source_digest", "source_digest"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.run_id", ondelete="CASCADE"), nullable=False),
    _text("name"),
    _number("position"),
    _text("state"),
    _number("version", default=1),
    _text("partition"),
    _text("tenant_id"),
    _text("queue_id"),
    _text("spec"),  # JobSpec, JSON
    _text("condition"),
    _number("continue_on_error", default=0),
    _text("matrix", nullable=True),  # the job of the run file of which this is one cell
    _number("fail_fast", default=0),
    _number("max_parallel", nullable=True),
    _text("priority"),
    _text("requirement_class"),  # digest of requirements and resources
    _number("cpu_milli"),
    _number("memory_bytes"),
    _number("disk_bytes"),
    _number("slots"),
    _number("waiting_needs"),  # needs that have not ended
    _number("epoch", default=0),  # of the last grant; grows with every one
    _number("attempts_made", default=0),  # numbers given out
    _number("attempts_charged", default=0),  # those that count against the retry budget
    _text("cancel_reason", nullable=True),  # set: never lease again
    _text("reused_from", nullable=True),  # the job of an earlier run whose success this one takes
    _text("failure_class", nullable=True),
    _text("message", nullable=True),
    _text("diagnosis", nullable=True),  # why it waits, JSON, latest only (DIA-017)
    _number("created_at"),
    _number("eligible_at", nullable=True),
    _number("leased_at", nullable=True),
    _number("finished_at", nullable=True),
    sa.UniqueConstraint("run_id", "name"),
    sa.Index("ix_jobs_state_partition", "state", "partition"),
    sa.Index("ix_jobs_reused_from", "reused_from"),
)

job_needs = sa.Table(
    "job_needs",
    metadata,
    sa.Column(
        "job_id", sa.Text, sa.ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("need_id", sa.Text, primary_key=True),
    _number("position"),
    sa.Index("ix_job_needs_need_id", "need_id"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("attempt_id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    _text("run_id"),
    _text("partition"),
    _number("number"),
    _text("state"),
    _number("version", default=1),
    _text("runner_id"),
    _text("session_id"),
    _text("capability_digest"),
    _text("trust"),
    _text("policy_digest"),
    _number("score"),
    _text("failure_class", nullable=True),
    _number("exit_code", nullable=True),
    _text("message", nullable=True),
    _text("steps", nullable=True),  # [StepResult], JSON
    _text("tests", nullable=True),  # TestCounts, JSON
    _number("wall_ms", nullable=True),
    _number("cpu_ms", nullable=True),
    _number("peak_memory_bytes", nullable=True),
    _number("bytes_fetched", nullable=True),
    _number("bytes_uploaded", nullable=True),
    _number("log_bytes", default=0),
    _number("created_at"),
    _number("accepted_at", nullable=True),
    _number("started_at", nullable=True),
    _number("uploading_at", nullable=True),
    _number("finished_at", nullable=True),
    _number("settled_at", nullable=True),
    sa.UniqueConstraint("job_id", "number"),
    sa.Index("ix_attempts_run_id", "run_id"),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("lease_id", sa.Text, primary_key=True),
    sa.Column(
        "attempt_id",
        sa.Text,
        sa.ForeignKey("attempts.attempt_id", ondelete="CASCADE"),
        nullable=False,
    ),
    _text("job_id"),
    _text("runner_id"),
    _text("session_id"),
    _number("epoch"),
    _text("state"),
    _number("version", default=1),
    _number("cancel_requested", default=0),
    _number("grace_ms"),
    _number("offered_at"),
    _number("accepted_at", nullable=True),
    _number("expires_at"),  # of the offer, then of the execution; this is its deadline row
    _number("ended_at", nullable=True),
    sa.UniqueConstraint("attempt_id"),
    sa.UniqueConstraint("job_id", "epoch"),
    sa.Index("ix_leases_state_expires_at", "state", "expires_at"),
    sa.Index("ix_leases_session_id_state", "session_id", "state"),
)

reservations = sa.Table(
    "reservations",
    metadata,
    sa.Column(
        "lease_id", sa.Text, sa.ForeignKey("leases.lease_id", ondelete="CASCADE"), primary_key=True
    ),
    _text("runner_id"),
    _number("cpu_milli"),
    _number("memory_bytes"),
    _number("disk_bytes"),
    _number("slots"),
    sa.Index("ix_reservations_runner_id", "runner_id"),
)

runners = sa.Table(
    "runners",
    metadata,
    sa.Column("runner_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    _text("state"),  # RunnerState
    _number("version", default=1),
    _text("session_id", nullable=True),
    _text("pool_id"),
    _text("trust"),
    _text("capabilities"),  # Capabilities, JSON
    _text("capability_digest"),
    *(_number(f"total_{name}") for name in ("cpu_milli", "memory_bytes", "disk_bytes", "slots")),
    *(_number(f"headroom_{name}") for name in ("cpu_milli", "memory_bytes", "disk_bytes", "slots")),
    *(
        _number(f"reserved_{name}", default=0)
        for name in ("cpu_milli", "memory_bytes", "disk_bytes", "slots")
    ),
    _text("pressure"),
    _number("drain_requested", default=0),  # an operator's wish; outlives sessions
    _text("drain_reason", nullable=True),
    _number("suspect", default=0),
    _number("registered_at"),
    _number("last_seen_at"),
    sa.CheckConstraint(
        "reserved_cpu_milli >= 0 AND reserved_memory_bytes >= 0"
        " AND reserved_disk_bytes >= 0 AND reserved_slots >= 0",
        name="reserved_not_negative",
    ),
)

sessions = sa.Table(
    "agent_sessions",
    metadata,
    sa.Column("session_id", sa.Text, primary_key=True),
    sa.Column("runner_id", sa.Text, sa.ForeignKey("runners.runner_id"), nullable=False),
    _text("state"),
    _number("version", default=1),
    _number("losses", default=0),
    _number("opened_at"),
    _number("last_seen_at"),
    _number("ended_at", nullable=True),
    sa.Index("ix_agent_sessions_state_last_seen_at", "state", "last_seen_at"),
)

refusals = sa.Table(
    "refusals",
    metadata,
    sa.Column(
        "job_id", sa.Text, sa.ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("runner_id", sa.Text, primary_key=True),
    _text("reason"),
    _number("until_at"),
)

history = sa.Table(
    "history",
    metadata,
    sa.Column("history_id", SERIAL, primary_key=True, autoincrement=True),
    _text("kind"),  # run, job, attempt, lease, session, runner
    _text("entity_id"),
    _text("run_id", nullable=True),
    _text("before", nullable=True),
    _text("after"),
    _number("version"),
    _text("reason"),
    _number("at"),
    sa.Index("ix_history_kind_entity_id", "kind", "entity_id"),
    sa.Index("ix_history_run_id", "run_id"),
)

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("event_id", sa.Text, primary_key=True),
    _text("stream"),  # the attempt's id
    _number("sequence"),
    _text("kind"),  # lease.granted, attempt.finished, job.cancel_requested
    _text("payload"),
    _number("created_at"),
    _number("claimed_until", default=0),
    _number("tries", default=0),
    _number("delivered_at", nullable=True),
    sa.UniqueConstraint("stream", "sequence"),
    sa.Index("ix_outbox_delivered_at_created_at", "delivered_at", "created_at"),
)

wakes = sa.Table(
    "wakes",
    metadata,
    sa.Column("partition", sa.Text, primary_key=True),
    _number("generation", default=0),
    _number("signalled", default=0),  # the generation last told to the loop
    _number("signalled_at", default=0),
    _text("reason", default=""),
)

deadlines = sa.Table(
    "deadlines",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("entity_id", sa.Text, primary_key=True),
    _text("partition"),
    _number("due_at"),
    sa.Index("ix_deadlines_partition_due_at", "partition", "due_at"),
)

cycles = sa.Table(
    "cycles",
    metadata,
    sa.Column("cycle_id", SERIAL, primary_key=True, autoincrement=True),
    _text("partition"),
    _text("policy_digest"),
    _text("snapshot_digest"),
    _number("eligible"),
    _number("runners"),
    _number("planned"),
    _number("granted", nullable=True),
    _number("created_at"),
    _number("committed_at", nullable=True),
    sa.Index("ix_cycles_partition_created_at", "partition", "created_at"),
)

placements = sa.Table(
    "cycle_plan",
    metadata,
    sa.Column(
        "cycle_id", SERIAL, sa.ForeignKey("cycles.cycle_id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("position", sa.BigInteger, primary_key=True),
    _text("job_id"),
    _text("attempt_id"),  # drawn by the plan, so that committing twice cannot make two
    _text("lease_id"),
    _text("candidates"),  # [[runner_id, score, capability digest]], JSON
    _text("verdict", nullable=True),
    _text("runner_id", nullable=True),  # the one that got it
    sa.Index("ix_cycle_plan_job_id", "job_id"),
)

blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    _number("size_bytes"),
    _number("created_at"),
    _number("used_at"),
)

artifacts = sa.Table(
    "artifacts",
    metadata,
    sa.Column(
        "attempt_id",
        sa.Text,
        sa.ForeignKey("attempts.attempt_id", ondelete="CASCADE"),
        primary_key=True,
    ),
    sa.Column("name", sa.Text, primary_key=True),
    _text("job_id"),
    _text("run_id"),
    _text("path"),
    _text("digest"),
    _number("size_bytes"),
    _number("created_at"),
    sa.Index("ix_artifacts_run_id", "run_id"),
    sa.Index("ix_artifacts_job_id", "job_id"),
    sa.Index("ix_artifacts_digest", "digest"),
)

concurrency_groups = sa.Table(
    "concurrency_groups",
    metadata,
    sa.Column("group_name", sa.Text, primary_key=True),  # a lock, and nothing else
)

caches = sa.Table(
    "caches",
    metadata,
    sa.Column("trust", sa.Text, primary_key=True),  # of the runner that filled it
    sa.Column("cache_key", sa.Text, primary_key=True),
    _text("name"),
    _text("digest"),
    _number("size_bytes"),
    _number("created_at"),
    _number("used_at"),
    sa.Index("ix_caches_used_at", "used_at"),
    sa.Index("ix_caches_digest", "digest"),
)

log_chunks = sa.Table(
    "log_chunks",
    metadata,
    sa.Column(
        "attempt_id",
        sa.Text,
        sa.ForeignKey("attempts.attempt_id", ondelete="CASCADE"),
        primary_key=True,
    ),
    sa.Column("sequence", sa.BigInteger, primary_key=True),
    _text("step"),
    _number("at"),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

idempotency = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    _text("body_digest"),
    _text("run_id"),
    _number("created_at"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("audit_id", SERIAL, primary_key=True, autoincrement=True),
    _number("at"),
    _text("actor"),
    _text("channel"),
    _text("action"),
    _text("target"),
    _text("detail"),
)

policies = sa.Table(
    "policies",
    metadata,
    # Counted by us, so that two who set a policy at once cannot both have the next number.
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("digest"),  # of the document as it stands here
    _text("document"),  # SchedulingPolicy, canonical JSON
    _text("actor"),
    _text("reason"),
    _number("created_at"),
)

liveness = sa.Table(
    "liveness",
    metadata,
    sa.Column("service", sa.Text, primary_key=True),  # `renewal`: any API process that serves it
    _number("beat_at"),
    _number("gaps", default=0),  # outages bridged so far
)
