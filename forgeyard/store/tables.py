"""Table definitions, shared by queries and migrations; those of the rule are `rule_tables`."""

import sqlalchemy as sa

from forgeyard.store import fleet_tables, image_tables
from forgeyard.store.lineage_tables import lineage, store_claims, store_marks
from forgeyard.store.people_tables import api_tokens, audit, audit_chain, blob_owners
from forgeyard.store.rule_tables import (
    cycles,
    device_holds,
    generations,
    habits,
    held_room,
    key_holds,
    maintenance_windows,
    parked_classes,
    placements,
    policies,
    pools,
    scopes,
    service_health,
    wakes,
)
from forgeyard.store.table_parts import SERIAL, metadata, number, text
from forgeyard.store.trust_tables import certificates, enrolled_machines, enrolments

__all__ = [
    "api_tokens",
    "artifacts",
    "attempts",
    "audit",
    "audit_chain",
    "blob_owners",
    "blobs",
    "caches",
    "certificates",
    "concurrency_groups",
    "cycles",
    "deadlines",
    "device_holds",
    "enrolled_machines",
    "enrolments",
    "findings",
    "fleet_tables",
    "generations",
    "habits",
    "held_room",
    "history",
    "idempotency",
    "image_tables",
    "job_needs",
    "jobs",
    "key_holds",
    "leases",
    "lineage",
    "liveness",
    "log_chunks",
    "maintenance_windows",
    "metadata",
    "outbox",
    "parked_classes",
    "placements",
    "policies",
    "pools",
    "refusals",
    "reservations",
    "runners",
    "runs",
    "schema_floors",
    "scopes",
    "service_health",
    "sessions",
    "store_claims",
    "store_marks",
    "wakes",
]

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    text("name"),
    text("state"),
    number("version", default=1),
    text("partition"),
    text("tenant_id"),
    text("document"),  # the run file as submitted, JSON
    text("source_digest", nullable=True),
    text("git", nullable=True),  # GitSource, JSON: where the source came from
    text("concurrency_group", nullable=True),
    number("cancel_in_progress", default=0),
    text("rerun_of", nullable=True),
    text("submitted_by"),
    number("timeout_ms"),
    number("open_jobs"),  # jobs not yet in a final state
    number("failed_jobs", default=0),  # final, not good, and not continue_on_error
    text("ending", nullable=True),  # why it is being cancelled: user, timeout, superseded
    text("note", nullable=True),
    number("created_at"),
    number("ready_at", nullable=True),  # NULL: it waits for another run of its group
    number("started_at", nullable=True),
    number("finished_at", nullable=True),
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
    text("name"),
    number("position"),
    text("state"),
    number("version", default=1),
    text("partition"),
    text("tenant_id"),
    text("queue_id"),
    text("spec"),  # JobSpec, JSON
    text("condition"),
    number("continue_on_error", default=0),
    text("matrix", nullable=True),  # the job of the run file of which this is one cell
    number("fail_fast", default=0),
    number("max_parallel", nullable=True),
    text("priority"),
    text("requirement_class"),  # digest of requirements and resources
    number("cpu_milli"),
    number("memory_bytes"),
    number("disk_bytes"),
    number("slots"),
    number("waiting_needs"),  # needs that have not ended
    number("epoch", default=0),  # of the last grant; grows with every one
    number("attempts_made", default=0),  # numbers given out
    number("attempts_charged", default=0),  # those that count against the retry budget
    text("cancel_reason", nullable=True),  # set: never lease again
    text("reused_from", nullable=True),  # the job of an earlier run whose success this one takes
    text("failure_class", nullable=True),
    text("message", nullable=True),
    text("diagnosis", nullable=True),  # why it waits, JSON, latest only (DIA-017)
    number("created_at"),
    number("eligible_at", nullable=True),
    number("leased_at", nullable=True),
    number("finished_at", nullable=True),
    text("organization_id", default="org_default"),
    text("project_id", default="prj_default"),
    text("wishes", default="{}"),  # Wishes, JSON: what is its own and decides about its place
    text("scheduling_class", nullable=True),  # as wished; NULL: the one its priority implies
    number("adjustment", default=0),  # of its priority, by policy or an operator
    number("lasts_ms", default=4_800_000),  # its timeouts on a runner, added up
    number("has_inputs", default=1),  # its runner must fetch something first
    number("preempted_at", nullable=True),  # when it was last stopped for another job
    sa.UniqueConstraint("run_id", "name"),
    sa.Index("ix_jobs_state_partition_class", "state", "partition", "requirement_class"),
    sa.Index("ix_jobs_class_queue_leased_at", "requirement_class", "queue_id", "leased_at"),
    sa.Index("ix_jobs_queue_name", "queue_id", "name", "job_id"),
    sa.Index(
        "ix_jobs_reused_from",
        "reused_from",
        postgresql_where=sa.text("reused_from IS NOT NULL"),
        sqlite_where=sa.text("reused_from IS NOT NULL"),
    ),
    postgresql_with={"fillfactor": 60},  # a row that changes stays in its page
)

