"""While the store may be an older one, no agent is told no: what it works for may be lost here.

An agent shows with every request the newest mark of the store that it was given. Whenever it is
about to be refused, the mark is compared with the store, and so are the session and the lease that
it names; if something is missing the store is held, and the agent is asked to come again. It goes
on with its work meanwhile and tells later what it has to tell.
"""

import asyncio
from typing import Annotated

from annotated_types import MaxLen
from fastapi import FastAPI, Header, Request
from fastapi.responses import Response

from forgeyard.api.dependencies import ApiDependencies
from forgeyard.api.problems import refusal, request_id
from forgeyard.errors import Conflict, Forbidden, ForgeyardError, NotFound
from forgeyard.model.protocol import MARK_HEADER
from forgeyard.store import lineage

MOST = 200
ShownMark = Annotated[str, Header(alias=MARK_HEADER), MaxLen(MOST)]


def install(app: FastAPI) -> None:
    """Look twice before an agent is refused."""
    for kind in (Conflict, NotFound, Forbidden):
        app.add_exception_handler(kind, _on_refusal)


async def _on_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, ForgeyardError)
    deps: ApiDependencies = request.app.state.dependencies
    try:
        hold = await asyncio.to_thread(_hold, deps, request)
    except ForgeyardError as unavailable:
        return refusal(unavailable, request_id(request))
    return refusal(error if hold is None else lineage.refusal(hold), request_id(request))


def _hold(deps: ApiDependencies, request: Request) -> lineage.Hold | None:
    """Tell why this request cannot be refused, if so."""
    session_id, lease_id = (request.path_params.get(name, "") for name in _NAMES)
    here = lineage.ask(
        deps.engine,
        request.headers.get(MARK_HEADER, "")[:MOST],
        witness=f"the agent of {session_id or lease_id or 'an agent that registers'}",
        session_id=session_id,
        lease_ids=(lease_id,) if lease_id else (),
    )
    return here.hold


_NAMES = ("session_id", "lease_id")
