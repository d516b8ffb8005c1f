"""Reads YAML 1.2 into plain values that remember their lines, within fixed bounds.

Only what JSON has too: mappings with text keys, lists, text, numbers, booleans, null. No tags, no
merge keys, no dates; a value written bare as `yes` or `2026-01-01` is text. Limits are checked
while the parser runs, so that a bomb is refused before it is built.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from forgeyard.errors import InvalidRunFile
from forgeyard.runfile.complaint import shown

MAX_DEPTH: Final = 20
MAX_NODES: Final = 20_000
MAX_ALIASES: Final = 50
MAX_TEXT: Final = 2**20
"""Characters of all text once aliases are written out."""

Scalar = str | int | float | bool | None
_NULL = re.compile(r"^(~|null|Null|NULL|)$")
_BOOLEAN = re.compile(r"^(true|True|TRUE|false|False|FALSE)$")
_INTEGER = re.compile(r"^[-+]?[0-9]{1,19}$")
_FLOAT = re.compile(r"^[-+]?(\.[0-9]{1,40}|[0-9]{1,40}(\.[0-9]{0,40})?)([eE][-+]?[0-9]{1,3})?$")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; both count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it stands; `size` and `text` weigh it with its aliases written out."""

    mark: Mark
    content: "Scalar | tuple[Node, ...] | Mapping[str, tuple[Mark, Node]]"
    size: int
    text: int

    def value(self) -> object:
        """Make the plain value."""
        if isinstance(self.content, tuple):
            return [node.value() for node in self.content]
        if isinstance(self.content, Mapping):
            return {key: node.value() for key, (_, node) in self.content.items()}
        return self.content


class _Parser(Protocol):
    """The one method of ruamel.yaml that we use, with types."""

    def parse(self, stream: str) -> Iterator[object]: ...


class _Kind(StrEnum):
    """The events that matter, by the parser's names for them."""

    DOCUMENT = "DocumentStartEvent"
    ALIAS = "AliasEvent"
    SCALAR = "ScalarEvent"
    SEQUENCE = "SequenceStartEvent"
    SEQUENCE_END = "SequenceEndEvent"
    MAPPING = "MappingStartEvent"
    MAPPING_END = "MappingEndEvent"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """What the parser saw, in types of ours, for its own are loose."""

    kind: _Kind
    mark: Mark
    anchor: str | None
    tag: str | None
    value: str
    bare: bool


def _events(text: str) -> Iterator[_Event]:
    names = frozenset(_Kind)
    parser = cast("_Parser", YAML(typ="safe", pure=True))
    for raw in parser.parse(text):
        name = type(raw).__name__
        if name in names:
            anchor, tag = getattr(raw, "anchor", None), getattr(raw, "tag", None)
            bare = bool(getattr(raw, "implicit", None) == (True, False))
            yield _Event(
                kind=_Kind(name),
                mark=_mark(getattr(raw, "start_mark", None)) or Mark(1, 1),
                anchor=None if anchor is None else str(anchor),
                tag=None if tag is None else str(tag),
                value=str(getattr(raw, "value", "")),
                bare=bare and tag != "!",
            )


def read_node(text: str) -> Node | None:
    """Read one YAML document; `None` if there is nothing in it.

    Raises:
        InvalidRunFile: with line and column, and without a file's name.
    """
    try:
        return _Reader(text).document()
    except MarkedYAMLError as error:
        raise _not_yaml(error) from None
    except YAMLError as error:
        raise _malformed(str(error).splitlines()[0]) from None
    except (OverflowError, ValueError):
        # The parser's own, for an escape such as \UFFFFFFFF; it has lost the place.
        raise _malformed("an escape names no character") from None


def _malformed(
    message: str,
    *,
    mark: Mark | None = None,
    value: object = None,
    allowed: str | None = None,
) -> InvalidRunFile:
    return InvalidRunFile(
        message,
        value=value,
        allowed=allowed,
        line=mark.line if mark else None,
        column=mark.column if mark else None,
    )


def _not_yaml(error: MarkedYAMLError) -> InvalidRunFile:
    """Take over the parser's words and its place."""
    context, problem, mark, other = (
        getattr(error, name, None)
        for name in ("context", "problem", "problem_mark", "context_mark")
    )
    said = " ".join(shown(part) for part in (context, problem) if part)
    return _malformed(said or "not YAML", mark=_mark(mark) or _mark(other))


def _mark(mark: object) -> Mark | None:
    line, column = getattr(mark, "line", None), getattr(mark, "column", None)
    return Mark(line + 1, column + 1) if isinstance(line, int) and isinstance(column, int) else None


