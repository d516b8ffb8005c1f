"""Turns requests away while so many are inside that a further one would not be answered in time.

Without it they would queue for a thread and a connection until their senders give up, and the
answers would go to nobody. Whoever is turned away comes again after a pause of its own.
"""

import re
from collections.abc import Collection
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from forgeyard import telemetry
from forgeyard.api.problems import refusal
from forgeyard.errors import Crowded

PASSING: Final = (
    # Must always be heard: whoever watches us, and leases that would lapse.
    re.compile(r"/healthz|/readyz|/metrics|/agent/v1/renewals"),
    # Waits in a queue with a bound of its own, and keeps no thread busy.
    re.compile(r"/agent/v1/sessions/[^/]+/heartbeat"),
    # Wait for something to happen, or for the other side to read, and keep no thread busy.
    re.compile(r"/agent/v1/sessions/[^/]+/poll|/v1/runs/[^/]+/logs"),
    re.compile(r"/agent/v1/leases/[^/]+/inputs/[^/]+|/v1/runs/[^/]+/outputs/[^/]+/[^/]+"),
)
"""Paths whose requests are let in however many there are."""


class Turnstile:
    """Let so many requests in at a time, long polls and transfers aside; answer the others 503."""

    def __init__(
        self, app: ASGIApp, *, at_once: int, streams: Collection[re.Pattern[str]] = ()
    ) -> None:
        self._app = app
        self._at_once = at_once
        self._passing = (*PASSING, *streams)
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, if there is room."""
        if scope["type"] != "http" or self._passes(scope["path"]):
            await self._app(scope, receive, send)
            return
        if self._inside >= self._at_once:
            telemetry.TURNED_AWAY.inc()
            error = Crowded(f"{self._inside} requests are being answered; ask again in a moment")
            await refusal(error, scope["state"].get("request_id"))(scope, receive, send)
            return
        self._inside += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._inside -= 1

    def _passes(self, path: str) -> bool:
        return any(pattern.fullmatch(path) for pattern in self._passing)
