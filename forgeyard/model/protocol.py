"""Messages between an agent and the agent API, version 1.

Both sides decode JSON into these shapes with pydantic, which enforces the limits. Durations are
milliseconds; an answer never carries an instant, for the clocks of two machines do not agree.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Le, MaxLen

from forgeyard.model.capability import Capabilities
from forgeyard.model.enrolment import Admission
from forgeyard.model.equipment import DeviceShare, Word
from forgeyard.model.holdings import NOTHING_HELD, Holdings
from forgeyard.model.ids import AttemptId, Digest, JobId, LeaseId, RunId, RunnerId, SessionId
from forgeyard.model.job import FailureClass, JobSpec
from forgeyard.model.location import SOMEWHERE, Location
from forgeyard.model.run import GitSource
from forgeyard.model.runner import RejectReason, ResourcePressure, RunnerHealth
from forgeyard.model.units import LARGEST, Millis, Resources

PROTOCOL_VERSION = 1
MARK_HEADER = "Forgeyard-Store-Mark"
"""With every request an agent shows the newest mark of the store that it was given."""
MAX_LOG_CHUNK = 64 * 2**10
MAX_LEASES = 256
MAX_FAILING = 20
"""How many failing tests an attempt names."""
Id = Annotated[str, MaxLen(64)]
Message = Annotated[str, MaxLen(4_000)]
Count = Annotated[int, Ge(0)]
Total = Annotated[int, Ge(0), Le(LARGEST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a host can do and how large it is; said again when it was looked at anew (ELG-028)."""

    capabilities: Capabilities
    total: Resources
    headroom: Resources
    """Kept back for the system, the agent and its archives; allocatable = total - headroom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Register(Report):
    """Open a session for a runner; the session before it, if any, is fenced at once."""

    runner_name: Annotated[str, MaxLen(100)]
    location: Location = SOMEWHERE
    """Not a capability, for it alone differs between machines that are otherwise alike."""
    pool: Word = ""
    """The pool that it would like to be in; only an operator puts it there (ELG-042)."""
    holdings: Holdings = NOTHING_HELD
    protocol_version: int = PROTOCOL_VERSION
    key: Annotated[str, MaxLen(64)] = ""
    """Drawn for each session that is wanted: a registration that comes twice opens one session."""
    clock_ms: Annotated[int, Ge(0), Le(LARGEST)] | None = None
    """What the machine takes for the time; nothing but its admission depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The session, and the rhythm the server wants."""

    runner_id: RunnerId
    session_id: SessionId
    renew_every: Millis
    heartbeat_every: Millis
    longest_back_off: Millis
    store_mark: str = ""
    """To be kept and shown, by which a server knows an older copy of its store; empty: no news."""
    admission: Admission = Admission.VERIFIED
    admission_reason: str = ""
    warmup: bool = False
    """Whether there is something to fetch beside the first jobs, once the runner is admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmArchive:
    """An archive of a dependency cache that jobs of this runner may well ask for."""

    key: Digest
    """Of the cache."""
    digest: Digest
    size: Total


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpPlan:
    """What a new machine is to have at hand, the most useful first, and for how long to try."""

    within: Millis
    archives: tuple[WarmArchive, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpOutcome:
    """How far a warm-up has come; without it a runner is only colder (FOP-032)."""

    archives: Total = 0
    """How many of them are there now."""
    bytes_fetched: Total = 0
    missing: Total = 0
    problem: Annotated[str, MaxLen(300)] = ""
    """Why some are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Say that the session lives; `held` are the leases whose processes run here."""

    pressure: ResourcePressure = ResourcePressure.NORMAL
    draining: bool = False
    held: Annotated[tuple[Annotated[LeaseId, MaxLen(64)], ...], MaxLen(MAX_LEASES)] = ()
    health: RunnerHealth = RunnerHealth.HEALTHY
    health_reason: Annotated[str, MaxLen(300)] = ""
    unclean: bool = False
    """Whether something that a job left behind cannot be removed; `health_reason` says what."""
    report: Report | None = None
    """Given when the host was looked at anew, whether or not anything has changed."""
    holdings: Holdings | None = None
    """Given when they have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """`drain`: finish what runs, take nothing more. `abandon`: kill these, they are not yours."""

    drain: bool = False
    abandon: tuple[LeaseId, ...] = ()
    store_mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An archive to unpack into the workspace: the source, or an output of a needed job."""

    origin: str
    """`source`, or `JOB/OUTPUT`."""
    digest: Digest
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The right to one attempt, until accepted or lapsed."""

    lease_id: LeaseId
    epoch: int
    attempt_id: AttemptId
    attempt_number: int
    job_id: JobId
    run_id: RunId
    run_name: str
    spec: JobSpec
    inputs: tuple[Input, ...]
    ttl: Millis
    grace: Millis
    git: GitSource | None = None
    """Where the source came from, if it is a commit's files."""
    devices: tuple[DeviceShare, ...] = ()
    """The devices of the runner that are the job's meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignments:
    """What a long poll brings: offers, leases to cancel, and whether to drain."""

    offers: tuple[Offer, ...] = ()
    cancel: tuple[LeaseId, ...] = ()
    drain: bool = False
    leaving: Annotated[Millis, Ge(0)] | None = None
    """How long the machine is still there, if its provider takes it away (SPT-009)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who claims a lease: every call about a lease carries it."""

    session_id: Annotated[SessionId, MaxLen(64)]
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The lease is active; `ttl` counts from when the request was sent."""

    ttl: Millis
    grace: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject(Holder):
    """Turn an offer down."""

    reason: RejectReason
    detail: Message = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """One lease to keep alive."""

    lease_id: Annotated[LeaseId, MaxLen(64)]
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Keep leases alive, all in one request."""

    session_id: Annotated[SessionId, MaxLen(64)]
    leases: Annotated[tuple[Renewal, ...], MaxLen(MAX_LEASES)]


class RenewalVerdict(StrEnum):
    """What became of one renewal."""

    RENEWED = "renewed"
    CANCEL = "cancel"
    """Renewed, but the job is to be cancelled."""
    STALE = "stale"
    """Not yours any more: kill it and do not report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """The verdict on one lease; `ttl` counts from when the request was sent."""

    lease_id: LeaseId
    verdict: RenewalVerdict
    ttl: Millis = Millis(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewAnswer:
    """One verdict for each renewal, in the order asked."""

    leases: tuple[Renewed, ...]


class Phase(StrEnum):
    """How far an accepted attempt has come."""

    RUNNING = "running"
    UPLOADING_OUTPUTS = "uploading_outputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Holder):
    """An attempt entered its next phase."""

    phase: Phase


class Outcome(StrEnum):
    """How an attempt ended, as its agent saw it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an attempt used, measured on its host."""

    wall: Millis = Millis(0)
    cpu: Millis = Millis(0)
    peak_memory: int = 0
    bytes_fetched: int = 0
    bytes_uploaded: int = 0
    inputs_at_hand: Total = 0
    """Archives of inputs that the runner had kept."""
    inputs_fetched: Total = 0
    caches_at_hand: Total = 0
    """Dependency caches whose archives the runner had kept."""
    caches_fetched: Total = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """How one step ended; `exit_code` is negative for a signal, None when it never ran."""

    name: Annotated[str, MaxLen(200)]
    exit_code: int | None
    wall: Millis = Millis(0)
    began: Millis = Millis(0)
    """How long after the attempt was accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestFailure:
    """A test that did not pass, with the first line of what it said."""

    name: Annotated[str, MaxLen(300)]
    message: Annotated[str, MaxLen(500)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestCounts:
    """What the test reports of an attempt, or of a whole run, add up to."""

    tests: Total = 0
    failures: Total = 0
    errors: Total = 0
    skipped: Total = 0
    time: Annotated[Millis, Ge(0), Le(LARGEST)] = Millis(0)
    """The sum of what each test took by its own account."""
    files: Total = 0
    unreadable: Total = 0
    """Of the files, those that were no reports, or too large."""
    failing: Annotated[tuple[TestFailure, ...], MaxLen(MAX_FAILING)] = ()
    """The first of those that failed or broke."""

    @property
    def failed(self) -> int:
        """Count the tests that did not pass, whether they failed or broke."""
        return self.failures + self.errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete(Holder):
    """Report the end of an attempt, after its outputs and logs are uploaded."""

    outcome: Outcome
    failure_class: FailureClass | None = None
    exit_code: int | None = None
    message: Message = ""
    usage: Usage = field(default_factory=Usage)
    steps: Annotated[tuple[StepResult, ...], MaxLen(100)] = ()
    tests: TestCounts | None = None


class CompletionVerdict(StrEnum):
    """What the server did with a completion."""

    ACCEPTED = "accepted"
    DUPLICATE_ACCEPTED = "duplicate_accepted"
    STALE_REJECTED = "stale_rejected"
    INVALID_REJECTED = "invalid_rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionAnswer:
    """The verdict; an agent forgets the lease whatever it is."""

    verdict: CompletionVerdict
