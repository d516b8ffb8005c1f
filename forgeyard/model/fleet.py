"""A fleet: machines of one capacity class that a provider makes and takes away within bounds.

All of it is written by people and kept as one document per fleet. What a fleet has decided and
what exists of it stands elsewhere: see `capacity` and `forgeyard.fleet.view`.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import TypeAdapter

from forgeyard.model.capability import (
    MAX_TOOLCHAINS,
    Architecture,
    Labels,
    Platform,
    Toolchain,
    TrustClass,
)
from forgeyard.model.equipment import Equipment, Word
from forgeyard.model.image import ImageDemand
from forgeyard.model.location import Micros
from forgeyard.model.units import GIB, LARGEST, Bytes, Resources

MOST_INSTANCES: Final = 10_000
"""Of one fleet."""
MOST_OFFERINGS: Final = 64
MOST_SETTINGS: Final = 64
MOST_WARM_CACHES: Final = 16
DAY_MS: Final = 24 * 3600 * 1000
Count = Annotated[int, Ge(0), Le(MOST_INSTANCES)]
Span = Annotated[int, Ge(0), Le(400 * DAY_MS)]
"""Milliseconds."""
Instant = Annotated[int, Ge(0), Le(LARGEST)]
"""Epoch milliseconds by the database's clock."""
Setting = Annotated[str, MaxLen(16 * 1024)]
Percent = Annotated[int, Ge(0), Le(100)]


class FleetState(StrEnum):
    """What a fleet may do at present (FOP-001)."""

    ACTIVE = "active"
    SCALE_UP_ONLY = "scale_up_only"
    FROZEN = "frozen"
    """Nothing is asked of its provider but to look."""
    DRAINING = "draining"
    """It makes nothing more, and lets go of what it has, without haste."""
    DELETING = "deleting"
    """As draining; it is forgotten when its provider says that nothing of it is left."""


class FleetHealth(StrEnum):
    """Whether a fleet can do what is wanted of it (FRC-023)."""

    HEALTHY = "healthy"
    CAPACITY_CONSTRAINED = "capacity_constrained"
    PROVIDER_DEGRADED = "provider_degraded"
    BOOTSTRAP_DEGRADED = "bootstrap_degraded"
    UNHEALTHY = "unhealthy"
    """Machines do not come up, and none that did is well."""


class IsolationClass(StrEnum):
    """What stands between the jobs of one machine and those of others (FLM-007)."""

    PROCESS = "process"
    CONTAINER = "container"
    VM = "vm"
    """Strong enough for tenants that are hostile to each other (FOP-028)."""


class Market(StrEnum):
    """On which terms a machine is had (SPT-004)."""

    STABLE = "stable"
    PREEMPTIBLE = "preemptible"
    """Its provider may take it away at any time."""


class Spread(StrEnum):
    """Over what the machines of a fleet are kept even (PLN-008)."""

    NONE = "none"
    ZONE = "zone"
    REGION = "region"
    PROVIDER = "provider"


class LifetimeKind(StrEnum):
    """When a machine has served its time (FOP-008)."""

    PERSISTENT = "persistent"
    MAX_AGE = "max_age"
    ONE_JOB = "one_job"
    MAX_JOBS = "max_jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityClass:
    """What every machine of a fleet is promised to be; equal promises are one class (FLM-003)."""

    platform: Platform = Platform.LINUX
    architecture: Architecture = Architecture.X86_64
    os_version: Word | None = None
    resources: Resources = field(default_factory=Resources)
    """What jobs may hold on it, its headroom not counted."""
    toolchains: Annotated[tuple[Toolchain, ...], MaxLen(MAX_TOOLCHAINS)] = ()
    labels: Labels = field(default_factory=dict[str, str])
    equipment: Equipment = field(default_factory=Equipment)
    trust: TrustClass = TrustClass.UNTRUSTED_GENERAL
    isolation: IsolationClass = IsolationClass.PROCESS
    image: Word = ""
    """The digest of the image that it boots; empty where the provider has none. In a document
    that is applied it may be an alias, which is looked up once."""

    @property
    def class_id(self) -> str:
        """Name it by its content (FLM-002)."""
        canonical = json.dumps(
            _CLASS.dump_python(self, mode="json"), sort_keys=True, separators=(",", ":")
        )
        return f"cls_{hashlib.sha256(canonical.encode()).hexdigest()[:32]}"


