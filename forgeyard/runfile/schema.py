"""The shape of a run file: keys, types and the limit of everything that can grow.

Pydantic checks the shape and publishes it as JSON schema; what a value *means* (quantities, ranges,
the graph of needs) is judged by `forgeyard.runfile.compile`.
"""

from typing import Annotated, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    Tag,
)

from forgeyard.model.capability import (
    MAX_LABELS,
    MAX_ORIGINS,
    MAX_PLACES,
    Architecture,
    Platform,
    TrustClass,
)
from forgeyard.model.equipment import (
    MAX_DEVICE_COUNT,
    MAX_DEVICES,
    MAX_GPU_REQUESTS,
    MAX_GPUS,
    MAX_RUNTIMES,
    DeviceForm,
    GpuSharing,
    GpuVendor,
    IsolationClass,
    NetworkMode,
    SandboxKind,
)
from forgeyard.model.job import Condition, FailureClass, Priority
from forgeyard.model.origin import OriginKind
from forgeyard.model.wishes import (
    MAX_KEYS,
    MAX_NAMED,
    Domain,
    Preemptibility,
    Purpose,
    SchedulingClass,
    SpotWish,
)
from forgeyard.runfile.values import (
    LIST,
    MAPPING,
    MAX_AXIS_VALUES,
    MAX_CACHES,
    MAX_CELLS,
    MAX_ENV,
    MAX_FEATURES,
    MAX_JOBS,
    MAX_OUTPUTS,
    MAX_PATTERNS,
    MAX_SECRETS,
    MAX_STEPS,
    MAX_TOOLS,
    ONE,
    Axis,
    Commit,
    MatrixValue,
    Name,
    OutputPath,
    Partial,
    Quantity,
    QueuePath,
    Script,
    Title,
    ToolName,
    Value,
    Variable,
    Word,
    form,
)


