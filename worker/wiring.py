"""Puts a Temporal worker together from a client, an engine and a policy; registers.

Knows every workflow and activity, and no rule.
"""

import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import sqlalchemy as sa
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker, WorkerDeploymentConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities import contracts
from activities.failures import TypedFailures
from activities.fleets import FleetActivities, Rhythm
from activities.leasing import LeasingActivities
from activities.provisioning import Home, Infrastructure, ProvisioningActivities
from activities.relay import RelayActivities, Waker
from activities.rollouts import RolloutActivities
from activities.scheduling import SchedulingActivities
from activities.upkeep import RetentionActivities, UpkeepActivities
from forgeyard import entropy
from forgeyard.config import MetricsConfig, RetentionConfig, WorkerConfig
from forgeyard.errors import PortTaken
from forgeyard.model.location import SOMEWHERE, Location
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store.blobs import BlobStore
from workflows.attempt_lease import AttemptLease
from workflows.capacity_instance import CapacityInstance
from workflows.fleet_reconcile import FleetReconcile
from workflows.image_rollout import ImageRollout
from workflows.scheduler_loop import SchedulerLoop
from workflows.scheduling_cycle import SchedulingCycle
from workflows.upkeep import Upkeep

PURE: Final = ("forgeyard", "activities")
WORKFLOWS: Final = (
    *(SchedulerLoop, SchedulingCycle, AttemptLease, Upkeep),
    *(FleetReconcile, CapacityInstance, ImageRollout),
)
STICKY_TIMEOUT: Final = timedelta(seconds=2)
GRACE: Final = timedelta(seconds=30)
ACTIVITY_POLLS: Final = 2
"""Each poll holds a slot; the others take activities together with the workflow task's answer."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a worker is made of; every field but the queue comes from the configuration."""

    engine: sa.Engine
    policy: SchedulingPolicy
    """In force while the store holds none that an operator set."""
    blobs: BlobStore
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    storage: Location = SOMEWHERE
    """Where inputs come from."""
    task_queue: str = contracts.TASK_QUEUE
    sql_slots: int = 6
    """Activities at once; keep it below the engine's pool, for the relay needs some too."""
    upkeep_check_s: float = 10.0
    """How often the worker looks whether upkeep lives."""
    providers: Mapping[str, Infrastructure] = field(default_factory=dict[str, Infrastructure])
    home: Home = field(default_factory=lambda: Home(url=""))
    """Where the machines of fleets go."""
    rhythm: Rhythm = field(default_factory=Rhythm)
    provider_slots: int = 8
    """Calls to providers at once."""
    version: WorkerDeploymentVersion | None = None
    """Which build this is; None takes whatever there is to do, whoever began it."""
    runner: WorkflowRunner = field(default_factory=lambda: sandbox())
    """Workflows run apart from everything impure unless their composition root says otherwise."""


def version_of(config: WorkerConfig) -> WorkerDeploymentVersion | None:
    """Tell which build the workers are, if they are told apart."""
    if not config.build:
        return None
    return WorkerDeploymentVersion(deployment_name=config.deployment, build_id=config.build)


def own_runtime(config: MetricsConfig) -> Runtime | None:
    """Make the SDK publish what it counts on a port of its own, if one is configured.

    Make one per process, before any client.

    Raises:
        PortTaken: another program listens there.
    """
    if config.temporal_port is None:
        return None
    address = f"{config.host}:{config.temporal_port}"
    published = PrometheusConfig(
        bind_address=address,
        counters_total_suffix=True,
        unit_suffix=True,
        durations_as_seconds=True,
    )
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=published))
    except (RuntimeError, ValueError) as error:
        raise PortTaken(
            f"cannot publish Temporal's metrics on {address}: {error}",
            field="metrics.temporal_port",
            value=config.temporal_port,
            allowed="a free port",
        ) from error


