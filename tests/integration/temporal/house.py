"""A whole Forgeyard without API and agent processes: store, worker, and a driver that acts as both.

The driver calls the very store functions that the agent API calls, and relays after each commit.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import sqlalchemy as sa
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.worker import Worker

from activities import contracts
from activities.relay import relay
from forgeyard.model.job import FailureClass, JobSpec
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy, SweepPolicy
from forgeyard.model.protocol import Complete, Holder, Offer, Outcome, Phase, Progress
from forgeyard.model.units import Millis
from forgeyard.store import dispatch, leases, runners, tables
from forgeyard.store.engine import read, write
from tests.builders import RNG, a_registration, job_states, submit_run
from worker.main import serve
from worker.wiring import Parts, build_worker
from workflows.scheduler_loop import SchedulerLoop
from workflows.scheduling_cycle import SchedulingCycle

QUICK = SchedulingPolicy(
    lease=LeasePolicy(settle_within=Millis(1_000)),
    sweep=SweepPolicy(period=Millis(250), outbox_age=Millis(500)),
)


@dataclass(frozen=True, kw_only=True)
class House:
    """Everything a test talks to; partition and queue are its own."""

    client: Client
    engine: sa.Engine
    parts: Parts
    partition: str
    runs: list[str] = field(default_factory=list)

    @property
    def queue(self) -> str:
        """Name the task queue."""
        return self.parts.task_queue

    def under(self, policy: SchedulingPolicy) -> "House":
        """Give the same house another policy."""
        return replace(self, parts=replace(self.parts, policy=policy))

    def at(self, *, partition: str, queue: str) -> "House":
        """Move the house to another partition and task queue."""
        return replace(self, partition=partition, parts=replace(self.parts, task_queue=queue))

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        """Run the real worker process's body, with the guard of upkeep, in this loop."""
        stop = asyncio.Event()
        serving = asyncio.create_task(serve(self.client, self.partition, self.parts, stop))
        try:
            yield
        finally:
            stop.set()
            await serving

    @asynccontextmanager
    async def bare_worker(self) -> AsyncIterator[None]:
        """Run a worker that nothing starts workflows on but the test."""
        async with build_worker(self.client, self.parts):
            yield

    @asynccontextmanager
    async def worker_without_activities(self) -> AsyncIterator[None]:
        """Run a worker that decides but never acts."""
        async with Worker(
            self.client, task_queue=self.queue, workflows=[SchedulerLoop, SchedulingCycle]
        ):
            yield

    async def relay(self) -> int:
        """Do what every process does after a commit."""
        return await relay(self.client, self.engine, self.partition, task_queue=self.queue)

    async def submit(self, *jobs: JobSpec) -> str:
        """Submit a run, as the API would."""
        run_id = self.submit_silently(*jobs)
        await self.relay()
        return run_id

    def submit_silently(self, *jobs: JobSpec) -> str:
        """Submit a run and tell nobody."""
        with write(self.engine) as connection:
            return submit_run(connection, *jobs, partition=self.partition)

    def rows(self, query: sa.Select) -> list[dict]:
        """Read rows."""
        with read(self.engine) as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def change(self, statement: sa.Executable) -> None:
        """Change rows behind everybody's back."""
        with write(self.engine) as connection:
            connection.execute(statement)

    def job_states(self, run_id: str) -> dict[str, str]:
        """Read the states of a run's jobs by name."""
        with read(self.engine) as connection:
            return job_states(connection, run_id)

    def run_state(self, run_id: str) -> str:
        """Read the state of a run."""
        runs = tables.runs
        return self.rows(sa.select(runs.c.state).where(runs.c.run_id == run_id))[0]["state"]

    def attempts(self, run_id: str) -> list[dict]:
        """Read a run's attempts, oldest first."""
        attempts = tables.attempts
        return self.rows(
            sa.select(attempts).where(attempts.c.run_id == run_id).order_by(attempts.c.number)
        )

    def undelivered(self) -> list[dict]:
        """Read the events that have not arrived."""
        outbox = tables.outbox
        return self.rows(sa.select(outbox).where(outbox.c.delivered_at.is_(None)))

    async def until_run(self, run_id: str, state: str, *, within_s: float = 30.0) -> None:
        """Wait until a run is in a state."""
        await until(
            lambda: self.run_state(run_id) == state,
            within_s=within_s,
            or_say=lambda: f"{self.run_state(run_id)} {self.job_states(run_id)}",
        )

    async def until_job(self, run_id: str, job: str, state: str) -> None:
        """Wait until a job is in a state."""
        await until(
            lambda: self.job_states(run_id)[job] == state,
            or_say=lambda: str(self.job_states(run_id)),
        )

    async def status(self, workflow_id: str) -> WorkflowExecutionStatus | None:
        """Ask the server how a workflow stands."""
        return (await self.client.get_workflow_handle(workflow_id).describe()).status

    async def until_status(self, workflow_id: str, status: WorkflowExecutionStatus) -> None:
        """Wait until a workflow has a status."""

        async def there() -> bool:
            return await self.status(workflow_id) == status

        await until(there, or_say=lambda: f"{workflow_id} is not {status}")

    async def details(self, workflow_id: str) -> str:
        """Read what the Web UI shows as a workflow's current details."""
        handle = self.client.get_workflow_handle(workflow_id)
        card = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        return card.current_details

    async def history(self, workflow_id: str) -> list[HistoryEvent]:
        """Read the events of a workflow's newest run."""
        handle = self.client.get_workflow_handle(workflow_id)
        return list((await handle.fetch_history()).events)

    async def reset(self, workflow_id: str) -> None:
        """Throw away everything that a workflow did after its first task, as the Web UI does."""
        described = await self.client.get_workflow_handle(workflow_id).describe()
        execution = WorkflowExecution(workflow_id=workflow_id, run_id=described.run_id)
        await self.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=self.client.namespace,
                workflow_execution=execution,
                reason="an operator did it",
                request_id=f"reset-{described.run_id}",
                workflow_task_finish_event_id=4,
            )
        )


