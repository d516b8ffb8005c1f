"""What every workflow does in each situation worth keeping, acted out on a real server.

A case brings a workflow into its situation and says which run of it tells the story.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import sqlalchemy as sa
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities import contracts, starts
from forgeyard.model.job import FailureClass, RetryPolicy, Timeouts
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.protocol import Offer, Outcome
from forgeyard.model.units import Millis
from forgeyard.store import tables
from tests.builders import a_job_spec, some_resources
from tests.integration.temporal.house import QUICK, Cost, Driver, House, attempt_id_of, until
from tests.integration.temporal.stages import grant, leased_silently, start_of
from worker.wiring import WORKFLOWS, sandbox

COMPLETED = WorkflowExecutionStatus.COMPLETED
RUNNING = WorkflowExecutionStatus.RUNNING
Case = Callable[[House], Awaitable[WorkflowHandle]]
CASES: dict[str, dict[str, Case]] = {}


def case(workflow_type: str) -> Callable[[Case], Case]:
    """Keep a function as a case of this type, under its own name without the type's prefix."""

    def keep(function: Case) -> Case:
        name = function.__name__.partition("_")[2]
        CASES.setdefault(workflow_type, {})[name] = function
        return function

    return keep


async def this_run(house: House, workflow_id: str) -> WorkflowHandle:
    """Name the newest run of a workflow."""
    described = await house.client.get_workflow_handle(workflow_id).describe()
    return house.client.get_workflow_handle(workflow_id, run_id=described.run_id)


async def until_counted(house: House, handle: WorkflowHandle, kind: str, count: int) -> None:
    """Wait until a run's history has so many events of a kind."""

    async def counted() -> bool:
        events = list((await handle.fetch_history()).events)
        return Cost.of(events).kinds[kind] >= count

    await until(counted, or_say=lambda: f"{handle.id} has not {kind} {count} times")


async def until_over(handle: WorkflowHandle) -> None:
    """Wait until a run has ended."""

    async def over() -> bool:
        return (await handle.describe()).status != RUNNING

    await until(over, or_say=lambda: f"{handle.id} goes on")


# Attempts


async def attempt_through(house: House, driver: Driver, offer: Offer) -> WorkflowHandle:
    """Let an attempt wait in its workflow, then accept and complete it."""
    await house.relay()
    handle = await this_run(house, attempt_of(offer))
    await until_counted(house, handle, "TIMER_STARTED", 1)
    driver.accept(offer)
    driver.complete(offer)
    await house.relay()
    await until_over(handle)
    return handle


def attempt_of(offer: Offer) -> str:
    """Name the workflow of an offer's attempt."""
    return contracts.attempt_workflow_id(offer.job_id, offer.attempt_number)


@case(contracts.ATTEMPT_LEASE)
async def attempt_succeeded(house: House) -> WorkflowHandle:
    """The usual story: waits, is told, settles."""
    driver = Driver(house=house)
    _, offer = leased_silently(house, driver)
    async with house.bare_worker():
        return await attempt_through(house, driver, offer)


@case(contracts.ATTEMPT_LEASE)
async def attempt_failed_and_retried(house: House) -> WorkflowHandle:
    """Settling decides on another try."""
    driver = Driver(house=house, outcome=lambda _offer: Outcome.FAILED)
    driver.register()
    retry = RetryPolicy(max_attempts=2, on=(FailureClass.INFRASTRUCTURE,))
    house.submit_silently(a_job_spec(retry=retry))
    assert grant(house) == 1
    (offer,) = driver.offers()
    async with house.bare_worker():
        return await attempt_through(house, driver, offer)


@case(contracts.ATTEMPT_LEASE)
async def attempt_lost_by_backstop(house: House) -> WorkflowHandle:
    """Nobody answers the offer and no upkeep lives: the timer makes the store look again."""
    lease = LeasePolicy(
        offer_ttl=Millis(1_000), settle_within=Millis(100), deadline_slack=Millis(0)
    )
    policy = SchedulingPolicy(lease=lease, sweep=replace(QUICK.sweep, period=Millis(50)))
    house = house.under(policy)
    short = Timeouts(preparation=Millis(50), execution=Millis(50), upload=Millis(50))
    driver = Driver(house=house)
    driver.register()
    house.submit_silently(a_job_spec(timeouts=short))
    assert grant(house) == 1
    (offer,) = driver.offers()
    async with house.bare_worker():
        await house.relay()
        handle = await this_run(house, attempt_of(offer))
        await until_over(handle)
    return handle


