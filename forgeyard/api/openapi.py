"""Write the two OpenAPI documents, or with `--check` tell whether the written ones are current.

python -m forgeyard.api.openapi [--check] [DIRECTORY]
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fastapi import FastAPI

from forgeyard.api import agent_app, app

PUBLIC: Final = "openapi.json"
AGENT: Final = "agent-openapi.json"


def document(application: FastAPI) -> str:
    """Render an application's routes as OpenAPI, in a form that diffs well."""
    described = application.openapi()
    return f"{json.dumps(described, indent=2, sort_keys=True, ensure_ascii=False)}\n"


def documents() -> Mapping[str, str]:
    """Render both documents, by file name."""
    return {PUBLIC: document(app.assemble()), AGENT: document(agent_app.assemble())}


def drifted(directory: Path) -> tuple[str, ...]:
    """Name the files that do not say what the code says."""
    return tuple(
        name
        for name, text in documents().items()
        if not (directory / name).exists() or (directory / name).read_text("utf-8") != text
    )


def main(arguments: list[str] | None = None) -> int:
    """Write or check the documents; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m forgeyard.api.openapi", description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=Path("docs"))
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args(arguments)
    directory: Path = options.directory
    if options.check:
        stale = drifted(directory)
        for name in stale:
            print(f"{directory / name} is not what the code says: run without --check")
        return 1 if stale else 0
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in documents().items():
        (directory / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
