"""Reservations against leases: exactly one for every live lease, alike in amounts and in scopes.

Every transition keeps them equal in its own transaction, so this finds something only after a bug
or a hand in the database. What a scope uses is the sum of its reservations, so that quotas and
fairness are right when these are (RCN-012, RCN-013, RCN-017).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from forgeyard.model.policy import LeasePolicy
from forgeyard.model.transitions import LIVE_LEASE_STATES
from forgeyard.scheduler.findings import Finding, FindingKind
from forgeyard.store import bulk, changes, phases, scopes, tables
from forgeyard.store.amounts import DIMENSIONS
from forgeyard.store.changes import Row
from forgeyard.store.engine import now_ms
from forgeyard.store.reconcile.look import Comparison, Look, inside

LIVE = [state.value for state in LIVE_LEASE_STATES]
_jobs, _leases, _attempts = tables.jobs, tables.leases, tables.attempts
_reservations, _runners = tables.reservations, tables.runners
_SCOPED = (*scopes.PATH, "pool_id")
_COMPARED = ("runner_id", *DIMENSIONS, *_SCOPED)


def find(connection: sa.Connection, look: Look) -> list[Finding]:
    """Compare leases, reservations and the sums of runners, in three statements."""
    wrong, strays = _wrong(connection, look), _strays(connection, look)
    return [
        *(_of_lease(row) for row in wrong),
        *(_of_stray(row) for row in strays),
        *_of_runners(connection, look, _owed(wrong, strays)),
    ]


def _due() -> sa.Select[Any]:
    """Select what every live lease should have reserved."""
    amounts = (_jobs.c[name] for name in (*DIMENSIONS, *scopes.PATH))
    return (
        sa.select(
            _leases.c.lease_id,
            _leases.c.runner_id,
            _leases.c.offered_at,
            _jobs.c.lasts_ms,
            *amounts,
            _attempts.c.pool_id,
        )
        .join(_jobs, _jobs.c.job_id == _leases.c.job_id)
        .join(_attempts, _attempts.c.attempt_id == _leases.c.attempt_id)
        .where(_leases.c.state.in_(LIVE))
    )


def _wrong(connection: sa.Connection, look: Look) -> list[Row]:
    """Read the live leases whose reservation is not what it should be, with both."""
    return [dict(row) for row in connection.execute(_wrong_within(look.within)).mappings()]


@lru_cache(maxsize=4)
def _wrong_within(within: str | None) -> sa.Select[Any]:
    due = _due().where(inside(within, _leases.c.runner_id)).subquery()
    kept = [_reservations.c[name].label(f"kept_{name}") for name in _COMPARED]
    differs = (_reservations.c[name] != due.c[name] for name in _COMPARED)
    return (
        sa.select(due, *kept)
        .outerjoin(_reservations, _reservations.c.lease_id == due.c.lease_id)
        .where(sa.or_(_reservations.c.lease_id.is_(None), *differs))
        .order_by(due.c.runner_id, due.c.lease_id)
    )


def _of_lease(row: Row) -> Finding:
    missing = row["kept_runner_id"] is None
    wrong = DIMENSIONS if missing else [x for x in _COMPARED if row[x] != row[f"kept_{x}"]]
    kinds = FindingKind
    return Finding(
        kind=kinds.RESERVATION_MISSING if missing else kinds.RESERVATION_WRONG,
        entity=row["lease_id"],
        within=row["runner_id"],
        found="none" if missing else _said((name, row[f"kept_{name}"]) for name in wrong),
        expected=_said((name, row[name]) for name in wrong),
    )


def _strays(connection: sa.Connection, look: Look) -> list[Row]:
    return [dict(row) for row in connection.execute(_strays_within(look.within)).mappings()]


@lru_cache(maxsize=4)
def _strays_within(within: str | None) -> sa.Select[Any]:
    alive = sa.exists().where(
        _leases.c.lease_id == _reservations.c.lease_id, _leases.c.state.in_(LIVE)
    )
    return (
        sa.select(_reservations)
        .where(~alive, inside(within, _reservations.c.runner_id))
        .order_by(_reservations.c.runner_id, _reservations.c.lease_id)
    )


def _of_stray(row: Row) -> Finding:
    return Finding(
        kind=FindingKind.RESERVATION_STRAY,
        entity=row["lease_id"],
        within=row["runner_id"],
        found=_said((name, row[name]) for name in DIMENSIONS),
        expected="none",
    )


def _owed(wrong: Iterable[Row], strays: Iterable[Row]) -> dict[str, Counter[str]]:
    """Tell by how much the reservations of each runner will grow when they are right."""
    owed: dict[str, Counter[str]] = defaultdict(Counter)
    for row in wrong:
        for name in DIMENSIONS:
            owed[row["runner_id"]][name] += row[name]
            owed[row["kept_runner_id"]][name] -= row[f"kept_{name}"] or 0
    for row in strays:
        owed[row["runner_id"]].subtract({name: row[name] for name in DIMENSIONS})
    return owed


def _of_runners(
    connection: sa.Connection, look: Look, owed: Mapping[str, Counter[str]]
) -> Iterable[Finding]:
    """Compare what runners say that they hold with what their reservations should add up to."""
    query = _runners_within(look.within, connection.dialect.name)
    for found in connection.execute(query, {"owed": [name for name in owed if name]}).mappings():
        more = owed.get(found["runner_id"], Counter())
        needed = {f"needed_{n}": int(found[f"needed_{n}"]) + more[n] for n in DIMENSIONS}
        row = {**found, **needed}
        if any(row[name] != row[f"needed_{name}"] for name in DIMENSIONS):
            yield _of_runner(row)


@lru_cache(maxsize=4)
def _runners_within(within: str | None, dialect: str) -> sa.Select[Any]:
    """Select runners that say something else than their reservations, or for whom more is owed."""
    totals = (sa.func.sum(_reservations.c[name]).label(name) for name in DIMENSIONS)
    by_runner = sa.select(_reservations.c.runner_id, *totals).group_by(_reservations.c.runner_id)
    sums = by_runner.where(inside(within, _reservations.c.runner_id)).subquery()
    booked = {name: sa.func.coalesce(sums.c[name], 0) for name in DIMENSIONS}
    return (
        sa.select(
            _runners.c.runner_id,
            *(_runners.c[f"reserved_{name}"].label(name) for name in DIMENSIONS),
            *(amount.label(f"needed_{name}") for name, amount in booked.items()),
        )
        .outerjoin(sums, sums.c.runner_id == _runners.c.runner_id)
        .where(
            inside(within, _runners.c.runner_id),
            sa.or_(
                bulk.among_given(dialect, _runners.c.runner_id, "owed"),
                *(_runners.c[f"reserved_{name}"] != booked[name] for name in DIMENSIONS),
            ),
        )
        .order_by(_runners.c.runner_id)
    )


def _of_runner(row: Row) -> Finding:
    wrong = [name for name in DIMENSIONS if row[name] != row[f"needed_{name}"]]
    return Finding(
        kind=FindingKind.RUNNER_SUM,
        entity=row["runner_id"],
        within=row["runner_id"],
        found=_said((name, row[name]) for name in wrong),
        expected=_said((name, row[f"needed_{name}"]) for name in wrong),
    )


def _said(pairs: Iterable[tuple[str, object]]) -> str:
    return ", ".join(f"{name} {value}" for name, value in pairs)


def lock(connection: sa.Connection, runner_id: str) -> None:
    """Lock a runner, if there is one: what is booked on another is nobody's."""
    query = sa.select(_runners.c.runner_id).where(_runners.c.runner_id == runner_id)
    connection.execute(query.with_for_update()).all()


