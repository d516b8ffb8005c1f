"""Concurrency groups: of the runs of a group, at most one goes on and at most one waits.

Which does what is told by the runs themselves: one that has not ended goes on if it has `ready_at`,
and waits if it has not. The row of a group is nothing but a lock. It is taken before any run's, by
whoever lets a run in (`enter`) or go on (`release`), and both lock the unfinished runs as well, so
that each sees the end of a run or is seen by it. The end itself, which holds a run and so may not
lock the group, only makes the sweep look at the run that waits.
"""

import sqlalchemy as sa

from forgeyard.model.policy import LeasePolicy
from forgeyard.model.run import Concurrency
from forgeyard.model.transitions import FINAL_RUN_STATES, RunState
from forgeyard.store import changes, jobs, tables
from forgeyard.store.births import HELD_CHECK
from forgeyard.store.changes import RUN, DeadlineKind, Row
from forgeyard.store.engine import database_now
from forgeyard.store.stopping import stop_run

SUPERSEDED = "superseded"
_groups, _runs = tables.concurrency_groups, tables.runs


def enter(
    connection: sa.Connection,
    wanted: Concurrency,
    *,
    tenant_id: str,
    run_id: str,
    actor: str,
    policy: LeasePolicy,
) -> bool:
    """Make room in its group for a new run; tell whether it has to wait for one that goes on.

    Groups of one name in two tenants have nothing to do with each other.
    The group stays locked until the transaction ends. The caller wakes.
    """
    _lock_group(connection, wanted.group)
    unfinished = _lock_unfinished(connection, wanted.group, tenant_id)
    now, held = database_now(connection), False
    for run in unfinished:
        state = str(run["state"])
        waits = run["ready_at"] is None
        if waits or (wanted.cancel_in_progress and state != RunState.CANCELLING):
            state = _supersede(connection, run, by=run_id, actor=actor, now=now, policy=policy)
        held = held or RunState(state) not in FINAL_RUN_STATES
    return held


def _supersede(
    connection: sa.Connection, run: Row, *, by: str, actor: str, now: int, policy: LeasePolicy
) -> str:
    reason = f"superseded by {by}"
    changes.audit(
        connection,
        actor=actor,
        channel="store",
        action="run.supersede",
        target=run["run_id"],
        detail=reason,
        now=now,
    )
    return stop_run(connection, run, ending=SUPERSEDED, reason=reason, now=now, policy=policy)


def release(connection: sa.Connection, run_id: str) -> bool:
    """Let a run go on if no other of its group does; tell whether it does now.

    Raises:
        NotFound: there is no such run.
    """
    wanted = changes.find(connection, RUN, run_id)
    group, tenant_id = wanted["concurrency_group"], wanted["tenant_id"]
    _lock_group(connection, group)
    unfinished = {run["run_id"]: run for run in _lock_unfinished(connection, group, tenant_id)}
    run = unfinished.get(run_id)
    if run is None or run["ready_at"] is not None:
        changes.clear_deadlines(connection, run_id, DeadlineKind.HELD)
        return False
    now, partition = database_now(connection), run["partition"]
    if any(other["ready_at"] is not None for other in unfinished.values()):
        kind, due_at = DeadlineKind.HELD, now + HELD_CHECK
        changes.set_deadline(connection, kind, run_id, partition=partition, due_at=due_at)
        return False
    connection.execute(sa.update(_runs).where(_runs.c.run_id == run_id).values(ready_at=now))
    changes.clear_deadlines(connection, run_id, DeadlineKind.HELD)
    due_at = now + run["timeout_ms"]
    changes.set_deadline(connection, DeadlineKind.RUN, run_id, partition=partition, due_at=due_at)
    jobs.start(connection, {**run, "ready_at": now}, reason="its run waits no longer", now=now)
    changes.wake_if_waiting(connection, partition, reason=f"run {run['name']} goes on")
    return True


def _lock_group(connection: sa.Connection, group: str) -> None:
    changes.upsert(connection, _groups, {"group_name": group}, changes={})
    query = sa.select(_groups).where(_groups.c.group_name == group).with_for_update()
    connection.execute(query).one()


def _lock_unfinished(connection: sa.Connection, group: str, tenant_id: str) -> list[Row]:
    """Lock by id the runs of a group that have not ended."""
    query = (
        sa.select(_runs)
        .where(
            _runs.c.concurrency_group == group,
            _runs.c.tenant_id == tenant_id,
            _runs.c.state.in_([s.value for s in RunState if s not in FINAL_RUN_STATES]),
        )
        .order_by(_runs.c.run_id)
        .with_for_update()
    )
    return [dict(row) for row in connection.execute(query).mappings()]
