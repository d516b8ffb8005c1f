"""The activities of upkeep: sweep, look after the scheduler loop, apply retention."""

import asyncio

import sqlalchemy as sa
from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError

from activities import contracts, starts
from activities.relay import relay
from forgeyard import telemetry, tracing
from forgeyard.config import RetentionConfig
from forgeyard.errors import Unavailable
from forgeyard.model.policy import ReconcilePolicy, SchedulingPolicy, SweepPolicy
from forgeyard.scheduler.findings import FindingOutcome
from forgeyard.store import beats, fleet_decisions, lineage, policies, retention
from forgeyard.store.blobs import BlobStore
from forgeyard.store.engine import read, write
from forgeyard.store.reconcile import passes
from forgeyard.store.reconcile.passes import Reconciled
from forgeyard.store.sweep import SweepResult
from forgeyard.store.sweep import sweep as sweep_store


class UpkeepActivities:
    """Upkeep's activities over a client and an engine; `built_in` holds while no policy was set."""

    def __init__(
        self, client: Client, engine: sa.Engine, built_in: SchedulingPolicy, *, task_queue: str
    ) -> None:
        self._client = client
        self._engine = engine
        self._built_in = built_in
        self._task_queue = task_queue

    @activity.defn(name="upkeep.sweep")
    async def sweep(self, request: contracts.Partition) -> contracts.SweepSummary:
        """Sweep the store, then send what that brought about and what others left unsent.

        Deadlines come first: a long backlog of events must not hold them up.
        """
        swept, policy, mark = await asyncio.to_thread(self._sweep, request)
        acted = swept.expired or swept.due or swept.settled or swept.repaired
        relayed = await self._relay(request, 0 if acted else policy.outbox_age)
        return contracts.SweepSummary(
            expired=swept.expired,
            due=swept.due,
            settled=swept.settled,
            relayed=relayed,
            repaired=swept.repaired,
            alert=swept.alert,
            period_ms=policy.period,
            mark=mark,
            more=swept.more,
        )

    def _sweep(self, request: contracts.Partition) -> tuple[SweepResult, SweepPolicy, str]:
        """Hear first whether upkeep knows more than the store, then sweep it."""
        here = lineage.ask(self._engine, request.mark, witness="upkeep")
        with read(self._engine) as connection:
            policy = policies.current(connection, self._built_in).policy
        swept = sweep_store(self._engine, request.partition, policy)
        _count(swept)
        return swept, policy.sweep, here.mark

    @activity.defn(name="upkeep.reconcile")
    async def reconcile(self, request: contracts.Partition) -> contracts.ReconcileSummary:
        """Reconcile the store, then send the wakes and events that it brought about."""
        done, policy = await asyncio.to_thread(self._reconcile, request.partition)
        repaired = done.count(FindingOutcome.REPAIRED)
        if repaired:
            await self._relay(request, 0)
        return contracts.ReconcileSummary(
            repaired=repaired,
            reported=done.count(FindingOutcome.REPORTED),
            failed=done.count(FindingOutcome.FAILED),
            first=_first(done),
            period_ms=policy.period,
        )

    def _reconcile(self, partition: str) -> tuple[Reconciled, ReconcilePolicy]:
        with read(self._engine) as connection:
            policy = policies.current(connection, self._built_in).policy
        with tracing.span("scheduler.reconcile", partition=partition) as span:
            done = passes.reconcile(self._engine, policy, partition=partition)
            span.note(findings=len(done.findings), repaired=done.count(FindingOutcome.REPAIRED))
        with write(self._engine) as connection:
            beats.beat(connection, beats.reconciliation_of(partition))
        telemetry.count_all(telemetry.FINDINGS, ((one.kind, 1) for one in done.findings))
        return done, policy.reconcile

    async def _relay(self, request: contracts.Partition, older_than_ms: int) -> int:
        return await relay(
            self._client,
            self._engine,
            request.partition,
            older_than_ms=older_than_ms,
            task_queue=self._task_queue,
        )

    @activity.defn(name="upkeep.ensure_loop")
    async def ensure_loop(self, request: contracts.Partition) -> bool:
        """Start the scheduler loop if it does not run, and the reconcilers of fleets."""
        try:
            await self._ensure_fleets(request.partition)
            return await starts.start_loop(
                self._client, request.partition, task_queue=self._task_queue
            )
        except RPCError as error:
            raise Unavailable(f"Temporal does not answer: {error}") from error

    async def _ensure_fleets(self, partition: str) -> None:
        """Start the reconcilers that do not run and whose fleets nobody has looked at of late."""
        for fleet_id, name in await asyncio.to_thread(self._untended_fleets):
            fleet = contracts.Fleet(fleet_id=fleet_id, partition=partition, name=name)
            if await starts.start_fleet(self._client, fleet, task_queue=self._task_queue):
                activity.logger.info("the reconciler of fleet %s did not run; it does now", name)

    def _untended_fleets(self) -> list[tuple[str, str]]:
        with read(self._engine) as connection:
            return fleet_decisions.untended(connection)


def _first(done: Reconciled) -> str:
    """Describe the finding that matters most, if there is any."""
    order = (FindingOutcome.FAILED, FindingOutcome.REPORTED, FindingOutcome.REPAIRED)
    found = min(done.findings, key=lambda one: order.index(one.outcome), default=None)
    if found is None:
        return ""
    return f"{found.kind} of {found.entity} ({found.outcome}): {found.found}"


def _count(swept: SweepResult) -> None:
    telemetry.DISPATCH_FAILURES.labels("offer_expired").inc(swept.offers)
    counts = (
        ("offer_expired", swept.offers),
        ("lease_expired", swept.expired - swept.offers),
        ("due", swept.due),
        ("settled", swept.settled),
        ("repaired", swept.repaired),
    )
    telemetry.count_all(telemetry.SWEPT, counts)


class RetentionActivities:
    """Retention over one engine and one blob store."""

    def __init__(self, engine: sa.Engine, blobs: BlobStore, config: RetentionConfig) -> None:
        self._engine = engine
        self._blobs = blobs
        self._config = config

    @activity.defn(name="upkeep.forget", no_thread_cancel_exception=True)
    def forget(self, request: contracts.Partition) -> contracts.Forgotten:
        """Delete what is older than the configuration keeps, whatever its partition."""
        forgotten = retention.forget(self._engine, self._blobs, self._config)
        return contracts.Forgotten(
            logs=forgotten.logs, artifacts=forgotten.artifacts, blobs=forgotten.blobs
        )