class Part(BaseModel):
    """A part of a run file; frozen, and strict about keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ResourcesPart(Part):
    """What the job may use on its runner."""

    cpu: Quantity | None = Field(default=None, description="Cores: 2, 0.5 or 500m.")
    memory: Quantity | None = Field(default=None, description="Bytes: 512K, 0.5Gi, 2G.")
    disk: Quantity | None = Field(default=None, description="Bytes: 512K, 0.5Gi, 2G.")


Toolchains = Annotated[
    Annotated[list[ToolName], Field(max_length=MAX_TOOLS), Tag(LIST)]
    | Annotated[dict[ToolName, Word], Field(max_length=MAX_TOOLS), Tag(MAPPING)],
    Discriminator(form),
]
Runtimes = Annotated[
    Annotated[list[ToolName], Field(max_length=MAX_RUNTIMES), Tag(LIST)]
    | Annotated[dict[ToolName, Word], Field(max_length=MAX_RUNTIMES), Tag(MAPPING)],
    Discriminator(form),
]
DeviceCount = Annotated[StrictInt, Field(ge=1, le=MAX_DEVICE_COUNT)]


class GpuPart(Part):
    """GPUs that the job must find, each of which has everything that is asked for."""

    count: StrictInt = Field(default=1, ge=1, le=MAX_GPUS)
    vendor: GpuVendor | None = None
    model: Word | None = Field(default=None, description="The whole name, in any case.")
    memory: Quantity | None = Field(default=None, description="At least, of each: 16Gi.")
    compute_capability: Word | None = Field(
        default=None, alias="compute-capability", description="A range such as >=8.0."
    )
    sharing: GpuSharing | None = None
    id: Word | None = Field(default=None, description="This very one, as its driver names it.")
    same_model: StrictBool = Field(default=False, alias="same-model")
    share: Quantity | None = Field(
        default=None, description="A part of each, such as 0.18; without it, all of each."
    )


class DevicePart(Part):
    """Devices of one kind that the job must find, each with everything that is asked for."""

    count: DeviceCount = 1
    id: Word | None = Field(default=None, description="This very one.")
    model: Word | None = Field(default=None, description="The whole name, in any case.")
    os_version: Word | None = Field(
        default=None, alias="os-version", description="A version range such as >=17."
    )
    api_level: Word | None = Field(
        default=None, alias="api-level", description="A range such as >=33."
    )
    abi: Word | None = None
    form: DeviceForm | None = None


def _one_or_several(value: object) -> str:
    return LIST if isinstance(value, list) else ONE


def _one_or_described(value: object) -> str:
    return MAPPING if isinstance(value, dict | Part) else ONE


Gpus = Annotated[
    Annotated[GpuPart, Tag(ONE)]
    | Annotated[list[GpuPart], Field(max_length=MAX_GPU_REQUESTS), Tag(LIST)],
    Discriminator(_one_or_several),
]
DeviceWish = Annotated[
    Annotated[DeviceCount, Tag(ONE)] | Annotated[DevicePart, Tag(MAPPING)],
    Discriminator(_one_or_described),
]


class OriginPart(Part):
    """Where a requirement comes from, for explanations; programs that write run files say it."""

    kind: Literal[OriginKind.PIPELINE, OriginKind.ECOSYSTEM, OriginKind.PLATFORM, OriginKind.DEVICE]
    detail: Title | None = Field(default=None, description="Such as: Swift iOS build plan.")


class RequiresPart(Part):
    """What the job must find on its runner; every entry must hold."""

    platform: Platform | None = None
    os_version: Word | None = Field(
        default=None, alias="os-version", description="A version range such as >=12."
    )
    arch: Architecture | None = None
    toolchains: Toolchains = Field(
        default=[],
        description="Names, or name: range such as >=3.11,<4, sha256:… for one build, * for any.",
    )
    labels: dict[Word, Word] = Field(default={}, max_length=MAX_LABELS)
    trust: TrustClass | None = None
    agent_version: Word | None = Field(
        default=None, alias="agent-version", description="A version range such as >=0.1."
    )
    cpu_features: list[ToolName] = Field(
        default=[],
        alias="cpu-features",
        max_length=MAX_FEATURES,
        description="In the kernel's words, such as avx2; also aes-ni and neon.",
    )
    runtimes: Runtimes = Field(
        default=[], description="Names such as docker, or name: range, * for any."
    )
    sandbox: SandboxKind | None = None
    network: NetworkMode | None = None
    isolation: IsolationClass | None = None
    devices: dict[ToolName, DeviceWish] = Field(
        default={}, max_length=MAX_DEVICES, description="By kind: how many, or which."
    )
    gpu: Gpus | None = Field(default=None, description="One request, or a list of them.")
    pools: list[ToolName] = Field(
        default=[],
        max_length=MAX_PLACES,
        description="Pools, one of which must be the runner's; only those that policy lets name.",
    )
    regions: list[Word] = Field(
        default=[], max_length=MAX_PLACES, description="Regions, one of which must be the runner's."
    )
    origins: dict[Word, OriginPart] = Field(
        default={},
        max_length=MAX_ORIGINS,
        description="By entry, such as trust or toolchains.xcode: where it comes from.",
    )


class TimeoutsPart(Part):
    """How long each phase of a job may take."""

    queue: Quantity | None = Field(default=None, description="Waiting for a runner.")
    preparation: Quantity | None = Field(default=None, description="Fetching inputs.")
    execution: Quantity | None = Field(default=None, description="All steps of one attempt.")
    upload: Quantity | None = Field(default=None, description="Uploading outputs.")


class RetryPart(Part):
    """How often, for which failures and after what delay a job is tried again."""

    max_attempts: StrictInt | None = Field(default=None, alias="max-attempts", ge=1, le=20)
    on: list[FailureClass] | None = Field(default=None, max_length=len(FailureClass))
    delay: Quantity | None = None
    max_delay: Quantity | None = Field(default=None, alias="max-delay")


class OfflinePart(Part):
    """A job that may run on without the server for longer than most."""

    offline: Quantity = Field(description="How long; policy says how much it grants.")


class StepPart(Part):
    """One shell script; the job fails unless it exits 0."""

    name: Title | None = None
    run: Script
    shell: Literal["sh", "bash"] = "sh"


class OutputPart(Part):
    """Files to keep, by path or glob inside the workspace."""

    name: Name
    path: OutputPath
    required: StrictBool = True


Patterns = Annotated[
    Annotated[OutputPath, Tag(ONE)]
    | Annotated[list[OutputPath], Field(min_length=1, max_length=MAX_PATTERNS), Tag(LIST)],
    Discriminator(form),
]


class CachePart(Part):
    """Files to find again in a later job, as long as the key files have the same content."""

    path: OutputPath
    key: Patterns = Field(
        description="Files or globs whose content names the cache, such as a lock file."
    )


Needs = Annotated[
    Annotated[Name, Tag(ONE)] | Annotated[list[Name], Field(max_length=MAX_JOBS), Tag(LIST)],
    Discriminator(form),
]
Exclusive = Annotated[
    Annotated[Word, Tag(ONE)] | Annotated[list[Word], Field(max_length=MAX_KEYS), Tag(LIST)],
    Discriminator(form),
]
Connectivity = Annotated[
    Annotated[Literal["continuous", "grace"], Tag(ONE)] | Annotated[OfflinePart, Tag(MAPPING)],
    Discriminator(_one_or_described),
]
Outputs = Annotated[
    Annotated[list[OutputPart], Field(max_length=MAX_OUTPUTS), Tag(LIST)]
    | Annotated[dict[Name, OutputPath], Field(max_length=MAX_OUTPUTS), Tag(MAPPING)],
    Discriminator(form),
]


class MatrixPart(Part):
    """Axes and their values: every combination is a job, less `exclude` and more `include`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[  # pyright: ignore[reportIncompatibleVariableOverride]
        Axis, Annotated[list[MatrixValue], Field(min_length=1, max_length=MAX_AXIS_VALUES)]
    ]

    include: list[Partial] = Field(
        default=[],
        max_length=MAX_CELLS,
        description="Values added to the cells that they fit, or else cells of their own.",
    )
    exclude: list[Partial] = Field(
        default=[], max_length=MAX_CELLS, description="Cells left out; naming some axes is enough."
    )