def build_worker(client: Client, parts: Parts) -> Worker:
    """Assemble a worker that runs every workflow and activity of Forgeyard."""
    engine, policy, queue = parts.engine, parts.policy, parts.task_queue
    scheduling = SchedulingActivities(engine, policy, rng=entropy.system(), storage=parts.storage)
    leasing = LeasingActivities(engine, policy, Waker(client, engine, task_queue=queue))
    posting = RelayActivities(client, engine, task_queue=queue)
    upkeep = UpkeepActivities(client, engine, policy, task_queue=queue)
    keeping = RetentionActivities(engine, parts.blobs, parts.retention)
    fleets = _fleet_activities(parts)
    rolling = RolloutActivities(engine, rng=entropy.system())
    return Worker(
        client,
        task_queue=queue,
        workflows=WORKFLOWS,
        activities=[
            scheduling.is_pending,
            scheduling.plan_cycle,
            scheduling.commit_cycle,
            leasing.read_attempt,
            leasing.settle_attempt,
            posting.relay_outbox,
            upkeep.sweep,
            upkeep.reconcile,
            upkeep.ensure_loop,
            keeping.forget,
            fleets.tick_fleet,
            fleets.command_fleet,
            rolling.advance_rollout,
            rolling.command_rollout,
        ],
        activity_executor=ThreadPoolExecutor(parts.sql_slots, thread_name_prefix="activity"),
        max_concurrent_activities=parts.sql_slots,
        max_concurrent_activity_task_polls=min(ACTIVITY_POLLS, parts.sql_slots),
        max_concurrent_workflow_tasks=4 * (os.cpu_count() or 1),
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        graceful_shutdown_timeout=GRACE,
        interceptors=[TypedFailures()],
        workflow_runner=parts.runner,
        deployment_config=_deployment(parts.version),
    )


def build_provider_worker(client: Client, parts: Parts) -> Worker:
    """Assemble a worker that calls providers: on a queue of its own, for calls take long."""
    fleets = _fleet_activities(parts)
    provisioning = ProvisioningActivities(
        parts.engine, parts.policy, parts.providers, parts.home, rng=entropy.system()
    )
    return Worker(
        client,
        task_queue=contracts.provider_queue(parts.task_queue),
        activities=[fleets.observe_fleet, provisioning.advance_instance],
        activity_executor=ThreadPoolExecutor(parts.provider_slots, thread_name_prefix="provider"),
        max_concurrent_activities=parts.provider_slots,
        max_concurrent_activity_task_polls=min(ACTIVITY_POLLS, parts.provider_slots),
        graceful_shutdown_timeout=GRACE,
        interceptors=[TypedFailures()],
        deployment_config=_deployment(parts.version),
    )


def _fleet_activities(parts: Parts) -> FleetActivities:
    return FleetActivities(
        parts.engine, parts.policy, parts.providers, parts.rhythm, rng=entropy.system()
    )


def _deployment(version: WorkerDeploymentVersion | None) -> WorkerDeploymentConfig | None:
    """Let every run of a workflow stay with the build it began on, if builds are told apart."""
    if version is None:
        return None
    return WorkerDeploymentConfig(
        version=version,
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def sandbox() -> SandboxedWorkflowRunner:
    """Run workflows apart from everything impure; replaying them needs the very same."""
    return SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules(*PURE)
    )


async def register_search_attributes(client: Client) -> tuple[str, ...]:
    """Make the namespace know our search attributes; return those that had to be added.

    Without the right to register, say what an administrator has to do and go on.

    Raises:
        RPCError: the server does not answer.
    """
    service = client.operator_service
    known = await service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = tuple(
        key.name for key in contracts.SEARCH_ATTRIBUTES if key.name not in known.custom_attributes
    )
    if not missing:
        return ()
    try:
        await service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace,
                search_attributes=dict.fromkeys(
                    missing, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
                ),
            )
        )
    except RPCError as error:
        if error.status == RPCStatusCode.ALREADY_EXISTS:
            return ()
        if error.status != RPCStatusCode.PERMISSION_DENIED:
            raise
        names = " ".join(f"--name {name} --type Keyword" for name in missing)
        logger.error(
            "an administrator must run: temporal operator search-attribute create %s", names
        )
        return ()
    return missing
