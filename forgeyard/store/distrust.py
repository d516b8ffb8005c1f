"""What runners have left behind that nobody is to build on: their caches, and outputs of jobs.

A mark stands on the runner and says from when on. It covers what comes later, too, and is never
taken off: whoever wants the same again has it made anew.
"""

import sqlalchemy as sa

from forgeyard.store import tables

_runners = tables.runners
_FROM = sa.select(_runners.c.distrusted_from).where(_runners.c.runner_id == sa.bindparam("own"))


def covers(connection: sa.Connection, runner_id: str | None, at: int) -> bool:
    """Tell whether what a runner has left at an instant is distrusted."""
    since = connection.execute(_FROM, {"own": runner_id}).scalar_one_or_none()
    return since is not None and since <= at


def mark(connection: sa.Connection, of: sa.ColumnElement[bool], *, since: int, reason: str) -> int:
    """Distrust what these runners have left since an instant; tell how many it is news for."""
    news = sa.or_(_runners.c.distrusted_from.is_(None), _runners.c.distrusted_from > since)
    done = connection.execute(
        sa.update(_runners)
        .where(of, news)
        .values(distrusted_from=since, distrusted_reason=reason[:500])
    )
    return done.rowcount
