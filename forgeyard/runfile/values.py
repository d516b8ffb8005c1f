"""The words, limits and kinds of values that the shape of a run file is made of."""

from typing import Annotated, Final

from pydantic import (
    Field,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

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


def form(value: object) -> str | None:
    """Tell which of its alternative forms a value has."""
    if isinstance(value, str):
        return ONE
    if isinstance(value, dict):
        return MAPPING
    return LIST if isinstance(value, list) else None
