"""Measures what jobs use while they run: the memory of whole process groups.

The kernel tells the CPU time of a group's leader and its children when it is reaped; the memory
that all of them held together is only known to someone who looked meanwhile.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from forgeyard import proctable
from forgeyard.agent.process import Exit
from forgeyard.model.protocol import Usage
from forgeyard.model.units import Millis

LOOK_EVERY_S = 0.5


@dataclass(slots=True)
class Meter:
    """What one attempt has used so far."""

    cpu: int = 0
    peak_memory: int = 0
    bytes_fetched: int = 0
    bytes_uploaded: int = 0
    inputs_at_hand: int = 0
    inputs_fetched: int = 0
    caches_at_hand: int = 0
    caches_fetched: int = 0

    def saw(self, memory: int) -> None:
        """Take in how much is in use at this moment."""
        self.peak_memory = max(self.peak_memory, memory)

    def ended(self, end: Exit) -> None:
        """Take in what the kernel counted for a group that has ended."""
        self.cpu += end.cpu
        self.saw(end.peak_memory)

    def total(self, *, wall: float) -> Usage:
        """Sum up, for the completion."""
        return Usage(
            wall=Millis(round(wall * 1000)),
            cpu=Millis(self.cpu),
            peak_memory=self.peak_memory,
            bytes_fetched=self.bytes_fetched,
            bytes_uploaded=self.bytes_uploaded,
            inputs_at_hand=self.inputs_at_hand,
            inputs_fetched=self.inputs_fetched,
            caches_at_hand=self.caches_at_hand,
            caches_fetched=self.caches_fetched,
        )


class Sampler:
    """Looks at all watched groups at once, for reading the process table is what costs."""

    def __init__(self) -> None:
        self._meters: dict[int, Meter] = {}
        self._wanted = asyncio.Event()

    @contextmanager
    def watching(self, group: int, meter: Meter) -> Generator[None]:
        """Measure a group for as long as the block lasts."""
        self._meters[group] = meter
        self._wanted.set()
        try:
            yield
        finally:
            del self._meters[group]

    async def run(self) -> None:
        """Look again and again until cancelled, resting while nothing is watched."""
        while True:
            self._wanted.clear()
            if not self._meters:
                await self._wanted.wait()
            self.take(await asyncio.to_thread(memory_by_group))
            await asyncio.sleep(LOOK_EVERY_S)

    def take(self, memory: dict[int, int]) -> None:
        """Hand each watched group's memory to its meter."""
        for group, meter in self._meters.items():
            meter.saw(memory.get(group, 0))


def memory_by_group() -> dict[int, int]:
    """Sum up the resident memory of every process group; shared pages count for each."""
    found: dict[int, int] = {}
    for process in proctable.processes():
        found[process.group] = found.get(process.group, 0) + process.resident
    return found
