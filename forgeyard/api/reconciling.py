"""What contradicts itself in the store: looking for it, repairing it, and what was found before."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen
from fastapi import APIRouter, Query

from forgeyard import telemetry, tracing
from forgeyard.api.callers import SchedulerManager, needs
from forgeyard.api.dependencies import Deps
from forgeyard.api.runs import CHANNEL, Reason
from forgeyard.model.permission import Permission
from forgeyard.scheduler.findings import Finding, FindingOutcome, Recorded
from forgeyard.store import changes, findings
from forgeyard.store.engine import database_now, read
from forgeyard.store.reconcile import passes
from forgeyard.store.reconcile.passes import Reconciled

router = APIRouter(prefix="/v1/scheduler", tags=["scheduler"])
Partition = Annotated[str | None, Query(max_length=100)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What was found; only what was repaired is as expected now."""

    findings: tuple[Finding, ...]
    repaired: int
    reported: int
    failed: int
    more: bool
    """There is more to repair; ask again."""


class Wish(Reason):
    """What to reconcile, and why; runners and leases belong to every partition."""

    partition: Annotated[str | None, MaxLen(100)] = None


EVERYTHING = Wish()


@router.get("/reconciliation", dependencies=[needs(Permission.SCHEDULER_READ)])
def look(deps: Deps, partition: Partition = None) -> Reconciliation:
    """Tell what a reconciliation would find, and change nothing."""
    with read(deps.engine) as connection:
        policy = deps.policy(connection)
        return _shown(passes.survey(connection, policy, partition=partition))


@router.post("/reconciliation")
def reconcile(deps: Deps, who: SchedulerManager, message: Wish = EVERYTHING) -> Reconciliation:
    """Repair what can be repaired, each thing in its own transaction; report the rest."""
    partition = message.partition
    with deps.change_for(who) as connection:
        policy = deps.policy(connection)
        changes.audit(
            connection,
            actor=message.actor,
            channel=CHANNEL,
            action="scheduler.reconcile",
            target=partition or "everything",
            detail=message.reason or "reconciled by request",
            now=database_now(connection),
        )
    with tracing.span("scheduler.reconcile", partition=partition or ""):
        done = passes.reconcile(deps.engine, policy, partition=partition)
    telemetry.count_all(telemetry.FINDINGS, ((one.kind, 1) for one in done.findings))
    deps.kick()
    return _shown(done)


def _shown(done: Reconciled) -> Reconciliation:
    return Reconciliation(
        findings=done.findings,
        repaired=done.count(FindingOutcome.REPAIRED),
        reported=done.count(FindingOutcome.REPORTED),
        failed=done.count(FindingOutcome.FAILED),
        more=done.more,
    )


@router.get("/findings", dependencies=[needs(Permission.SCHEDULER_READ)])
def recorded(
    deps: Deps, limit: Annotated[int, Query(ge=1, le=findings.MOST)] = 100
) -> tuple[Recorded, ...]:
    """List what was found before, the newest first."""
    with read(deps.engine) as connection:
        return findings.all_recorded(connection, most=limit)
