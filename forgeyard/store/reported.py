"""What a runner says that it works on, against what the store has given it.

Whatever an agent works on that is not its own it is told to abandon; what the store never gave it
is written down as well. Since when an active lease of its own is not named is noted in its row: an
agent may be about to report it, so only time tells that it is missing.
"""

from collections.abc import Collection, Sequence
from typing import Final

import sqlalchemy as sa

from forgeyard.model.ids import LeaseId
from forgeyard.model.transitions import LIVE_LEASE_STATES, LeaseState
from forgeyard.scheduler.findings import Finding, FindingKind, FindingOutcome
from forgeyard.store import fence, findings, tables
from forgeyard.store.changes import Row

NAMED: Final = 3
_leases = tables.leases


def compare(
    connection: sa.Connection, runner: Row, held: tuple[LeaseId, ...], *, now: int
) -> tuple[LeaseId, ...]:
    """Pick the leases that an agent works for although they are not its own any more."""
    found = connection.execute(_LIVE, {"own": runner["session_id"]})
    rows = [dict(row) for row in found.mappings()]
    alive = {row["lease_id"] for row in rows if fence.ends_at(row) >= now}
    _note(connection, rows, held, now=now)
    abandoned = tuple(lease_id for lease_id in held if lease_id not in alive)
    if abandoned:
        _record_unknown(connection, runner, abandoned, now=now)
    return abandoned


_LIVE = sa.select(_leases).where(
    _leases.c.session_id == sa.bindparam("own"),
    _leases.c.state.in_([state.value for state in LIVE_LEASE_STATES]),
)


def _note(
    connection: sa.Connection, rows: Sequence[Row], held: Collection[str], *, now: int
) -> None:
    """Note since when active leases are not reported; write only where that has changed.

    Leases are locked before runners, and the runner is locked by now: a lease that somebody holds
    is passed over, lest two wait for each other. The next heartbeat comes soon.
    """
    active = [row for row in rows if row["state"] == LeaseState.ACTIVE]
    named = [row["lease_id"] for row in active if row["lease_id"] in held]
    here = [x["lease_id"] for x in active if x["unreported_since"] is not None]
    missed = [row["lease_id"] for row in active if row["lease_id"] not in {*named, *here}]
    for lease_ids, since in (([x for x in here if x in named], None), (missed, now)):
        if lease_ids:
            mine = sa.select(_leases.c.lease_id).where(_leases.c.lease_id.in_(lease_ids))
            free = connection.execute(mine.with_for_update(skip_locked=True)).scalars().all()
            noted = sa.update(_leases).where(_leases.c.lease_id.in_(free))
            connection.execute(noted.values(unreported_since=since))


def _record_unknown(
    connection: sa.Connection, runner: Row, abandoned: Sequence[str], *, now: int
) -> None:
    """Write down what the store never gave to a runner; what has ended is everyday business."""
    query = sa.select(_leases.c.lease_id).where(
        _leases.c.lease_id.in_(abandoned), _leases.c.runner_id == runner["runner_id"]
    )
    given = set(connection.execute(query).scalars())
    unknown = [lease_id for lease_id in abandoned if lease_id not in given]
    if unknown:
        named = ", ".join(lease_id[:NAMED_LENGTH] for lease_id in unknown[:NAMED])
        finding = Finding(
            kind=FindingKind.LEASE_UNKNOWN,
            entity=runner["runner_id"],
            within=runner["runner_id"],
            found=f"works on {len(unknown)} leases that it was never given: {named}",
            expected="none: it was told to abandon them",
            outcome=FindingOutcome.REPORTED,
        )
        findings.record(connection, [finding], now=now)


NAMED_LENGTH: Final = 40
"""An id has 30 characters; what an agent calls one may be anything."""