class SpreadPart(Part):
    """How the cells of a matrix are kept from sharing one failure."""

    over: Domain = Field(default=Domain.HOST, description="What no two cells are to share.")
    required: StrictBool = Field(
        default=False, description="Rather wait than let two cells share it."
    )


class StrategyPart(Part):
    """How a job becomes many: one for each cell of a matrix."""

    matrix: MatrixPart
    spread: SpreadPart = SpreadPart()
    fail_fast: StrictBool = Field(
        default=True, alias="fail-fast", description="Stop the other cells once one has failed."
    )
    max_parallel: StrictInt | None = Field(
        default=None, alias="max-parallel", ge=1, le=MAX_CELLS, description="Cells at a time."
    )


class DistinctPart(Part):
    """Jobs that must run somewhere else, for a reproduction that proves something."""

    jobs: list[Name] = Field(min_length=1, max_length=MAX_NAMED)
    by: Domain = Field(default=Domain.HOST, description="What they must not share.")


class JobPart(Part):
    """One job: what it needs, what it runs and what it leaves behind."""

    strategy: StrategyPart | None = Field(
        default=None, description="One job for each cell; ${{ matrix.NAME }} is its value."
    )
    needs: Needs = Field(default=[], description="Jobs that must have ended before this one.")
    condition: Condition = Field(
        default=Condition.SUCCESS, alias="if", description="Judged once all needs have ended."
    )
    continue_on_error: StrictBool = Field(
        default=False,
        alias="continue-on-error",
        description="Do not fail the run when this job fails.",
    )
    env: dict[Variable, Value] = Field(default={}, max_length=MAX_ENV)
    secrets: list[Variable] = Field(
        default=[],
        max_length=MAX_SECRETS,
        description="Names of variables that the agent's operator may grant.",
    )
    resources: ResourcesPart = ResourcesPart()
    requires: RequiresPart = RequiresPart()
    priority: Priority = Priority.NORMAL
    spot: SpotWish | None = Field(
        default=None, description="What it thinks of machines that may be taken away at any time."
    )
    distinct: list[DistinctPart] = Field(
        default=[], max_length=len(Domain), description="Where it must not run."
    )
    beside: Name | None = Field(
        default=None, alias="with", description="The job on whose host it must run."
    )
    purpose: Purpose = Field(
        default=Purpose.BUILD, description="Policy demands more of deploy and signing jobs."
    )
    scheduling_class: SchedulingClass | None = Field(
        default=None, alias="class", description="Default: the one that the priority implies."
    )
    exclusive: Exclusive = Field(
        default=[], description="Keys of which no two running jobs share one, in any run."
    )
    preemption: Preemptibility = Field(
        default=Preemptibility.NEVER,
        description="Whether it may be stopped and started again to make room.",
    )
    checkpoint: StrictBool = Field(
        default=False,
        description="It saves its work once the file that FORGEYARD_NOTICE names is there: its"
        " machine will be taken away.",
    )
    connectivity: Connectivity = Field(
        default="grace",
        description="Whether it may run on when its runner cannot reach the server: for as long as"
        " policy says (grace), not at all (continuous), or for so long (offline).",
    )
    timeouts: TimeoutsPart = TimeoutsPart()
    retry: RetryPart = RetryPart()
    steps: list[StepPart] = Field(min_length=1, max_length=MAX_STEPS)
    outputs: Outputs = []
    caches: dict[Name, CachePart] = Field(
        default={},
        max_length=MAX_CACHES,
        description="Downloaded dependencies and the like, kept between attempts.",
    )
    test_reports: Patterns | None = Field(
        default=None,
        alias="test-reports",
        description="JUnit files to count tests in, after the steps.",
    )


