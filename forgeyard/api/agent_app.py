"""The agent API: what a runner's agent speaks, on a port of its own."""

import re
from typing import Final

from fastapi import FastAPI

from forgeyard.api import caches, health, leases, payloads, sessions, withholding
from forgeyard.api.app import furnish, routes_only
from forgeyard.api.dependencies import ApiDependencies

STREAMS: Final = (
    re.compile(r"/agent/v1/leases/[^/]+/outputs/[^/]+"),
    re.compile(r"/agent/v1/leases/[^/]+/caches/[^/]+/[^/]+"),
)


def assemble() -> FastAPI:
    """Put the agents' routes together."""
    return routes_only(
        "Forgeyard agent API",
        "Sessions, leases, logs, inputs, outputs and caches. Version 1 of the protocol.",
        (sessions.router, leases.router, payloads.router, caches.router),
        open_routers=(health.router,),
    )


def create_agent_app(deps: ApiDependencies) -> FastAPI:
    """Make the agent API."""
    app = assemble()
    withholding.install(app)
    return furnish(app, deps, streams=STREAMS)
