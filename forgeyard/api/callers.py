"""Who calls the public API, and what each route needs; what says nothing is open to nobody.

The gate stands before the routes and finds out who calls: 401 if nobody. A route says with `needs`
which permission it takes: 403 without. Tokens are remembered for a few seconds, so that most
requests ask no database, and a token that is revoked is refused everywhere soon after.
"""

import hashlib
import hmac
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Annotated, Final

import sqlalchemy as sa
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.params import Depends as Dependency
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from forgeyard import clock
from forgeyard.api.problems import refusal
from forgeyard.errors import Corrupt, StoreUnavailable, Unauthenticated
from forgeyard.model.caller import HOST, Caller
from forgeyard.model.permission import Permission
from forgeyard.store import tokens
from forgeyard.store.engine import read, write

FRESH_S: Final = 4.0
"""How long a token is taken for what it was; a look-up that takes long is part of it."""
REMEMBERED: Final = 10_000
LOOK_UPS_AT_ONCE: Final = 4
CALLER: Final = "caller"


class CallerBook:
    """Finds out whose token it is, asking the store at most every few seconds."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        host_token: str,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._engine = engine
        self._host_token = host_token.encode()
        self._monotonic = monotonic
        self._known: dict[bytes, tuple[float, Caller | None]] = {}
        self._limiter = CapacityLimiter(LOOK_UPS_AT_ONCE)

    async def find(self, token: str) -> Caller | None:
        """Tell whose token this is; None if it is nobody's.

        Raises:
            StoreUnavailable: the store has to be asked, and does not answer.
        """
        if hmac.compare_digest(token.encode(), self._host_token):
            return HOST
        if tokens.SHAPE.fullmatch(token) is None:
            return None
        key = hashlib.sha256(token.encode()).digest()
        until, caller = self._known.get(key, (0.0, None))
        if self._monotonic() < until:
            return caller
        return await to_thread.run_sync(lambda: self._ask(token, key), limiter=self._limiter)

    def forget(self) -> None:
        """Ask for everybody again, for this process has just changed what tokens are worth."""
        self._known.clear()

    def _ask(self, token: str, key: bytes) -> Caller | None:
        asked_at = self._monotonic()
        with read(self._engine) as connection:
            found = tokens.look_up(connection, token)
        if found is not None and not found.use_is_noted:
            with write(self._engine) as connection:
                tokens.note_use(connection, found.caller.token_id)
        left_s = FRESH_S if found is None else min(FRESH_S, found.left_ms / 1000)
        caller = None if found is None else found.caller
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = (asked_at + left_s, caller)
        return caller


class CallerGate:
    """Let requests in that say who calls, and on the open paths everybody."""

    def __init__(self, app: ASGIApp, *, book: CallerBook, open_paths: Collection[str]) -> None:
        self._app = app
        self._book = book
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its caller, or answer 401."""
        if scope["type"] != "http" or scope["path"] in self._open:
            await self._app(scope, receive, send)
            return
        try:
            scope.setdefault("state", {})[CALLER] = await self._caller(scope)
        except (Unauthenticated, StoreUnavailable) as error:
            await refusal(error, scope["state"].get("request_id"))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _caller(self, scope: Scope) -> Caller:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        found = await self._book.find(given.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            raise Unauthenticated(
                "this request carries no valid token",
                field="Authorization",
                allowed="Bearer and a token that was neither revoked nor has expired",
            )
        return found


class Needs:
    """What a route takes of its caller: a permission, or nothing but to be somebody."""

    def __init__(self, permission: Permission | None) -> None:
        self.permission = permission

    async def __call__(self, request: Request) -> Caller:
        """Give the caller, or refuse one who lacks the permission."""
        caller: object = request.scope.get("state", {}).get(CALLER)
        if not isinstance(caller, Caller):
            raise Unauthenticated("nobody was found to call", field="Authorization")
        if self.permission is not None:
            caller.demand(self.permission)
        return caller


def needs(permission: Permission) -> Dependency:
    """Declare the permission that a route takes, among its `dependencies`."""
    return Dependency(Needs(permission))


RunReader = Annotated[Caller, needs(Permission.RUN_READ)]
RunSubmitter = Annotated[Caller, needs(Permission.RUN_SUBMIT)]
RunCanceller = Annotated[Caller, needs(Permission.RUN_CANCEL)]
Reprioritiser = Annotated[Caller, needs(Permission.JOB_REPRIORITISE)]
ScopeReader = Annotated[Caller, needs(Permission.SCOPE_READ)]
ScopeManager = Annotated[Caller, needs(Permission.SCOPE_MANAGE)]
SchedulerManager = Annotated[Caller, needs(Permission.SCHEDULER_MANAGE)]
PolicySetter = Annotated[Caller, needs(Permission.POLICY_SET)]
RunnerManager = Annotated[Caller, needs(Permission.RUNNER_MANAGE)]
RunnerEnroller = Annotated[Caller, needs(Permission.RUNNER_ENROL)]
PoolManager = Annotated[Caller, needs(Permission.POOL_MANAGE)]
StoreManager = Annotated[Caller, needs(Permission.STORE_MANAGE)]
TokenManager = Annotated[Caller, needs(Permission.TOKEN_MANAGE)]
FleetImageManager = Annotated[Caller, needs(Permission.FLEET_IMAGE_MANAGE)]
FleetManager = Annotated[Caller, needs(Permission.FLEET_MANAGE)]
FleetScaler = Annotated[Caller, needs(Permission.FLEET_SCALE)]
FleetDrainer = Annotated[Caller, needs(Permission.FLEET_DRAIN)]
FleetFreezer = Annotated[Caller, needs(Permission.FLEET_FREEZE)]
FleetReserver = Annotated[Caller, needs(Permission.FLEET_RESERVATION_MANAGE)]
Anybody = Annotated[Caller, Depends(Needs(None))]
"""Whoever has a valid token."""


def declared(route: APIRoute) -> tuple[Permission | None, ...]:
    """List what a route says that it needs."""
    return tuple(need.permission for need in _needs_of(route.dependant))


def _needs_of(dependant: Dependant) -> Iterator[Needs]:
    if isinstance(dependant.call, Needs):
        yield dependant.call
    for inner in dependant.dependencies:
        yield from _needs_of(inner)


def demand_declared(routers: Sequence[APIRouter]) -> None:
    """Insist that every route says once what it needs; an application without that never starts.

    Raises:
        Corrupt: a route says nothing, or two things.
    """
    for router in routers:
        for route in router.routes:
            if not isinstance(route, APIRoute) or len(declared(route)) != 1:
                raise Corrupt(f"a route does not declare one permission: {route}")
