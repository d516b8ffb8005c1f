"""What a fleet's plan may know, and what it decides: values only.

One reading of the store fills it, so that demand, runners, instances and intents are of one
instant. Counts of what exists come from rows and never from a counter (FLT-024).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from forgeyard.model.capacity import CapacityInstanceState, ScaleDownReason, ScaleReason
from forgeyard.model.fleet import CapacityReservation, FleetSpec, FleetState, Market, Override
from forgeyard.model.image import RolloutState
from forgeyard.model.units import Resources
from forgeyard.scheduler.standing import SchedulingPool

S = CapacityInstanceState
COMING = frozenset({S.REQUESTED, S.PROVISIONING, S.BOOTSTRAPPING, S.ENROLLING})
"""Not there yet, and counted on."""
USABLE = COMING | {S.HEALTHY}
"""What counts towards what is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """One machine that may exist, with what its runner is doing."""

    instance_id: str
    state: CapacityInstanceState
    offering: str
    runner_id: str = ""
    """Its runner, once it has one."""
    market: Market = Market.STABLE
    zone: str = ""
    region: str = ""
    image: str = ""
    cost: int = 0
    """For an hour, in millionths."""
    requested_at: int = 0
    healthy_at: int | None = None
    idle_since: int | None = None
    """Since when its runner has had no lease; `None` while it has one, or none is there."""
    leases: int = 0
    jobs_ended: int = 0
    free: Resources | None = None
    """What its runner has left, where it takes work."""
    pinned_until: int | None = None
    made_for: str = ""
    """The class of jobs that it was made for, if it was."""
    draining_for: ScaleDownReason | None = None
    interrupted: bool = False
    is_healthy: bool = True
    """Whether its runner is there and says that it is well enough."""
    may_exist: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """An offering that is not asked for before an instant, and why."""

    offering: str
    """Empty where nothing is asked of the whole provider."""
    until: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """How far another image may replace that of the document."""

    rollout_id: str
    image: str
    state: RolloutState
    is_paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """A fleet at one instant."""

    fleet_id: str
    spec: FleetSpec
    pool: SchedulingPool = field(default_factory=SchedulingPool)
    """The pool of its runners, as it is at present."""
    state: FleetState = FleetState.ACTIVE
    override: Override | None = None
    """What is in force of them, taken together."""
    reservations: tuple[CapacityReservation, ...] = ()
    """Those whose lead has begun and that have not ended."""
    instances: tuple[InstanceView, ...] = ()
    """All that may exist; none that was seen to be gone."""
    closed: tuple[Closed, ...] = ()
    provider_frozen: bool = False
    launches: tuple[int, ...] = ()
    """When machines were asked for; as far back as filling the burst takes, a minute at least."""
    wanted: tuple[tuple[int, int], ...] = ()
    """What `FleetDecision.wanted` was within the window for shrinking: instant, count."""
    spent_today: int = 0
    """By estimate, in millionths."""
    forecast: int | None = None
    """How many will be wanted soon, if anybody dares to say; advice only (FCT-004)."""
    futile: frozenset[str] = frozenset()
    """Classes of jobs for which machines came up in vain (FLT-079)."""
    blocked_images: frozenset[str] = frozenset()
    rollout: Stage | None = None
    """The one that is under way."""
    prices: Mapping[str, int] = field(default_factory=dict[str, int])
    """By offering, what its provider asks for an hour, where it has said so of late."""

    @property
    def priced(self) -> FleetSpec:
        """Give the document with current prices; where none is known its own stand."""
        if not self.prices:
            return self.spec
        offerings = (
            replace(it, cost=self.prices.get(it.name, it.cost)) for it in self.spec.offerings
        )
        return replace(self.spec, offerings=tuple(offerings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """Demand that no fleet can serve, and why each cannot (DEM-016)."""

    requirement_class: str
    count: int
    reasons: Mapping[str, str]
    """By the name of the fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Which fleet serves how much of the demand; no job is counted for two (DESIGN 6)."""

    shares: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """Fleet, class of jobs, count."""
    unserved: tuple[Unserved, ...] = ()

    def of(self, fleet_id: str) -> Mapping[str, int]:
        """Tell the share of one fleet."""
        return self.shares.get(fleet_id, {})


class ClampKind(StrEnum):
    """What kept a fleet from having what it would have liked."""

    MINIMUM = "minimum"
    WARM = "warm"
    FORECAST = "forecast"
    MAXIMUM = "maximum"
    OVERRIDE = "override"
    SCALE_TO_ZERO = "scale_to_zero"
    FROZEN = "frozen"
    PROVIDER_FROZEN = "provider_frozen"
    SCALE_UP_ONLY = "scale_up_only"
    DRAINING = "draining"
    PROTECTED = "protected"
    RATE = "rate"
    WINDOW = "window"
    IDLE_GRACE = "idle_grace"
    PINNED = "pinned"
    BUSY = "busy"
    AT_ONCE = "at_once"
    HOURLY_COST = "hourly_cost"
    DAILY_COST = "daily_cost"
    SPOT_SHARE = "spot_share"
    NO_OFFERING = "no_offering"
    FUTILE = "futile"
    RESERVED = "reserved"
    IMAGE_BLOCKED = "image_blocked"
    ROLLOUT = "rollout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clamp:
    """One bound that changed a number, and how."""

    kind: ClampKind
    before: int
    after: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One machine to make."""

    offering: str
    reason: ScaleReason
    made_for: str = ""
    """The class of jobs."""
    image: str = ""
    """Another than that of the fleet's document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One machine to drain."""

    instance_id: str
    reason: ScaleDownReason


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDecision:
    """What a fleet does next, and why it does no more and no less (S1 184, 185)."""

    needed: int
    """For demand alone, what is there counted in."""
    wanted: int
    """What it aims at, after every bound on that; the others only bound the step towards it."""
    usable: int
    """What is there or coming."""
    launch: tuple[Launch, ...] = ()
    drain: tuple[Release, ...] = ()
    keep: tuple[str, ...] = ()
    """Draining machines that are taken back, for they are needed after all."""
    clamps: tuple[Clamp, ...] = ()
