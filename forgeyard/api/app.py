"""The public API: people, the command line and the console.

`assemble` puts routes together without anything behind them, which is all the OpenAPI document
needs; `create_app` adds what they work with and what stands before them.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from forgeyard import clock
from forgeyard.api import (
    auditing,
    blobs,
    checkup,
    codec,
    enrolments,
    fleet_outlook,
    fleets,
    health,
    images,
    logs,
    machines,
    metrics,
    outputs,
    policy,
    pools,
    problems,
    reconciling,
    rollouts,
    runners,
    runs,
    scheduler,
    scopes,
    sign_on,
    store,
    tokens,
)
from forgeyard.api.auth import OPEN_PATHS, TokenGate, bearer
from forgeyard.api.callers import CallerBook, CallerGate, demand_declared
from forgeyard.api.dependencies import ApiDependencies
from forgeyard.api.requests import BodyLimit, RequestIds
from forgeyard.api.transfers import Uploads
from forgeyard.api.turnstile import Turnstile
from forgeyard.model.ids import new_id

STREAMS: Final = (re.compile(r"/v1/blobs/[^/]+"),)
ROUTERS: Final = (
    *(runs.router, logs.router, outputs.router, blobs.router),
    *(scheduler.router, checkup.router, reconciling.router, runners.router, pools.router),
    *(policy.router, metrics.router, scopes.router, scopes.order_router),
    *(store.router, tokens.router, tokens.self_router, auditing.router),
    *(fleets.router, machines.router, machines.provider_router, machines.demand_router),
    *(fleet_outlook.router, images.router, rollouts.router),
    *(enrolments.router, enrolments.runner_router, codec.router),
)


class Application(FastAPI):
    """An application whose OpenAPI document describes problems."""

    def openapi(self) -> dict[str, Any]:
        """Render the document; what it says of errors refers to `Problem`."""
        described = super().openapi()
        described["components"]["schemas"]["Problem"] = problems.problem_schema()
        return described


def assemble() -> FastAPI:
    """Put the public routes together; each of them says which permission it takes."""
    demand_declared(ROUTERS)
    return routes_only(
        "Forgeyard",
        "Submit runs and follow them.",
        ROUTERS,
        open_routers=(health.router, runs.schema_router, sign_on.open_router),
    )


def create_app(deps: ApiDependencies) -> FastAPI:
    """Make the public API."""
    callers = CallerBook(deps.engine, host_token=deps.token)

    def gate(inner: ASGIApp) -> ASGIApp:
        return CallerGate(inner, book=callers, open_paths=OPEN_PATHS)

    app = furnish(assemble(), deps, streams=STREAMS, gate=gate)
    app.state.callers = callers
    app.state.sign_on = sign_on.SignOn(deps.config.oidc)
    # Outermost, for a browser asks without the token whether it may ask.
    app.add_middleware(codec.ForTheWebUi, ui_url=deps.config.temporal.ui_url)
    return app


def routes_only(
    title: str,
    description: str,
    routers: Sequence[APIRouter],
    *,
    open_routers: Sequence[APIRouter],
) -> FastAPI:
    """Make an application of routes that demand the token, and a few that do not."""
    app = Application(
        title=title,
        description=description,
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        responses=problems.DOCUMENTED,
        generate_unique_id_function=_name,
        separate_input_output_schemas=False,
    )
    for router in routers:
        app.include_router(router, dependencies=[Depends(bearer)])
    for router in open_routers:
        app.include_router(router)
    problems.install(app)
    return app


def furnish(
    app: FastAPI,
    deps: ApiDependencies,
    *,
    streams: Collection[re.Pattern[str]],
    gate: Callable[[ASGIApp], ASGIApp] | None = None,
) -> FastAPI:
    """Give an application what its routes work with, and what stands before them.

    The gate is one for the token of the data directory alone, unless another is given.
    """
    app.state.dependencies = deps
    app.state.uploads = Uploads()
    # The last added stands outermost.
    app.add_middleware(Turnstile, at_once=deps.config.api.at_once, streams=streams)
    app.add_middleware(BodyLimit, limit=deps.config.limits.request_body, streams=streams)
    if gate is None:
        app.add_middleware(TokenGate, token=deps.token, open_paths=OPEN_PATHS)
    else:
        app.add_middleware(gate)
    app.add_middleware(RequestIds, draw=lambda: new_id("req", now=clock.now(), rng=deps.rng))
    return app


def _name(route: APIRoute) -> str:
    return route.name
