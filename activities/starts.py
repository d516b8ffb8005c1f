"""Starts the long-lived workflows by their wire names, alike from relay, upkeep and worker.

Every start carries what an operator sees in the list: summary, details and search attributes.
"""

from datetime import timedelta
from typing import Final

from temporalio.client import Client
from temporalio.common import (
    SearchAttributePair,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from activities import contracts

RPC_TIMEOUT: Final = timedelta(seconds=4)
_LONGEST_SUMMARY: Final = 300


async def start_attempt(
    client: Client,
    start: contracts.AttemptStart,
    event: contracts.AttemptEvent | None,
    *,
    task_queue: str,
) -> None:
    """Start an attempt's workflow or, where it runs already, only tell it the event.

    A workflow that was terminated, cancelled or failed comes back; a completed one does not.

    Raises:
        WorkflowAlreadyStartedError: the attempt's workflow has completed.
    """
    await client.start_workflow(
        contracts.ATTEMPT_LEASE,
        start,
        id=contracts.attempt_workflow_id(start.job_id, start.number, start.era),
        task_queue=task_queue,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal=contracts.ATTEMPT_EVENT if event else None,
        start_signal_args=[event] if event else [],
        request_eager_start=event is None,
        search_attributes=contracts.attributes(
            contracts.KIND_ATTEMPT,
            SearchAttributePair(contracts.STATE, "open"),
            SearchAttributePair(contracts.JOB, start.job_id),
            SearchAttributePair(contracts.RUNNER, start.runner_name),
        ),
        static_summary=_summary(f"{start.job_name} · {start.run_name} · {start.runner_name}"),
        static_details=(
            f"Attempt {start.number} of job **{_plain(start.job_name)}** in run "
            f"**{_plain(start.run_name)}**, leased to runner **{_plain(start.runner_name)}**.\n\n"
            f"`forgeyard scheduler explain-job {start.job_id}` tells why there."
        ),
        rpc_timeout=RPC_TIMEOUT,
    )


async def wake_loop(
    client: Client, partition: str, wake: contracts.Wake, *, task_queue: str
) -> None:
    """Tell the scheduler loop that something changed, starting it if it does not run."""
    await client.start_workflow(
        contracts.SCHEDULER_LOOP,
        contracts.LoopState(partition=partition),
        id=contracts.loop_workflow_id(partition),
        task_queue=task_queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal=contracts.WAKE,
        start_signal_args=[wake],
        search_attributes=contracts.attributes(contracts.KIND_LOOP),
        static_summary=_summary(f"scheduler of {partition}"),
        rpc_timeout=RPC_TIMEOUT,
    )


async def start_loop(client: Client, partition: str, *, task_queue: str) -> bool:
    """Start the scheduler loop; tell whether it was missing."""
    try:
        await client.start_workflow(
            contracts.SCHEDULER_LOOP,
            contracts.LoopState(partition=partition),
            id=contracts.loop_workflow_id(partition),
            task_queue=task_queue,
            search_attributes=contracts.attributes(contracts.KIND_LOOP),
            static_summary=_summary(f"scheduler of {partition}"),
            rpc_timeout=RPC_TIMEOUT,
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


async def start_upkeep(client: Client, partition: str, *, period_ms: int, task_queue: str) -> bool:
    """Start upkeep; tell whether it was missing."""
    try:
        await client.start_workflow(
            contracts.UPKEEP,
            contracts.UpkeepState(partition=partition, period_ms=period_ms),
            id=contracts.upkeep_workflow_id(partition),
            task_queue=task_queue,
            search_attributes=contracts.attributes(contracts.KIND_UPKEEP),
            static_summary=_summary(f"upkeep of {partition}"),
            rpc_timeout=RPC_TIMEOUT,
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


async def start_fleet(client: Client, fleet: contracts.Fleet, *, task_queue: str) -> bool:
    """Start the reconciler of a fleet; tell whether it was missing."""
    try:
        await client.start_workflow(
            contracts.FLEET_RECONCILE,
            contracts.FleetState(fleet=fleet),
            id=contracts.fleet_workflow_id(fleet.fleet_id),
            task_queue=task_queue,
            search_attributes=contracts.attributes(contracts.KIND_FLEET),
            static_summary=_summary(f"fleet {fleet.name}"),
            static_details=(
                f"Decides how many machines fleet **{_plain(fleet.name)}** has, and why.\n\n"
                f"`forgeyard fleet explain {_plain(fleet.name)}` tells the same."
            ),
            rpc_timeout=RPC_TIMEOUT,
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


def _plain(text: str) -> str:
    """Keep a name from being read as markup or from breaking its line."""
    return "".join(
        letter if letter.isprintable() and letter not in "`*[]<>|" else " " for letter in text
    )


def _summary(text: str) -> str:
    """Fit a name into what Temporal shows in one line (400 bytes)."""
    return _plain(text).encode()[:_LONGEST_SUMMARY].decode(errors="ignore")
