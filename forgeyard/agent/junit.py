"""Reads one JUnit report as a stream: counts its tests and names those that did not pass.

Counts the `testcase` elements themselves, for suites within suites add up their tests again. No
tree is kept. A report may have been written by anybody: document types and the entities that they
bring are refused, as is what is nested too deep or has too many elements.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from forgeyard.errors import InvalidRequest
from forgeyard.model.protocol import MAX_FAILING, TestFailure

MAX_DEPTH: Final = 100
MAX_ELEMENTS: Final = 1_000_000
NAME_LENGTH: Final = 300
MESSAGE_LENGTH: Final = 500
_LONGEST_S: Final = 1e9
_BAD: Final = ("failure", "error")
Mask = Callable[[str], str]


@dataclass(slots=True)
class Tally:
    """What has been counted; `failing` holds the first of those that did not pass."""

    tests: int = 0
    failures: int = 0
    errors: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failing: list[TestFailure] = field(default_factory=list[TestFailure])

    def add(self, other: "Tally") -> None:
        """Take in what another one counted."""
        self.tests += other.tests
        self.failures += other.failures
        self.errors += other.errors
        self.skipped += other.skipped
        self.seconds += other.seconds
        self.failing = [*self.failing, *other.failing][:MAX_FAILING]


def tally(pieces: Iterable[bytes], *, mask: Mask) -> Tally:
    """Count the tests of one report.

    Raises:
        InvalidRequest: it is not a whole XML document within our bounds.
    """
    reader = _Reader(mask)
    try:
        for piece in pieces:
            reader.parser.Parse(piece, False)
        reader.parser.Parse(b"", True)
    # An encoding that nobody knows is a LookupError or a ValueError.
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise _refused(str(error)) from error
    return reader.tally


@dataclass(slots=True)
class _Case:
    """The test that is being read; its first failure or error says what became of it."""

    depth: int
    name: str
    verdict: str = ""
    message: str = ""


class _Reader:
    """The state of one report being read."""

    def __init__(self, mask: Mask) -> None:
        self.tally = Tally()
        self._mask = mask
        self._depth = 0
        self._elements = 0
        self._case: _Case | None = None
        self._text: list[str] | None = None
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._take
        self.parser.StartDoctypeDeclHandler = _refuse_doctype

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._elements += 1
        if self._depth > MAX_DEPTH or self._elements > MAX_ELEMENTS:
            raise _refused("it is nested too deep or has too many elements")
        kind = tag.rpartition(":")[2]
        if self._case is None:
            if kind == "testcase":
                self._begin(attributes)
        elif self._depth == self._case.depth + 1:
            self._judge(self._case, kind, attributes)

    def _begin(self, attributes: dict[str, str]) -> None:
        named = (attributes.get("classname", ""), attributes.get("name", ""))
        name = ".".join(part for part in named if part)
        self._case = _Case(depth=self._depth, name=name or "a test without a name")
        self.tally.seconds += _seconds(attributes.get("time", ""))

    def _judge(self, case: _Case, kind: str, attributes: dict[str, str]) -> None:
        if kind in _BAD and case.verdict not in _BAD:
            case.verdict, case.message = kind, attributes.get("message", "")
            if not case.message.strip() and len(self.tally.failing) < MAX_FAILING:
                self._text = []
        elif kind == "skipped" and not case.verdict:
            case.verdict = kind

    def _take(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def _end(self, _tag: str) -> None:
        case = self._case
        if case is not None and self._depth == case.depth + 1 and self._text is not None:
            case.message, self._text = "".join(self._text), None
        elif case is not None and self._depth == case.depth:
            self._count(case)
            self._case = None
        self._depth -= 1

    def _count(self, case: _Case) -> None:
        found = self.tally
        found.tests += 1
        found.failures += case.verdict == "failure"
        found.errors += case.verdict == "error"
        found.skipped += case.verdict == "skipped"
        if case.verdict in _BAD and len(found.failing) < MAX_FAILING:
            # Masked before it is cut, lest the half of a secret remain.
            name, message = _one_line(self._mask(case.name)), _first_line(self._mask(case.message))
            found.failing.append(
                TestFailure(name=name[:NAME_LENGTH], message=message[:MESSAGE_LENGTH])
            )


def _refuse_doctype(*_declared: object) -> None:
    raise _refused("it declares a document type")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _seconds(written: str) -> float:
    """Read a duration; some tools group its thousands with commas."""
    try:
        found = float(written.replace(",", "")[:40])
    except ValueError:
        return 0.0
    return min(found, _LONGEST_S) if math.isfinite(found) and found > 0 else 0.0


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"not a test report: {why}", field="test-reports")
