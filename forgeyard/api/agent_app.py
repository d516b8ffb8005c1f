"""The agent API: what a runner's agent speaks, on a port of its own."""

import re
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp

from forgeyard.api import (
    caches,
    enrolling,
    health,
    leases,
    payloads,
    sessions,
    warmups,
    withholding,
)
from forgeyard.api.agent_callers import CertificateGate, Revocations
from forgeyard.api.app import furnish, routes_only
from forgeyard.api.auth import OPEN_PATHS
from forgeyard.api.dependencies import ApiDependencies
from forgeyard.api.enrolling import OPEN_TO_STRANGERS
from forgeyard.api.front import FrontHeaders
from forgeyard.api.tls import front_secret

STREAMS: Final = (
    re.compile(r"/agent/v1/leases/[^/]+/outputs/[^/]+"),
    re.compile(r"/agent/v1/leases/[^/]+/caches/[^/]+/[^/]+"),
)


def assemble() -> FastAPI:
    """Put the agents' routes together."""
    return routes_only(
        "Forgeyard agent API",
        "Sessions, leases, logs, inputs, outputs and caches. Version 1 of the protocol.",
        (
            *(sessions.router, warmups.router, leases.router, payloads.router),
            *(caches.router, enrolling.router),
        ),
        open_routers=(health.router, enrolling.open_router),
    )


def create_agent_app(deps: ApiDependencies) -> FastAPI:
    """Make the agent API, behind the gate that the configuration asks for."""
    app = assemble()
    withholding.install(app)
    if deps.config.api.agent_identity == "token":
        return furnish(app, deps, streams=STREAMS)
    revocations = Revocations(deps.engine)

    front = front_secret(deps.config) if deps.config.api.agent_identity == "front" else None

    def gate(inner: ASGIApp) -> ASGIApp:
        open_paths = OPEN_PATHS | OPEN_TO_STRANGERS
        stands = CertificateGate(inner, revocations=revocations, open_paths=open_paths)
        if front is None:
            return stands
        return FrontHeaders(stands, secret=front, issuing=deps.trust.issuing)

    return furnish(app, deps, streams=STREAMS, gate=gate)
