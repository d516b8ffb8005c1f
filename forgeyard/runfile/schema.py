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
    PlainValidator,
    StrictBool,
    StrictInt,
    StringConstraints,
    Tag,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from forgeyard.model.capability import MAX_LABELS, Architecture, Platform, TrustClass
from forgeyard.model.equipment import (
    MAX_DEVICE_COUNT,
    MAX_DEVICES,
    MAX_GPUS,
    MAX_RUNTIMES,
    GpuSharing,
    GpuVendor,
    IsolationClass,
    NetworkMode,
    SandboxKind,
)
from forgeyard.model.job import Condition, FailureClass, Priority
from forgeyard.model.wishes import MAX_KEYS, Preemptibility, SchedulingClass

MAX_JOBS: Final = 1_000
MAX_STEPS: Final = 100
MAX_SCRIPT: Final = 64 * 2**10
MAX_NEEDS: Final = 10_000
MAX_ENV: Final = 100
MAX_ENV_VALUE: Final = 8 * 2**10
MAX_OUTPUTS: Final = 50
MAX_CACHES: Final = 10
MAX_PATTERNS: Final = 20
MAX_TOOLS: Final = 50
MAX_FEATURES: Final = 50
MAX_SECRETS: Final = 50
MAX_AXES: Final = 10
MAX_AXIS_VALUES: Final = 50
MAX_CELLS: Final = 256
MAX_CELL_VALUES: Final = 20
MAX_MATRIX_VALUE: Final = 128
EXPRESSION: Final = "${{"
"""What begins a placeholder, and stands for nothing else in a run file."""
LARGEST_NUMBER: Final = 2**62

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
TOOL_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$"
TITLE: Final = r"^[^\x00-\x1f\x7f-\x9f]{1,100}$"
VARIABLE: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
AXIS: Final = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
WORD: Final = r"^[^\x00-\x1f\x7f-\x9f]{1,128}$"
TEXT: Final = r"^[^\x00]*$"
QUEUE: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,63}){3}$"
COMMIT: Final = r"^([0-9a-f]{40}|[0-9a-f]{64})$"
SAID: Final = {
    NAME: "letters, digits, `_`, `.` and `-`, beginning with a letter or digit, at most 64",
    TOOL_NAME: "letters, digits, `_`, `.`, `+` and `-`, at most 64",
    TITLE: "1 to 100 printable characters on one line",
    VARIABLE: "letters, digits and `_`, not beginning with a digit, at most 128",
    AXIS: "letters, digits, `_` and `-`, beginning with a letter or `_`, at most 64",
    WORD: "1 to 128 printable characters on one line",
    TEXT: "text without NUL characters",
    QUEUE: "tenant/organization/project/queue",
    COMMIT: "a full commit id: 40 or 64 digits of 0-9a-f",
}
"""Each pattern in words, for error messages."""

ONE: Final = "⟨one⟩"
LIST: Final = "⟨list⟩"
MAPPING: Final = "⟨mapping⟩"
FORMS: Final = frozenset({ONE, LIST, MAPPING})
"""Tags of alternative forms; they show up in pydantic's paths and mean nothing to people."""

Name = Annotated[str, StringConstraints(pattern=NAME)]
ToolName = Annotated[str, StringConstraints(pattern=TOOL_NAME)]
Title = Annotated[str, StringConstraints(pattern=TITLE)]
Variable = Annotated[str, StringConstraints(pattern=VARIABLE)]
Word = Annotated[str, StringConstraints(pattern=WORD)]
QueuePath = Annotated[str, StringConstraints(pattern=QUEUE)]
Commit = Annotated[str, StringConstraints(pattern=COMMIT)]
Script = Annotated[str, StringConstraints(pattern=TEXT, min_length=1, max_length=MAX_SCRIPT)]
Value = Annotated[str, StringConstraints(pattern=TEXT, max_length=MAX_ENV_VALUE)]
OutputPath = Annotated[str, StringConstraints(pattern=WORD, max_length=128)]


