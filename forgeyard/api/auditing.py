"""The audit trail: read it, and find out whether it is what was written."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from forgeyard.api.callers import needs
from forgeyard.api.dependencies import Deps
from forgeyard.api.runs import Body
from forgeyard.model.permission import Permission
from forgeyard.store import chain
from forgeyard.store.chain import AuditPage, Head, Verified
from forgeyard.store.engine import read

READING = needs(Permission.AUDIT_READ)
router = APIRouter(prefix="/v1/audit", tags=["audit"])
MOST_KEPT = 10_000


class KeptHead(Body):
    """A head that was kept elsewhere; with 0 its place is not known."""

    seq: Annotated[int, Field(ge=0, lt=2**53)] = 0
    hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class Verify(Body):
    """The heads that have to be in the chain."""

    kept: Annotated[tuple[KeptHead, ...], Field(max_length=MOST_KEPT)] = ()


NOTHING_KEPT = Verify()


@router.get("", dependencies=[READING])
def list_audit(
    deps: Deps,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    before: Annotated[int | None, Query(ge=0, lt=2**53)] = None,
    action: Annotated[str | None, Query(max_length=64, pattern=r"^[a-z_.]*$")] = None,
    target: Annotated[str | None, Query(max_length=300, pattern=r"^[^\x00]*$")] = None,
) -> AuditPage:
    """List who did what, the newest first; `action` may be the beginning of one."""
    with read(deps.engine) as connection:
        return chain.list_lines(
            connection, limit=limit, before=before, action=action, target=target
        )


@router.get("/head", dependencies=[READING])
def audit_head(deps: Deps) -> Head:
    """Tell the head of the chain, to be kept where nobody can change it."""
    with read(deps.engine) as connection:
        return chain.head(connection)


@router.post(":verify", dependencies=[READING])
def verify_audit(deps: Deps, message: Verify = NOTHING_KEPT) -> Verified:
    """Go through the whole chain and tell whatever is not as it was written."""
    kept = [Head(seq=one.seq, hash=one.hash) for one in message.kept]
    with read(deps.engine) as connection:
        return chain.verify(connection, kept)
