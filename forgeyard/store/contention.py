"""How many planned placements the commits of the last minutes had to refuse, and mostly why."""

import sqlalchemy as sa

from forgeyard.scheduler.doctor import Contention
from forgeyard.scheduler.grant import Verdict
from forgeyard.store import tables

_cycles, _placements = tables.cycles, tables.placements


def contention(connection: sa.Connection, partition: str, *, since: int) -> Contention:
    """Count what the cycles planned since then have planned and granted."""
    lately = sa.and_(
        _cycles.c.partition == partition,
        _cycles.c.created_at >= since,
        _cycles.c.committed_at.is_not(None),
    )
    query = sa.select(_sum(_cycles.c.planned), _sum(_cycles.c.granted)).where(lately)
    planned, granted = connection.execute(query).one()
    if planned == granted:
        return Contention(planned=planned)
    verdicts = (
        sa.select(_placements.c.verdict, sa.func.count())
        .join(_cycles, _cycles.c.cycle_id == _placements.c.cycle_id)
        .where(lately, _placements.c.verdict != Verdict.GRANTED.value)
        .group_by(_placements.c.verdict)
    )
    counts = {verdict: int(total) for verdict, total in connection.execute(verdicts)}
    return Contention(
        planned=planned,
        refused=planned - granted,
        mostly=max(counts, key=lambda verdict: (counts[verdict], verdict), default=""),
    )


def _sum(column: sa.Column[int]) -> sa.ColumnElement[int]:
    return sa.cast(sa.func.coalesce(sa.func.sum(column), 0), sa.BigInteger)