@case(contracts.ATTEMPT_LEASE)
async def attempt_told_before_it_started(house: House) -> WorkflowHandle:
    """The end is told in the call that starts it."""
    driver = Driver(house=house)
    _, offer = leased_silently(house, driver)
    driver.accept(offer)
    driver.complete(offer)
    async with house.bare_worker():
        await house.relay()
        handle = await this_run(house, attempt_of(offer))
        await until_over(handle)
    return handle


@case(contracts.ATTEMPT_LEASE)
async def attempt_ended_before_it_started(house: House) -> WorkflowHandle:
    """Nobody tells it of the end: it reads of it."""
    driver = Driver(house=house)
    run_id, offer = leased_silently(house, driver)
    driver.accept(offer)
    driver.complete(offer)
    (attempt,) = house.attempts(run_id)
    async with house.bare_worker():
        await starts.start_attempt(house.client, start_of(attempt), None, task_queue=house.queue)
        handle = await this_run(house, attempt_id_of(attempt))
        await until_over(handle)
    return handle


@case(contracts.ATTEMPT_LEASE)
async def attempt_told_falsely_and_twice(house: House) -> WorkflowHandle:
    """The store does not confirm the end that it was told of, so it waits on."""
    driver = Driver(house=house)
    run_id, offer = leased_silently(house, driver)
    start, queue = start_of(house.attempts(run_id)[0]), house.queue
    false = contracts.AttemptEvent(event_id="evt_false", kind=contracts.ATTEMPT_FINISHED)
    async with house.bare_worker():
        for _ in range(2):
            await starts.start_attempt(house.client, start, false, task_queue=queue)
        return await attempt_through(house, driver, offer)


@case(contracts.ATTEMPT_LEASE)
async def attempt_unknown(house: House) -> WorkflowHandle:
    """The store knows no such attempt."""
    start = contracts.AttemptStart(
        attempt_id="att_none",
        job_id=f"job_{house.partition}",
        number=1,
        job_name="build",
        run_name="demo",
        runner_name="runner-1",
    )
    async with house.bare_worker():
        await starts.start_attempt(house.client, start, None, task_queue=house.queue)
        handle = await this_run(house, contracts.attempt_workflow_id(start.job_id, start.number))
        await until_over(handle)
    return handle


@case(contracts.ATTEMPT_LEASE)
async def attempt_cancelled_by_operator(house: House) -> WorkflowHandle:
    """An operator cancels it while it waits."""
    _, offer = leased_silently(house, Driver(house=house))
    async with house.bare_worker():
        await house.relay()
        handle = await this_run(house, attempt_of(offer))
        await until_counted(house, handle, "TIMER_STARTED", 1)
        await handle.cancel()
        await until_over(handle)
    return handle


# The loop


async def start_loop(house: House, **state: object) -> WorkflowHandle:
    """Start a loop with a state of the case's choice."""
    loop_id = contracts.loop_workflow_id(house.partition)
    await house.client.start_workflow(
        contracts.SCHEDULER_LOOP,
        contracts.LoopState(partition=house.partition, **state),
        id=loop_id,
        task_queue=house.queue,
        search_attributes=contracts.attributes(contracts.KIND_LOOP),
    )
    return await this_run(house, loop_id)


async def wake(house: House, generation: int) -> None:
    """Wake the loop."""
    sent = contracts.Wake(generation=generation, reason="a case")
    await starts.wake_loop(house.client, house.partition, sent, task_queue=house.queue)


@case(contracts.SCHEDULER_LOOP)
async def loop_idle(house: House) -> WorkflowHandle:
    """Nothing waits."""
    async with house.bare_worker():
        handle = await start_loop(house)
        await until_counted(house, handle, "TIMER_STARTED", 1)
    return handle


@case(contracts.SCHEDULER_LOOP)
async def loop_woken_and_granted(house: House) -> WorkflowHandle:
    """A wake ends the rest; a job is leased."""
    async with house.bare_worker():
        handle = await start_loop(house)
        await until_counted(house, handle, "TIMER_STARTED", 1)
        Driver(house=house).register()
        house.submit_silently()
        await wake(house, 7)
        await until_counted(house, handle, "TIMER_STARTED", 2)
    return handle


@case(contracts.SCHEDULER_LOOP)
async def loop_fruitless_back_off(house: House) -> WorkflowHandle:
    """A job waits that no runner could take."""
    house.submit_silently(a_job_spec("huge", resources=some_resources(cpu=1_000_000)))
    async with house.bare_worker():
        Driver(house=house).register()
        handle = await start_loop(house)
        await until_counted(house, handle, "TIMER_STARTED", 2)
        await wake(house, 8)
        await until_counted(house, handle, "TIMER_STARTED", 3)
    return handle


