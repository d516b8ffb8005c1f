"""Tables that tell a store from an older copy of itself: what it is, and the marks it has left."""

import sqlalchemy as sa

from forgeyard.store.table_parts import metadata, number, text

lineage = sa.Table(
    "lineage",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),  # `store`: there is one row
    text("store_id"),  # drawn once; a copy has the same
    number("era", default=0),  # when a restore was last confirmed; 0: never
    number("held_at", nullable=True),  # set: it may be an old one, and nothing is decided
    text("held_reason", nullable=True),
    text("held_by", nullable=True),  # the witness, or the operator
)

store_marks = sa.Table(
    "store_marks",
    metadata,
    sa.Column("value", sa.BigInteger, primary_key=True, autoincrement=False),
    text("token"),  # drawn, so that a mark made after a restore is another than the lost one
    number("at"),
)

store_claims = sa.Table(
    "store_claims",
    metadata,
    sa.Column("lease_id", sa.Text, primary_key=True),  # an agent says that it works for it
    text("session_id"),
    number("at"),
)
