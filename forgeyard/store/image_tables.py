"""Tables of the images that machines boot, of names for them, and of how they reach fleets."""

import sqlalchemy as sa

from forgeyard.store.table_parts import metadata, number, text

runner_images = sa.Table(
    "runner_images",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    text("state"),  # ImageState
    number("version", default=1),
    text("state_reason", default=""),
    text("severity", nullable=True),  # ImageSeverity, of one that is compromised
    text("image"),  # RunnerImage, JSON: references and provenance
    number("created_at"),
    number("changed_at"),
)

image_aliases = sa.Table(
    "image_aliases",
    metadata,
    sa.Column("alias", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, sa.ForeignKey("runner_images.digest"), nullable=False),
    number("changed_at"),
)

fleet_rollouts = sa.Table(
    "fleet_rollouts",
    metadata,
    sa.Column("rollout_id", sa.Text, primary_key=True),
    sa.Column("fleet_id", sa.Text, sa.ForeignKey("fleets.fleet_id"), nullable=False),
    number("live", nullable=True, default=1),  # NULL once it is over
    text("image"),
    text("before"),  # the image that the fleet had
    text("state"),  # RolloutState
    number("version", default=1),
    text("state_reason", default=""),
    number("paused", default=0),
    text("pause_reason", default=""),
    number("stage_at"),  # when it came into its state
    number("tended_at", default=0),  # when its workflow last looked
    number("created_at"),
    number("ended_at", nullable=True),
    sa.UniqueConstraint("fleet_id", "live"),  # one at a time
)
