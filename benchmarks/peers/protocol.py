"""How a peer's program talks with the benchmark: one JSON object a line, in and out.

It is started with the address of its database, says which process of PostgreSQL serves it once it
is ready, and then answers every number of jobs to take with what it took and how long that lasted.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from time import perf_counter, process_time

Take = Callable[[int], Awaitable[int]]


async def serve(backend: int, take: Take) -> None:
    """Take as many jobs as each line of the input says, until it ends."""
    _say({"backend": backend})
    for line in sys.stdin:
        wanted = int(json.loads(line))
        cpu, wall = process_time(), perf_counter()
        taken = await take(wanted)
        _say({"taken": taken, "wall_s": perf_counter() - wall, "cpu_s": process_time() - cpu})


def _say(said: object) -> None:
    print(json.dumps(said), flush=True)
