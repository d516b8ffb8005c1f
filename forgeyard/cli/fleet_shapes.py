"""What `forgeyard fleet …` reads out of the API's answers: only the fields that it prints."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from forgeyard.cli.shapes import Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How many machines a fleet may have."""

    min: int = 0
    max: int = 0
    warm: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardrail:
    """What a fleet may cost, in millionths."""

    hourly: int | None = None
    daily: int | None = None
    currency: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityClass:
    """What every machine of a fleet is promised to be."""

    platform: str = ""
    architecture: str = ""
    resources: Amounts = field(default_factory=Amounts)
    trust: str = ""
    isolation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offering:
    """One way to have a machine."""

    name: str
    cost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The document of a fleet."""

    provider: str = ""
    capacity: CapacityClass = field(default_factory=CapacityClass)
    offerings: tuple[Offering, ...] = ()
    scaling: Scaling = field(default_factory=Scaling)
    guardrail: Guardrail = field(default_factory=Guardrail)
    pool: str = ""
    protected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet: who it is, and what it may do."""

    fleet_id: str
    name: str
    version: int = 0
    state: str = ""
    state_reason: str = ""
    health: str = ""
    health_reason: str = ""
    spec: Spec = field(default_factory=Spec)
    tended_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Other bounds, for a while."""

    min: int | None = None
    max: int | None = None
    expires_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shut:
    """What is not asked for at present."""

    offering: str = ""
    until: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clamp:
    """One bound that changed a number."""

    kind: str
    before: int = 0
    after: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One machine that is made."""

    offering: str = ""
    reason: str = ""
    made_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One machine that is let go."""

    instance_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a fleet decided."""

    needed: int = 0
    wanted: int = 0
    usable: int = 0
    launch: tuple[Launch, ...] = ()
    drain: tuple[Release, ...] = ()
    keep: tuple[str, ...] = ()
    clamps: tuple[Clamp, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision, and when it was made."""

    number: int
    at: int = 0
    decision: Plan = field(default_factory=Plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What an hour of an offering is reckoned with, and who says so."""

    offering: str
    cost: int = 0
    source: str = ""
    at: int | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A fleet with all that is in force of it."""

    fleet: Fleet
    machines: Mapping[str, int] = field(default_factory=dict[str, int])
    override: Override | None = None
    reservations: int = 0
    shut: tuple[Shut, ...] = ()
    provider_frozen: bool = False
    hourly: int = 0
    spent_today: int = 0
    last: Decision | None = None
    prices: tuple[Price, ...] = ()
    now: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that a new document says otherwise."""

    field: str
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is allowed, and may surprise."""

    field: str
    text: str = ""
    allowed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of a document, or would."""

    name: str
    outcome: str
    version: int = 0
    dry_run: bool = False
    differences: tuple[Difference, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """How the warm-up of a machine went."""

    missing: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine of a fleet."""

    instance_id: str
    runner_name: str
    state: str = ""
    since: int = 0
    due_at: int | None = None
    requested_at: int = 0
    reason: str = ""
    offering: str = ""
    cost: int = 0
    leases: int = 0
    may_exist: bool = True
    admission_reason: str | None = None
    pinned_until: int | None = None
    pin_reason: str | None = None
    drain_reason: str | None = None
    warmup: WarmUp | None = None
    failure: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How much capacity is wanted from when to when."""

    reservation_id: str
    quantity: int = 0
    starts_at: int = 0
    ends_at: int = 0
    lead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A reservation, and why there is one."""

    reservation: Window
    fleet: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Jobs for which the same machines would do."""

    requirement_class: str
    count: int = 0
    oldest_wait_ms: int = 0
    priority: str = ""
    excluded: int = 0
    requested: Amounts = field(default_factory=Amounts)
    wants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """Jobs that no fleet serves, and why none does."""

    requirement_class: str
    count: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The jobs that waited for room at the last decision."""

    taken_at: int = 0
    classes: tuple[Waiting, ...] = ()
    shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    unserved: tuple[Unserved, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackTest:
    """How far off a model was."""

    model: str
    origins: int = 0
    mae: float = 0.0
    coverage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """How many machines are expected to be needed, or why nobody says."""

    count: int | None = None
    low: int | None = None
    high: int | None = None
    model: str = ""
    version: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A forecast with what it rests on."""

    advice: Advice
    considered: tuple[BackTest, ...] = ()
    until: int = 0
    reserved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A forecast, and whether a fleet goes by it."""

    fleet: str
    outlook: Outlook
    is_heeded: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTick:
    """What a fleet would decide after a while."""

    after: int
    came: int = 0
    gone: int = 0
    waiting: int = 0
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a fleet would do, and what was taken for granted."""

    assumptions: tuple[str, ...] = ()
    ticks: tuple[SimulatedTick, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How long something took, in milliseconds."""

    count: int = 0
    median: int | None = None
    p95: int | None = None
    longest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a fleet did between two instants; costs are millionths."""

    since: int
    until: int
    machines: int = 0
    ready_ms: int = 0
    busy_ms: int = 0
    utilisation: float | None = None
    queue_wait: Spread = field(default_factory=Spread)
    scale_latency: Spread = field(default_factory=Spread)
    provision_latency: Spread = field(default_factory=Spread)
    never_ready: int = 0
    cost: int = 0
    idle_cost: int = 0
    interruptions: int = 0
    preemptible: int = 0
    preemptible_ready_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Analytics:
    """What a fleet did, and which one it is."""

    fleet: str
    figures: Figures
    currency: str = ""
    is_partial: bool = False
