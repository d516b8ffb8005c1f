"""Runners against what they have been given: too much, too late, in vain, or without their knowing.

Nothing here takes work from anybody. A runner that holds too much has less than nothing free, so it
gets nothing more; one for which plans are made in vain is left alone for a while.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from forgeyard.model.runner import RunnerState, Suspicion
from forgeyard.model.transitions import LeaseState
from forgeyard.scheduler.findings import Finding, FindingKind
from forgeyard.scheduler.grant import Verdict
from forgeyard.scheduler.reliability import FAULT
from forgeyard.scheduler.room import allocatable, overdrawn
from forgeyard.store import bulk, changes, penalties, tables
from forgeyard.store.amounts import DIMENSIONS, resources_of
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now
from forgeyard.store.reconcile import books
from forgeyard.store.reconcile.books import LIVE
from forgeyard.store.reconcile.look import Comparison, Look

CYCLES: Final = 200
"""So many of the newest cycles are looked at for conflicts."""
IN_VAIN: Final = (Verdict.NO_CAPACITY.value, Verdict.RUNNER_UNAVAILABLE.value)
"""Verdicts that say something about the runners of a placement, and not about its job."""
_runners, _leases, _history = tables.runners, tables.leases, tables.history
_cycles, _placements = tables.cycles, tables.placements


def overfull(connection: sa.Connection, look: Look) -> list[Finding]:
    """Find runners of which leases hold more than may be given away (RCN-014)."""
    percent = look.policy.overcommit.cpu_percent
    much = (
        _runners.c[f"reserved_{name}"]
        > _runners.c[f"total_{name}"] - _runners.c[f"headroom_{name}"]
        for name in DIMENSIONS
    )
    query = sa.select(_runners).where(sa.or_(*much)).order_by(_runners.c.runner_id)
    found: list[Finding] = []
    for row in connection.execute(query).mappings():
        runner = dict(row)
        total, headroom = resources_of(runner, "total_"), resources_of(runner, "headroom_")
        room = allocatable(total, headroom, cpu_percent=percent)
        owed = overdrawn(room.minus(resources_of(runner, "reserved_")))
        if owed:
            found.append(_of_runner(FindingKind.RUNNER_OVERFULL, runner, "; ".join(owed), _ENOUGH))
    return found


_ENOUGH: Final = "no more than it has: nothing more is placed there until jobs end"


def _of_runner(kind: FindingKind, runner: Row, found: str, expected: str) -> Finding:
    runner_id = runner["runner_id"]
    return Finding(kind=kind, entity=runner_id, within=runner_id, found=found, expected=expected)


def late_leases(connection: sa.Connection, _look: Look) -> list[Finding]:
    """Find leases that a runner got after it had stopped taking work (RCN-016)."""
    since = (
        sa.select(sa.func.max(_history.c.at))
        .where(
            _history.c.run_id.is_(None),
            _history.c.kind == "runner",
            _history.c.entity_id == _runners.c.runner_id,
            _history.c.after == _runners.c.state,
        )
        .scalar_subquery()
    )
    query = (
        sa.select(_leases.c.lease_id, _leases.c.runner_id, _runners.c.state)
        .join(_runners, _runners.c.runner_id == _leases.c.runner_id)
        .where(
            _leases.c.state.in_(LIVE),
            _runners.c.state != RunnerState.ONLINE.value,
            _leases.c.offered_at > since,
        )
        .order_by(_leases.c.lease_id)
    )
    return [
        Finding(
            kind=FindingKind.LEASE_AFTER_DRAIN,
            entity=lease_id,
            within=runner_id,
            found=f"given to {runner_id} after it was {state}",
            expected="no lease: it takes no work",
        )
        for lease_id, runner_id, state in connection.execute(query)
    ]


def unreported(connection: sa.Connection, look: Look) -> list[Finding]:
    """Find active leases that the heartbeats of their runners have not named for long."""
    query = (
        sa.select(_leases.c.lease_id, _leases.c.runner_id, _leases.c.unreported_since)
        .where(
            _leases.c.state == LeaseState.ACTIVE.value,
            _leases.c.unreported_since < look.impatient,
        )
        .order_by(_leases.c.lease_id)
    )
    return [
        Finding(
            kind=FindingKind.LEASE_UNREPORTED,
            entity=lease_id,
            within=runner_id,
            found=f"not reported by {runner_id} for {(look.now - since) // 1_000} s",
            expected="named by its heartbeats, or given up",
        )
        for lease_id, runner_id, since in connection.execute(query)
    ]


def _find_conflicted(connection: sa.Connection, look: Look) -> list[Finding]:
    """Find runners to leave alone, and those that were left alone for long enough."""
    in_vain = _in_vain(connection, look) if look.policy.reconcile.conflicts else {}
    query = (
        sa.select(_runners.c.runner_id, _runners.c.suspect)
        .where(
            look.inside(_runners.c.runner_id),
            sa.or_(
                bulk.among(connection, _runners.c.runner_id, list(in_vain)),
                _runners.c.suspect == Suspicion.CONFLICTS.value,
            ),
        )
        .order_by(_runners.c.runner_id)
    )
    rows = [dict(row) for row in connection.execute(query).mappings()]
    return [_of_conflicts(row, in_vain) for row in rows if _is_news(row, in_vain)]


def _is_news(row: Row, in_vain: Mapping[str, int]) -> bool:
    is_left_alone = bool(row["suspect"] == Suspicion.CONFLICTS)
    return is_left_alone != (row["runner_id"] in in_vain)


def _of_conflicts(row: Row, in_vain: Mapping[str, int]) -> Finding:
    cycles = in_vain.get(row["runner_id"])
    if cycles is None:
        said = "suspect, and nothing was refused to it lately"
        return _of_runner(FindingKind.RUNNER_RESTED, row, said, "tried again")
    said = f"{cycles} cycles planned for it and every commit refused it"
    return _of_runner(FindingKind.RUNNER_CONFLICTED, row, said, "suspect and read anew: left alone")


def _in_vain(connection: sa.Connection, look: Look) -> dict[str, int]:
    """Count, for runners that were granted nothing lately, the cycles that wanted them first."""
    policy = look.policy.reconcile
    newest = (
        sa.select(_cycles.c.cycle_id)
        .where(
            _cycles.c.created_at >= look.now - policy.conflict_window,
            _cycles.c.committed_at.is_not(None),
        )
        .order_by(_cycles.c.cycle_id.desc())
        .limit(CYCLES)
    )
    cycle_ids = list(connection.execute(newest).scalars())
    cycles: dict[str, set[int]] = defaultdict(set)
    for cycle_id, candidates in connection.execute(_refused(cycle_ids)):
        first = json.loads(candidates)
        if first:
            cycles[first[0][0]].add(cycle_id)
    often = {name: len(ids) for name, ids in cycles.items() if len(ids) >= policy.conflicts}
    if not often:
        return {}
    served = sa.select(_placements.c.runner_id).where(
        _placements.c.cycle_id.in_(cycle_ids),
        bulk.among(connection, _placements.c.runner_id, list(often)),
    )
    granted = set(connection.execute(served.distinct()).scalars())
    return {name: count for name, count in often.items() if name not in granted}


def _refused(cycle_ids: Sequence[int]) -> sa.Select[int, str]:
    """Select the placements that did not get the runner which their plan put first."""
    first = sa.func.substr(_placements.c.candidates, 4, sa.func.length(_placements.c.runner_id))
    return sa.select(_placements.c.cycle_id, _placements.c.candidates).where(
        _placements.c.cycle_id.in_(cycle_ids),
        sa.or_(
            _placements.c.verdict.in_(IN_VAIN),
            sa.and_(
                _placements.c.verdict == Verdict.GRANTED.value, first != _placements.c.runner_id
            ),
        ),
    )


def _fix_conflicted(connection: sa.Connection, found: Sequence[Finding], look: Look) -> None:
    """Leave a runner alone and make every process read it anew; or let it be tried again."""
    (finding,) = found
    now, conflicted = database_now(connection), finding.kind is FindingKind.RUNNER_CONFLICTED
    suspicion = Suspicion.CONFLICTS if conflicted else Suspicion.NONE
    mine = _runners.c.runner_id == finding.within
    values = {"suspect": suspicion.value, "changed_at": now}
    connection.execute(sa.update(_runners).where(mine).values(values))
    if conflicted:
        policy = look.policy.lease
        penalties.penalise(connection, finding.within, points=FAULT, now=now, policy=policy)
        return
    changes.wake_all_waiting(connection, reason="a runner may be tried again")


CONFLICTED = Comparison(
    name="conflicts", find=_find_conflicted, lock=books.lock, fix=_fix_conflicted
)
