"""A worker, an API or an agent as a process of its own: the product's, but for one fault.

Run as a script with one argument, JSON; `Order` says what may stand there. Faults are named here
and not in the product: each wraps functions of the product before it starts.
"""

import asyncio
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from pydantic import TypeAdapter
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError

from activities import contracts, starts
from activities.provisioning import ProvisioningActivities
from activities.scheduling import SchedulingActivities
from forgeyard import clock, config
from forgeyard.fleet.ports import Listing, Machine, ProvisionRequest
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import commit, grants
from providers import local
from providers.aws import AwsProvider
from providers.local import LocalProvider
from tests.chaos.process import kill_families
from tests.history import recorder
from worker import wiring
from workflows import capacity_instance, fleet_reconcile

AFTER_PLAN, AFTER_COMMIT = "after_plan", "after_commit"
BEFORE_COMMIT, WITHIN_COMMIT = "before_commit", "within_commit"
KILLED_WITHIN_COMMIT = "killed_within_commit"
SHUFFLED, TALLIED = "shuffled", "tallied"
KILLED_WHILE_MAKING, KILLED_AFTER_MAKING = "killed_while_making", "killed_after_making"
FROZEN_BEFORE_MAKING, FROZEN_AFTER_MAKING = "frozen_before_making", "frozen_after_making"
STANDS_BY = "stands by"
WOKEN = "what was begun before the freeze is over"
_struck: "list[Order]" = []
"""Whose moment has come; numbers of the dead may be another's by the next time."""
Message = tuple[contracts.AttemptStart, contracts.AttemptEvent | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to be, and what is to go wrong."""

    part: str
    """worker, api or agent."""
    policy: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    fault: str | None = None
    victims: tuple[int, ...] = ()
    """Processes that are killed at the fault's moment, with all that they started."""
    survives: bool = False
    """Whether this process lives on after that moment."""
    tally: str = ""
    """A file for what the fault did."""
    seed: int = 1
    standby: bool = False
    """Prepared, it begins only on SIGUSR1."""
    history: str = ""
    """A folder, where it records what it does to leases."""
    skew_s: float = 0.0
    """How far ahead of everybody else's its clock is."""
    arguments: tuple[str, ...] = ()
    """An agent's command line."""
    heartbeat_s: float = 0.0
    """After so long without a sign a call to a provider is taken for lost; 0 is as usual."""


def main(order: Order) -> None:
    """Run until told to stop."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    if order.skew_s:
        skew(timedelta(seconds=order.skew_s))
    if order.heartbeat_s:
        be_impatient(timedelta(seconds=order.heartbeat_s))
    if order.history:
        recorder.begin(Path(order.history), actor=order.part)
    if order.fault is not None:
        FAULTS[order.fault](order)
    if order.part == "agent":
        from forgeyard.cli.main import main as command_line

        sys.argv[1:] = order.arguments
        command_line()
        return
    run = runner_of(order.part)
    settings = config.load()
    if order.standby:
        logging.info(STANDS_BY)
        signal.sigwait({signal.SIGUSR1})
    asyncio.run(until_told(lambda stop: run(settings, stop, policy=order.policy)))


def runner_of(part: str) -> Callable[..., Any]:
    """Load what a part needs, and no more: each takes seconds."""
    if part == "worker":
        from worker.main import run_worker

        return run_worker
    from forgeyard.api.serve import serve

    return serve


def be_impatient(beat: timedelta) -> None:
    """Take what this process's workflows have begun for lost after a while without a sign."""
    capacity_instance.HEARTBEAT = fleet_reconcile.HEARTBEAT = beat
    fleet_reconcile.TICK_TIMEOUT = 5 * beat


async def until_told(run: Callable[[asyncio.Event], Any]) -> None:
    """Run until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run(stop)


def skew(by: timedelta) -> None:
    """Let this process believe that it is later, or earlier, than it is."""
    right = time.time
    time.time = lambda: right() + by.total_seconds()
    clock.now = lambda: datetime.fromtimestamp(right(), UTC) + by
    print(f"clock reads {clock.now().isoformat()}, {by} off", flush=True)


def strike(order: Order) -> None:
    """Kill the victims, once, as if the power went, and this process unless it survives."""
    victims = () if _struck else order.victims
    _struck.append(order)
    kill_families(*victims)
    if not order.survives:
        os.kill(os.getpid(), signal.SIGKILL)


def after_plan(order: Order) -> None:
    """Strike when a plan with placements is stored, and its activity has not said so."""

    class Struck(SchedulingActivities):
        @activity.defn(name="cycle.plan", no_thread_cancel_exception=True)
        def plan_cycle(self, request: contracts.Partition) -> contracts.CyclePlan:
            plan = super().plan_cycle(request)
            if plan.planned:
                strike(order)
            return plan

    wiring.SchedulingActivities = Struck


def killed_within_commit(order: Order) -> None:
    """Strike when grants are written, and their transaction has not been committed."""
    write = grants.write

    def written(connection: Any, decided: grants.Decided, **named: Any) -> None:
        write(connection, decided, **named)
        if decided.grants:
            strike(order)

    commit.grants.write = written


def after_commit(order: Order) -> None:
    """Strike when grants are committed, and their activity has not said so."""

    class Struck(SchedulingActivities):
        @activity.defn(name="cycle.commit", no_thread_cancel_exception=True)
        def commit_cycle(self, request: contracts.Cycle) -> contracts.CycleCommit:
            done = super().commit_cycle(request)
            if done.granted:
                strike(order)
            return done

    wiring.SchedulingActivities = Struck


def tallied(order: Order) -> None:
    """Write down what every commit was told to have granted, once it was told."""
    tally = Path(order.tally)

    class Tallied(SchedulingActivities):
        @activity.defn(name="cycle.commit", no_thread_cancel_exception=True)
        def commit_cycle(self, request: contracts.Cycle) -> contracts.CycleCommit:
            done = super().commit_cycle(request)
            with tally.open("a") as file:
                file.write(f"{request.cycle_id} {done.granted}\n")
            return done

    wiring.SchedulingActivities = Tallied


def sleepy(order: Order) -> None:
    """Freeze once, in the first commit: before its transaction, or when all of it is written."""
    here, woken = threading.local(), threading.Event()

    def freeze() -> None:
        if not woken.is_set():
            woken.set()
            os.kill(os.getpid(), signal.SIGSTOP)

    class Sleepy(SchedulingActivities):
        @activity.defn(name="cycle.commit", no_thread_cancel_exception=True)
        def commit_cycle(self, request: contracts.Cycle) -> contracts.CycleCommit:
            if order.fault == BEFORE_COMMIT:
                freeze()
            here.is_commit = True
            try:
                return super().commit_cycle(request)
            finally:
                here.is_commit = False

    @sa.event.listens_for(sa.Engine, "commit")
    def _holding_every_lock(_connection: sa.Connection) -> None:
        if order.fault == WITHIN_COMMIT and getattr(here, "is_commit", False):
            freeze()

    wiring.SchedulingActivities = Sleepy


def shuffled(order: Order) -> None:
    """Send every message of the relay late, often twice, and old ones again after newer ones."""
    tally, rng = Path(order.tally), random.Random(order.seed)
    start, wake = starts.start_attempt, starts.wake_loop
    sent: list[Message] = []

    def count(what: str) -> None:
        with tally.open("a") as file:
            file.write(f"{what}\n")

    async def again(client: Client, message: Message, task_queue: str, what: str) -> None:
        """Send something that was sent before; Temporal may refuse it, for the attempt is over."""
        with suppress(WorkflowAlreadyStartedError):
            await start(client, *message, task_queue=task_queue)
        count(what)

    async def start_attempt(
        client: Client,
        begin: contracts.AttemptStart,
        event: contracts.AttemptEvent | None,
        *,
        task_queue: str,
    ) -> None:
        await asyncio.sleep(rng.uniform(0, 0.3))
        if sent:
            old = rng.choice(sent)
            await again(client, old, task_queue, "an older event after a newer one")
        await start(client, begin, event, task_queue=task_queue)
        sent.append((begin, event))
        for _ in range(rng.randint(1, 3)):
            await again(client, (begin, event), task_queue, "the same event again")

    async def wake_loop(
        client: Client, partition: str, message: contracts.Wake, *, task_queue: str
    ) -> None:
        await asyncio.sleep(rng.uniform(0, 0.3))
        for _ in range(rng.randint(1, 3)):
            await wake(client, partition, message, task_queue=task_queue)
            count("a wake")

    starts.start_attempt, starts.wake_loop = start_attempt, wake_loop


def killed_while_making(order: Order) -> None:
    """Strike when the process of a local machine runs, and nothing at all says so."""
    spawn = local._spawn

    def spawned(*arguments: Any, **named: Any) -> int:
        pid = spawn(*arguments, **named)
        strike(order)
        return pid

    local._spawn = spawned


def killed_after_making(order: Order) -> None:
    """Strike when a provider has made a machine, and its making is not written down."""
    for provider in (LocalProvider, AwsProvider):
        around_making(provider, after=lambda: strike(order))


def frozen_while_making(order: Order) -> None:
    """Freeze once, just before or just after a local machine is made; tell when all of it ends.

    Not while another thread lists machines: it holds the lock of this host, and would keep it.
    """
    woken, listing = threading.Event(), threading.Lock()
    list_machines = LocalProvider.list_machines

    def listed(self: LocalProvider, installation: str) -> Listing:
        with listing:
            return list_machines(self, installation)

    def freeze() -> None:
        if not woken.is_set():
            woken.set()
            with listing:
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(0.3)  # the signal may meet another thread first, and this one goes on

    LocalProvider.list_machines = listed

    if order.fault == FROZEN_BEFORE_MAKING:
        around_making(LocalProvider, before=freeze)
    else:
        around_making(LocalProvider, after=freeze)

    class Told(ProvisioningActivities):
        @activity.defn(name="instance.advance")
        def advance_instance(self, request: contracts.Machine) -> contracts.Advanced:
            try:
                return super().advance_instance(request)
            finally:
                if woken.is_set():
                    print(WOKEN, flush=True)

    wiring.ProvisioningActivities = Told


def around_making(
    provider: type[LocalProvider] | type[AwsProvider],
    *,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Do something before and after every call that makes a machine."""
    provision = provider.provision

    def provisioned(self: Any, request: ProvisionRequest) -> Machine:
        before()
        machine = provision(self, request)
        after()
        return machine

    provider.provision = provisioned


FAULTS: Final[Mapping[str, Callable[[Order], None]]] = {
    AFTER_PLAN: after_plan,
    BEFORE_COMMIT: sleepy,
    WITHIN_COMMIT: sleepy,
    KILLED_WITHIN_COMMIT: killed_within_commit,
    AFTER_COMMIT: after_commit,
    TALLIED: tallied,
    SHUFFLED: shuffled,
    KILLED_WHILE_MAKING: killed_while_making,
    KILLED_AFTER_MAKING: killed_after_making,
    FROZEN_BEFORE_MAKING: frozen_while_making,
    FROZEN_AFTER_MAKING: frozen_while_making,
}
"""The moments and manners of failing that a test can name."""


if __name__ == "__main__":
    main(TypeAdapter(Order).validate_python(json.loads(sys.argv[1])))
