"""The record of what reconciliations and heartbeats found: one row for each, with both sides."""

from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from forgeyard.model.policy import HOUR
from forgeyard.scheduler.findings import Finding, FindingKind, FindingOutcome, Recorded
from forgeyard.store import tables
from forgeyard.store.changes import Row

RECENT: Final = HOUR
"""What was found so lately is shown by the doctor; the same thing again is the same finding."""
MOST: Final = 1_000
_findings = tables.findings


def record(connection: sa.Connection, found: Sequence[Finding], *, now: int) -> None:
    """Write down what was found; what was not repaired, and found lately, is merely seen again."""
    standing = [one for one in found if one.outcome is not FindingOutcome.REPAIRED]
    known = _standing(connection, standing, now=now)
    seen = [known[_key(one)] for one in standing if _key(one) in known]
    if seen:
        again = sa.update(_findings).where(_findings.c.finding_id.in_(seen))
        connection.execute(again.values(seen_at=now))
    rows = [
        _row(one, now=now)
        for one in found
        if one.outcome is FindingOutcome.REPAIRED or _key(one) not in known
    ]
    if rows:
        connection.execute(sa.insert(_findings), rows)


def _key(one: Finding) -> tuple[str, str]:
    return one.kind.value, one.entity


def _standing(
    connection: sa.Connection, found: Sequence[Finding], *, now: int
) -> Mapping[tuple[str, str], int]:
    """Tell which of these were found lately already, each with its newest row."""
    if not found:
        return {}
    query = (
        sa.select(_findings.c.kind, _findings.c.entity, sa.func.max(_findings.c.finding_id))
        .where(
            _findings.c.kind.in_({one.kind.value for one in found}),
            _findings.c.entity.in_({one.entity for one in found}),
            _findings.c.outcome != FindingOutcome.REPAIRED.value,
            _findings.c.seen_at > now - RECENT,
        )
        .group_by(_findings.c.kind, _findings.c.entity)
    )
    return {(kind, entity): finding_id for kind, entity, finding_id in connection.execute(query)}


def _row(one: Finding, *, now: int) -> Row:
    return {
        "kind": one.kind.value,
        "entity": one.entity,
        "found": one.found,
        "expected": one.expected,
        "outcome": one.outcome.value,
        "at": now,
        "seen_at": now,
    }


def recent(connection: sa.Connection, *, now: int, most: int) -> tuple[Recorded, ...]:
    """List what was found lately, the newest first."""
    return _read(connection, _findings.c.seen_at > now - RECENT, most=most)


def all_recorded(connection: sa.Connection, *, most: int) -> tuple[Recorded, ...]:
    """List what was found as far back as it is kept, the newest first."""
    return _read(connection, sa.true(), most=most)


def _read(
    connection: sa.Connection, condition: sa.ColumnElement[bool], *, most: int
) -> tuple[Recorded, ...]:
    query = (
        sa.select(_findings)
        .where(condition)
        .order_by(_findings.c.seen_at.desc(), _findings.c.finding_id.desc())
        .limit(min(most, MOST))
    )
    return tuple(
        Recorded(
            kind=FindingKind(row["kind"]),
            entity=row["entity"],
            found=row["found"],
            expected=row["expected"],
            outcome=FindingOutcome(row["outcome"]),
            at=row["at"],
            seen_at=row["seen_at"],
        )
        for row in connection.execute(query).mappings()
        # A newer release may have found kinds that this one does not know.
        if row["kind"] in set(FindingKind)
    )
