"""The phases of an accepted attempt: the order they come in, and the deadline each brings."""

from collections.abc import Mapping
from dataclasses import replace

import sqlalchemy as sa

from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.transitions import FINAL_ATTEMPT_STATES, AttemptState, JobState
from forgeyard.store import changes, specs, tables
from forgeyard.store.changes import ATTEMPT, JOB, DeadlineKind, Row
from forgeyard.store.release import ATTEMPT_DEADLINES, Held

PHASES = (
    AttemptState.LEASED,
    AttemptState.PREPARING,
    AttemptState.RUNNING,
    AttemptState.UPLOADING_OUTPUTS,
)
_BEGUN = ("accepted_at", "started_at", "uploading_at")
_INSTANTS: Mapping[AttemptState, str] = dict(zip(PHASES[1:], _BEGUN, strict=True))
_DEADLINES: Mapping[AttemptState, DeadlineKind] = dict(
    zip(PHASES[1:], ATTEMPT_DEADLINES, strict=True)
)


def advance(
    connection: sa.Connection,
    held: Held,
    phase: AttemptState,
    *,
    reason: str,
    now: int,
    policy: LeasePolicy,
) -> Held:
    """Bring attempt and job to a phase through every one between; do nothing if they are there."""
    begun, wanted = PHASES.index(AttemptState(held.attempt["state"])), PHASES.index(phase)
    if wanted <= begun:
        return held
    attempt, job = held.attempt, held.job
    for state in PHASES[begun + 1 : wanted + 1]:
        attempt = changes.move(
            connection, ATTEMPT, attempt, state, reason=reason, now=now, **{_INSTANTS[state]: now}
        )
        job = changes.move(connection, JOB, job, JobState(state.value), reason=reason, now=now)
    held = replace(held, attempt=attempt, job=job)
    _bound(connection, held, phase, now=now, policy=policy)
    return held


def repeat(
    connection: sa.Connection,
    held: Held,
    phase: AttemptState,
    *,
    now: int,
    policy: LeasePolicy,
) -> None:
    """Begin the deadline of a phase anew, if the attempt is in it.

    An agent that did not hear our answer counts from when it asked again, so the deadline must too.
    """
    if held.attempt["state"] == phase:
        _bound(connection, held, phase, now=now, policy=policy)


def _bound(
    connection: sa.Connection,
    held: Held,
    phase: AttemptState,
    *,
    now: int,
    policy: LeasePolicy,
) -> None:
    """Set the one deadline that an accepted attempt has, for a phase that begins now."""
    attempt_id = held.attempt["attempt_id"]
    due_at = now + _timeout(held.job, phase) + policy.deadline_slack
    if held.lease["cancel_requested"]:
        # Whoever was told to stop gains no time by going on.
        due_at = min([due_at, *deadlines_of(connection, attempt_id).values()])
    changes.clear_deadlines(connection, attempt_id, *ATTEMPT_DEADLINES)
    partition = held.attempt["partition"]
    changes.set_deadline(
        connection, _DEADLINES[phase], attempt_id, partition=partition, due_at=due_at
    )


def start_again(
    connection: sa.Connection, attempt: Row, job: Row, *, now: int, policy: LeasePolicy
) -> None:
    """Give the present phase of an accepted attempt a deadline, as if the phase began now."""
    phase, attempt_id = AttemptState(attempt["state"]), attempt["attempt_id"]
    changes.set_deadline(
        connection,
        _DEADLINES[phase],
        attempt_id,
        partition=attempt["partition"],
        due_at=now + _timeout(job, phase) + policy.deadline_slack,
    )


def deadlines_of(connection: sa.Connection, attempt_id: str) -> Mapping[DeadlineKind, int]:
    """Read when the phase of an attempt must be over; an accepted one has one such deadline."""
    deadlines = tables.deadlines
    query = sa.select(deadlines.c.kind, deadlines.c.due_at).where(
        deadlines.c.entity_id == attempt_id,
        deadlines.c.kind.in_([kind.value for kind in ATTEMPT_DEADLINES]),
    )
    return {DeadlineKind(kind): due_at for kind, due_at in connection.execute(query)}


def at_most(job: Row, policy: LeasePolicy) -> int:
    """Count how long an attempt granted now can last until it has ended."""
    return int(policy.offer_ttl + job["lasts_ms"] + len(_BEGUN) * policy.deadline_slack)


def time_left(connection: sa.Connection, held: Held, *, now: int, policy: SchedulingPolicy) -> int:
    """Count the current deadline, all that may follow it, and two sweeps to enforce them."""
    if held.attempt["settled_at"] is not None:
        return 0
    margin = 2 * policy.sweep.period
    state = AttemptState(held.attempt["state"])
    if state in FINAL_ATTEMPT_STATES:
        settled_by: int = held.attempt["finished_at"] + policy.lease.settle_within
        return max(0, settled_by - now) + margin
    due_at: int = held.lease["expires_at"]
    if state is not AttemptState.LEASED:
        # The default serves a row that somebody deleted by hand: look again at the next margin.
        due_at = max(deadlines_of(connection, held.attempt["attempt_id"]).values(), default=now)
    later = PHASES[PHASES.index(state) + 1 :]
    following = sum(_timeout(held.job, phase) + policy.lease.deadline_slack for phase in later)
    return max(0, due_at - now) + following + margin


def _timeout(job: Row, phase: AttemptState) -> int:
    timeouts = specs.timeouts(job)
    return {
        AttemptState.PREPARING: timeouts.preparation,
        AttemptState.RUNNING: timeouts.execution,
        AttemptState.UPLOADING_OUTPUTS: timeouts.upload,
    }[phase]
