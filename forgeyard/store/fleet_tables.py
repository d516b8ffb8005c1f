"""Tables of fleets: what people want of them, the machines that may exist, and what was decided."""

import sqlalchemy as sa

from forgeyard.store.table_parts import metadata, number, text

fleets = sa.Table(
    "fleets",
    metadata,
    sa.Column("fleet_id", sa.Text, primary_key=True),
    text("name"),  # of those that are not deleted, the only one
    number("live", nullable=True, default=1),  # NULL once deleted
    text("spec"),  # FleetSpec, JSON
    text("class_id"),
    text("provider"),
    number("version", default=1),  # of the document
    text("state"),  # FleetState
    text("state_reason", default=""),
    text("health", default="healthy"),  # FleetHealth
    text("health_reason", default=""),
    number("numbered", default=0),  # the last number given to a machine
    number("decisions", default=0),  # the number of the last decision
    number("tended_at", default=0),  # when its reconciler last looked
    number("created_at"),
    number("deleted_at", nullable=True),
    sa.UniqueConstraint("name", "live"),
)

capacity_instances = sa.Table(
    "capacity_instances",
    metadata,
    sa.Column("instance_id", sa.Text, primary_key=True),
    sa.Column("fleet_id", sa.Text, sa.ForeignKey("fleets.fleet_id"), nullable=False),
    number("number"),  # within its fleet, for people
    text("state"),  # CapacityInstanceState
    number("version", default=1),
    text("class_id"),
    text("capacity"),  # CapacityClass, JSON, as it was when it was wanted
    text("offering"),  # Offering, JSON, likewise
    text("provider"),
    text("reason"),  # ScaleReason
    text("made_for", default=""),  # the class of jobs that it was made for
    number("may_exist", default=1),  # 0 only after an inspection has said so
    number("generation", default=1),  # of its operation key: a new one after a token was used up
    text("operation", default="pending"),  # OperationState of the last call to its provider
    text("provider_ref", nullable=True),
    text("runner_name"),
    text("runner_id", nullable=True),
    number("calls", default=0),  # how often its making was asked for
    number("next_at", default=0),  # before which nothing is done about it
    number("due_at", nullable=True),  # when its phase has lasted too long
    number("requested_at"),
    number("running_at", nullable=True),
    number("enrolled_at", nullable=True),
    number("healthy_at", nullable=True),
    number("drained_at", nullable=True),
    number("ending_at", nullable=True),
    number("ended_at", nullable=True),
    text("drain_reason", nullable=True),  # ScaleDownReason
    number("pinned_until", nullable=True),
    text("pin_reason", nullable=True),
    number("interrupted_at", nullable=True),  # when its provider's word was heard
    number("leaves_at", nullable=True),  # when it will be taken away, by that word
    number("warmed_at", nullable=True),  # when its warm-up ended, well or not
    text("warmup", default=""),  # WarmUpOutcome, JSON; empty before that
    text("machine", nullable=True),  # MachineState, as its provider said last
    text("detail", default=""),  # why, in its words
    number("asked_at", default=0),  # when its making or its end was asked for last
    number("looked_at", default=0),
    number("released_at", nullable=True),  # when an operator let a quarantined one go
    number("missing_since", nullable=True),  # not seen by its provider since
    number("sightings", default=0),  # of its absence, one after the other
    text("failure", nullable=True),
    number("tended_until", default=0),  # when its workflow will look again; 0 is at once
    text("image", default=""),  # the digest in its capacity
    text("seen_image", default=""),  # another one, that its provider says it has
    sa.UniqueConstraint("fleet_id", "number"),
    sa.UniqueConstraint("runner_name"),
    sa.Index("ix_capacity_instances_fleet_id_state", "fleet_id", "state"),
    sa.Index("ix_capacity_instances_runner_id", "runner_id"),
    sa.Index("ix_capacity_instances_ended_at", "ended_at"),
    sa.Index("ix_capacity_instances_image", "image"),
)

fleet_decisions = sa.Table(
    "fleet_decisions",
    metadata,
    sa.Column("fleet_id", sa.Text, sa.ForeignKey("fleets.fleet_id"), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    number("at"),
    number("wanted"),
    number("usable"),
    number("launched"),
    number("drained"),
    text("demand_id"),
    text("decision"),  # FleetDecision, JSON
    sa.Index("ix_fleet_decisions_at", "at"),
)

fleet_history = sa.Table(
    "fleet_history",
    metadata,
    sa.Column("fleet_id", sa.Text, sa.ForeignKey("fleets.fleet_id"), primary_key=True),
    sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),  # five minutes from here
    number("needed"),  # the most that demand alone needed in them
    sa.Index("ix_fleet_history_at", "at"),
)

fleet_allocations = sa.Table(
    "fleet_allocations",
    metadata,
    sa.Column("partition", sa.Text, primary_key=True),
    number("version", default=0),  # whoever launches or drains adds one: the lock of all fleets
    number("at", default=0),
    text("demand", default="{}"),  # what people are shown of the last demand, JSON
    text("allocation", default="{}"),  # Allocation, JSON
)

fleet_overrides = sa.Table(
    "fleet_overrides",
    metadata,
    sa.Column("override_id", sa.Text, primary_key=True),
    sa.Column("fleet_id", sa.Text, sa.ForeignKey("fleets.fleet_id"), nullable=False),
    text("override"),  # Override, JSON
    number("expires_at"),
    number("ended_at", nullable=True),
    text("reason"),
    sa.Index("ix_fleet_overrides_fleet_id", "fleet_id"),
)

fleet_reservations = sa.Table(
    "fleet_reservations",
    metadata,
    sa.Column("reservation_id", sa.Text, primary_key=True),
    sa.Column("fleet_id", sa.Text, sa.ForeignKey("fleets.fleet_id"), nullable=False),
    text("reservation"),  # CapacityReservation, JSON
    number("starts_at"),
    number("ends_at"),
    number("cancelled_at", nullable=True),
    text("reason"),
    sa.Index("ix_fleet_reservations_fleet_id", "fleet_id"),
)

provider_breakers = sa.Table(
    "provider_breakers",
    metadata,
    sa.Column("provider", sa.Text, primary_key=True),
    sa.Column("fleet_id", sa.Text, primary_key=True),  # empty: all of the provider
    sa.Column("offering", sa.Text, primary_key=True),  # empty: all of the fleet
    number("failures", default=0),  # one after the other
    number("open_until", default=0),
    text("code", default=""),
    text("text", default=""),
    number("at", default=0),
    number("frozen", default=0),  # by an operator, until he lifts it (FOP-005)
    number("looked_at", default=0),  # when somebody looked at all that the provider has
    # JSON: [Check], what it said of credentials, images and places; of an offering [Price], the
    # last that is known and, if that could not be learned anew, the last answer
    text("checks", default="[]"),
    number("checked_at", default=0),
)

fleet_spend = sa.Table(
    "fleet_spend",
    metadata,
    sa.Column("fleet_id", sa.Text, sa.ForeignKey("fleets.fleet_id"), primary_key=True),
    sa.Column("day", sa.BigInteger, primary_key=True, autoincrement=False),  # since 1970, in UTC
    number("micros", default=0),  # by estimate, for what has run until `counted_at`
    number("counted_at"),
)

provider_sightings = sa.Table(
    "provider_sightings",
    metadata,
    sa.Column("provider", sa.Text, primary_key=True),
    sa.Column("ref", sa.Text, primary_key=True),  # a machine with our tags that no row speaks of
    text("tags"),
    number("first_at"),
    number("last_at"),
    number("sightings", default=1),
    text("verdict"),  # foreign, orphan or ended
)
