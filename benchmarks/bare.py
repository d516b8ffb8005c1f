"""Runs the reference, a workflow of one activity, on the dev server that is measured."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from temporalio.client import Client
from temporalio.worker import Worker

from benchmarks.bare_workflow import Bare, act
from benchmarks.measures import stopwatch

QUEUE = "bare"


@dataclass(kw_only=True)
class BareRunner:
    """Starts bare workflows and waits for their results."""

    client: Client
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve them in this process meanwhile; its first workflow is not measured."""
        async with Worker(self.client, task_queue=QUEUE, workflows=[Bare], activities=[act]):
            await self.once_ms()
            yield

    async def once_ms(self) -> float:
        """Run one; return how long it took from start to result."""
        number = next(self._numbers)
        elapsed = stopwatch()
        await self.client.execute_workflow(Bare.run, number, id=f"bare/{number}", task_queue=QUEUE)
        return elapsed() * 1000

    async def per_second(self, count: int, *, parallel: int) -> float:
        """Run `count` of them, `parallel` at a time; return how many a second ended."""
        gate = asyncio.Semaphore(parallel)

        async def one() -> None:
            async with gate:
                await self.once_ms()

        elapsed = stopwatch()
        await asyncio.gather(*(one() for _ in range(count)))
        return count / elapsed()
