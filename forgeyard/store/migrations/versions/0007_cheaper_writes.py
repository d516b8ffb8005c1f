"""Cheaper writes: an index that nobody reads is gone, one covers few rows, pages keep room."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_ROOM = {"jobs": 60, "cycle_plan": 60, "runners": 70, "attempts": 70, "leases": 70}
"""Per cent of a page that are filled: a row that changes stays in its page."""
_REUSING = sa.text("reused_from IS NOT NULL")


def upgrade() -> None:
    """Index less; new pages of PostgreSQL keep room for new versions of their rows."""
    op.drop_index("ix_cycle_plan_job_id", "cycle_plan")
    op.drop_index("ix_jobs_reused_from", "jobs")
    op.create_index(
        "ix_jobs_reused_from",
        "jobs",
        ["reused_from"],
        postgresql_where=_REUSING,
        sqlite_where=_REUSING,
    )
    if op.get_context().dialect.name == "postgresql":
        for table, percent in _ROOM.items():
            op.execute(f"ALTER TABLE {table} SET (fillfactor = {percent})")


def downgrade() -> None:
    """Index as before, and fill pages."""
    if op.get_context().dialect.name == "postgresql":
        for table in _ROOM:
            op.execute(f"ALTER TABLE {table} RESET (fillfactor)")
    op.drop_index("ix_jobs_reused_from", "jobs")
    op.create_index("ix_jobs_reused_from", "jobs", ["reused_from"])
    op.create_index("ix_cycle_plan_job_id", "cycle_plan", ["job_id"])
