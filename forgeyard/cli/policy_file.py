"""The policy as a YAML file: written with what each number means, read with its lines."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, cast

from forgeyard.cli import output
from forgeyard.errors import InvalidPolicy, InvalidRunFile
from forgeyard.model import policy_document
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.policy_document import Number
from forgeyard.runfile.load import load

ALLOWED: Final = "a mapping as `forgeyard policy show` prints it; {} for all defaults"


def load_policy(path: Path) -> tuple[SchedulingPolicy, Mapping[str, object]]:
    """Read and check a policy file; return the policy and the document to send.

    Raises:
        NotFound: there is no such file.
        InvalidPolicy: with file, line, column, field, value and what is allowed.
    """
    try:
        loaded = load(path, allowed=ALLOWED)
    except InvalidRunFile as error:
        raise _placed(error, str(path), error.line, error.column) from None
    try:
        return policy_document.read(loaded.document), loaded.document
    except InvalidPolicy as error:
        mark = loaded.locate(error.field)
        raise _placed(error, loaded.file, mark.line, mark.column) from None


def _placed(
    error: InvalidPolicy | InvalidRunFile, file: str, line: int | None, column: int | None
) -> InvalidPolicy:
    return InvalidPolicy(
        error.message,
        field=error.field,
        value=error.value,
        allowed=error.allowed,
        file=file,
        line=line,
        column=column,
    )


def as_yaml(document: Mapping[str, object]) -> str:
    """Write a policy as a file that `load_policy` reads, with a comment at every number."""
    known = {number.path: number for number in policy_document.numbers()}
    return "\n".join(_lines(document, known, "")) + "\n"


def _lines(document: Mapping[str, object], known: Mapping[str, Number], at: str) -> Iterator[str]:
    indent = "  " if at else ""
    for name, value in document.items():
        path = f"{at}{name}"
        if isinstance(value, Mapping):
            yield f"{name}:"
            yield from _lines(cast("Mapping[str, object]", value), known, f"{path}.")
        elif isinstance(value, list):
            yield from _list(name, cast("list[object]", value))
        else:
            yield indent + _line(name, value, known.get(path))


def _list(name: str, values: list[object]) -> Iterator[str]:
    """Write words in one line, and rules one to a line; JSON is YAML too."""
    if not any(isinstance(value, Mapping) for value in values):
        yield f"{name}: {json.dumps(values)}"
        return
    yield f"{name}:"
    for value in values:
        yield f"  - {json.dumps(_said(value))}"


def _said(value: object) -> object:
    """Leave out what a rule leaves open."""
    if not isinstance(value, Mapping):
        return value
    entries = cast("Mapping[str, object]", value)
    said = {name: _said(entry) for name, entry in entries.items()}
    return {name: entry for name, entry in said.items() if entry not in (None, [], {})}


def _line(name: str, value: object, number: Number | None) -> str:
    """Write one number; a newer server's may be unknown here."""
    if number is None or not isinstance(value, int):
        return f"{name}: {output.plain(str(value))}"
    least, most = number.text(number.setting.least), number.text(number.setting.most)
    entry = f"{name}: {number.text(value)}"
    return f"{entry:27} # {number.setting.says} ({least} to {most})"
