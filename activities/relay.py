"""Carries what SQL has committed to Temporal: attempts' events, and wakes for the loop.

Nothing is locked while a message travels. A row that could not be sent, or whose workflow has
completed although SQL does not call the attempt settled, is left for a later relay.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import sqlalchemy as sa
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities import contracts, starts
from forgeyard import clock, telemetry, tracing
from forgeyard.errors import StoreUnavailable
from forgeyard.store import lineage, outbox, tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import read, write

BATCH: Final = 100
CONCURRENCY: Final = 16
CLAIM_MS: Final = 10_000
WAKE_GAP_MS: Final = 400
SEND_WITHIN_S: Final = 4.0
BEAT_S: Final = 2.0
logger = logging.getLogger(__name__)

_OUTAGES: Final = frozenset(
    {
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.CANCELLED,
        RPCStatusCode.RESOURCE_EXHAUSTED,
    }
)


async def relay(
    client: Client,
    engine: sa.Engine,
    partition: str,
    *,
    older_than_ms: int = 0,
    task_queue: str = contracts.TASK_QUEUE,
) -> int:
    """Send undelivered events and a pending wake; return how many events arrived.

    Temporal being down is not an error here: rows stay, and a later relay sends them. Any number
    of relays may run at once; each row is claimed by one of them.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    post = _Post(client=client, engine=engine, partition=partition, task_queue=task_queue)
    delivered, _ = await asyncio.gather(post.send_events(older_than_ms), post.send_wake())
    return delivered


class RelayActivities:
    """The relay as an activity."""

    def __init__(self, client: Client, engine: sa.Engine, *, task_queue: str) -> None:
        self._client = client
        self._engine = engine
        self._task_queue = task_queue

    @activity.defn(name="outbox.relay")
    async def relay_outbox(self, request: contracts.Partition) -> contracts.Relayed:
        """Send everything that is undelivered and not being sent by another relay."""
        began, beating = clock.monotonic(), asyncio.create_task(_keep_beating())
        try:
            delivered = await relay(
                self._client, self._engine, request.partition, task_queue=self._task_queue
            )
        finally:
            beating.cancel()
        telemetry.CYCLE_LATENCY.labels("relay").observe(clock.monotonic() - began)
        return contracts.Relayed(delivered=delivered)


async def _keep_beating() -> None:
    """Say that this worker lives, for the loop waits for the relay and must not for the dead."""
    while True:
        activity.heartbeat()
        await asyncio.sleep(BEAT_S)


