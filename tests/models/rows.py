"""Jobs and leases of the model of granting, and every way in which they may move.

Each move passes the product's tables of transitions, and what belongs together moves together. Now
is always 0: time passes by moving deadlines towards the past.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from forgeyard.model.ids import SessionId
from forgeyard.model.job import FailureClass, RetryPolicy
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.transitions import (
    ATTEMPT_TRANSITIONS,
    JOB_TRANSITIONS,
    LEASE_TRANSITIONS,
    LIVE_LEASE_STATES,
    AttemptState,
    JobState,
    LeaseState,
    check,
)
from forgeyard.model.units import Millis
from forgeyard.store.amounts import DIMENSIONS

NOW = 0
GRACE = 1
POLICY = LeasePolicy(offer_ttl=Millis(0), execution_ttl=Millis(0), connectivity_grace=Millis(GRACE))
"""The shortest times that differ: an offer lapses with the next unit, an active lease after it."""
RETRY = RetryPolicy(max_attempts=2, on=tuple(FailureClass))
RUNNERS = (0, 1)
MOST_GRANTS = 2
"""After so many a job is granted no more: what follows would look the same."""
SESSION = SessionId("its own")
ONE = dict.fromkeys(DIMENSIONS, 1)
Row = Mapping[str, Any]


class Wrong(Exception):
    """A rule was broken by one step, which its outcome alone would not show."""


class Lease(NamedTuple):
    """A lease with its attempt and its reservation."""

    runner: int
    """Whose it is; of one that has ended nobody needs to know."""
    epoch: int
    state: str
    attempt: str
    expires_at: int
    settled: bool
    reserves: bool

    def row(self) -> Row:
        """Show it as SQL would."""
        return {
            "state": self.state,
            "epoch": self.epoch,
            "expires_at": self.expires_at,
            "grace_ms": GRACE,
            "session_id": SESSION,
        }

    @property
    def is_live(self) -> bool:
        """Tell whether it is marked as live."""
        return self.state in LIVE_LEASE_STATES

    @property
    def is_over(self) -> bool:
        """Tell whether nobody was promised that it lives on."""
        return self.expires_at + (GRACE if self.state == "active" else 0) < NOW


class Job(NamedTuple):
    """A job with every lease that it had, oldest first."""

    state: str = "eligible"
    epoch: int = 0
    charged: int = 0
    wins: int = 0
    leases: tuple[Lease, ...] = ()

    def row(self) -> Row:
        """Show it as SQL would."""
        return {
            "state": self.state,
            "epoch": self.epoch,
            "attempts_made": len(self.leases),
            "cancel_reason": None,
            **ONE,
        }


def lost(job: Job, n: int, to: LeaseState) -> Job:
    offered = job.leases[n].state == LeaseState.OFFERED
    job = moved(job, n, lease=to, attempt=AttemptState.LOST)
    # Revoked or expired: nobody asks any more.
    job = with_lease(job, n, settled=offered, state=LeaseState.EXPIRED.value)
    return job_to(job, JobState.ELIGIBLE if offered else JobState.LOST)


def moved(job: Job, n: int, *, lease: LeaseState | None = None, attempt: AttemptState) -> Job:
    """Move a lease and its attempt; a lease that ends lets go of its runner."""
    one = job.leases[n]
    check(ATTEMPT_TRANSITIONS, AttemptState(one.attempt), attempt)
    if lease is None:
        return with_lease(job, n, attempt=attempt.value)
    check(LEASE_TRANSITIONS, LeaseState(one.state), lease)
    live = lease in LIVE_LEASE_STATES
    changed = {"state": lease.value, "attempt": attempt.value, "reserves": live}
    return with_lease(job, n, **(changed if live else {**changed, "expires_at": NOW, "runner": 0}))


def job_to(job: Job, state: JobState) -> Job:
    check(JOB_TRANSITIONS, JobState(job.state), state)
    return job._replace(state=state.value)


def with_lease(job: Job, n: int, **changed: Any) -> Job:
    lease = job.leases[n]._replace(**changed)
    return job._replace(leases=(*job.leases[:n], lease, *job.leases[n + 1 :]))


def older(job: Job) -> Job:
    """Let a unit of time pass; long ago is as good as just too late."""
    for n, lease in enumerate(job.leases):
        if lease.is_live and not lease.is_over:
            job = with_lease(job, n, expires_at=lease.expires_at - 1)
    return job


def mirrored(job: Job) -> Job:
    for n, lease in enumerate(job.leases):
        if lease.is_live:
            job = with_lease(job, n, runner=1 - lease.runner)
    return job


def runner_row(jobs: Sequence[Job], runner: int) -> Row:
    held = sum(lease.reserves for job in jobs for lease in job.leases if lease.runner == runner)
    return {
        "state": "online",
        "session_id": SESSION,
        "suspect": 0,
        "pool_id": "",
        **{f"total_{name}": 1 for name in DIMENSIONS},
        **{f"headroom_{name}": 0 for name in DIMENSIONS},
        **{f"reserved_{name}": held for name in DIMENSIONS},
    }
