"""One reconciliation: every comparison in turn, each repair in a transaction of its own.

What holds room comes first, so that ending a lease finds right sums; then leases and jobs, then the
runs that they belong to, then whatever waits. Any number may go on at once: each repair is judged
again under locks, and what somebody else has repaired is no finding any more.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import ForgeyardError, StoreUnavailable
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.scheduler.findings import Finding, FindingOutcome
from forgeyard.store import findings, lineage
from forgeyard.store.engine import database_now, read, write
from forgeyard.store.reconcile import books, claims, deadlines, leases, queue, runners, runs
from forgeyard.store.reconcile.look import Comparison, Look

QUICK: Final = (books.RESERVATIONS, claims.DEVICES)
"""What every sweep looks at: wrong books keep others from being served."""
COMPARISONS: Final = (
    *QUICK,
    *(claims.KEYS, claims.ROOM),
    *(leases.LEASES, leases.ATTEMPTS, leases.JOBS),
    *(runs.RUNS, deadlines.MISSING, deadlines.STRAY),
    *(queue.FORGOTTEN_JOBS, queue.PARKED, queue.SHARES, queue.EVENTS),
    runners.CONFLICTED,
)
REPORTS: Final = (
    *(runners.overfull, runners.late_leases, runners.unreported),
    claims.overfull_devices,
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What a reconciliation found, in the order in which it looked."""

    findings: tuple[Finding, ...]
    more: bool = False
    """Whether there is more to repair than one reconciliation may."""

    def count(self, outcome: FindingOutcome) -> int:
        """Count the findings of which this became."""
        return sum(1 for one in self.findings if one.outcome is outcome)


def survey(
    connection: sa.Connection, policy: SchedulingPolicy, *, partition: str | None = None
) -> Reconciled:
    """Tell what a reconciliation would find and repair; change nothing."""
    look = Look(policy=policy, now=database_now(connection), partition=partition)
    found = [one for comparison in COMPARISONS for one in comparison.find(connection, look)]
    return Reconciled(findings=(*found, *_reports(connection, look)))


def _reports(connection: sa.Connection, look: Look) -> tuple[Finding, ...]:
    return tuple(
        replace(one, outcome=FindingOutcome.REPORTED)
        for find in REPORTS
        for one in find(connection, look)
    )


def reconcile(
    engine: sa.Engine, policy: SchedulingPolicy, *, partition: str | None = None
) -> Reconciled:
    """Repair what can be repaired, report the rest, and write all of it down.

    Raises:
        StoreUnavailable: the database does not answer; what was repaired by then stays so.
    """
    with read(engine) as connection:
        look = Look(policy=policy, now=database_now(connection), partition=partition)
    done = repair(engine, COMPARISONS, look, limit=policy.reconcile.repairs)
    with read(engine) as connection:
        reports = _reports(connection, look)
    standing = [one for one in done.findings if one.outcome is not FindingOutcome.REPAIRED]
    if reports or standing:
        with write(engine) as connection:
            findings.record(connection, [*standing, *reports], now=database_now(connection))
    return replace(done, findings=(*done.findings, *reports))


def repair(
    engine: sa.Engine, comparisons: Iterable[Comparison], look: Look, *, limit: int
) -> Reconciled:
    """Make some comparisons, and repair what lies within at most so many rows."""
    done: list[Finding] = []
    left, more = limit, False
    for comparison in comparisons:
        with read(engine) as connection:
            found = comparison.find(connection, look)
        done += [one for one in found if one.outcome is FindingOutcome.REPORTED]
        places = dict.fromkeys(x.within for x in found if x.outcome is FindingOutcome.FOUND)
        for within in list(places)[:left]:
            done += _repair_within(engine, comparison, look.at(within), found)
        more = more or len(places) > left
        left -= min(left, len(places))
    return Reconciled(findings=tuple(done), more=more)


def _repair_within(
    engine: sa.Engine, comparison: Comparison, look: Look, found: Sequence[Finding]
) -> Sequence[Finding]:
    """Repair what is found again under the lock; a failure is told, and others are tried."""
    within = look.within or ""
    try:
        with write(engine) as connection:
            if lineage.is_held(connection):
                return ()  # what is here may be old; there is nothing to compare it with
            comparison.lock(connection, within)
            again = comparison.find(connection, look)
            broken = [one for one in again if one.outcome is FindingOutcome.FOUND]
            if not broken:
                return ()
            comparison.fix(connection, broken, look)
            repaired = [replace(one, outcome=FindingOutcome.REPAIRED) for one in broken]
            findings.record(connection, repaired, now=database_now(connection))
            return repaired
    except StoreUnavailable:
        raise  # the others would have to wait for it just as long; the next one goes on
    except ForgeyardError as error:
        why = error.message
    except Exception as error:
        # Whatever is wrong with one row, the others are to be repaired as well.
        logger.exception("%s within %s could not be repaired", comparison.name, within)
        why = str(error)
    return [
        replace(one, outcome=FindingOutcome.FAILED, expected=f"{one.expected}; but {why}")
        for one in found
        if one.within == within
    ]
