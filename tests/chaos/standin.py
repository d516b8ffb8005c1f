"""A worker or an API as a process of its own: the product's, but for its policy and one fault.

Run as a script with one argument, JSON: `part` (worker, api), `policy`, `fault`, `victims` (pids
that die with this process), `tally` (a file for what the fault did), `standby` (prepared, it
begins only on SIGUSR1) and `history` (a folder, where it records what it does to leases).
"""

import asyncio
import json
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError

from activities import contracts, starts
from activities.scheduling import SchedulingActivities
from forgeyard import config
from forgeyard.api.serve import serve
from forgeyard.model.policy import SchedulingPolicy
from tests.history import recorder
from worker import wiring
from worker.main import run_worker

AFTER_PLAN, AFTER_COMMIT = "after_plan", "after_commit"
BEFORE_COMMIT, WITHIN_COMMIT = "before_commit", "within_commit"
SHUFFLED = "shuffled"
STANDS_BY = "stands by"
Message = tuple[contracts.AttemptStart, contracts.AttemptEvent | None]


def main(order: dict[str, Any]) -> None:
    """Run until told to stop."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    policy = TypeAdapter(SchedulingPolicy).validate_python(order["policy"])
    fault = order["fault"]
    if fault in (AFTER_PLAN, AFTER_COMMIT):
        deadly(fault, order["victims"])
    if fault == SHUFFLED:
        shuffled(Path(order["tally"]), random.Random(order["seed"]))
    recorder.begin(Path(order["history"]), actor=order["part"])
    if fault in (BEFORE_COMMIT, WITHIN_COMMIT):
        sleepy(fault)
    settings = config.load()
    if order["standby"]:
        logging.info(STANDS_BY)
        signal.sigwait({signal.SIGUSR1})
    if order["part"] == "worker":
        asyncio.run(until_told(lambda stop: run_worker(settings, stop, policy=policy)))
    else:
        asyncio.run(until_told(lambda stop: serve(settings, stop, policy=policy)))


async def until_told(run: Callable[[asyncio.Event], Any]) -> None:
    """Run until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run(stop)


def deadly(moment: str, victims: list[int]) -> None:
    """Die at a moment of the scheduling cycle, as if the power went, and take the victims along."""

    def die() -> None:
        for pid in (*victims, os.getpid()):
            os.kill(pid, signal.SIGKILL)

    class Deadly(SchedulingActivities):
        @activity.defn(name="cycle.plan", no_thread_cancel_exception=True)
        def plan_cycle(self, request: contracts.Partition) -> contracts.CyclePlan:
            plan = super().plan_cycle(request)
            if moment == AFTER_PLAN and plan.planned:
                die()
            return plan

        @activity.defn(name="cycle.commit", no_thread_cancel_exception=True)
        def commit_cycle(self, request: contracts.Cycle) -> contracts.CycleCommit:
            done = super().commit_cycle(request)
            if done.granted:
                die()
            return done

    wiring.SchedulingActivities = Deadly


def sleepy(moment: str) -> None:
    """Freeze once, in the first commit: before its transaction, or when all of it is written."""
    here, woken = threading.local(), threading.Event()

    def freeze() -> None:
        if not woken.is_set():
            woken.set()
            os.kill(os.getpid(), signal.SIGSTOP)

    class Sleepy(SchedulingActivities):
        @activity.defn(name="cycle.commit", no_thread_cancel_exception=True)
        def commit_cycle(self, request: contracts.Cycle) -> contracts.CycleCommit:
            if moment == BEFORE_COMMIT:
                freeze()
            here.is_commit = True
            try:
                return super().commit_cycle(request)
            finally:
                here.is_commit = False

    @sa.event.listens_for(sa.Engine, "commit")
    def _holding_every_lock(_connection: sa.Connection) -> None:
        if moment == WITHIN_COMMIT and getattr(here, "is_commit", False):
            freeze()

    wiring.SchedulingActivities = Sleepy


def shuffled(tally: Path, rng: random.Random) -> None:
    """Send every message of the relay late, often twice, and old ones again after newer ones."""
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


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
