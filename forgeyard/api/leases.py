"""What an agent does about a lease. The store decides; a refusal is audited, then answered 409."""

from typing import Annotated

import sqlalchemy as sa
from annotated_types import MaxLen
from fastapi import APIRouter

from forgeyard import telemetry, tracing
from forgeyard.api.callers import Caller
from forgeyard.api.dependencies import Deps
from forgeyard.api.withholding import ShownMark
from forgeyard.errors import StaleRejected
from forgeyard.model.protocol import (
    Accepted,
    Complete,
    CompletionAnswer,
    CompletionVerdict,
    Holder,
    Progress,
    Reject,
    Renew,
    RenewAnswer,
    Usage,
)
from forgeyard.store import leases, lineage
from forgeyard.store.engine import write
from forgeyard.store.leases import Refused

router = APIRouter(prefix="/agent/v1", tags=["leases"])
LeasePath = Annotated[str, MaxLen(64)]


@router.post("/leases/{lease_id}/accept")
def accept(lease_id: LeasePath, holder: Holder, deps: Deps, caller: Caller) -> Accepted:
    """Take an offer up; doing so twice is as good as once, and Temporal hears of neither."""
    caller.demand(holder.session_id)
    with tracing.span("lease.accept", lease_id=lease_id) as span, write(deps.engine) as connection:
        answer = leases.accept(connection, lease_id, holder, policy=deps.policy(connection).lease)
        span.of = _run_of(connection, lease_id)
    if isinstance(answer, Refused):
        raise _stale(lease_id, answer)
    telemetry.LEASE_ANSWERS.labels("accepted").inc()
    return answer


@router.post("/leases/{lease_id}/reject", status_code=204)
def reject(lease_id: LeasePath, message: Reject, deps: Deps, caller: Caller) -> None:
    """Turn an offer down; the job goes back and this runner is not asked again for a while."""
    caller.demand(message.session_id)
    with deps.change() as connection:
        answer = leases.reject(connection, lease_id, message, policy=deps.policy(connection).lease)
    if isinstance(answer, Refused):
        raise _stale(lease_id, answer)
    telemetry.LEASE_ANSWERS.labels("rejected").inc()
    telemetry.DISPATCH_FAILURES.labels("rejected").inc()


@router.post("/leases/{lease_id}/progress", status_code=204)
def progress(lease_id: LeasePath, message: Progress, deps: Deps, caller: Caller) -> None:
    """Report that an attempt entered its next phase; nothing is relayed for it."""
    caller.demand(message.session_id)
    with write(deps.engine) as connection:
        answer = leases.progress(
            connection, lease_id, message, policy=deps.policy(connection).lease
        )
    if isinstance(answer, Refused):
        raise _stale(lease_id, answer)


@router.post("/leases/{lease_id}/complete")
def complete(
    lease_id: LeasePath,
    message: Complete,
    deps: Deps,
    caller: Caller,
    store_mark: ShownMark = "",
) -> CompletionAnswer:
    """Report how an attempt ended; a stale report is answered, not stored."""
    caller.demand(message.session_id)
    with tracing.span("lease.complete", lease_id=lease_id) as span, deps.change() as connection:
        verdict = leases.complete(
            connection, lease_id, message, policy=deps.policy(connection).lease
        )
        span.of = _run_of(connection, lease_id)
        span.note(outcome=message.outcome.value, verdict=verdict.value)
    if verdict is CompletionVerdict.STALE_REJECTED:
        here = lineage.ask(deps.engine, store_mark, witness=f"the agent of {message.session_id}")
        if here.hold is not None:
            raise lineage.refusal(here.hold)
    taken = verdict is CompletionVerdict.ACCEPTED
    telemetry.LEASE_ANSWERS.labels(message.outcome.value if taken else verdict.value).inc()
    if taken:
        _count_archives(message.usage)
    return CompletionAnswer(verdict=verdict)


def _count_archives(usage: Usage) -> None:
    inputs, caches = telemetry.LOCALITY_INPUTS, telemetry.LOCALITY_CACHES
    inputs.labels("at_hand").inc(usage.inputs_at_hand)
    inputs.labels("fetched").inc(usage.inputs_fetched)
    caches.labels("at_hand").inc(usage.caches_at_hand)
    caches.labels("fetched").inc(usage.caches_fetched)


@router.post("/renewals")
async def renew(
    message: Renew, deps: Deps, caller: Caller, store_mark: ShownMark = ""
) -> RenewAnswer:
    """Keep leases alive, all in one request; nothing is relayed for it."""
    await caller.demand_soon(message.session_id)
    return await deps.keepalive.renew(message, store_mark=store_mark)


def _run_of(connection: sa.Connection, lease_id: str) -> str:
    """Find whose trace this belongs to, if there are traces."""
    return leases.run_of(connection, lease_id) if tracing.is_on() else ""


def _stale(lease_id: str, refused: Refused) -> StaleRejected:
    telemetry.LEASE_ANSWERS.labels("stale").inc()
    return StaleRejected(refused.reason, field="lease_id", value=lease_id)