async def until(
    holds: Callable[[], bool | Awaitable[bool]],
    *,
    within_s: float = 30.0,
    or_say: Callable[[], str] = lambda: "it did not come to be",
) -> None:
    """Ask again and again until something holds; fail with what is instead."""
    deadline = time.monotonic() + within_s
    while True:
        held = holds()
        if held if isinstance(held, bool) else await held:
            return
        assert time.monotonic() < deadline, or_say()
        await asyncio.sleep(0.05)


@dataclass(kw_only=True)
class Driver:
    """An agent without a process: takes every offer and does what the test says."""

    house: House
    name: str = "runner-1"
    outcome: Callable[[Offer], Outcome] = lambda _offer: Outcome.SUCCEEDED
    hold: Callable[[Offer], Awaitable[None]] | None = None
    """Awaited while an attempt runs."""
    session_id: str = ""
    ran: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Driver"]:
        """Register, then serve offers until the end of the block."""
        self.register()
        serving = asyncio.create_task(self._serve())
        try:
            yield self
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    def register(self) -> None:
        """Open a session."""
        house = self.house
        with write(house.engine) as connection:
            registered = runners.register(
                connection, a_registration(self.name), policy=house.parts.policy.lease, rng=RNG
            )
        self.session_id = registered.session_id

    def offers(self) -> tuple[Offer, ...]:
        """Poll once."""
        with read(self.house.engine) as connection:
            answers = dispatch.assignments(
                connection, [self.session_id], policy=self.house.parts.policy.lease
            )
        return answers[self.session_id].offers if self.session_id in answers else ()

    async def _serve(self) -> None:
        taken: set[str] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                for offer in self.offers():
                    if offer.lease_id not in taken:
                        taken.add(offer.lease_id)
                        group.create_task(self.run(offer))
                await asyncio.sleep(0.05)

    async def run(self, offer: Offer) -> None:
        """Accept an offer, run it, report how it ended, and let the workflow hear of it."""
        self.accept(offer)
        await self.house.relay()
        self.ran.append(offer.spec.name)
        if self.hold is not None:
            await self.hold(offer)
        self.complete(offer)
        await self.house.relay()

    def accept(self, offer: Offer) -> None:
        """Accept an offer and start to run it."""
        policy, holder = self.house.parts.policy.lease, self._holder(offer)
        running = Progress(session_id=holder.session_id, epoch=holder.epoch, phase=Phase.RUNNING)
        with write(self.house.engine) as connection:
            leases.accept(connection, offer.lease_id, holder, policy=policy)
            leases.progress(connection, offer.lease_id, running, policy=policy)

    def complete(self, offer: Offer) -> None:
        """Report the end of an attempt."""
        outcome = self.outcome(offer)
        failed = outcome is Outcome.FAILED
        message = Complete(
            session_id=self._holder(offer).session_id,
            epoch=offer.epoch,
            outcome=outcome,
            failure_class=FailureClass.INFRASTRUCTURE if failed else None,
        )
        with write(self.house.engine) as connection:
            leases.complete(
                connection, offer.lease_id, message, policy=self.house.parts.policy.lease
            )

    def _holder(self, offer: Offer) -> Holder:
        return Holder(session_id=self.session_id, epoch=offer.epoch)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a history cost: its events, and what Temporal Cloud would bill as actions."""

    events: int
    actions: int
    kinds: Counter

    @classmethod
    def of(cls, events: list[HistoryEvent]) -> "Cost":
        """Count a history."""
        kinds = Counter(
            EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in events
        )
        billed = (
            "WORKFLOW_EXECUTION_STARTED",
            "WORKFLOW_EXECUTION_SIGNALED",
            "ACTIVITY_TASK_SCHEDULED",
            "TIMER_STARTED",
            "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES",
            "START_CHILD_WORKFLOW_EXECUTION_INITIATED",
        )
        return cls(events=len(events), actions=sum(kinds[kind] for kind in billed), kinds=kinds)


def attempt_id_of(attempt: dict) -> str:
    """Name the workflow of an attempt row."""
    return contracts.attempt_workflow_id(attempt["job_id"], attempt["number"])
