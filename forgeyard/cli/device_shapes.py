"""What the command line reads of what runners have: only the fields that it prints."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
class GivenDevice:
    """A device that is given to jobs; `free` in thousandths."""

    device_id: str
    kind: str
    free: int = 1_000
    leases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that a runner offers."""

    name: str
    version: str | None = None
    digest: str | None = None
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