_CLASS = TypeAdapter(CapacityClass)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offering:
    """One way to have such a machine: a kind of machine, at a place, on some terms."""

    name: Annotated[Word, MinLen(1)]
    """Unique within the fleet."""
    machine: Word = ""
    """The provider's name for machines of this size, such as an instance type."""
    region: Word = ""
    zone: Word = ""
    market: Market = Market.STABLE
    cost: Micros = 0
    """For an hour, in millionths of the currency of the fleet's guardrail."""
    settings: Annotated[Mapping[Word, Setting], MaxLen(MOST_SETTINGS)] = field(
        default_factory=dict[str, str]
    )
    """What only this provider understands; never a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUp:
    """How fast a fleet may grow (PLN-013)."""

    per_minute: Annotated[Count, Ge(1)] = 20
    burst: Annotated[Count, Ge(1)] = 20
    """How many at once, after a pause."""
    futile_after: Annotated[int, Ge(1), Le(1_000)] = 3
    """Machines that came up in vain for one class of jobs, until no more are made for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDown:
    """How soon and how fast a fleet may shrink (PLN-014, PLN-015)."""

    idle_grace: Span = 5 * 60 * 1000
    """How long a runner must have had no lease."""
    window: Span = 5 * 60 * 1000
    """It shrinks to the most that was wanted within so long."""
    at_once: Annotated[Count, Ge(1)] = 10
    """How many are drained in one decision."""
    drain_within: Span = 60 * 60 * 1000
    """How long leases may last once drained; then their jobs are stopped as on a lost machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How many machines there may be (FLM-008)."""

    min: Count = 0
    max: Annotated[Count, Ge(1)] = 10
    warm: Count = 0
    """Idle ones that are kept ready beside those that are needed (FLM-011)."""
    scale_to_zero: bool = True
    """Whether the last one goes when nothing is wanted; else one stays (FLM-012)."""
    up: ScaleUp = field(default_factory=ScaleUp)
    down: ScaleDown = field(default_factory=ScaleDown)
    quarantined: Count = 2
    """Sick machines that may be kept for a look beside `max`."""
    forecast: bool = False
    """Whether machines are made ahead of what usually comes; advice, within every other bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where machines may be (PLN-007); empty means wherever there is an offering."""

    regions: Annotated[tuple[Word, ...], MaxLen(32)] = ()
    zones: Annotated[tuple[Word, ...], MaxLen(64)] = ()
    spread: Spread = Spread.NONE
    spot_percent: Percent = 100
    """How much of the fleet may be preemptible."""
    stable_fallback: bool = True
    """Whether stable machines are made where preemptible ones cannot be had (FLT-074)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How machines of another image come to replace those that are there (IMG-009)."""

    canaries: Annotated[Count, Ge(1)] = 1
    """Machines that prove a new image before it replaces anything."""
    soak: Span = 10 * 60 * 1000
    """How long they must have been well, unless one of them has done a job."""
    failures: Annotated[Count, Ge(1)] = 2
    """Machines of a new image that go wrong, until it is rolled back."""
    max_surge: Count = 1
    """Machines beyond what is wanted while others are replaced."""
    max_unavailable: Count = 1
    """How many may be missing from what is wanted meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """When a machine is let go although it is needed (FOP-008)."""

    kind: LifetimeKind = LifetimeKind.PERSISTENT
    age: Span = 0
    jobs: Annotated[int, Ge(0), Le(100_000)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardrail:
    """What a fleet may cost by estimate, in millionths; it protects, and is no bill (CST-008)."""

    hourly: Micros | None = None
    daily: Micros | None = None
    currency: Annotated[str, MinLen(3), MaxLen(3)] = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetScope:
    """Whom a fleet serves; neither named, it is everybody's (FLM-006)."""

    tenant_id: Word | None = None
    project_id: Word | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseDeadlines:
    """How long each phase of a machine may last (FRC-017 to FRC-019)."""

    provision: Span = 10 * 60 * 1000
    bootstrap: Span = 15 * 60 * 1000
    """From first seen running to the redemption of its token."""
    enrol: Span = 5 * 60 * 1000
    """From there to a runner that is admitted and online."""
    terminate: Span = 15 * 60 * 1000
    """After so long an operator is told; the attempt goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """What new machines fetch beside their first jobs; they are admitted without it (FOP-033)."""

    caches: Annotated[tuple[Word, ...], MaxLen(MOST_WARM_CACHES)] = ()
    """Dependency caches by the names that jobs give them: of each the newest first."""
    within: Span = 2 * 60 * 1000
    """What has not come by then stays away."""
    at_most: Annotated[Bytes, Ge(0), Le(LARGEST)] = Bytes(GIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """Everything people say of a fleet (FLM-005)."""

    name: Annotated[Word, MinLen(1)]
    provider: Annotated[Word, MinLen(1)] = "local"
    """The name under which the configuration has it."""
    capacity: CapacityClass = field(default_factory=CapacityClass)
    offerings: Annotated[tuple[Offering, ...], MinLen(1), MaxLen(MOST_OFFERINGS)] = (
        Offering(name="default"),
    )
    """The first that can be had at the lowest cost is taken."""
    scaling: Scaling = field(default_factory=Scaling)
    placement: Placement = field(default_factory=Placement)
    lifetime: Lifetime = field(default_factory=Lifetime)
    images: ImageDemand = ImageDemand.KNOWN
    """A fleet of restricted trust takes attested ones at least, whatever this says (IMG-006)."""
    rollout: Rollout = field(default_factory=Rollout)
    guardrail: Guardrail = field(default_factory=Guardrail)
    scope: FleetScope = field(default_factory=FleetScope)
    deadlines: PhaseDeadlines = field(default_factory=PhaseDeadlines)
    warmup: WarmUp = field(default_factory=WarmUp)
    pool: Word = ""
    """The pool of its runners; empty means the default one."""
    protected: bool = False
    """Whether people alone decide how many there are: demand never does (FLM-013, FLM-014)."""

    def offering(self, name: str) -> Offering | None:
        """Find an offering."""
        return next((one for one in self.offerings if one.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Other bounds for a while (FOP-015); `None` leaves a bound as the document has it."""

    min: Count | None = None
    max: Count | None = None
    expires_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReservation:
    """Capacity that is wanted in a window of time, whoever's jobs come; no lease (RSV-001)."""

    reservation_id: str
    quantity: Count
    starts_at: Instant
    ends_at: Instant
    lead: Span = 10 * 60 * 1000
    """How long before its start machines are made (RSV-008)."""