class Waker:
    """Sends the wakes of many small commits: one signal under way, however many ask for it."""

    def __init__(self, client: Client, engine: sa.Engine, *, task_queue: str) -> None:
        self._client = client
        self._engine = engine
        self._task_queue = task_queue
        self._asked: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, partition: str) -> None:
        """See to it that a wake of this partition, if there is one, is sent soon."""
        self._asked.add(partition)
        task = self._tasks.get(partition)
        if task is None or task.done():
            self._tasks[partition] = asyncio.create_task(self._send(partition))

    async def _send(self, partition: str) -> None:
        post = _Post(
            client=self._client,
            engine=self._engine,
            partition=partition,
            task_queue=self._task_queue,
        )
        while partition in self._asked:
            self._asked.discard(partition)
            try:
                await post.send_wake()
            except StoreUnavailable as error:
                logger.warning("wake of %s left to upkeep: %s", partition, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Post:
    """One relay under way."""

    client: Client
    engine: sa.Engine
    partition: str
    task_queue: str

    async def send_events(self, older_than_ms: int) -> int:
        """Claim and send batch after batch, until nothing is left or something went wrong."""
        total = 0
        while rows := await asyncio.to_thread(_claim, self.engine, older_than_ms):
            delivered = await self._send_batch(rows)
            total += delivered
            if delivered < len(rows):
                break
        return total

    async def _send_batch(self, rows: Sequence[Row]) -> int:
        """Send streams side by side, each in its order; give back what did not arrive."""
        slots, down = asyncio.Semaphore(CONCURRENCY), asyncio.Event()
        streams = [list(events) for _, events in groupby(rows, key=lambda row: row["stream"])]
        arrived: set[str] = set()

        async def send(events: list[Row]) -> None:
            async with slots:
                if not down.is_set() and await self._send_stream(events, down):
                    arrived.update(row["event_id"] for row in events)

        try:
            await asyncio.gather(*(send(events) for events in streams))
        finally:
            await asyncio.to_thread(_record, self.engine, rows, arrived)
            results = (("delivered", len(arrived)), ("given_back", len(rows) - len(arrived)))
            telemetry.count_all(telemetry.EVENTS_RELAYED, results)
        return len(arrived)

    async def _send_stream(self, events: list[Row], down: asyncio.Event) -> bool:
        """Send what an attempt's workflow has to hear; tell whether all of it is known there."""
        last = events[-1]
        try:
            async with asyncio.timeout(SEND_WITHIN_S):
                await self._send(last)
        except WorkflowAlreadyStartedError:
            return await asyncio.to_thread(_is_settled, self.engine, last["stream"])
        except (RPCError, RuntimeError, TimeoutError) as error:
            if _is_outage(error):
                down.set()
            logger.warning("event %s not sent: %s", last["event_id"], _told(error))
            return False
        except (ValueError, LookupError, TypeError) as error:
            # A damaged row: it must not hold up the others, and settling needs no workflow.
            logger.error("event %s cannot be read: %s", last["event_id"], error)
            return await asyncio.to_thread(_is_settled, self.engine, last["stream"])
        return True

    async def _send(self, row: Row) -> None:
        """Start the attempt's workflow; that it ended is told in the same call.

        The end of an attempt supersedes its beginning, for it starts the workflow as well.
        """
        payload = json.loads(row["payload"])
        start = contracts.AttemptStart(
            attempt_id=payload["attempt_id"],
            job_id=payload["job_id"],
            number=payload["number"],
            job_name=payload["job_name"],
            run_name=payload["run_name"],
            runner_name=payload["runner_name"],
            backstop_ms=payload.get("backstop_ms", 0),
            era=row["era"],
        )
        event = None
        if row["kind"] != contracts.LEASE_GRANTED:
            event = contracts.AttemptEvent(
                event_id=row["event_id"], kind=row["kind"], detail=payload.get("state", "")
            )
        with tracing.span(
            "scheduler.dispatch",
            of=payload.get("run_id", ""),
            event_id=row["event_id"],
            job_id=start.job_id,
            attempt_id=start.attempt_id,
        ):
            await starts.start_attempt(self.client, start, event, task_queue=self.task_queue)

    async def send_wake(self) -> None:
        """Tell the loop of the newest change; soon, if it was told of something else just now."""
        wake = await asyncio.to_thread(_claim_due_wake, self.engine, self.partition)
        if isinstance(wake, int):
            await asyncio.sleep(wake / 1000)
            wake = await asyncio.to_thread(_claim_wake, self.engine, self.partition)
        if wake is not None:
            await self._signal(wake)

    async def _signal(self, wake: contracts.Wake) -> None:
        sent = False
        try:
            async with asyncio.timeout(SEND_WITHIN_S):
                await starts.wake_loop(
                    self.client, self.partition, wake, task_queue=self.task_queue
                )
            sent = True
        except (RPCError, RuntimeError, TimeoutError) as error:
            logger.warning(
                "wake %d of %s not sent: %s", wake.generation, self.partition, _told(error)
            )
        finally:
            if not sent:
                await asyncio.to_thread(_unclaim_wake, self.engine, self.partition, wake)


def _is_outage(error: Exception) -> bool:
    """Tell a server that is away from one that refuses this message."""
    return not isinstance(error, RPCError) or error.status in _OUTAGES


def _told(error: Exception) -> str:
    return str(error) or "Temporal did not answer in time"


def _claim(engine: sa.Engine, older_than_ms: int) -> Sequence[Row]:
    """Take events to send, none while the store is held: Temporal may know how they went on."""
    with read(engine) as connection:
        here = lineage.current(connection)
        if here.hold or not outbox.is_claimable(connection, older_than_ms=older_than_ms):
            return []
    with write(engine) as connection:
        rows = outbox.claim(connection, limit=BATCH, for_ms=CLAIM_MS, older_than_ms=older_than_ms)
    return [{**row, "era": here.era} for row in rows]


def _record(engine: sa.Engine, rows: Sequence[Row], arrived: set[str]) -> None:
    missed = [row["event_id"] for row in rows if row["event_id"] not in arrived]
    with write(engine) as connection:
        if arrived:
            outbox.delivered(connection, sorted(arrived))
        if missed:
            outbox.failed(connection, missed)


def _is_settled(engine: sa.Engine, attempt_id: str) -> bool:
    attempts = tables.attempts
    query = sa.select(attempts.c.settled_at).where(attempts.c.attempt_id == attempt_id)
    with read(engine) as connection:
        return connection.execute(query).scalar_one_or_none() is not None


def _claim_wake(engine: sa.Engine, partition: str) -> contracts.Wake | None:
    with write(engine) as connection:
        claimed = outbox.claim_wake(connection, partition, min_gap_ms=WAKE_GAP_MS)
        mark = "" if claimed is None else lineage.current(connection).mark
    if claimed is None:
        return None
    return contracts.Wake(generation=claimed.generation, reason=claimed.reason, mark=mark)


def _unclaim_wake(engine: sa.Engine, partition: str, wake: contracts.Wake) -> None:
    with write(engine) as connection:
        outbox.unclaim_wake(connection, partition, wake.generation)


def _claim_due_wake(engine: sa.Engine, partition: str) -> contracts.Wake | int | None:
    """Claim a wake, or tell in how many milliseconds there will be one; writes only if need be."""
    with read(engine) as connection:
        wait_ms = outbox.wake_wait_ms(connection, partition, min_gap_ms=WAKE_GAP_MS)
    return wait_ms or (None if wait_ms is None else _claim_wake(engine, partition))
