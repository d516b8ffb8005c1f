"""Turns a job with a matrix into one ordinary job for each cell, before anything else is judged.

What a matrix means is what people know from elsewhere: every combination of the axes' values, less
those that `exclude` fits, and then each entry of `include` is merged into the cells whose values it
leaves alone, or else is a cell of its own. The values reach a job by substitution alone.
"""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from pydantic import ValidationError

from forgeyard.errors import InvalidRunFile
from forgeyard.model.job import MatrixCell
from forgeyard.runfile.complaint import NONE, closest, complain, dotted, shown
from forgeyard.runfile.schema import MatrixPart, StrategyPart
from forgeyard.runfile.values import EXPRESSION, MAX_AXES, MAX_CELLS, MAX_JOBS, NAME, SAID

MAX_EXPANDED: Final = 2**24
"""Characters of all cells together, each value counting for a few more."""
VALUE_WEIGHT: Final = 64
MAX_COMPARISONS: Final = 500_000
"""Combinations times entries of `include` and `exclude`, in all matrices of a run."""
MAX_DEPTH: Final = 20
STRATEGY: Final = "strategy"
_LONGEST_NAME = 64
_PLACEHOLDER = re.compile(
    r"\$\{\{\s*(?:matrix\.(?P<name>[A-Za-z_][A-Za-z0-9_-]{0,63})\s*\}\})?", re.ASCII
)
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")
Path = tuple[str | int, ...]
Values = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """A document in which no job has a matrix, and which of its jobs are cells of what."""

    document: object
    cells: Mapping[str, MatrixCell]

    def origins(self) -> Mapping[str | int, str]:
        """Map each cell to the job that it was made from."""
        return {name: cell.of for name, cell in self.cells.items()} or NONE

    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """Map each job that had a matrix to its cells, in order."""
        found: dict[str, list[str]] = {}
        for name, cell in self.cells.items():
            found.setdefault(cell.of, []).append(name)
        return {of: tuple(names) for of, names in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    """A job that is to be expanded; `cells` are named by their job."""

    job: Mapping[str, object]
    cells: Mapping[str, MatrixCell]

    def known(self) -> frozenset[str]:
        """List the names that some cell has a value for."""
        return frozenset(itertools.chain.from_iterable(c.values for c in self.cells.values()))


def expand(document: object) -> Expansion:
    """Replace every job that has a matrix by its cells; what is malformed stays for others.

    Raises:
        InvalidRunFile: a matrix cannot be expanded, or a placeholder stands for nothing.
    """
    if not isinstance(document, Mapping):
        return Expansion(document=document, cells={})
    whole = cast("Mapping[str, object]", document)
    jobs = whole.get("jobs")
    if not isinstance(jobs, Mapping):
        return Expansion(document=whole, cells={})
    named = cast("Mapping[str, object]", jobs)
    _refuse_placeholders({key: part for key, part in whole.items() if key != "jobs"}, ())
    budget = _Budget()
    matrices = {n: found for n, job in named.items() if (found := _matrix(n, job, budget))}
    _check_names(named, matrices)
    expanded: dict[str, object] = {}
    for name, job in named.items():
        if name in matrices:
            expanded |= _cells(name, matrices[name], budget)
        else:
            _refuse_placeholders(job, ("jobs", name))
            expanded[name] = job
    cells = {name: cell for one in matrices.values() for name, cell in one.cells.items()}
    return Expansion(document={**whole, "jobs": expanded}, cells=cells)


def _matrix(name: str, job: object, budget: "_Budget") -> _Matrix | None:
    """Read the strategy of a job, if it has one."""
    if not isinstance(job, Mapping) or STRATEGY not in job:
        return None
    parts = cast("Mapping[str, object]", job)
    at: Path = ("jobs", name, STRATEGY)
    if not re.fullmatch(NAME, name):
        raise _wrong(at[:2], f"{shown(name)!r} is not allowed", value=name, allowed=SAID[NAME])
    try:
        strategy = StrategyPart.model_validate(parts[STRATEGY])
    except ValidationError as error:
        raise complain(error, at=at) from None
    found = _cells_of(strategy.matrix, (*at, "matrix"), budget)
    budget.add(len(found), (*at, "matrix"))
    return _Matrix(
        job={key: part for key, part in parts.items() if key != STRATEGY},
        cells={
            cell_name: MatrixCell(
                of=name,
                values=values,
                fail_fast=strategy.fail_fast,
                max_parallel=strategy.max_parallel,
                spread_over=strategy.spread.over,
                spread_required=strategy.spread.required,
            )
            for cell_name, values in _named(name, found, list(_axes_of(strategy.matrix))).items()
        },
    )


def _axes_of(matrix: MatrixPart) -> Mapping[str, Sequence[str]]:
    """Read the axes in the order in which they are written."""
    return cast("Mapping[str, Sequence[str]]", matrix.__pydantic_extra__)


def _cells_of(matrix: MatrixPart, at: Path, budget: "_Budget") -> list[Values]:
    """List the cells of a matrix: combinations in the order written, then what was included."""
    axes = _axes_of(matrix)
    entries = len(matrix.exclude) + len(matrix.include)
    budget.compare(_check_axes(axes, at) * (1 + entries), at)
    combined = [
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    ]
    kept = _without(combined if axes else [], matrix.exclude, axes, at)
    found = _with(kept, matrix.include)
    if not found:
        problem = "every cell is excluded" if axes else "there are no axes"
        raise _wrong(at, problem, allowed="at least one cell")
    if len(found) > MAX_CELLS:
        raise _wrong(
            at, f"has {len(found)} cells", value=len(found), allowed=f"at most {MAX_CELLS} cells"
        )
    return found


def _check_axes(axes: Mapping[str, Sequence[str]], at: Path) -> int:
    """Refuse too many axes, values that come twice and too many combinations; count these."""
    if len(axes) > MAX_AXES:
        raise _wrong(at, f"has {len(axes)} axes", value=len(axes), allowed=f"at most {MAX_AXES}")
    combinations = 1
    for axis, values in axes.items():
        again = [value for value, times in Counter(values).items() if times > 1]
        if again:
            where, problem = (*at, axis), f"{again[0]!r} comes twice"
            raise _wrong(where, problem, value=again[0], allowed="each value once")
        combinations *= len(values)
    # What is excluded counts as well, or a small file could keep us busy for long.
    most = MAX_CELLS * MAX_AXES
    if combinations > most:
        problem = f"has {combinations} combinations"
        raise _wrong(at, problem, value=combinations, allowed=f"at most {most} before `exclude`")
    return combinations


def _without(
    combined: list[Values], entries: Sequence[Values], axes: Collection[str], at: Path
) -> list[Values]:
    """Leave out the cells that an entry fits; one that fits none is most likely misspelt."""
    left = combined
    for number, entry in enumerate(entries):
        where = (*at, "exclude", number)
        strange = next((name for name in entry if name not in axes), None)
        if strange is not None:
            problem = f"{strange!r} is not an axis{closest(strange, axes)}"
            raise _wrong((*where, strange), problem, value=strange, allowed=", ".join(axes))
        if not any(entry.items() <= cell.items() for cell in combined):
            raise _wrong(where, "fits no cell", allowed="values that the axes have")
        left = [cell for cell in left if not entry.items() <= cell.items()]
    return left


def _with(kept: Sequence[Values], entries: Sequence[Values]) -> list[Values]:
    """Merge every entry into the cells whose axes it agrees with, or let it be a new cell."""
    merged, added = [dict(cell) for cell in kept], list[Values]()
    for entry in entries:
        fitting = [
            place
            for place, cell in enumerate(kept)
            if all(cell.get(name, value) == value for name, value in entry.items())
        ]
        for place in fitting:
            merged[place] |= entry
        if not fitting:
            added.append(dict(entry))
    return [*merged, *added]


def _named(job: str, found: Sequence[Values], axes: Sequence[str]) -> dict[str, Values]:
    """Name every cell after its values on the axes, or after all that it has if it has none."""
    plain = [_plain_name(job, values, axes) for values in found]
    times = Counter(plain)
    named: dict[str, Values] = {}
    for values, name in zip(found, plain, strict=True):
        unique = times[name] == 1 and len(name) <= _LONGEST_NAME
        chosen = name if unique else _digested(name, values)
        if chosen in named:
            at = ("jobs", job, STRATEGY, "matrix")
            raise _wrong(at, f"two cells have the same values: {shown(name)}", allowed="each once")
        named[chosen] = values
    return named


def _plain_name(job: str, values: Values, axes: Sequence[str]) -> str:
    words = [values[axis] for axis in axes if axis in values] or list(values.values())
    return _NO_NAME.sub("_", "-".join([job, *words]))


def _digested(name: str, values: Values) -> str:
    canonical = json.dumps([name, values], sort_keys=True).encode()
    digest = hashlib.sha256(canonical).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - len(digest) - 1]}-{digest}"


