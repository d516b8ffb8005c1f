"""Writes the JSON schema of run files, which editors use to complete and check them.

`python -m forgeyard.runfile.publish` writes it, `--check` fails if the one on disk has drifted.
"""

import json
import sys
from pathlib import Path
from typing import cast

from forgeyard.runfile.schema import RunFile
from forgeyard.runfile.values import NAME, TOOL_NAME, VARIABLE

PUBLISHED = Path(__file__).parents[2] / "docs" / "runfile.schema.json"

_NAMES = (NAME, TOOL_NAME, VARIABLE)
_STRICT = ("type", "enum", "pattern")


def schema() -> dict[str, object]:
    """Describe run files as JSON schema, draft 2020-12."""
    found = RunFile.model_json_schema(by_alias=True)
    _close(found)
    _open(found)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:forgeyard:schema:runfile",
        **found,
        "title": "Forgeyard run file",
    }


def _close(part: object) -> None:
    """Forbid keys that no pattern matches, which pydantic leaves open in a schema."""
    if isinstance(part, dict):
        entries = cast("dict[str, object]", part)
        if "patternProperties" in entries:
            entries["additionalProperties"] = False
        for child in entries.values():
            _close(child)
    elif isinstance(part, list):
        for child in cast("list[object]", part):
            _close(child)


def _open(part: object) -> None:
    """Let a placeholder stand for a value that is otherwise one of a few, or a name."""
    if isinstance(part, dict):
        entries = cast("dict[str, object]", part)
        for child in entries.values():
            _open(child)
        if "enum" in entries or entries.get("pattern") in _NAMES:
            strict = {key: entries.pop(key) for key in list(entries) if key in _STRICT}
            entries["anyOf"] = [strict, {"type": "string", "pattern": r"\$\{\{ *matrix\."}]
    elif isinstance(part, list):
        for child in cast("list[object]", part):
            _open(child)


def schema_text() -> str:
    """Print the schema as it is published."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str], target: Path = PUBLISHED) -> int:
    """Write the schema, or compare it with the one on disk."""
    text = schema_text()
    if arguments != ["--check"]:
        target.write_text(text, encoding="utf-8")
        return 0
    if target.is_file() and target.read_text(encoding="utf-8") == text:
        return 0
    print(f"{target.name} has drifted: run python -m forgeyard.runfile.publish", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
