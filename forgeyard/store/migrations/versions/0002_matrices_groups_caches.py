"""Matrices, concurrency groups, git sources, counts of tests and dependency caches."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _number(name: str, *, nullable: bool = False, default: int | None = None) -> sa.Column[int]:
    value = None if default is None else sa.text(str(default))
    return sa.Column(name, sa.BigInteger(), nullable=nullable, server_default=value)


def upgrade() -> None:
    """Add what is new; a run that exists waits for no other one."""
    op.add_column("runs", _text("git", nullable=True))
    op.add_column("runs", _text("concurrency_group", nullable=True))
    op.add_column("runs", _number("cancel_in_progress", default=0))
    op.add_column("runs", _number("ready_at", nullable=True))
    op.execute("UPDATE runs SET ready_at = created_at")
    op.create_index("ix_runs_concurrency_group_state", "runs", ["concurrency_group", "state"])
    op.add_column("jobs", _text("matrix", nullable=True))
    op.add_column("jobs", _number("fail_fast", default=0))
    op.add_column("jobs", _number("max_parallel", nullable=True))
    op.add_column("attempts", _text("tests", nullable=True))
    op.create_table(
        "concurrency_groups",
        _text("group_name"),
        sa.PrimaryKeyConstraint("group_name", name="pk_concurrency_groups"),
    )
    op.create_table(
        "caches",
        _text("trust"),
        _text("cache_key"),
        _text("name"),
        _text("digest"),
        _number("size_bytes"),
        _number("created_at"),
        _number("used_at"),
        sa.PrimaryKeyConstraint("trust", "cache_key", name="pk_caches"),
    )
    op.create_index("ix_caches_used_at", "caches", ["used_at"])
    op.create_index("ix_caches_digest", "caches", ["digest"])


def downgrade() -> None:
    """Take it away again."""
    op.drop_table("caches")
    op.drop_table("concurrency_groups")
    with op.batch_alter_table("attempts") as attempts:
        attempts.drop_column("tests")
    with op.batch_alter_table("jobs") as jobs:
        jobs.drop_column("max_parallel")
        jobs.drop_column("fail_fast")
        jobs.drop_column("matrix")
    with op.batch_alter_table("runs") as runs:
        runs.drop_index("ix_runs_concurrency_group_state")
        runs.drop_column("ready_at")
        runs.drop_column("cancel_in_progress")
        runs.drop_column("concurrency_group")
        runs.drop_column("git")
