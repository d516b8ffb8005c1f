"""Reads run files from disk, and gives every complaint its file, line and column."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forgeyard.errors import InvalidRunFile, NotFound, Rejected
from forgeyard.model.run import RunSpec
from forgeyard.runfile.compile import compile_run
from forgeyard.runfile.nodes import Mark, Node, read_node
from forgeyard.runfile.source import written

MAX_SIZE: Final = 2**20
RUN_FILE: Final = "a mapping with `jobs`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A file's document as plain JSON values, and where each of them stands."""

    file: str
    document: Mapping[str, object]
    root: Node

    def locate(self, field: str | None) -> Mark:
        """Find the line of a dotted path, or of the nearest thing above it that is written."""
        return _locate(self.root, self.root.mark, field or "")


def load(path: Path, root: Path = Path(), *, allowed: str = RUN_FILE) -> Loaded:
    """Read a file below `root`; nothing is checked but that it is a bounded YAML mapping.

    `allowed` says what an author should write who wrote something else.

    Raises:
        NotFound: there is no such file.
        InvalidRunFile: with file, and line and column where there are any.
    """
    return parse(_read(root / path, str(path)), file=str(path), allowed=allowed)


def parse(text: str, *, file: str, allowed: str = RUN_FILE) -> Loaded:
    """Read the text of a file; `file` and `allowed` are only for complaints.

    Raises:
        InvalidRunFile: with file, and line and column where there are any.
    """
    try:
        root = read_node(text)
    except InvalidRunFile as error:
        raise _placed(error, file, error.line, error.column) from None
    if root is None or root.content is None:
        raise InvalidRunFile("the file is empty", file=file, allowed=allowed)
    if not isinstance(root.content, Mapping):
        raise InvalidRunFile(
            "the file is not a mapping",
            file=file,
            line=root.mark.line,
            column=root.mark.column,
            allowed=allowed,
        )
    document = {key: node.value() for key, (_, node) in root.content.items()}
    return Loaded(file=file, document=document, root=root)


def load_run(path: Path, root: Path = Path()) -> tuple[RunSpec, Mapping[str, object]]:
    """Read and check a run file below `root`; return the run and the document to submit.

    The document carries no credentials; complaints name the file as `path` does.

    Raises:
        NotFound: there is no such file.
        InvalidRunFile: with file, line, column, field, value and what is allowed.
    """
    loaded = load(path, root)
    run = check(loaded, fallback_name(path))
    source = {} if run.git is None else {"source": written(run.git)}
    return run, {**loaded.document, "name": run.name, **source}


def check(loaded: Loaded, fallback: str) -> RunSpec:
    """Compile what was loaded; complaints carry their place.

    Raises:
        InvalidRunFile: with file, line, column, field, value and what is allowed.
    """
    try:
        return compile_run(loaded.document, fallback_name=fallback)
    except Rejected as error:
        mark = loaded.locate(error.field)
        raise _placed(error, loaded.file, mark.line, mark.column) from error


def fallback_name(path: Path) -> str:
    """Name a run after its file."""
    printable = "".join(one for one in path.stem if one.isprintable())
    return printable[:100].strip() or "run"


def _placed(error: Rejected, file: str, line: int | None, column: int | None) -> InvalidRunFile:
    return InvalidRunFile(
        error.message,
        field=error.field,
        value=error.value,
        allowed=error.allowed,
        file=file,
        line=line,
        column=column,
    )


def _read(path: Path, file: str) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_SIZE + 1)
    except FileNotFoundError:
        raise NotFound(f"there is no file {file}", field="file", value=file) from None
    except IsADirectoryError:
        raise InvalidRunFile(
            f"{file} is a directory", field="file", value=file, allowed="a YAML file"
        ) from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRunFile(f"cannot read {file}: {said}", field="file", value=file) from None
    if len(raw) > MAX_SIZE:
        raise InvalidRunFile(
            "the file is too large", file=file, allowed=f"at most {MAX_SIZE} bytes"
        )
    return _decode(raw, file)


def _decode(raw: bytes, file: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        raise InvalidRunFile(
            "the file is not UTF-8 text",
            file=file,
            line=before.count(b"\n") + 1,
            column=error.start - (before.rfind(b"\n") + 1) + 1,
            allowed="YAML in UTF-8",
        ) from None
    for place, character in enumerate(text):
        if character < " " and character not in "\t\n\r":
            before_it = text[:place]
            raise InvalidRunFile(
                f"the file contains the control character U+{ord(character):04X}",
                file=file,
                line=before_it.count("\n") + 1,
                column=place - (before_it.rfind("\n") + 1) + 1,
                allowed="printable text, tabs and line ends",
            )
    return text


def _locate(node: Node, mark: Mark, rest: str) -> Mark:
    """Follow a dotted path as far as it is written; names may contain dots themselves."""
    if isinstance(node.content, tuple):
        index, _, following = rest.partition(".")
        if index.isdecimal() and int(index) < len(node.content):
            item = node.content[int(index)]
            return _locate(item, item.mark, following)
    elif isinstance(node.content, Mapping):
        fitting = [key for key in node.content if f"{rest}.".startswith(f"{key}.")]
        if fitting:
            key = max(fitting, key=len)
            place, child = node.content[key]
            return _locate(child, place, rest[len(key) + 1 :])
    return mark
