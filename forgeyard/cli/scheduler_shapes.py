"""What `forgeyard scheduler …` reads out of the answers, beside the shapes that others share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from forgeyard.cli.shapes import Amounts, Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Room on a runner that is kept for one job."""

    job: str
    runner: str
    kind: str
    due_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """What the scheduler last did."""

    cycle_id: int
    eligible: int = 0
    planned: int = 0
    granted: int | None = None
    created_at: int | None = None
    pressure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatus:
    """How scheduling stands; `jobs` and `runners` count by state."""

    partition: str
    jobs: Mapping[str, int]
    runners: Mapping[str, int]
    leases: Mapping[str, int] = field(default_factory=dict[str, int])
    allocatable: Amounts = field(default_factory=Amounts)
    free: Amounts = field(default_factory=Amounts)
    oldest_eligible_ms: int | None = None
    outbox_lag_ms: int | None = None
    renewal_beat_ms: int | None = None
    renewal_gaps: int = 0
    last_cycle: Cycle | None = None
    held: tuple[Held, ...] = ()
    store_hold: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that the doctor looked at."""

    name: str
    verdict: str
    sentence: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What the doctor found."""

    verdict: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that contradicts itself, and what became of it."""

    kind: str
    entity: str
    found: str
    expected: str
    outcome: str
    seen_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What a reconciliation found."""

    findings: tuple[Finding, ...] = ()
    failed: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A waiting job, and the runner that it would get."""

    job: str
    run_id: str
    runner: str
    score: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What the next cycle would do."""

    waiting: int
    placements: tuple[PlannedJob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """Jobs of one sort."""

    name: str
    eligible: int = 0
    running: int = 0
    oldest_eligible_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityGroup:
    """The runners of one pool and platform."""

    pool: str
    platform: str
    runners: int
    allocatable: Amounts = field(default_factory=Amounts)
    free: Amounts = field(default_factory=Amounts)
    gpus: int = 0
    devices: int = 0
    devices_held: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityByPool(Capacity):
    """The sums over runners that take work, all together and by pool."""

    pools: tuple[CapacityGroup, ...] = ()
