"""Measuring what surrounds the scheduler: the database, the outbox, the runners, the blob store."""

from collections.abc import Iterable

import sqlalchemy as sa

from forgeyard.errors import Overloaded
from forgeyard.model.job import Priority
from forgeyard.model.policy import PressurePolicy
from forgeyard.scheduler.eligibility import takes_work
from forgeyard.scheduler.order import BASE
from forgeyard.scheduler.pressure import judge
from forgeyard.scheduler.readings import Readings
from forgeyard.scheduler.snapshot import SchedulingRunner
from forgeyard.store import changes, tables
from forgeyard.store.engine import database_now, now_ms

BLOBS = "blobs"
_health, _outbox = tables.service_health, tables.outbox
_OLDEST = sa.select(sa.func.min(_outbox.c.created_at)).where(_outbox.c.delivered_at.is_(None))
_PROBLEM = sa.select(_health.c.problem).where(_health.c.service == BLOBS)
_MEASURED = sa.select(
    _OLDEST.scalar_subquery().label("oldest"),
    _PROBLEM.scalar_subquery().label("problem"),
    now_ms().label("now"),
)


def read(
    connection: sa.Connection,
    runners: Iterable[SchedulingRunner],
    *,
    waiting: int,
    began: int,
) -> Readings:
    """Measure everything; `began` is when the snapshot's first query was answered."""
    row = connection.execute(_MEASURED).one()
    return Readings(
        store_ms=max(0, row.now - began),
        outbox_lag_ms=0 if row.oldest is None else max(0, row.now - row.oldest),
        waiting=waiting,
        saturation=_saturation(runners),
        blobs=row.problem or "",
    )


def refuse_when_deep(
    connection: sa.Connection,
    partition: str,
    priorities: Iterable[Priority],
    policy: PressurePolicy,
) -> None:
    """Turn a new run away while too many jobs wait for one of its urgency to make sense.

    Raises:
        Overloaded: naming how many wait; nothing is lost by asking again later.
    """
    cycles = tables.cycles
    query = (
        sa.select(cycles.c.eligible)
        .where(cycles.c.partition == partition)
        .order_by(cycles.c.created_at.desc())
        .limit(1)
    )
    waiting = connection.execute(query).scalar_one_or_none() or 0
    least = judge(Readings(waiting=waiting), policy).rejects_below
    highest = max((BASE[priority] for priority in priorities), default=0)
    if highest < least:
        allowed = ", ".join(one.value for one in Priority if BASE[one] >= least)
        raise Overloaded(
            f"{waiting} jobs wait already; runs of low priority are turned away for now",
            field="priority",
            allowed=f"a run with a job of priority {allowed}, or asking again later",
        )


def _saturation(runners: Iterable[SchedulingRunner]) -> int:
    """Tell how many thousandths of the slots of runners that take work are in use."""
    present = [runner for runner in runners if takes_work(runner)]
    slots = sum(runner.allocatable.slots for runner in present)
    used = sum(runner.reserved.slots for runner in present)
    return used * 1_000 // slots if slots > 0 else 0


def report(connection: sa.Connection, service: str, problem: str | None) -> None:
    """Note what is wrong with a service, or that nothing is; wake the loop when that ended."""
    if problem is not None:
        row = {"service": service, "problem": problem, "since_at": database_now(connection)}
        changes.upsert(connection, _health, row, changes={"problem": problem})
        return
    mended = connection.execute(sa.delete(_health).where(_health.c.service == service))
    if mended.rowcount:
        changes.wake_all_waiting(connection, reason=f"{service} work again")
