"""What a reconciliation may find: each a fact that contradicts another, and what became of it."""

from dataclasses import dataclass
from enum import StrEnum


class FindingKind(StrEnum):
    """What is wrong; metric labels, tables and the doctor print it."""

    RESERVATION_MISSING = "reservation_missing"
    """A live lease reserves nothing (RCN-013)."""
    RESERVATION_STRAY = "reservation_stray"
    """A reservation belongs to no live lease (RCN-012)."""
    RESERVATION_WRONG = "reservation_wrong"
    """It holds other amounts than its job needs, or counts against other scopes."""
    RUNNER_SUM = "runner_sum"
    """A runner's reserved amounts are not what its live leases need."""
    DEVICE_STRAY = "device_stray"
    """A device is held for no live lease."""
    DEVICE_OVERFULL = "device_overfull"
    """Leases hold more of a device than there is."""
    KEY_STRAY = "key_stray"
    """An exclusivity key is held for no live lease."""
    KEY_MISSING = "key_missing"
    """A live lease does not hold the key that its job asked for."""
    ROOM_STRAY = "room_stray"
    """Room is held for a job that has not waited for long."""
    LEASE_ORPHAN = "lease_orphan"
    """A lease lives although its attempt or job has ended or gone on without it."""
    JOB_BEHIND = "job_behind"
    """A job is not in the phase that its live attempt is in."""
    ATTEMPT_ORPHAN = "attempt_orphan"
    """An attempt goes on without a live lease."""
    ATTEMPT_UNSETTLED = "attempt_unsettled"
    """An attempt ended, and nothing will ever settle it."""
    JOB_ORPHAN = "job_orphan"
    """A job is being worked on, but by nobody."""
    LEASE_UNREPORTED = "lease_unreported"
    """The heartbeats of a runner have not named an active lease of its own for long."""
    LEASE_UNKNOWN = "lease_unknown"
    """A runner named leases that are not its own; it was told to abandon them."""
    LEASE_AFTER_DRAIN = "lease_after_drain"
    """A runner that takes no work has a lease from after it stopped (RCN-016)."""
    NEEDS_COUNT = "needs_count"
    """A job does not wait for as many needs as have not ended."""
    JOB_NOT_PROMOTED = "job_not_promoted"
    """A job is pending although it waits for nothing."""
    RUN_COUNT = "run_count"
    """A run does not count its open or failed jobs right."""
    RUN_NOT_ENDED = "run_not_ended"
    """A run goes on although all its jobs have ended."""
    RUN_ENDED_EARLY = "run_ended_early"
    """A run has ended although jobs of it go on."""
    DEADLINE_MISSING = "deadline_missing"
    """Nothing will ever end a wait."""
    DEADLINE_STRAY = "deadline_stray"
    """A deadline is due of something that does not exist."""
    QUEUE_FORGOTTEN = "queue_forgotten"
    """Jobs that could be placed have waited for long without a cycle (RCN-015)."""
    PARKING_AHEAD = "parking_ahead"
    """A class is parked under a generation that never was."""
    SHARE_AHEAD = "share_ahead"
    """A scope is charged with more service than anybody can have had."""
    EVENT_ORPHAN = "event_orphan"
    """An event waits to be told to an attempt that does not exist."""
    RUNNER_OVERFULL = "runner_overfull"
    """Leases hold more of a runner than it may give away (RCN-014)."""
    RUNNER_CONFLICTED = "runner_conflicted"
    """Cycle after cycle plans for a runner what the commit refuses it (SP-036)."""
    RUNNER_RESTED = "runner_rested"
    """It has been left alone for long enough and may be tried again."""


class FindingOutcome(StrEnum):
    """What became of a finding."""

    FOUND = "found"
    """It was only looked for; a reconciliation would repair it."""
    REPAIRED = "repaired"
    REPORTED = "reported"
    """Only taking work from somebody would mend it: an operator decides about that."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One contradiction: of what kind, about what, what is so, and what should be."""

    kind: FindingKind
    entity: str
    within: str
    """The row under whose lock it is judged again and repaired."""
    found: str
    expected: str
    outcome: FindingOutcome = FindingOutcome.FOUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A finding as it was written down; instants are epoch milliseconds."""

    kind: FindingKind
    entity: str
    found: str
    expected: str
    outcome: FindingOutcome
    at: int
    seen_at: int