class ConcurrencyPart(Part):
    """The runs of a group: one goes on, the newest other one waits."""

    group: Word
    cancel_in_progress: StrictBool = Field(
        default=False,
        alias="cancel-in-progress",
        description="Stop the run that goes on, instead of waiting for it.",
    )


class SourcePart(Part):
    """The commit whose files every job gets, instead of those of a local directory."""

    git: str = Field(description="https, http, ssh, git or file URL, user@host:path, or /path.")
    ref: str | None = Field(
        default=None, description="Branch, tag or full commit id; default HEAD."
    )
    commit: Commit | None = Field(
        default=None, description="What the ref stands for; `run submit` writes it."
    )


class RunFile(Part):
    """A Forgeyard run: jobs that belong together."""

    name: Title | None = Field(default=None, description="Default: the name of the file.")
    timeout: Quantity | None = Field(default=None, description="How long the whole run may take.")
    queue: QueuePath | None = Field(
        default=None, description="tenant/organization/project/queue, as an operator declared it."
    )
    concurrency: ConcurrencyPart | None = None
    source: SourcePart | None = None
    jobs: dict[Name, JobPart] = Field(min_length=1, max_length=MAX_JOBS)


PARTS: Final[tuple[tuple[tuple[str, ...], type[Part]], ...]] = (
    ((), RunFile),
    (("concurrency",), ConcurrencyPart),
    (("source",), SourcePart),
    (("jobs", "*"), JobPart),
    (("jobs", "*", "strategy"), StrategyPart),
    (("jobs", "*", "strategy", "matrix"), MatrixPart),
    (("jobs", "*", "strategy", "spread"), SpreadPart),
    (("jobs", "*", "distinct", "*"), DistinctPart),
    (("jobs", "*", "resources"), ResourcesPart),
    (("jobs", "*", "requires"), RequiresPart),
    (("jobs", "*", "requires", "gpu"), GpuPart),
    (("jobs", "*", "requires", "origins", "*"), OriginPart),
    (("jobs", "*", "requires", "gpu", "*"), GpuPart),
    (("jobs", "*", "requires", "devices", "*"), DevicePart),
    (("jobs", "*", "connectivity"), OfflinePart),
    (("jobs", "*", "timeouts"), TimeoutsPart),
    (("jobs", "*", "retry"), RetryPart),
    (("jobs", "*", "steps", "*"), StepPart),
    (("jobs", "*", "outputs", "*"), OutputPart),
    (("jobs", "*", "caches", "*"), CachePart),
)
"""Where each part may stand; `*` is any name or index."""


def keys_at(path: tuple[str | int, ...]) -> tuple[str, ...]:
    """List the keys that the part at this path may have; none if there is no part."""
    for pattern, part in PARTS:
        if len(pattern) == len(path) and all(
            expected in ("*", str(given)) for expected, given in zip(pattern, path, strict=True)
        ):
            return tuple(field.alias or name for name, field in part.model_fields.items())
    return ()
