"""Tables of who may become a runner, and of the certificates that were given out."""

import sqlalchemy as sa

from forgeyard.store.table_parts import metadata, number, text

enrolments = sa.Table(
    "enrolments",
    metadata,
    sa.Column("enrolment_id", sa.Text, primary_key=True),
    sa.Column("binding", sa.Text, nullable=False, unique=True),  # what it is for, in one line
    text("runner_name"),
    text("mark"),  # by which its token is known again; the token is stored nowhere
    text("grants"),  # Grant, JSON
    number("needs_approval", default=0),
    number("window_ms"),
    number("created_at"),
    number("opens_at", nullable=True),  # not set: the machine has not been seen yet
    number("approved_at", nullable=True),
    number("cancelled_at", nullable=True),
    number("used_at", nullable=True),
    text("key", nullable=True),  # the name of the public key that came with its token
    text("runner_id", nullable=True),
    number("alarmed_at", nullable=True),  # its token came again, with another key
    number("refusals", default=0),  # how often who came did not prove to be the machine meant
)

enrolled_machines = sa.Table(
    "enrolled_machines",
    metadata,
    sa.Column("machine", sa.Text, primary_key=True),  # cloud, account, region and instance
    text("enrolment_id"),  # for which it came; it comes for no other one
    number("launched_at"),
)

certificates = sa.Table(
    "certificates",
    metadata,
    sa.Column("serial", sa.Text, primary_key=True),
    text("runner_id"),
    text("enrolment_id"),
    number("generation"),
    text("key"),  # the name of its public key
    text("pem"),  # itself and its issuer's
    number("issued_at"),
    number("ends_at"),
    number("replaced_at", nullable=True),  # when the next one of its runner was given out
    number("revoked_at", nullable=True),
    text("revoked_reason", nullable=True),
    sa.Index("ix_certificates_runner_id", "runner_id"),
    sa.Index("ix_certificates_ends_at", "ends_at"),
    sa.Index("ix_certificates_enrolment_id", "enrolment_id"),
    sa.UniqueConstraint("key"),
)
