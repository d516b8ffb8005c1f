"""The worker process: connects, serves until told to stop, and outlives an outage of Temporal.

It also sees to it that upkeep lives, for everything else is upkeep's to restart.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from temporalio.client import Client
from temporalio.runtime import Runtime
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities import production, starts
from activities.connection import connect
from activities.fleets import Rhythm
from forgeyard import telemetry, tracing
from forgeyard.config import Config, Profile
from forgeyard.errors import StoreUnavailable
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import migrate
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.engine import open_engine
from worker.infrastructure import home, infrastructures
from worker.sole import sole_scheduler
from worker.wiring import (
    Parts,
    build_provider_worker,
    build_worker,
    own_runtime,
    register_search_attributes,
    version_of,
)

FIRST_RETRY_S: Final = 0.5
LONGEST_RETRY_S: Final = 10.0
UNUSED_CONNECTIONS: Final = 2
"""Kept out of the activities' reach, for the relay inside them."""
logger = logging.getLogger(__name__)


async def run_worker(
    config: Config, stop: asyncio.Event, *, policy: SchedulingPolicy | None = None
) -> None:
    """Serve until `stop` is set, connecting again whenever Temporal was away.

    Raises:
        Conflict: another worker uses the same SQLite file.
        SchemaMismatch: the database's schema is not for this release.
        UnfitForProduction: the store or Temporal is made for trying out, and the profile is not.
        NotFound, Forbidden, Corrupt, InvalidFile: a certificate or key cannot be used.
    """
    production.demand_store(config)
    engine = open_engine(config.database_url(), config.store)
    with contextlib.suppress(StoreUnavailable):
        migrate.demand_fit(engine)
    parts = Parts(
        storage=config.store.location(),
        engine=engine,
        policy=policy or SchedulingPolicy(),
        blobs=FileBlobStore(config.blob_dir()),
        retention=config.retention,
        sql_slots=max(1, config.store.pool - UNUSED_CONNECTIONS),
        providers=infrastructures(config, engine),
        home=home(config),
        rhythm=Rhythm(
            look=int(config.fleets.look_s * 1000), observe=int(config.fleets.observe_s * 1000)
        ),
        version=version_of(config.worker),
        # Tests and replay run in the sandbox; here it would cost a third of the worker's time.
        runner=UnsandboxedWorkflowRunner(),
    )
    metrics, spans = config.metrics, config.tracing
    runtime = own_runtime(metrics)
    try:
        with (
            sole_scheduler(config.database_url()),
            telemetry.listening(metrics.host, metrics.worker_port),
            tracing.exported(spans.endpoint, ratio=spans.ratio, process="worker"),
        ):
            while not stop.is_set():
                client = await connected(config, stop, runtime=runtime)
                if client is not None:
                    await serve(client, config.partition, parts, stop)
    finally:
        engine.dispose()


async def connected(
    config: Config, stop: asyncio.Event, *, runtime: Runtime | None = None
) -> Client | None:
    """Connect and prepare the namespace, however long Temporal takes; None if told to stop."""
    wait = FIRST_RETRY_S
    while not stop.is_set():
        try:
            client = await connect(config.temporal, runtime=runtime)
            await production.demand_server(client, config)
            added = await register_search_attributes(client)
        except (RuntimeError, RPCError) as error:
            logger.warning(
                "Temporal at %s does not answer; trying again in %.1f s (%s)",
                config.temporal.address,
                wait,
                error,
            )
            await _rest(stop, wait)
            wait = min(2 * wait, LONGEST_RETRY_S)
            continue
        logger.info(
            "connected to Temporal at %s, namespace %s, registered %s",
            config.temporal.address,
            config.temporal.namespace,
            ", ".join(added) or "nothing new",
        )
        if config.profile is Profile.PRODUCTION:
            for door in await production.open_doors(config.temporal):
                logger.warning("%s", door)
        return client
    return None


async def serve(client: Client, partition: str, parts: Parts, stop: asyncio.Event) -> None:
    """Run one worker until `stop` is set or it breaks; guard upkeep meanwhile."""
    workers = (build_worker(client, parts), build_provider_worker(client, parts))
    if parts.version is not None:
        logger.info(
            "serving what began on build %s, and what begins once it is current: temporal worker "
            "deployment set-current-version --deployment-name %s --build-id %s",
            parts.version.build_id,
            parts.version.deployment_name,
            parts.version.build_id,
        )
    running = asyncio.create_task(_run_all(workers))
    guard = asyncio.create_task(guard_upkeep(client, partition, parts, stop))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            logger.info("stopping: finishing the activities under way")
            await asyncio.gather(*(worker.shutdown() for worker in workers))
        await _until_ended(running, stop)
    finally:
        for task in (guard, stopped):
            task.cancel()
        await asyncio.gather(guard, stopped, return_exceptions=True)


async def _run_all(workers: Sequence[Worker]) -> None:
    """Run workers until they are shut down; if one breaks, none goes on alone."""
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.run())


async def guard_upkeep(client: Client, partition: str, parts: Parts, stop: asyncio.Event) -> None:
    """Look from time to time whether upkeep lives, and start it again if not."""
    while not stop.is_set():
        wait = parts.upkeep_check_s
        try:
            if await starts.start_upkeep(
                client,
                partition,
                period_ms=parts.policy.sweep.period,
                task_queue=parts.task_queue,
            ):
                logger.info("upkeep of %s did not run; started it", partition)
        except (RPCError, RuntimeError) as error:
            logger.warning("could not see whether upkeep of %s lives: %s", partition, error)
            wait = 1.0
        await _rest(stop, wait)


async def _until_ended(running: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Wait for the worker's end; a worker that broke is told of and replaced by the caller."""
    try:
        await running
    except* (RPCError, RuntimeError) as errors:
        logger.error("the worker broke, starting another: %s", errors.exceptions[0])
        await _rest(stop, FIRST_RETRY_S)


async def _rest(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
