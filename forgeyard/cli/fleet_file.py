"""The fleet file: YAML that says what fleets there shall be, read with its lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from forgeyard.errors import InvalidFile, InvalidRunFile
from forgeyard.fleet import sanity
from forgeyard.fleet.sanity import Problem
from forgeyard.model import fleet_document
from forgeyard.model.fleet import FleetSpec
from forgeyard.runfile.load import Loaded, load

ALLOWED: Final = "a fleet, or several below `fleets`"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFleet:
    """One fleet of a file: the document to send, and what it says."""

    document: Mapping[str, object]
    spec: FleetSpec


def load_fleets(path: Path) -> tuple[WrittenFleet, ...]:
    """Read and check a fleet file.

    Raises:
        NotFound: there is no such file.
        InvalidFile: with file, line, column, field, value and what is allowed.
    """
    try:
        loaded = load(path, allowed=ALLOWED)
    except InvalidRunFile as error:
        raise _placed(error, str(path), error.line, error.column) from None
    try:
        specs = fleet_document.read_all(loaded.document)
        for place, spec in enumerate(specs):
            _demand_sane(spec, f"fleets.{place}." if "fleets" in loaded.document else "")
    except InvalidFile as error:
        mark = loaded.locate(error.field)
        raise _placed(error, loaded.file, mark.line, mark.column) from None
    documents = _documents(loaded)
    return tuple(
        WrittenFleet(document=document, spec=spec)
        for document, spec in zip(documents, specs, strict=True)
    )


def _documents(loaded: Loaded) -> Sequence[Mapping[str, object]]:
    several = loaded.document.get("fleets")
    if several is None:
        return (loaded.document,)
    return cast("Sequence[Mapping[str, object]]", several)


def _demand_sane(spec: FleetSpec, at: str) -> None:
    for one in sanity.problems(spec):
        raise _wrong(one, at)


def _wrong(problem: Problem, at: str) -> InvalidFile:
    return InvalidFile(
        f"{at}{problem.field}: {problem.text}",
        field=at + problem.field,
        value=problem.value,
        allowed=problem.allowed,
    )


def _placed(error: InvalidFile, file: str, line: int | None, column: int | None) -> InvalidFile:
    return InvalidFile(
        error.message,
        field=error.field,
        value=error.value,
        allowed=error.allowed,
        file=file,
        line=line,
        column=column,
    )