def _quantity(value: object) -> str | int | float:
    """Let text and numbers of a sane size through; `compile` reads them."""
    if isinstance(value, str) and len(value) <= 64:
        return value
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER:
        return value
    raise PydanticCustomError("quantity", "a number, or text such as 500m, 0.5Gi or 15m")


Quantity = Annotated[
    str | int | float,
    PlainValidator(_quantity),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "maxLength": 64}, {"type": "number", "minimum": 0}]}
    ),
]


def _matrix_value(value: object) -> str:
    """Turn a value of a matrix into the text that takes its place in the job."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) <= LARGEST_NUMBER:
        return str(value)
    if isinstance(value, float):
        raise PydanticCustomError("matrix_value", "the same in quotes, for the number 3.10 is 3.1")
    if isinstance(value, str) and len(value) <= MAX_MATRIX_VALUE and value.isprintable():
        return _without_placeholder(value)
    said = "a whole number, true, false, or text of at most {most} characters"
    raise PydanticCustomError("matrix_value", said, {"most": MAX_MATRIX_VALUE})


def _without_placeholder(value: str) -> str:
    if EXPRESSION in value:
        raise PydanticCustomError("matrix_value", "text without placeholders")
    return value


MatrixValue = Annotated[
    str,
    PlainValidator(_matrix_value),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "maxLength": MAX_MATRIX_VALUE},
                {"type": "integer"},
                {"type": "boolean"},
            ]
        }
    ),
]
Axis = Annotated[str, StringConstraints(pattern=AXIS)]
Partial = Annotated[dict[Axis, MatrixValue], Field(min_length=1, max_length=MAX_CELL_VALUES)]


def _form(value: object) -> str | None:
    if isinstance(value, str):
        return ONE
    if isinstance(value, dict):
        return MAPPING
    return LIST if isinstance(value, list) else None


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
    Discriminator(_form),
]
Runtimes = Annotated[
    Annotated[list[ToolName], Field(max_length=MAX_RUNTIMES), Tag(LIST)]
    | Annotated[dict[ToolName, Word], Field(max_length=MAX_RUNTIMES), Tag(MAPPING)],
    Discriminator(_form),
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
    devices: dict[ToolName, DeviceCount] = Field(
        default={}, max_length=MAX_DEVICES, description="How many of each kind."
    )
    gpu: GpuPart | None = None


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
    Discriminator(_form),
]


class CachePart(Part):
    """Files to find again in a later job, as long as the key files have the same content."""

    path: OutputPath
    key: Patterns = Field(
        description="Files or globs whose content names the cache, such as a lock file."
    )


Needs = Annotated[
    Annotated[Name, Tag(ONE)] | Annotated[list[Name], Field(max_length=MAX_JOBS), Tag(LIST)],
    Discriminator(_form),
]
Exclusive = Annotated[
    Annotated[Word, Tag(ONE)] | Annotated[list[Word], Field(max_length=MAX_KEYS), Tag(LIST)],
    Discriminator(_form),
]
Outputs = Annotated[
    Annotated[list[OutputPart], Field(max_length=MAX_OUTPUTS), Tag(LIST)]
    | Annotated[dict[Name, OutputPath], Field(max_length=MAX_OUTPUTS), Tag(MAPPING)],
    Discriminator(_form),
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


class StrategyPart(Part):
    """How a job becomes many: one for each cell of a matrix."""

    matrix: MatrixPart
    fail_fast: StrictBool = Field(
        default=True, alias="fail-fast", description="Stop the other cells once one has failed."
    )
    max_parallel: StrictInt | None = Field(
        default=None, alias="max-parallel", ge=1, le=MAX_CELLS, description="Cells at a time."
    )


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
    (("jobs", "*", "resources"), ResourcesPart),
    (("jobs", "*", "requires"), RequiresPart),
    (("jobs", "*", "requires", "gpu"), GpuPart),
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
