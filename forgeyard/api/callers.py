"""Which runner an agent speaks for, and that it speaks for no other.

The gate before the agent API lets nothing through without a certificate that is good now, but for
the two paths that give one. The routes ask `Caller` whether a session is the caller's own. Headers
that name somebody are never looked at.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Annotated, Final

import sqlalchemy as sa
from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from forgeyard import clock
from forgeyard.api.problems import refusal
from forgeyard.errors import Forbidden, ForgeyardError, Unauthenticated
from forgeyard.store import identities, tables
from forgeyard.store.engine import read
from forgeyard.trust.identity import RunnerIdentity, identity_in

CERTIFICATE: Final = "certificate"
"""Where the listener puts a client's certificate, in the state of each request."""
IDENTITY: Final = "identity"
FRESH_S: Final = 2.0
"""So long a list of revoked certificates is believed; a revocation is felt within five seconds."""
REMEMBERED: Final = 100_000


class Revocations:
    """The certificates that are refused although they look good, as the store knows them."""

    def __init__(
        self, engine: sa.Engine, *, monotonic: Callable[[], float] = clock.monotonic
    ) -> None:
        self._engine = engine
        self._clock = monotonic
        self._serials: frozenset[str] = frozenset()
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    async def demand_good(self, identity: RunnerIdentity) -> None:
        """Insist that a certificate is neither over nor revoked.

        Raises:
            Unauthenticated: it is.
            StoreUnavailable: nobody can tell.
        """
        if identity.ends <= clock.now():
            raise _refused("is over")
        if not self._is_fresh():
            async with self._reading:
                if not self._is_fresh():
                    began = self._clock()
                    self._serials = await asyncio.to_thread(self._read)
                    self._read_at = began
        if identity.serial in self._serials:
            raise _refused("was revoked or replaced")

    def _is_fresh(self) -> bool:
        return self._read_at is not None and self._clock() - self._read_at < FRESH_S

    def _read(self) -> frozenset[str]:
        with read(self._engine) as connection:
            return identities.refused_serials(connection)


class CertificateGate:
    """Refuse every request that comes with no good certificate, except on the open paths."""

    def __init__(
        self, app: ASGIApp, *, revocations: Revocations, open_paths: Collection[str]
    ) -> None:
        self._app = app
        self._revocations = revocations
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with the identity of its certificate, or answer 401."""
        if scope["type"] == "http" and scope["path"] not in self._open:
            try:
                der: object = scope["state"].get(CERTIFICATE)
                if not isinstance(der, bytes):
                    raise _refused("is missing")
                identity = identity_in(der)
                await self._revocations.demand_good(identity)
            except ForgeyardError as error:
                request_id = scope["state"].get("request_id")
                await refusal(error, request_id)(scope, receive, send)
                return
            scope["state"][IDENTITY] = identity
        await self._app(scope, receive, send)


def _refused(why: str) -> Unauthenticated:
    return Unauthenticated(
        f"the client certificate {why}",
        field="certificate",
        allowed="one that an enrolment gave to this runner",
    )


class SessionOwners:
    """Which runner has which session; it never changes, so that it is asked for once."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._known: OrderedDict[str, str] = OrderedDict()

    def known(self, session_id: str) -> str | None:
        """Tell the owner, if it was asked for before."""
        return self._known.get(session_id)

    def find(self, session_id: str) -> str | None:
        """Tell the owner; `None` if there is no such session. Blocks."""
        found = self.known(session_id)
        if found is None:
            sessions = tables.sessions
            query = sa.select(sessions.c.runner_id).where(sessions.c.session_id == session_id)
            with read(self._engine) as connection:
                found = connection.execute(query).scalar_one_or_none()
            if found is not None:
                self._known[session_id] = found
                if len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
        return found


class CallingAgent:
    """Who makes this request; with the token of the data directory, anybody on this host."""

    def __init__(self, identity: RunnerIdentity | None, owners: SessionOwners) -> None:
        self.identity = identity
        self._owners = owners

    @property
    def runner_id(self) -> str | None:
        """Tell the runner that its certificate names."""
        return None if self.identity is None else self.identity.runner_id

    def demand(self, session_id: str) -> None:
        """Insist that a session is the caller's; one that is nobody's is left to the store. Blocks.

        Raises:
            Forbidden: it is another runner's.
        """
        if self.identity is not None:
            self._compare(session_id, self._owners.find(session_id))

    async def demand_soon(self, session_id: str) -> None:
        """Do the same without blocking the loop."""
        if self.identity is not None:
            owner = self._owners.known(session_id)
            if owner is None:
                owner = await run_in_threadpool(self._owners.find, session_id)
            self._compare(session_id, owner)

    def _compare(self, session_id: str, owner: str | None) -> None:
        if owner not in (None, self.runner_id):
            raise Forbidden(
                "this session is another runner's", field="session_id", value=session_id
            )


async def _caller(request: Request) -> CallingAgent:
    identity: object = request.scope["state"].get(IDENTITY)
    known = identity if isinstance(identity, RunnerIdentity) else None
    return CallingAgent(known, request.app.state.dependencies.owners)


Caller = Annotated[CallingAgent, Depends(_caller)]