@case(contracts.SCHEDULER_LOOP)
async def loop_continued_as_new(house: House) -> WorkflowHandle:
    """The first run ends and hands its state on."""
    async with house.bare_worker():
        handle = await start_loop(house, rounds_per_run=2)
        await until_counted(house, handle, "TIMER_STARTED", 1)
        await wake(house, 1)
        await until_over(handle)
    return handle


@case(contracts.SCHEDULER_LOOP)
async def loop_carried_on(house: House) -> WorkflowHandle:
    """The second run goes on with the numbers of the first."""
    async with house.bare_worker():
        first = await start_loop(house, rounds_per_run=2)
        await until_counted(house, first, "TIMER_STARTED", 1)
        await wake(house, 1)
        await until_over(first)
        handle = await this_run(house, first.id)
        await until_counted(house, handle, "TIMER_STARTED", 1)
        await wake(house, 2)
        await until_counted(house, handle, "TIMER_STARTED", 2)
    return handle


@case(contracts.SCHEDULER_LOOP)
async def loop_cycle_failed(house: House) -> WorkflowHandle:
    """A cycle is terminated: told, and tried again later."""
    async with house.worker_without_activities():
        await wake(house, 1)
        handle = await this_run(house, contracts.loop_workflow_id(house.partition))
        await until_counted(house, handle, "CHILD_WORKFLOW_EXECUTION_STARTED", 1)
        cycle = house.client.get_workflow_handle(contracts.cycle_workflow_id(house.partition, 1))
        await cycle.terminate("an operator did it")
        await until_counted(house, handle, "TIMER_STARTED", 1)
    return handle


@case(contracts.SCHEDULER_LOOP)
async def loop_number_taken(house: House) -> WorkflowHandle:
    """An orphan still uses the number of the first cycle."""
    orphan = contracts.cycle_workflow_id(house.partition, 1)
    await house.client.start_workflow("Orphan", id=orphan, task_queue=f"{house.queue}-nobody")
    async with house.bare_worker():
        await wake(house, 1)
        handle = await this_run(house, contracts.loop_workflow_id(house.partition))
        await until_counted(house, handle, "TIMER_STARTED", 1)
    return handle


@case(contracts.SCHEDULER_LOOP)
async def loop_cancelled_by_operator(house: House) -> WorkflowHandle:
    """An operator cancels it while it rests."""
    async with house.bare_worker():
        handle = await start_loop(house)
        await until_counted(house, handle, "TIMER_STARTED", 1)
        await handle.cancel()
        await until_over(handle)
    return handle


# Cycles


@dataclass(kw_only=True)
class Stubs:
    """Activities that answer as a case wants; the bodies are tested elsewhere."""

    planned: int = 1
    granted: int = 1
    failing: tuple[str, ...] = ()
    first_try_fails: bool = False

    @activity.defn(name="cycle.plan")
    async def plan(self, _request: contracts.Partition) -> contracts.CyclePlan:
        """Plan as many as wanted."""
        if self.first_try_fails and activity.info().attempt == 1:
            raise ApplicationError("the database does not answer", type="store_unavailable")
        return contracts.CyclePlan(cycle_id=1, eligible=1, runners=1, planned=self.planned)

    @activity.defn(name="cycle.commit")
    async def commit(self, _request: contracts.Cycle) -> contracts.CycleCommit:
        """Grant as many as wanted."""
        self._fail("commit")
        return contracts.CycleCommit(granted=self.granted, refused=self.planned - self.granted)

    @activity.defn(name="outbox.relay")
    async def relay(self, _request: contracts.Partition) -> contracts.Relayed:
        """Relay what was granted."""
        self._fail("relay")
        return contracts.Relayed(delivered=self.granted)

    def _fail(self, name: str) -> None:
        if name in self.failing:
            raise ApplicationError("broken", type="corrupt", non_retryable=True)

    @asynccontextmanager
    async def serving(self, house: House) -> AsyncIterator[None]:
        """Serve them, and the workflows as in production."""
        async with Worker(
            house.client,
            task_queue=house.queue,
            workflows=WORKFLOWS,
            activities=[self.plan, self.commit, self.relay],
            workflow_runner=sandbox(),
        ):
            yield


async def start_cycle(house: House) -> WorkflowHandle:
    """Start a cycle without a loop."""
    cycle_id = contracts.cycle_workflow_id(house.partition, 1)
    await house.client.start_workflow(
        contracts.SCHEDULING_CYCLE,
        contracts.Partition(partition=house.partition),
        id=cycle_id,
        task_queue=house.queue,
    )
    return await this_run(house, cycle_id)


