"""What a job is before anybody runs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forgeyard.model.capability import Requirements
from forgeyard.model.units import Bytes, MilliCpu, Millis, Resources
from forgeyard.model.wishes import Domain, Purpose, Wishes


class FailureClass(StrEnum):
    """Who is to blame, which decides whether trying again can help."""

    USER_COMMAND = "user_command"
    TEST_FAILURE = "test_failure"
    COMPILE_FAILURE = "compile_failure"
    INFRASTRUCTURE = "infrastructure"
    RUNNER_LOST = "runner_lost"
    INPUT_FETCH = "input_fetch"
    OUTPUT_UPLOAD = "output_upload"
    SANDBOX_SETUP = "sandbox_setup"
    TOOLCHAIN_UNAVAILABLE = "toolchain_unavailable"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"
    """The job took more memory than it may have on its runner."""
    POLICY = "policy"
    INTERNAL = "internal"
    PREEMPTED = "preempted"
    """Stopped by us to make room; nobody's fault, and tried again whatever the retry policy."""


class Priority(StrEnum):
    """The five priorities a user may ask for (FAR-006)."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    RELEASE_CRITICAL = "release_critical"
    EMERGENCY = "emergency"


class Condition(StrEnum):
    """When a job runs, judged once all its needs have ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    ALWAYS = "always"


AUTOMATIC_RETRY = (
    FailureClass.INFRASTRUCTURE,
    FailureClass.RUNNER_LOST,
    FailureClass.INPUT_FETCH,
    FailureClass.OUTPUT_UPLOAD,
    # Another runner may have it, and this one has said by then that it has it no more.
    FailureClass.TOOLCHAIN_UNAVAILABLE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, for which failures and after what delay a job is tried again."""

    max_attempts: int = 3
    on: tuple[FailureClass, ...] = AUTOMATIC_RETRY
    delay: Millis = Millis(0)
    max_delay: Millis = Millis(300_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Four of the five deadlines; the fifth belongs to the run."""

    queue: Millis = Millis(86_400_000)
    preparation: Millis = Millis(600_000)
    execution: Millis = Millis(3_600_000)
    upload: Millis = Millis(600_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One shell script of a job; it fails the job unless it exits 0."""

    name: str
    run: str
    shell: str = "sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """Files to keep: a path or glob inside the workspace, uploaded as one archive."""

    name: str
    path: str
    required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCell:
    """Which cell of a matrix a job is; the scheduler never looks at it (FAR-031)."""

    of: str
    """The job of the run file that was expanded."""
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    fail_fast: bool = True
    max_parallel: int | None = None
    spread_over: Domain = Domain.HOST
    spread_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """Files to bring along from an earlier job whose key files had the same content."""

    name: str
    path: str
    key: tuple[str, ...]
    """Paths or globs of the workspace, as it is before the first step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as its author wrote it, with every default filled in."""

    name: str
    steps: tuple[Step, ...]
    needs: tuple[str, ...] = ()
    condition: Condition = Condition.SUCCESS
    continue_on_error: bool = False
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: tuple[str, ...] = ()
    outputs: tuple[OutputSpec, ...] = ()
    caches: tuple[CacheSpec, ...] = ()
    test_reports: tuple[str, ...] = ()
    """Paths or globs of JUnit files; what they count never changes how the job ends."""
    resources: Resources = field(
        default_factory=lambda: Resources(
            cpu=MilliCpu(500), memory=Bytes(256 * 2**20), disk=Bytes(256 * 2**20), slots=1
        )
    )
    requires: Requirements = field(default_factory=Requirements)
    priority: Priority = Priority.NORMAL
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    matrix: MatrixCell | None = None
    wishes: Wishes = field(default_factory=Wishes)
    proposal: bool = False
    """Whether it comes from outside, as a proposal that nobody trusts yet; no run file says so."""
    checkpoint: bool = False
    """Whether it saves its work when it hears that its machine goes (SPT-010)."""
    written: Requirements | None = None
    """What its author asked for, if policy has added to it."""

    @property
    def purpose(self) -> Purpose:
        """Tell what it is for."""
        return self.wishes.purpose
