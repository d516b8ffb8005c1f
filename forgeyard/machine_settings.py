"""Groups of the configuration that are about machines: of fleets, and of an agent's own host."""

from collections.abc import Mapping
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from forgeyard.model.capability import Toolchain, TrustClass
from forgeyard.model.enrolment import Cloud
from forgeyard.model.equipment import (
    MAX_DEVICES,
    MAX_GPUS,
    Device,
    DeviceCount,
    DeviceForm,
    GpuSharing,
    GpuVendor,
    Provenance,
    Word,
)
from forgeyard.model.location import Micros, ReliabilityClass

DEVICE_ID: Final = r"^[^,\x00-\x1f\x7f]{0,128}$"
"""What a device may be called: it stands in lists with commas between."""


class Group(BaseModel):
    """A group of settings; frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ProviderConfig(Group):
    """One infrastructure that fleets may use, under the name that their documents have for it."""

    kind: Literal["local", "manual", "aws"]
    regions: tuple[Word, ...] = Field(default=(), max_length=64)
    """Where its machines may be; what it announces is heard in the first."""
    endpoint_url: str = Field(default="", max_length=2_000)
    """Of its API, where that is not the usual one."""
    queue_url: str = Field(default="", max_length=2_000)
    """Of the queue that announces interruptions."""
    profile: Word = ""
    """Whose credentials, in the words of its SDK; empty means those of the environment."""
    look_s: float = Field(default=0.0, ge=0, le=600)
    """Between two looks at a machine that comes or goes; 0 is what suits the kind."""
    visibility_s: float = Field(default=0.0, ge=0, le=3_600)
    """How long a machine may be missing from its answers; 0 is what suits the kind."""

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.kind == "aws" and not self.regions:
            raise ValueError("aws needs at least one region in regions")
        return self


class FleetsConfig(Group):
    """Fleets: how often they are looked at, and which infrastructures there are."""

    agent_url: str = Field(default="", max_length=2_000)
    """Where new machines find the agent API; empty means where it listens."""
    look_s: float = Field(default=5.0, ge=0.2, le=600)
    observe_s: float = Field(default=30.0, ge=0.2, le=3_600)
    """Between two looks at everything that a provider has."""
    image_keys: Mapping[Word, str] = Field(default={}, max_length=100)
    """By name, files with the public keys (PEM; Ed25519 or P-256) that sign records of images."""
    require_signature: bool = False
    """Whether every image has to be signed by one of them, whatever a fleet's document says."""
    providers: Mapping[Word, ProviderConfig] = Field(
        default={
            "local": ProviderConfig(kind="local"),
            "manual": ProviderConfig(kind="manual"),
        },
        max_length=64,
    )


class AgentConfig(Group):
    """What an operator grants to jobs on a host."""

    name: str = ""
    """Empty means the host's name."""
    jobs: int = Field(default=4, ge=1, le=256)
    work_dir: str = ""
    cloud_identity: Cloud | None = None
    """The cloud whose word about this machine is sent along when it enrols."""
    metadata_url: str = "http://169.254.169.254"
    """Where that cloud gives its word."""
    trust: TrustClass = TrustClass.TRUSTED_INTERNAL
    labels: Mapping[str, str] = {}
    path: str = "/usr/local/bin:/usr/bin:/bin"
    """The only PATH that jobs see, after their toolchains'."""
    pass_env: tuple[str, ...] = ("LANG", "LC_ALL", "TZ")
    toolchains: tuple["ToolchainConfig", ...] = ()
    devices: Mapping[Word, DeviceCount] = Field(default={}, max_length=MAX_DEVICES)
    """How many devices of each kind jobs may use here."""
    named_devices: tuple["DeviceConfig", ...] = Field(default=(), max_length=MAX_DEVICES)
    """Devices that jobs may use here, described one by one."""
    gpus: tuple["GpuConfig", ...] = Field(default=(), max_length=MAX_GPUS)
    """The GPUs that jobs may use; without any, those that `nvidia-smi` lists."""
    host: Word = ""
    """The machine that this agent shares with others on it; empty means the host's name."""
    site: Word = ""
    region: Word = ""
    pool: Word = ""
    """The pool that the runner would like to be in; an operator puts it there."""
    reliability: ReliabilityClass = ReliabilityClass.STANDARD
    cost_micros_per_hour: Micros | None = None
    """What an hour of this machine costs, in millionths of your currency."""
    secrets_file: str = ""
    """A 0600 file of NAME=value lines that jobs on this host may name."""
    cpu: str = ""
    """The most that jobs may hold here; empty means what the host has, less the headroom."""
    memory: str = ""
    disk: str = ""
    headroom_cpu: str = "0"
    headroom_memory: str = "256Mi"
    headroom_disk: str = "1Gi"
    refresh_s: float = Field(default=300.0, gt=0)
    """How often this host is looked at anew, and what it can do is said again."""
    local_cache: str = "1Gi"
    """How much disk may hold archives that jobs have used here, for the next ones; 0 for none."""
    drain_timeout_s: float = Field(default=600.0, ge=0)
    give_up_s: float = Field(default=0.0, ge=0, le=7 * 86_400)
    """After so long without an answer the agent drains and ends with code 75; 0 for never."""
    job_user: str = Field(default="", max_length=64)
    """Whom jobs run as, where the agent runs as root; empty means as the agent does."""
    sandbox: Literal["none", "auto", "linux_namespace"] = "none"
    """What jobs are shut in; `auto` takes namespaces where the system has them."""
    cgroup: str = Field(default="", max_length=512)
    """The control group in which every job gets its own; `own` is the agent's."""
    memory_limit_percent: int = Field(default=0, ge=0, le=1_000)
    """How much of the memory that a job asks for it may use at most; 0 for no limit."""
    max_processes: int = Field(default=4_096, ge=64, le=4_194_304)
    """How many processes and threads a job that is shut in may have."""


class ToolchainConfig(Group):
    """A tool directory to offer: `bin` is put first on the PATH of jobs that require it."""

    name: str
    version: str
    bin: str

    def toolchain(self) -> Toolchain:
        """Describe it as a capability."""
        return Toolchain(name=self.name, version=self.version, provenance=Provenance.CONFIGURED)


class DeviceConfig(Group):
    """A device to offer; what is left out stays unknown, and satisfies nobody who asks for it."""

    kind: Word
    id: Word = Field(default="", pattern=DEVICE_ID)
    model: Word = ""
    os_version: Word = ""
    api_level: Word = ""
    abi: Word = ""
    form: DeviceForm | None = None

    def device(self) -> Device:
        """Describe it as a capability."""
        return Device(
            kind=self.kind,
            id=self.id or None,
            model=self.model or None,
            os_version=self.os_version or None,
            api_level=self.api_level or None,
            abi=self.abi or None,
            form=self.form,
            provenance=Provenance.CONFIGURED,
        )


class GpuConfig(Group):
    """A GPU to offer; what is left out stays unknown, and satisfies nobody who asks for it."""

    id: Word = Field(default="", pattern=DEVICE_ID)
    """As its driver names it, such as GPU-8c0f…; jobs then see it under this name."""
    vendor: GpuVendor | None = None
    model: Word = ""
    memory: str = ""
    compute_capability: Word = ""
    sharing: GpuSharing | None = None