def _check_names(jobs: Collection[str], matrices: Mapping[str, _Matrix]) -> None:
    """Refuse cells that are called like another job."""
    taken = set(jobs)
    for of, matrix in matrices.items():
        at: Path = ("jobs", of, STRATEGY, "matrix")
        for name in matrix.cells:
            if name in taken:
                problem = f"a cell would be called {name!r}, as another job is"
                raise _wrong(at, problem, value=name, allowed="other names of jobs")
            taken.add(name)


class _Budget:
    """How much work a small file may cause, and how much its cells may grow."""

    def __init__(self) -> None:
        self._left = MAX_EXPANDED
        self._comparisons = MAX_COMPARISONS
        self._cells = MAX_JOBS

    def add(self, count: int, at: Path) -> None:
        """Count cells.

        Raises:
            InvalidRunFile: the run would have more jobs than any may have.
        """
        self._cells -= count
        if self._cells < 0:
            raise _wrong(at, "the run has too many jobs", allowed=f"at most {MAX_JOBS} jobs")

    def compare(self, times: int, at: Path) -> None:
        """Count how often a combination is held against an entry.

        Raises:
            InvalidRunFile: all matrices together have become too large.
        """
        self._comparisons -= times
        if self._comparisons < 0:
            problem = "the matrices of this run are too large"
            raise _wrong(at, problem, allowed="fewer combinations, or fewer entries")

    def take(self, size: int, path: Path) -> None:
        """Count what a cell is made of.

        Raises:
            InvalidRunFile: all cells together have become too large.
        """
        self._left -= size
        if self._left < 0:
            raise _wrong(
                path[:2],
                "its cells are too large",
                allowed=f"about {MAX_EXPANDED // 2**20} MiB in all cells of a run",
            )


