"""What becomes of one machine: the arrows of its table, each with all that goes along with it.

Nothing is asked of a provider here; that is for who calls, between two transactions.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import Corrupt, NeverCameUp
from forgeyard.fleet.lifecycle import Act, Pace, Verdict, judge
from forgeyard.model.capacity import CapacityInstanceState, OperationState
from forgeyard.model.image import ImageStanding
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.runner import RunnerState
from forgeyard.model.transitions import SessionState
from forgeyard.store import (
    breakers,
    changes,
    enrolments,
    identities,
    machines,
    quarantine,
    sessions,
    tables,
)
from forgeyard.store.changes import INSTANCE, Row
from forgeyard.store.engine import database_now
from forgeyard.store.machines import AUTOSCALER, Known, binding_of
from forgeyard.store.runners import change as change_runner

S = CapacityInstanceState
ARROWS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Where a machine stands now, and what to do about it: ask its provider, or wait."""

    known: Known
    act: Act | None
    wait: int
    """Milliseconds; of no meaning beside an act."""


def advance(
    connection: sa.Connection, instance_id: str, pace: Pace, policy: LeasePolicy
) -> Advance:
    """Take a machine as far as it goes by what is known; the call that follows is noted before.

    Raises:
        NotFound: there is no such machine.
    """
    now = database_now(connection)
    for _ in range(ARROWS_AT_ONCE):
        known = machines.lock(connection, instance_id)
        verdict = judge(known.facts, pace, now=now)
        if verdict.to is None:
            row = machines.change(connection, known.row, tended_until=now + verdict.wait)
            row = _noted(connection, row, verdict.act, now=now)
            known = Known(row=row, fleet=known.fleet, spec=known.spec, facts=known.facts)
            return Advance(known=known, act=verdict.act, wait=verdict.wait)
        _move(connection, known, verdict, policy, now=now)
    raise Corrupt(f"machine {instance_id} never comes to rest", field="instance_id")


def _noted(connection: sa.Connection, row: Row, act: Act | None, *, now: int) -> Row:
    if act is Act.PROVISION:
        return machines.asked(connection, row, now=now)
    if act is Act.TERMINATE:
        return machines.asked_to_end(connection, row, now=now)
    return row


def _move(
    connection: sa.Connection, known: Known, verdict: Verdict, policy: LeasePolicy, *, now: int
) -> None:
    to = verdict.to
    assert to is not None
    if to in _PARTINGS and not _part(connection, known, verdict, policy, now=now):
        return
    due_at = None if verdict.due_in is None else now + verdict.due_in
    values: dict[str, object] = {"due_at": due_at, **_stamps(to, now)}
    if to is S.FAILED:
        values["failure"] = verdict.reason
    changes.move(connection, INSTANCE, known.row, to, reason=verdict.reason, now=now, **values)
    _learn(connection, known, verdict, now=now)
    if to is S.TERMINATED and known.row["runner_id"] is not None:
        connection.execute(_RETIRE, {"own": known.row["runner_id"], "now": now})
    binding = binding_of(known.row)
    if to is S.BOOTSTRAPPING and enrolments.is_there(connection, binding):
        enrolments.seen(connection, binding)


_RETIRE: Final = (
    sa.update(tables.runners)
    .where(tables.runners.c.runner_id == sa.bindparam("own"))
    .values(retired_at=sa.bindparam("now"), changed_at=sa.bindparam("now"))
)
"""Its row stays, for what it ran names it; nobody is told of it or plans with it any more."""
_COMING: Final = frozenset({S.PROVISIONING, S.BOOTSTRAPPING, S.ENROLLING})


def _learn(connection: sa.Connection, known: Known, verdict: Verdict, *, now: int) -> None:
    """Remember whether machines of an offering come up (FRC-020, FLT-104)."""
    row = known.row
    where = (row["provider"], row["fleet_id"], machines.offering_name(row))
    if verdict.to is S.HEALTHY and known.facts.state is S.ENROLLING:
        breakers.came_up(connection, *where)
        return
    was_made = known.facts.state in _COMING and known.facts.operation is not OperationState.FAILED
    if known.facts.image is not ImageStanding.FINE:
        return
    if verdict.to in (S.FAILED, S.QUARANTINED) and was_made:
        breakers.failed(connection, *where, NeverCameUp(verdict.reason), now=now)


def _stamps(to: CapacityInstanceState, now: int) -> dict[str, object]:
    names = {
        S.ENROLLING: {"enrolled_at": now},
        S.HEALTHY: {"healthy_at": now},
        S.DRAINING: {"drained_at": now},
        # Its end has not been asked for, whatever its making was.
        S.TERMINATING: {"ending_at": now, "asked_at": 0, "next_at": 0},
        S.TERMINATED: {"ended_at": now, "may_exist": 0},
    }
    return dict(names.get(to, {}))


_PARTINGS: Final = frozenset({S.FAILED, S.QUARANTINED, S.TERMINATING})


