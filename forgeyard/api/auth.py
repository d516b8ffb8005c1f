"""One bearer token for people and agents, and a gate that no request passes without it.

The gate stands before the routes and lets only listed paths through, so that a new route, a
misspelt one and the OpenAPI document are all shut unless somebody opens them here.
"""

import hmac
import os
import stat
from collections.abc import Collection
from pathlib import Path

from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from forgeyard import entropy
from forgeyard.api.problems import refusal
from forgeyard.errors import Forbidden, Unauthenticated

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/v1/schema/runfile.json", "/v1/login/oidc"})
"""Paths that answer anybody; nothing secret may be said there."""

bearer = HTTPBearer(auto_error=False, description="A token of the API.")
"""Writes the scheme into the OpenAPI document; the gate has decided before it runs."""


def ensure_token(path: Path) -> str:
    """Read the token file, making it first (0600) if there is none.

    Raises:
        Forbidden: others may read the file, or it holds no token.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        _make(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise Forbidden(
            f"{path}: others may read the token file",
            field="token",
            value=f"{stat.S_IMODE(path.stat().st_mode):o}",
            allowed="0600: run chmod 600 on it",
        )
    token = path.read_text(encoding="ascii", errors="replace").strip()
    if not token:
        raise Forbidden(f"{path}: the token file is empty", field="token", allowed="one line")
    return token


def _make(path: Path) -> None:
    """Let the file appear whole, and let the first of several processes win."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{entropy.token()[:8]}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{entropy.token()}\n")
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()


class TokenGate:
    """Refuse every HTTP request that lacks the token, except on the open paths."""

    def __init__(self, app: ASGIApp, *, token: str, open_paths: Collection[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "http" or scope["path"] in self._open or self._knows(scope):
            await self._app(scope, receive, send)
            return
        error = Unauthenticated(
            "this request carries no valid token",
            field="Authorization",
            allowed="Bearer and the token of the API's token file",
        )
        await refusal(error, scope["state"].get("request_id"))(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self._token)
        return scheme.lower() == "bearer" and same
