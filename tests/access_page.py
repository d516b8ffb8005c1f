"""Write docs/access.md from the routes and the roles; `--check` fails when the page is stale.

python -m tests.access_page [--check]
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from fastapi.routing import APIRoute

from forgeyard.api import app as public_app
from forgeyard.api.callers import declared
from forgeyard.model.permission import INSIDE_A_TENANT, ROLES, Permission, Role

PAGE: Final = Path(__file__).parents[1] / "docs" / "access.md"
HEAD: Final = """# Who may do what

Written by `python -m tests.access_page`. A token brings the permissions of its role and those that
it was given by name, and nothing else. A token of a tenant brings at most those marked *tenant*,
and only for what belongs to the tenant; anything else is not there (404). Every route that is not
open declares one permission, or the API does not start. `/openapi.json` answers any valid token.
"""


def routes() -> list[tuple[str, str, APIRoute]]:
    """List every route of the public API: what it is called, its method, and itself."""
    return sorted(_routes(), key=lambda one: one[0])


def _routes() -> Iterator[tuple[str, str, APIRoute]]:
    waiting: list[object] = list(public_app.assemble().routes)
    while waiting:
        route = waiting.pop()
        router = getattr(route, "original_router", None)
        if router is not None:
            waiting += router.routes
        elif isinstance(route, APIRoute):
            for method in sorted(route.methods):
                yield f"{method} {route.path}", method, route


def text() -> str:
    """Render the page."""
    return "\n".join((HEAD, *_of_roles(), "", *_of_routes(), ""))


def _of_roles() -> Iterator[str]:
    roles = list(Role)
    yield f"| permission | {' | '.join(roles)} | tenant |"
    yield f"|---|{'---|' * (len(roles) + 1)}"
    for permission in Permission:
        has = " | ".join("yes" if permission in ROLES[role] else "" for role in roles)
        yield f"| `{permission}` | {has} | {'yes' if permission in INSIDE_A_TENANT else ''} |"


def _of_routes() -> Iterator[str]:
    yield "| route | permission |"
    yield "|---|---|"
    for what, _, route in routes():
        needed = declared(route)
        said = "open to anybody" if not needed else f"`{needed[0]}`" if needed[0] else "any token"
        yield f"| `{what.replace(':path}', '}')}` | {said} |"


def main(arguments: Sequence[str]) -> int:
    """Write or check the page; return the exit code."""
    if "--check" in arguments:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text() else 1
    PAGE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
