"""The history is indexed by run; by entity only what belongs to no run."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_NO_RUN = sa.text("run_id IS NULL")


def upgrade() -> None:
    """Index few lines by entity: nobody asks for those of jobs, attempts and leases that way."""
    op.drop_index("ix_history_kind_entity_id", "history")
    op.create_index(
        "ix_history_of_no_run",
        "history",
        ["entity_id"],
        postgresql_where=_NO_RUN,
        sqlite_where=_NO_RUN,
    )


def downgrade() -> None:
    """Index as before."""
    op.drop_index("ix_history_of_no_run", "history")
    op.create_index("ix_history_kind_entity_id", "history", ["kind", "entity_id"])
