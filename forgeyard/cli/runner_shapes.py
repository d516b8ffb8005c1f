"""What the command line reads out of the API's answers about runners; see `shapes`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from forgeyard.cli.shapes import Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    """A job on a runner."""

    run: str
    job: str
    attempt: int = 1
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that a runner offers."""

    name: str
    version: str | None = None
    digest: str | None = None
    provenance: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """How many devices of one kind a runner has."""

    kind: str
    count: int
    id: str | None = None
    model: str | None = None
    os_version: str | None = None
    api_level: str | None = None
    abi: str | None = None
    form: str | None = None
    provenance: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a runner."""

    id: str | None = None
    vendor: str | None = None
    model: str | None = None
    memory: int | None = None
    compute_capability: str | None = None
    sharing: str | None = None
    provenance: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What a runner has beside its system, tools and labels; `None` is unknown."""

    cpu_features: tuple[str, ...] | None = None
    runtimes: tuple[Tool, ...] | None = None
    sandboxes: tuple[str, ...] | None = None
    network_modes: tuple[str, ...] | None = None
    isolation: tuple[str, ...] | None = None
    devices: tuple[Device, ...] | None = None
    gpus: tuple[Gpu, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerCapabilities:
    """What a runner says it can do."""

    platform: str | None = None
    os_version: str | None = None
    architecture: str | None = None
    trust: str = ""
    toolchains: tuple[Tool, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    agent_version: str = ""
    equipment: Equipment = field(default_factory=Equipment)
    provenance: Mapping[str, str] = field(default_factory=dict[str, str])
    reliability: str = ""
    cost_micros_per_hour: int | None = None
    schema_version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a runner is; `None` is unknown."""

    host: str | None = None
    site: str | None = None
    region: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """How much a runner need not fetch, as it last said."""

    objects: int = 0
    bytes: int = 0
    closures: tuple[str, ...] = ()
    has_more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenDevice:
    """A device that is given to jobs; `free` in thousandths."""

    device_id: str
    kind: str
    free: int = 1_000
    leases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A machine that executes jobs."""

    name: str
    runner_id: str = ""
    state: str
    suspect: bool = False
    pressure: str = ""
    drain_requested: bool = False
    drain_reason: str | None = None
    admission: str = "verified"
    admission_reason: str | None = None
    declared_reason: str | None = None
    pool: str = ""
    pool_wish: str = ""
    capabilities: RunnerCapabilities = field(default_factory=RunnerCapabilities)
    capability_digest: str = ""
    reported_at: int | None = None
    location: Location = field(default_factory=Location)
    diagnostics: tuple[str, ...] = ()
    health: str = ""
    health_reason: str | None = None
    holdings: Holdings = field(default_factory=Holdings)
    penalty: int = 0
    total: Amounts = field(default_factory=Amounts)
    headroom: Amounts = field(default_factory=Amounts)
    cpu_percent: int = 100
    allocatable: Amounts = field(default_factory=Amounts)
    reserved: Amounts = field(default_factory=Amounts)
    free: Amounts = field(default_factory=Amounts)
    devices: tuple[GivenDevice, ...] = ()
    placed: tuple[PlacedJob, ...] = ()
    last_seen_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What draining a runner did."""

    cancelled: int = 0