def fix(connection: sa.Connection, found: Sequence[Finding], look: Look) -> None:
    """Book anew all that a locked runner holds, and wake whoever waits for room."""
    runner_id = found[0].within
    sums = recount(connection, runner_id, policy=look.policy.lease)
    mine = _runners.c.runner_id == runner_id
    connection.execute(sa.update(_runners).where(mine).values({**sums, "changed_at": now_ms()}))
    changes.wake_all_waiting(connection, reason="reservations were repaired")


def recount(connection: sa.Connection, runner_id: str, *, policy: LeasePolicy) -> dict[str, int]:
    """Set right the reservations of a locked runner, and sum what its live leases hold.

    A lease ends in the same transaction that locks its runner, so what is read here stands.
    """
    query = _due().where(_leases.c.runner_id == runner_id)
    due = [dict(row) for row in connection.execute(query).mappings()]
    wanted = {row["lease_id"]: _booked(row, policy) for row in due}
    mine = sa.or_(
        _reservations.c.runner_id == runner_id, _reservations.c.lease_id.in_(list(wanted))
    )
    rows = connection.execute(sa.select(_reservations).where(mine)).mappings()
    kept = {row["lease_id"]: dict(row) for row in rows}
    wrong = [name for name, row in kept.items() if not _is_right(row, wanted.get(name))]
    if wrong:
        connection.execute(sa.delete(_reservations).where(_reservations.c.lease_id.in_(wrong)))
    again = [row for name, row in wanted.items() if name in wrong or name not in kept]
    if again:
        connection.execute(sa.insert(_reservations), again)
    return {f"reserved_{name}": sum(row[name] for row in due) for name in DIMENSIONS}


def _booked(due: Row, policy: LeasePolicy) -> dict[str, Any]:
    """Write the reservation of a live lease as its grant did."""
    ends_by = due["offered_at"] + phases.at_most(due, policy)
    return {"lease_id": due["lease_id"], "ends_by": ends_by, **{x: due[x] for x in _COMPARED}}


def _is_right(kept: Row, wanted: Row | None) -> bool:
    return wanted is not None and all(kept[name] == wanted[name] for name in _COMPARED)


RESERVATIONS = Comparison(name="reservations", find=find, lock=lock, fix=fix)