job_needs = sa.Table(
    "job_needs",
    metadata,
    sa.Column(
        "job_id", sa.Text, sa.ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("need_id", sa.Text, primary_key=True),
    number("position"),
    sa.Index("ix_job_needs_need_id", "need_id"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("attempt_id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text, sa.ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    text("run_id"),
    text("partition"),
    number("number"),
    text("state"),
    number("version", default=1),
    text("runner_id"),
    text("session_id"),
    text("capability_digest"),
    text("trust"),
    text("policy_digest"),
    text("pool_id", default="pol_default"),
    number("score"),
    text("failure_class", nullable=True),
    number("exit_code", nullable=True),
    text("message", nullable=True),
    text("steps", nullable=True),  # [StepResult], JSON
    text("tests", nullable=True),  # TestCounts, JSON
    number("wall_ms", nullable=True),
    number("cpu_ms", nullable=True),
    number("peak_memory_bytes", nullable=True),
    number("bytes_fetched", nullable=True),
    number("bytes_uploaded", nullable=True),
    number("log_bytes", default=0),
    number("created_at"),
    number("accepted_at", nullable=True),
    number("started_at", nullable=True),
    number("uploading_at", nullable=True),
    number("finished_at", nullable=True),
    number("settled_at", nullable=True),
    sa.UniqueConstraint("job_id", "number"),
    sa.Index("ix_attempts_run_id", "run_id"),
    postgresql_with={"fillfactor": 70},
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
    text("job_id"),
    text("runner_id"),
    text("session_id"),
    number("epoch"),
    text("state"),
    number("version", default=1),
    number("cancel_requested", default=0),
    number("grace_ms"),
    number("offered_at"),
    number("accepted_at", nullable=True),
    number("expires_at"),  # of the offer, then of the execution; this is its deadline row
    number("ended_at", nullable=True),
    text("preempted_for", nullable=True),  # the job for which its runner is being cleared
    number("unreported_since", nullable=True),  # no heartbeat of its runner has named it since
    text("charged", nullable=True),  # [Charge], JSON: what its scopes give back if it is refused
    sa.UniqueConstraint("attempt_id"),
    sa.UniqueConstraint("job_id", "epoch"),
    sa.Index("ix_leases_state_expires_at", "state", "expires_at"),
    sa.Index("ix_leases_session_id_state", "session_id", "state"),
    postgresql_with={"fillfactor": 70},
)

reservations = sa.Table(
    "reservations",
    metadata,
    sa.Column(
        "lease_id", sa.Text, sa.ForeignKey("leases.lease_id", ondelete="CASCADE"), primary_key=True
    ),
    text("runner_id"),
    number("cpu_milli"),
    number("memory_bytes"),
    number("disk_bytes"),
    number("slots"),
    # Whose it is, so that what a scope uses is a sum over its rows.
    text("tenant_id", default="tnt_default"),
    text("organization_id", default="org_default"),
    text("project_id", default="prj_default"),
    text("queue_id", default="que_default"),
    text("pool_id", default="pol_default"),
    number("ends_by", default=0),  # when it is given back at the latest
    sa.Index("ix_reservations_runner_id", "runner_id"),
)

runners = sa.Table(
    "runners",
    metadata,
    sa.Column("runner_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    text("state"),  # RunnerState
    number("version", default=1),
    text("session_id", nullable=True),
    text("pool_id"),
    text("trust"),
    text("capabilities"),  # Capabilities, JSON
    text("capability_digest"),
    *(number(f"total_{name}") for name in ("cpu_milli", "memory_bytes", "disk_bytes", "slots")),
    *(number(f"headroom_{name}") for name in ("cpu_milli", "memory_bytes", "disk_bytes", "slots")),
    *(
        number(f"reserved_{name}", default=0)
        for name in ("cpu_milli", "memory_bytes", "disk_bytes", "slots")
    ),
    text("pressure"),
    number("drain_requested", default=0),  # an operator's wish; outlives sessions
    text("drain_reason", nullable=True),
    number("declared_unhealthy", default=0),  # by an operator, whatever its agent says
    text("declared_reason", nullable=True),
    text("pool_wish", default=""),  # the pool that its agent asks for; an operator assigns it
    number("suspect", default=0),
    number("registered_at"),
    number("last_seen_at"),
    text("location", default="{}"),  # Location, JSON
    text("holdings", nullable=True),  # what it has in its caches, JSON, as last reported
    text("health", default="healthy"),  # RunnerHealth
    text("health_reason", nullable=True),
    number("penalty", default=0),  # for losses and failures of its own, as of `penalty_at`
    number("penalty_at", default=0),
    number("reported_at", default=0),  # when its capability report came
    number("changed_at", default=0),  # of anything that a snapshot looks at
    text("admission", default="verified"),  # Admission; by a token of the data directory, at once
    text("admission_reason", nullable=True),
    text("enrolment_id", nullable=True),  # which gave it its trust
    number("jobs_left", nullable=True),  # leases it may still have, if they are counted
    number("freed_at", default=0),  # when a lease of its ended last
    number("distrusted_from", nullable=True),  # what it has left behind since then is not used
    text("distrusted_reason", nullable=True),
    number("retired_at", nullable=True),  # when the machine of a fleet that it was on had ended
    sa.Index("ix_runners_changed_at", "changed_at"),
    sa.CheckConstraint(
        "reserved_cpu_milli >= 0 AND reserved_memory_bytes >= 0"
        " AND reserved_disk_bytes >= 0 AND reserved_slots >= 0",
        name="reserved_not_negative",
    ),
    postgresql_with={"fillfactor": 70},
)

sessions = sa.Table(
    "agent_sessions",
    metadata,
    sa.Column("session_id", sa.Text, primary_key=True),
    sa.Column("runner_id", sa.Text, sa.ForeignKey("runners.runner_id"), nullable=False),
    text("state"),
    number("version", default=1),
    number("losses", default=0),
    number("opened_at"),
    number("last_seen_at"),
    number("ended_at", nullable=True),
    sa.Index("ix_agent_sessions_state_last_seen_at", "state", "last_seen_at"),
)

refusals = sa.Table(
    "refusals",
    metadata,
    sa.Column(
        "job_id", sa.Text, sa.ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("runner_id", sa.Text, primary_key=True),
    text("reason"),
    number("until_at"),
)

history = sa.Table(
    "history",
    metadata,
    sa.Column("history_id", SERIAL, primary_key=True, autoincrement=True),
    text("kind"),  # run, job, attempt, lease, session, runner
    text("entity_id"),
    text("run_id", nullable=True),
    text("before", nullable=True),
    text("after"),
    number("version"),
    text("reason"),
    number("at"),
    sa.Index(
        "ix_history_of_no_run",
        "entity_id",
        postgresql_where=sa.text("run_id IS NULL"),
        sqlite_where=sa.text("run_id IS NULL"),
    ),
    sa.Index("ix_history_run_id", "run_id"),
)

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("event_id", sa.Text, primary_key=True),
    text("stream"),  # the attempt's id
    number("sequence"),
    text("kind"),  # lease.granted, attempt.finished, job.cancel_requested
    text("payload"),
    number("created_at"),
    number("claimed_until", default=0),
    number("tries", default=0),
    number("delivered_at", nullable=True),
    sa.UniqueConstraint("stream", "sequence"),
    sa.Index("ix_outbox_delivered_at_created_at", "delivered_at", "created_at"),
)

deadlines = sa.Table(
    "deadlines",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("entity_id", sa.Text, primary_key=True),
    text("partition"),
    number("due_at"),
    sa.Index("ix_deadlines_partition_due_at", "partition", "due_at"),
)

blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    number("size_bytes"),
    number("created_at"),
    number("used_at"),
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
    text("job_id"),
    text("run_id"),
    text("path"),
    text("digest"),
    number("size_bytes"),
    number("created_at"),
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
    text("name"),
    text("digest"),
    number("size_bytes"),
    number("created_at"),
    number("used_at"),
    text("runner_id", nullable=True),  # that filled it
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
    text("step"),
    number("at"),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

idempotency = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    text("body_digest"),
    text("run_id"),
    number("created_at"),
)

findings = sa.Table(
    "findings",
    metadata,
    sa.Column("finding_id", SERIAL, primary_key=True, autoincrement=True),
    text("kind"),  # FindingKind
    text("entity"),
    text("found"),  # what was so
    text("expected"),  # what should have been, and is if it was repaired
    text("outcome"),  # repaired, reported, failed
    number("at"),
    number("seen_at"),  # the last time; what was only reported may stand for long
    sa.Index("ix_findings_kind_entity", "kind", "entity"),
    sa.Index("ix_findings_seen_at", "seen_at"),
)

liveness = sa.Table(
    "liveness",
    metadata,
    # `renewal`: any API process that serves it; `sweep/…`, `reconcile/…`: upkeep of a partition
    sa.Column("service", sa.Text, primary_key=True),
    number("beat_at"),
    number("gaps", default=0),  # outages bridged so far
)

schema_floors = sa.Table(
    "schema_floors",
    metadata,
    # A revision that took something away says here which release still runs without it.
    sa.Column("revision", sa.Text, primary_key=True),
)
