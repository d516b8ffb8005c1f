"""What a runner has beside its system, its tools and its labels, and what a job wants of that.

`None` is "could not tell", which never satisfies; an empty tuple is "has none" (ELG-018). An agent
that does not know a field yet leaves it out, and so reports `None`.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Le, MaxLen

from forgeyard.model.units import LARGEST, Bytes

MAX_CPU_FEATURES = 512
MAX_RUNTIMES = 32
MAX_DEVICES = 64
MAX_DEVICE_COUNT = 1_000
MAX_GPUS = 64
MAX_GPU_REQUESTS = 8
WHOLE = 1_000
"""Thousandths: all of a device."""
Word = Annotated[str, MaxLen(128)]
Features = Annotated[tuple[Word, ...], MaxLen(MAX_CPU_FEATURES)]
DeviceCount = Annotated[int, Ge(1), Le(MAX_DEVICE_COUNT)]
GpuCount = Annotated[int, Ge(1), Le(MAX_GPUS)]
Share = Annotated[int, Ge(1), Le(WHOLE)]


class Provenance(StrEnum):
    """How an entry of a capability report is known; the last two only enrolment may say."""

    SELF_REPORTED = "self_reported"
    PROBED = "probed"
    CONFIGURED = "configured"
    PROVISIONED = "provisioned"
    VERIFIED = "verified"


RESERVED_PROVENANCE = frozenset({Provenance.PROVISIONED, Provenance.VERIFIED})
"""What no agent may claim about its own report."""


class SandboxKind(StrEnum):
    """What the steps of a job are shut in (ELG-024)."""

    NONE = "none"
    LINUX_NAMESPACE = "linux_namespace"
    WINDOWS_JOB_OBJECT = "windows_job_object"
    VM = "vm"
    CONFIDENTIAL_VM = "confidential_vm"


class NetworkMode(StrEnum):
    """What network the steps of a job see (ELG-023)."""

    HOST = "host"
    DENIED = "denied"
    RESTRICTED = "restricted"
    INTERNAL = "internal"


class IsolationClass(StrEnum):
    """What keeps the jobs of one runner apart."""

    PROCESS = "process"
    CONTAINER = "container"
    VM = "vm"
    MACHINE = "machine"


class GpuVendor(StrEnum):
    """Who made a GPU."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    APPLE = "apple"


class GpuSharing(StrEnum):
    """Whether a GPU serves one job at a time, or is safely partitioned among several (DEV-002)."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class DeviceForm(StrEnum):
    """Whether a device can be touched, or is made of software (DEV-004)."""

    PHYSICAL = "physical"
    SIMULATOR = "simulator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Something that runs containers or modules, such as docker."""

    name: Word
    version: Word | None = None
    provenance: Provenance = field(default=Provenance.SELF_REPORTED, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """How many devices of one kind a runner has for its jobs, all alike."""

    kind: Word
    count: DeviceCount = 1
    id: Word | None = field(default=None, compare=False)
    """Which one it is; it says nothing about what it can do. Without one it is counted."""
    model: Word | None = None
    os_version: Word | None = None
    api_level: Word | None = None
    abi: Word | None = None
    form: DeviceForm | None = None
    provenance: Provenance = field(default=Provenance.SELF_REPORTED, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU of a runner."""

    id: Word | None = field(default=None, compare=False)
    """Which one it is, as its driver names it; it says nothing about what it can do."""
    vendor: GpuVendor | None = None
    model: Word | None = None
    memory: Annotated[Bytes, Ge(0), Le(LARGEST)] | None = None
    compute_capability: Word | None = None
    sharing: GpuSharing | None = None
    provenance: Provenance = field(default=Provenance.SELF_REPORTED, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """Everything of this sort that a runner has; `None` means it could not tell."""

    cpu_features: Features | None = None
    runtimes: Annotated[tuple[Runtime, ...], MaxLen(MAX_RUNTIMES)] | None = None
    sandboxes: Annotated[tuple[SandboxKind, ...], MaxLen(len(SandboxKind))] | None = None
    network_modes: Annotated[tuple[NetworkMode, ...], MaxLen(len(NetworkMode))] | None = None
    isolation: Annotated[tuple[IsolationClass, ...], MaxLen(len(IsolationClass))] | None = None
    devices: Annotated[tuple[Device, ...], MaxLen(MAX_DEVICES)] | None = None
    gpus: Annotated[tuple[Gpu, ...], MaxLen(MAX_GPUS)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeRequirement:
    """A runtime that a job needs, in a PEP 440 range or in any version."""

    name: Word
    version: Word | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequirement:
    """How many devices of one kind a job needs, each of which has everything that is asked for."""

    kind: Word
    count: DeviceCount = 1
    id: Word | None = None
    """This very device."""
    model: Word | None = None
    """The whole name; upper and lower case are alike."""
    os_version: Word | None = None
    """A PEP 440 range such as >=17."""
    api_level: Word | None = None
    """A PEP 440 range such as >=33."""
    abi: Word | None = None
    form: DeviceForm | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequirement:
    """GPUs that a job needs, each of which has everything that is asked for (DEV-001)."""

    count: GpuCount = 1
    vendor: GpuVendor | None = None
    model: Word | None = None
    """The whole name; upper and lower case are alike."""
    memory: Annotated[Bytes, Ge(0), Le(LARGEST)] | None = None
    """The least that each must have."""
    compute_capability: Word | None = None
    """A PEP 440 range such as >=8.0."""
    sharing: GpuSharing | None = None
    id: Word | None = None
    """This very GPU."""
    same_model: bool = False
    """Whether all of them must be of one model."""
    share: Share | None = None
    """Thousandths of each; without it the job has them to itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EquipmentRequirement:
    """Everything of this sort that a job must find on its runner."""

    cpu_features: Features = ()
    runtimes: Annotated[tuple[RuntimeRequirement, ...], MaxLen(MAX_RUNTIMES)] = ()
    sandbox: SandboxKind | None = None
    network: NetworkMode | None = None
    isolation: IsolationClass | None = None
    devices: Annotated[tuple[DeviceRequirement, ...], MaxLen(MAX_DEVICES)] = ()
    gpu: GpuRequirement | None = None
    """How a single one was written before there could be several; it joins them."""
    gpus: Annotated[tuple[GpuRequirement, ...], MaxLen(MAX_GPU_REQUESTS)] = ()

    def __post_init__(self) -> None:
        """Let an older job's one GPU be the first of its GPUs."""
        if self.gpu is not None:
            object.__setattr__(self, "gpus", (self.gpu, *self.gpus))
            object.__setattr__(self, "gpu", None)

    @property
    def wants_devices(self) -> bool:
        """Tell whether there is anything that no two jobs may hold at once."""
        return bool(self.gpus or self.devices)

    @property
    def device_part(self) -> "EquipmentRequirement":
        """Keep what no two jobs may hold at once."""
        if not self.wants_devices:
            return NO_EQUIPMENT
        return EquipmentRequirement(devices=self.devices, gpus=self.gpus)

    @property
    def names_devices(self) -> bool:
        """Tell whether it asks for a very device, which no two runners have."""
        ids = (*(gpu.id for gpu in self.gpus), *(device.id for device in self.devices))
        return any(name is not None for name in ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """A GPU or device that a lease holds, and how much of it in thousandths."""

    device_id: Annotated[str, MaxLen(160)]
    share: Share = WHOLE


NO_EQUIPMENT = EquipmentRequirement()
"""What a job wants that names nothing of this sort."""
