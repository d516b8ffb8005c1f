"""What the command line reads out of the API's answers: only the fields that it prints.

A server may send more; fields that are missing where a default stands here are not missed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from forgeyard.model.transitions import FINAL_RUN_STATES, RunState

FINAL = frozenset(state.value for state in FINAL_RUN_STATES)


def aside(waits_for: str | None, note: str | None) -> str:
    """Say what another run of its concurrency group has to do with a run."""
    if waits_for is not None:
        return f"waits for {waits_for}"
    replaced = note is not None and note.startswith("superseded")
    return note or "" if replaced else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How one step ended; `began` counts from when the attempt was accepted."""

    name: str
    exit_code: int | None = None
    wall: int = 0
    began: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingTest:
    """A test that did not pass."""

    name: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What test reports add up to."""

    tests: int = 0
    failures: int = 0
    errors: int = 0
    skipped: int = 0
    unreadable: int = 0
    failing: tuple[FailingTest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of a job."""

    number: int
    state: str
    runner: str
    failure_class: str | None = None
    exit_code: int | None = None
    message: str | None = None
    pool: str = ""
    trust: str = ""
    capability_digest: str = ""
    policy_digest: str = ""
    steps: tuple[Step, ...] = ()
    tests: Counts | None = None
    created_at: int | None = None
    accepted_at: int | None = None
    started_at: int | None = None
    uploading_at: int | None = None
    finished_at: int | None = None
    wall_ms: int | None = None
    cpu_ms: int | None = None
    peak_memory_bytes: int | None = None
    bytes_fetched: int | None = None
    bytes_uploaded: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of a run."""

    job_id: str
    name: str
    state: str
    needs: tuple[str, ...] = ()
    waiting: str | None = None
    starts: str | None = None
    failure_class: str | None = None
    message: str | None = None
    cancel_reason: str | None = None
    reused_from: str | None = None
    matrix: str | None = None
    matrix_values: Mapping[str, str] | None = None
    continue_on_error: bool = False
    attempts: tuple[Attempt, ...] = ()
    created_at: int | None = None
    eligible_at: int | None = None
    finished_at: int | None = None

    @property
    def runner(self) -> str:
        """Name the runner of the latest attempt."""
        return self.attempts[-1].runner if self.attempts else ""

    def took_ms(self, now_ms: int) -> int | None:
        """Tell how long the latest attempt has run, or ran."""
        started = self.attempts[-1].started_at if self.attempts else None
        if started is None:
            return None
        return (self.attempts[-1].finished_at or now_ms) - started

    @property
    def why(self) -> str:
        """Say why it waits, or how it ended if that was not well."""
        if self.waiting:
            return self.waiting
        if self.reused_from and self.state == RunState.SUCCEEDED:
            return "taken over from the earlier run"
        said = [self.failure_class or "", self.message or "", self.cancel_reason or ""]
        return ": ".join(dict.fromkeys(one for one in said if one))


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """The commit that a run's source is."""

    repository: str
    ref: str
    commit: str

    @property
    def short(self) -> str:
        """Write as much of the commit's id as people use."""
        return self.commit[:10]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run with its jobs."""

    run_id: str
    name: str
    state: str
    ending: str | None = None
    note: str | None = None
    submitted_by: str = ""
    rerun_of: str | None = None
    concurrency_group: str | None = None
    queue: str = ""
    waits_for: str | None = None
    git: Git | None = None
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    tests: Counts | None = None
    jobs: tuple[Job, ...] = ()

    @property
    def aside(self) -> str:
        """Say which run it waits for, or which one took its place."""
        return aside(self.waits_for, self.note)

    @property
    def is_over(self) -> bool:
        """Tell whether nothing will change any more."""
        return self.state in FINAL

    def took_ms(self, now_ms: int) -> int:
        """Tell how long the run has lived, or lived."""
        return (self.finished_at or now_ms) - self.created_at


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in a list."""

    run_id: str
    name: str
    state: str
    note: str | None = None
    waits_for: str | None = None
    submitted_by: str = ""
    git: Git | None = None
    created_at: int
    finished_at: int | None = None
    jobs: int = 0
    open_jobs: int = 0
    failed_jobs: int = 0

    @property
    def aside(self) -> str:
        """Say which run it waits for, or which one took its place."""
        return aside(self.waits_for, self.note)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Some runs, and where the next ones begin."""

    runs: tuple[RunSummary, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of what one attempt printed."""

    job: str
    attempt: int
    step: str = ""
    at: int = 0
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """Some of a log, and where it goes on."""

    chunks: tuple[LogChunk, ...]
    next: str
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """An output to download."""

    job: str
    name: str
    path: str = ""
    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """An amount of each resource; the wire names are the model's own."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0
    slots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job goes where it goes, as the server words it."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """What a job might ask for, as the server words it."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue; `eligible` counts by priority."""

    name: str
    path: str = ""
    paused: bool = False
    note: str = ""
    pending: int = 0
    eligible: Mapping[str, int] = field(default_factory=dict[str, int])
    running: int = 0
    oldest_eligible_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The sums over runners that take work."""

    runners: int
    absent: int = 0
    cpu_percent: int = 100
    allocatable: Amounts
    reserved: Amounts
    free: Amounts
    wanted: Amounts = field(default_factory=Amounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A scheduling policy; one that was only checked has no version."""

    digest: str
    document: Mapping[str, object]
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """One version of the policy that was set."""

    version: int
    digest: str
    actor: str
    reason: str
    created_at: int
    damage: str | None = None
