"""Tables of the scheduling rule: scopes, pools, cycles, and what is held beside reservations."""

import sqlalchemy as sa

from forgeyard.store.table_parts import SERIAL, metadata, number, text

scopes = sa.Table(
    "scopes",
    metadata,
    sa.Column("scope_id", sa.Text, primary_key=True),
    # -1 root, 0 tenant, 1 organization, 2 project, 3 pool, 4 queue: the order of locks
    number("level"),
    text("kind"),
    text("name"),
    text("parent_id", nullable=True),
    number("version", default=1),
    number("weight", default=1),
    number("burst_percent", default=0),  # how far above its limits it may go while room is idle
    number("paused", default=0),
    number("finish_tag", default=0),  # weighted fair queueing: when its service so far ends
    number("clock", default=0),  # the start tag of the child served last
    number("max_jobs", nullable=True),
    number("max_cpu_milli", nullable=True),
    number("max_memory_bytes", nullable=True),
    text("note", nullable=True),
)

pools = sa.Table(
    "pools",
    metadata,
    sa.Column("pool_id", sa.Text, primary_key=True),  # a scope of level 3, whose limits hold
    sa.Column("name", sa.Text, nullable=False, unique=True),
    number("version", default=1),
    text("owner_id", nullable=True),  # the scope whose jobs it serves; NULL: everybody's
    text("trust", nullable=True),  # the trust class its runners must have; NULL: any
    text("sharing", default="shared"),  # or reserved: for its owner alone
    number("spillover", default=0),  # reserved, but lends what its owner does not use
    text("state", default="open"),  # or draining
    text("reason", nullable=True),
    number("created_at"),
)

maintenance_windows = sa.Table(
    "maintenance_windows",
    metadata,
    sa.Column("window_id", sa.Text, primary_key=True),
    text("pool_id"),
    number("starts_at"),
    number("ends_at"),
    text("reason"),
    text("actor"),
    sa.Index("ix_maintenance_windows_pool_id", "pool_id"),
)

key_holds = sa.Table(
    "key_holds",
    metadata,
    sa.Column("key_name", sa.Text, primary_key=True),  # an exclusivity key: one holder
    text("lease_id"),
    text("job_id"),
    sa.Index("ix_key_holds_lease_id", "lease_id"),
)

device_holds = sa.Table(
    "device_holds",
    metadata,
    sa.Column("lease_id", sa.Text, primary_key=True),
    sa.Column("device_id", sa.Text, primary_key=True),
    text("runner_id"),
    number("share"),  # thousandths; 1000 is the whole device
    sa.Index("ix_device_holds_runner_id", "runner_id"),
    # The grant judges under the runner's lock; this stands behind it, should that ever be wrong.
    sa.Index(
        "ux_device_holds_whole",
        "runner_id",
        "device_id",
        unique=True,
        postgresql_where=sa.text("share = 1000"),
        sqlite_where=sa.text("share = 1000"),
    ),
)

habits = sa.Table(
    "habits",
    metadata,
    # What jobs of one name in runs of one name did last: where they succeeded, or a cache's key.
    sa.Column("project_id", sa.Text, primary_key=True),
    sa.Column("run_name", sa.Text, primary_key=True),
    sa.Column("job_name", sa.Text, primary_key=True),
    sa.Column("what", sa.Text, primary_key=True),
    text("value"),
    number("noted_at"),
    sa.Index("ix_habits_job_name", "job_name"),
)

held_room = sa.Table(
    "held_room",
    metadata,
    sa.Column("job_id", sa.Text, primary_key=True),  # room that nobody but this job may take
    text("kind"),  # backfill, nomination
    text("partition"),
    text("runner_id"),
    number("cpu_milli"),
    number("memory_bytes"),
    number("disk_bytes"),
    number("slots"),
    number("since_at"),
    number("deadline_at"),
    sa.Index("ix_held_room_runner_id", "runner_id"),
)

wakes = sa.Table(
    "wakes",
    metadata,
    sa.Column("partition", sa.Text, primary_key=True),
    number("generation", default=0),
    number("signalled", default=0),  # the generation last told to the loop
    number("signalled_at", default=0),
    text("reason", default=""),
)

cycles = sa.Table(
    "cycles",
    metadata,
    sa.Column("cycle_id", SERIAL, primary_key=True, autoincrement=True),
    text("partition"),
    text("policy_digest"),
    text("snapshot_digest"),
    number("eligible"),
    number("runners"),
    number("planned"),
    number("granted", nullable=True),
    number("created_at"),
    number("committed_at", nullable=True),
    text("pressure", default=""),  # the signals that were up, comma-separated
    text("backfill", nullable=True),  # BackfillWish, JSON: granted after the leases
    sa.Index("ix_cycles_partition_created_at", "partition", "created_at"),
)

placements = sa.Table(
    "cycle_plan",
    metadata,
    sa.Column(
        "cycle_id", SERIAL, sa.ForeignKey("cycles.cycle_id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("position", sa.BigInteger, primary_key=True),
    text("job_id"),
    text("attempt_id"),  # drawn by the plan, so that committing twice cannot make two
    text("lease_id"),
    text("candidates"),  # [[runner_id, score, capability digest]], JSON
    text("devices", nullable=True),  # EquipmentRequirement, JSON: the devices that it wants
    text("verdict", nullable=True),
    text("runner_id", nullable=True),  # the one that got it
    postgresql_with={"fillfactor": 60},  # the verdict is written beside the placement
)

policies = sa.Table(
    "policies",
    metadata,
    # Counted by us, so that two who set a policy at once cannot both have the next number.
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    text("digest"),  # of the document as it stands here
    text("document"),  # SchedulingPolicy, canonical JSON
    text("actor"),
    text("reason"),
    number("created_at"),
)

generations = sa.Table(
    "generations",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),  # `fleet`: grows when a never may become a yes
    number("value", default=0),
)

parked_classes = sa.Table(
    "parked_classes",
    metadata,
    sa.Column("partition", sa.Text, primary_key=True),
    # Its jobs are not looked at while the generation is the one that it saw.
    sa.Column("requirement_class", sa.Text, primary_key=True),
    number("generation"),
    text("diagnosis"),
    number("since_at"),
    number("until_at", nullable=True),  # when a plan found it to be possible after all
)

service_health = sa.Table(
    "service_health",
    metadata,
    sa.Column("service", sa.Text, primary_key=True),  # `blobs`: a row while something is wrong
    text("problem"),
    number("since_at"),
)