class _Reader:
    """One pass over the parser's events."""

    def __init__(self, text: str) -> None:
        self._events = _events(text)
        self._anchors: dict[str, Node | None] = {}
        self._aliases = 0
        self._nodes = 0

    def document(self) -> Node | None:
        found: Node | None = None
        for event in self._events:
            if event.kind is not _Kind.DOCUMENT:
                found = self._node(event, depth=1)
            elif found is not None:
                raise _malformed("a second document begins", mark=event.mark)
        return found

    def _node(self, event: _Event, *, depth: int) -> Node:
        mark = event.mark
        if event.kind is _Kind.ALIAS:
            return self._alias(event.anchor or "", mark)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _malformed("too many values", mark=mark, allowed=f"at most {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise _malformed("nested too deeply", mark=mark, allowed=f"at most {MAX_DEPTH} levels")
        if event.anchor:
            self._anchors[event.anchor] = None
        node = self._content(event, depth)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, name: str, mark: Mark) -> Node:
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            raise _malformed("too many aliases", mark=mark, allowed=f"at most {MAX_ALIASES}")
        if name not in self._anchors:
            raise _malformed(f"no anchor is called {shown(name)!r}", mark=mark, value=name)
        node = self._anchors[name]
        if node is None:
            raise _malformed(f"the alias {shown(name)!r} contains itself", mark=mark, value=name)
        return node

    def _content(self, event: _Event, depth: int) -> Node:
        if event.tag not in (None, "!"):
            raise _malformed(
                f"tags such as {shown(event.tag)!r} are not allowed",
                mark=event.mark,
                value=event.tag,
                allowed="plain mappings, lists, text, numbers, true, false and null",
            )
        if event.kind is _Kind.SEQUENCE:
            return self._sequence(event.mark, depth)
        if event.kind is _Kind.MAPPING:
            return self._mapping(event.mark, depth)
        value = _resolve(event)
        return Node(event.mark, value, 1, len(value) if isinstance(value, str) else 1)

    def _sequence(self, mark: Mark, depth: int) -> Node:
        nodes: list[Node] = []
        size, text = 1, 0
        while (event := next(self._events)).kind is not _Kind.SEQUENCE_END:
            node = self._node(event, depth=depth + 1)
            nodes.append(node)
            size, text = _weigh(size + node.size, text + node.text, node.mark)
        return Node(mark, tuple(nodes), size, text)

    def _mapping(self, mark: Mark, depth: int) -> Node:
        entries: dict[str, tuple[Mark, Node]] = {}
        size, text = 1, 0
        while (event := next(self._events)).kind is not _Kind.MAPPING_END:
            key, place = self._key(event)
            if key in entries:
                raise _malformed(
                    f"the key {shown(key)!r} stands in line {entries[key][0].line} already",
                    mark=place,
                    value=key,
                    allowed="each key once",
                )
            node = self._node(next(self._events), depth=depth + 1)
            entries[key] = (place, node)
            size, text = _weigh(size + 1 + node.size, text + len(key) + node.text, place)
        return Node(mark, entries, size, text)

    def _key(self, event: _Event) -> tuple[str, Mark]:
        mark = event.mark
        self._nodes += 1
        if event.kind is not _Kind.SCALAR:
            raise _malformed("a key must be text", mark=mark, allowed="text")
        if event.tag or event.anchor:
            raise _malformed("a key may have no tag and no anchor", mark=mark, value=event.value)
        if event.value == "<<" and event.bare:
            raise _malformed(
                "merge keys are not YAML 1.2", mark=mark, value="<<", allowed="aliases as values"
            )
        key = _resolve(event)
        if not isinstance(key, str):
            raise _malformed(
                f"the key {shown(event.value)!r} is not text: write it in quotes",
                mark=mark,
                value=event.value,
                allowed="text",
            )
        return key, mark


def _weigh(size: int, text: int, mark: Mark) -> tuple[int, int]:
    """Refuse what would grow too large once its aliases are written out."""
    if size > MAX_NODES:
        raise _malformed("too many values", mark=mark, allowed=f"at most {MAX_NODES} values")
    if text > MAX_TEXT:
        raise _malformed("too much text", mark=mark, allowed=f"at most {MAX_TEXT} characters")
    return size, text


def _resolve(event: _Event) -> Scalar:
    """Tell what a scalar written bare means in the core schema; quoted ones are text."""
    text = event.value
    if not event.bare:
        return _paired(text)
    if _NULL.match(text):
        return None
    if _BOOLEAN.match(text):
        return text.lower() == "true"
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text


def _paired(text: str) -> str:
    """Join the surrogate pairs that JSON escapes large characters as; a lone one stays wrong."""
    if not any("\ud800" <= one <= "\udfff" for one in text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return text