def _part(
    connection: sa.Connection, known: Known, verdict: Verdict, policy: LeasePolicy, *, now: int
) -> bool:
    """Take work, token and certificates from a machine; tell whether it is really free of work.

    Under the lock of its runner nothing can be leased to it meanwhile (DRN-002). One that drains
    and was given work after all keeps it, unless its time is up.
    """
    row, reason = known.row, verdict.reason
    enrolments.withdraw(connection, binding_of(row), AUTOSCALER)
    if row["runner_id"] is None or known.facts.runner is None:
        return True
    runner, held = sessions.lock_with_leases(connection, row["runner_id"])
    overdue = known.facts.due_at is not None and now >= known.facts.due_at
    if held and known.facts.state is S.DRAINING and verdict.to is S.TERMINATING and not overdue:
        return False
    if held:
        _tell_of_loss(connection, row, f"{reason}; {len(held)} leases lost", now=now)
    if verdict.to is S.QUARANTINED:
        if known.facts.image is ImageStanding.CONDEMNED:
            because = replace(AUTOSCALER, reason=reason)
            quarantine.shut_out(connection, row["runner_id"], because, policy=policy)
        return True
    session_id = runner["session_id"]
    # Also an offer whose session ended before: nobody has swept it yet.
    sessions.revoke_all(connection, held, reason=reason, now=now, policy=policy)
    if session_id is not None and (held or verdict.to is S.FAILED):
        sessions.end_session(connection, session_id, SessionState.LOST, reason=reason, now=now)
        runner = _let_go(connection, runner, reason, RunnerState.OFFLINE, now=now, session_id=None)
        changes.wake_all_waiting(connection, reason=f"runner {runner['name']} is gone")
    else:
        state = RunnerState.OFFLINE if session_id is None else RunnerState.DRAINING
        _let_go(connection, runner, reason, state, now=now)
    if verdict.to is S.TERMINATING:
        identities.revoke(connection, row["runner_id"], reason="its machine ends", now=now)
    return True


def _let_go(
    connection: sa.Connection,
    runner: Row,
    reason: str,
    state: RunnerState,
    *,
    now: int,
    **values: object,
) -> Row:
    wish = {"drain_requested": 1, "drain_reason": reason, **values}
    return change_runner(connection, runner, state, reason=reason, now=now, **wish)


def _tell_of_loss(connection: sa.Connection, row: Row, detail: str, *, now: int) -> None:
    """Put on record that work was taken from a machine (DRN-003)."""
    changes.audit(
        connection,
        actor=AUTOSCALER.actor,
        channel=AUTOSCALER.channel,
        action="instance.lose_work",
        target=row["instance_id"],
        detail=detail,
        now=now,
    )


def drain(
    connection: sa.Connection, instance_id: str, *, reason: str, why: str, within: int
) -> bool:
    """Let a healthy machine finish what it has and take nothing more; tell whether it was one.

    `reason` is a `ScaleDownReason`; its leases may last for `within` milliseconds.
    """
    known, now = machines.lock(connection, instance_id), database_now(connection)
    if known.facts.state is not S.HEALTHY:
        return False
    changes.move(
        connection,
        INSTANCE,
        known.row,
        S.DRAINING,
        reason=f"{reason}: {why}",
        now=now,
        due_at=now + within,
        drained_at=now,
        drain_reason=reason,
        tended_until=0,
    )
    _on_runner(connection, known, lambda runner: _drained(connection, runner, why, now=now))
    return True


def _drained(connection: sa.Connection, runner: Row, why: str, *, now: int) -> None:
    online = runner["state"] != RunnerState.OFFLINE
    state = RunnerState.DRAINING if online else RunnerState.OFFLINE
    _let_go(connection, runner, why, state, now=now)


def keep(connection: sa.Connection, instance_id: str, *, why: str) -> bool:
    """Take a draining machine back, for it is needed after all; tell whether it drained."""
    known, now = machines.lock(connection, instance_id), database_now(connection)
    if known.facts.state is not S.DRAINING or known.row["interrupted_at"] is not None:
        return False
    changes.move(
        connection,
        INSTANCE,
        known.row,
        S.HEALTHY,
        reason=why,
        now=now,
        due_at=None,
        drain_reason=None,
    )
    _on_runner(connection, known, lambda runner: _taken_back(connection, runner, why, now=now))
    return True


def _taken_back(connection: sa.Connection, runner: Row, why: str, *, now: int) -> None:
    wish: dict[str, object] = {"drain_requested": 0, "drain_reason": None}
    state = RunnerState(runner["state"])
    if state is RunnerState.DRAINING:
        sick = runner["declared_unhealthy"]
        state = RunnerState.UNHEALTHY if sick else RunnerState.ONLINE
    change_runner(connection, runner, state, reason=why, now=now, **wish)
    changes.wake_all_waiting(connection, reason=f"runner {runner['name']} takes work again")


def _on_runner(connection: sa.Connection, known: Known, then: Callable[[Row], None]) -> None:
    """Do something to the runner of a machine under its lock, if it has one."""
    if known.row["runner_id"] is not None and known.facts.runner is not None:
        then(sessions.lock_runner(connection, known.row["runner_id"]))