def _cells(name: str, matrix: _Matrix, budget: _Budget) -> Iterator[tuple[str, object]]:
    known = matrix.known()
    for cell_name, cell in matrix.cells.items():
        values = {one: cell.values.get(one, "") for one in known}
        yield cell_name, _substituted(matrix.job, values, ("jobs", name), budget)


def _substituted(part: object, values: Values, path: Path, budget: _Budget) -> object:
    """Copy a part of a job with this cell's values in it; keys stay as they are."""
    if isinstance(part, str):
        budget.take(VALUE_WEIGHT + len(part), path)
        if EXPRESSION not in part:
            return part
        text = _filled(part, values, path)
        budget.take(max(0, len(text) - len(part)), path)
        return text
    budget.take(VALUE_WEIGHT, path)
    children = list(_children(part)) if len(path) <= MAX_DEPTH else []
    copied = [(key, _substituted(one, values, (*path, key), budget)) for key, one in children]
    if isinstance(part, Mapping):
        return dict(copied)
    return [one for _, one in copied] if isinstance(part, list) else part


def _filled(text: str, values: Mapping[str, str], path: Path) -> str:
    def value(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            raise _strange(path, text[found.start() :], allowed="${{ matrix.NAME }}")
        if name not in values:
            problem = f"the matrix has no {name!r}{closest(name, values)}"
            raise _wrong(path, problem, value=name, allowed=", ".join(sorted(values)))
        return values[name]

    return _PLACEHOLDER.sub(value, text)


def _refuse_placeholders(part: object, path: Path) -> None:
    """Refuse what looks like a placeholder where there is no matrix: no shell means `${{`."""
    if isinstance(part, str) and EXPRESSION in part:
        text = part[part.index(EXPRESSION) :]
        raise _strange(path, text, allowed="placeholders only in jobs with a matrix")
    if len(path) <= MAX_DEPTH:
        for key, child in _children(part):
            _refuse_placeholders(child, (*path, key))


def _children(part: object) -> Iterable[tuple[str | int, object]]:
    if isinstance(part, Mapping):
        return cast("Mapping[str | int, object]", part).items()
    return enumerate(cast("list[object]", part)) if isinstance(part, list) else ()


def _strange(path: Path, text: str, *, allowed: str) -> InvalidRunFile:
    begins = shown(text.split("\n", maxsplit=1)[0][:40])
    return _wrong(path, f"{begins!r} stands for nothing", value=begins, allowed=allowed)


def _wrong(path: Path, problem: str, *, allowed: str, value: object = None) -> InvalidRunFile:
    where = dotted(path)
    return InvalidRunFile(f"{where}: {problem}", field=where, value=value, allowed=allowed)