async def stubbed_cycle(house: House, stubs: Stubs) -> WorkflowHandle:
    """Run a cycle over stubs to its end."""
    async with stubs.serving(house):
        handle = await start_cycle(house)
        await until_over(handle)
    return handle


@case(contracts.SCHEDULER_LOOP)
async def loop_lost_every_race(house: House) -> WorkflowHandle:
    """Others win each placement: the loop goes on at once, then more slowly."""
    async with Stubs(granted=0).serving(house):
        handle = await start_loop(house, fruitless=1)
        await until_counted(house, handle, "TIMER_STARTED", 5)
    return handle


@case(contracts.SCHEDULING_CYCLE)
async def cycle_granted(house: House) -> WorkflowHandle:
    """Plan, commit, relay, over the real store."""
    Driver(house=house).register()
    house.submit_silently()
    async with house.bare_worker():
        handle = await start_cycle(house)
        await until_over(handle)
    return handle


@case(contracts.SCHEDULING_CYCLE)
async def cycle_nothing_planned(house: House) -> WorkflowHandle:
    """Nothing fits: no commit, no relay."""
    return await stubbed_cycle(house, Stubs(planned=0))


@case(contracts.SCHEDULING_CYCLE)
async def cycle_all_refused(house: House) -> WorkflowHandle:
    """The commit grants nothing: no relay."""
    return await stubbed_cycle(house, Stubs(granted=0))


@case(contracts.SCHEDULING_CYCLE)
async def cycle_plan_retried(house: House) -> WorkflowHandle:
    """The database is away for a moment."""
    return await stubbed_cycle(house, Stubs(first_try_fails=True))


@case(contracts.SCHEDULING_CYCLE)
async def cycle_commit_failed(house: House) -> WorkflowHandle:
    """The commit is broken: the cycle fails."""
    return await stubbed_cycle(house, Stubs(failing=("commit",)))


@case(contracts.SCHEDULING_CYCLE)
async def cycle_relay_failed(house: House) -> WorkflowHandle:
    """The relay is broken: the cycle succeeds all the same."""
    return await stubbed_cycle(house, Stubs(failing=("relay",)))


# Upkeep


async def start_upkeep(house: House, **state: object) -> WorkflowHandle:
    """Start upkeep with a state of the case's choice."""
    upkeep_id = contracts.upkeep_workflow_id(house.partition)
    await house.client.start_workflow(
        contracts.UPKEEP,
        contracts.UpkeepState(partition=house.partition, period_ms=400, **state),
        id=upkeep_id,
        task_queue=house.queue,
    )
    return await this_run(house, upkeep_id)


@case(contracts.UPKEEP)
async def upkeep_continued_as_new(house: House) -> WorkflowHandle:
    """The first run: the loop is missing, sweeps, retention, and the state handed on."""
    async with house.bare_worker():
        handle = await start_upkeep(house, rounds_per_run=3)
        await until_over(handle)
    return handle


@case(contracts.UPKEEP)
async def upkeep_carried_on(house: House) -> WorkflowHandle:
    """The second run looks neither after the loop nor after retention."""
    async with house.bare_worker():
        first = await start_upkeep(house, rounds_per_run=2)
        await until_over(first)
        handle = await this_run(house, first.id)
        await until_over(handle)
    return handle


@case(contracts.UPKEEP)
async def upkeep_sweep_failed(house: House) -> WorkflowHandle:
    """A table is gone for a while."""
    house.change(sa.text("ALTER TABLE deadlines RENAME TO hidden"))
    async with house.bare_worker():
        handle = await start_upkeep(house, rounds_per_run=3)
        await until_counted(house, handle, "ACTIVITY_TASK_FAILED", 1)
        house.change(sa.text("ALTER TABLE hidden RENAME TO deadlines"))
        await until_over(handle)
    return handle


@case(contracts.UPKEEP)
async def upkeep_expired_a_lease(house: House) -> WorkflowHandle:
    """A silent runner loses its lease."""
    silent = Driver(house=house)
    _, offer = leased_silently(house, silent)
    silent.accept(offer)
    leases = tables.leases
    house.change(sa.update(leases).values(expires_at=leases.c.expires_at - 600_000))
    async with house.bare_worker():
        handle = await start_upkeep(house, rounds_per_run=3)
        await until_over(handle)
    return handle


@case(contracts.UPKEEP)
async def upkeep_cancelled_by_operator(house: House) -> WorkflowHandle:
    """An operator cancels it while it rests."""
    async with house.bare_worker():
        handle = await start_upkeep(house)
        await until_counted(house, handle, "TIMER_STARTED", 2)
        await asyncio.sleep(0.1)
        await handle.cancel()
        await until_over(handle)
    return handle
