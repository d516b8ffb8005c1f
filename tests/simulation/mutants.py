"""The product without one of its safeguards. The simulation must find every one of them out.

Each is a context manager that takes something away from the product's own functions and gives it
back. It is looked up in its module whenever it is called, so that this takes effect.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa

from forgeyard import clock
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.transitions import LIVE_LEASE_STATES, LeaseState
from forgeyard.scheduler import grant as grant_rule
from forgeyard.scheduler.devices import allocate
from forgeyard.scheduler.gates import Gates
from forgeyard.store import (
    changes,
    commit,
    devices,
    fence,
    grants,
    jobs,
    keys,
    lapse,
    liveness,
    phases,
    registrations,
    release,
    runners,
    settle,
)
from forgeyard.store.births import draw_id
from forgeyard.store.changes import LEASE, Row
from forgeyard.store.release import Held
from workflows import scheduler_loop


def _nothing(*_arguments: object, **_named: object) -> None:
    """Do nothing, whatever is asked."""


@contextmanager
def without_fence() -> Iterator[None]:
    """Let whoever comes act on a lease, however late and whatever has become of it."""
    with patch.object(fence, "staleness", _nothing):
        yield


@contextmanager
def with_one_epoch() -> Iterator[None]:
    """Give every grant of a job the same epoch."""
    with patch.object(grants, "_fenced", lambda _epoch: sa.literal(0)), _anew():
        yield


@contextmanager
def _anew() -> Iterator[None]:
    """Build the statements of a commit anew, and those of the product after that."""
    grants._changes.cache_clear()
    try:
        yield
    finally:
        grants._changes.cache_clear()


@contextmanager
def without_capacity_check() -> Iterator[None]:
    """Commit what was planned although the runner may be full by now."""

    def devices_for(self: Any, request: Any, *, withheld: object) -> Any:
        return allocate(request.devices, self.equipment, self.held)

    with patch.object(grant_rule._Left, "devices_for", devices_for):
        yield


@contextmanager
def without_quota_check() -> Iterator[None]:
    """Commit what was planned although others may have used the quota up."""
    with patch.object(commit, "Gates", lambda _scopes, held: Gates({}, held)):
        yield


@contextmanager
def without_runner_check() -> Iterator[None]:
    """Commit what was planned although the runner may take no work any more."""
    judge = commit._runner_standing

    def standing(*arguments: Any, **named: Any) -> grant_rule.RunnerStanding:
        return replace(judge(*arguments, **named), schedulable=True)

    with patch.object(commit, "_runner_standing", standing):
        yield


@contextmanager
def without_policy_check() -> Iterator[None]:
    """Commit what was planned although another policy may be in force."""
    with patch.object(commit, "_why_void", _nothing):
        yield


@contextmanager
def without_second_look() -> Iterator[None]:
    """Expire whatever a sweep has found, though it may have ended or been spared meanwhile."""

    def expire(connection: sa.Connection, lease_id: str, *, policy: SchedulingPolicy) -> bool:
        held = release.lock_lease(connection, lease_id)
        state = held.lease["state"]
        found = state if state in LIVE_LEASE_STATES else LeaseState.ACTIVE.value
        lapsed = replace(held, lease={**held.lease, "expires_at": 0, "state": found})
        now = lapse.database_now(connection)
        return lapse._expire(connection, lapsed, now=now, policy=policy.lease)

    with patch.object(lapse, "expire", expire):
        yield


@contextmanager
def by_a_process_clock() -> Iterator[None]:
    """Judge deadlines by the clock of whichever process looks."""

    def now(_connection: sa.Connection) -> int:
        return int(clock.now().timestamp() * 1000)

    with patch.object(lapse, "database_now", now):
        yield


@contextmanager
def with_settling_repeated() -> Iterator[None]:
    """Decide on an attempt as often as somebody asks."""
    lock = settle.lock_attempt

    def unsettled(connection: sa.Connection, attempt_id: str) -> Held:
        held = lock(connection, attempt_id)
        return replace(held, attempt={**held.attempt, "settled_at": None})

    def undecided(attempt: Row, job: Row) -> bool:
        return attempt["accepted_at"] is not None and job["state"] in settle.DECIDABLE

    with (
        patch.object(settle, "lock_attempt", unsettled),
        patch.object(settle, "_is_undecided", undecided),
    ):
        yield


@contextmanager
def without_release() -> Iterator[None]:
    """End leases and leave what they hold on their runner."""

    def end(connection: sa.Connection, lease: Row, *, to: LeaseState, reason: str, now: int) -> Row:
        if lease["state"] not in LIVE_LEASE_STATES:
            return lease
        keys.give_back(connection, lease["lease_id"])
        devices.give_back(connection, lease["lease_id"])
        return changes.move(connection, LEASE, lease, to, reason=reason, now=now, ended_at=now)

    with patch.object(release, "release", end):
        yield


@contextmanager
def without_wakes() -> Iterator[None]:
    """Lose every wake, and never look without one."""
    waits = ("FALLBACK_MS", "FIRST_BACK_OFF_MS", "LONGEST_BACK_OFF_MS")
    with ExitStack() as stack:
        stack.enter_context(patch.object(changes, "wake", _nothing))
        for name in waits:
            stack.enter_context(patch.object(scheduler_loop, name, 10**9))
        yield


@contextmanager
def without_promotion() -> Iterator[None]:
    """Forget the jobs that wait for others."""
    with patch.object(jobs, "promote", lambda *_arguments, **_named: []):
        yield


@contextmanager
def without_counting_needs() -> Iterator[None]:
    """Do not tell jobs that one which they need has ended; a reconciliation would notice."""
    with patch.object(jobs, "_stop_waiting", _nothing):
        yield


@contextmanager
def without_bridging() -> Iterator[None]:
    """Let leases pay for the time in which nobody could renew them."""
    with patch.object(liveness, "_bridge", _nothing):
        yield


@contextmanager
def without_fencing_sessions() -> Iterator[None]:
    """Leave the leases of a session to it when another one begins."""
    with patch.object(runners, "revoke_all", _nothing):
        yield


@contextmanager
def without_drain() -> Iterator[None]:
    """Forget what operators want of a runner as soon as its agent is heard of."""
    with patch.object(runners, "_wanted", _nothing):
        yield


@contextmanager
def without_keys_of_registrations() -> Iterator[None]:
    """Open another session whenever a registration is heard, however old it is."""

    def session_of(_message: object, *, now: int, rng: Random) -> str:
        return draw_id("ses", now=now, rng=rng)

    with patch.object(registrations, "session_of", session_of):
        yield


@contextmanager
def with_phases_counted_once() -> Iterator[None]:
    """Count a phase from the first word of it, though its agent did not hear that it was heard.

    So it was at first: the server could end an attempt whose steps might still run.
    """
    with patch.object(phases, "repeat", _nothing):
        yield


MUTANTS: tuple[Callable[[], Any], ...] = (
    without_fence,
    with_one_epoch,
    without_capacity_check,
    without_quota_check,
    without_runner_check,
    without_second_look,
    without_release,
    without_wakes,
    without_promotion,
    without_counting_needs,
    without_fencing_sessions,
    without_drain,
)
OTHERS: tuple[Callable[[], Any], ...] = (
    without_policy_check,
    by_a_process_clock,
    with_settling_repeated,
    without_bridging,
    without_keys_of_registrations,
    with_phases_counted_once,
)
"""What eight seeds do not find out: models, histories and tests of the store have to."""
