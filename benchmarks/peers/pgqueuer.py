"""PgQueuer's dequeue: python -m benchmarks.peers.pgqueuer ADDRESS JOBS."""

import asyncio
import sys
from datetime import timedelta
from uuid import uuid4

import asyncpg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.queries import Queries

from benchmarks.peers.protocol import serve

ENTRYPOINTS = {"build": EntrypointExecutionParameter(concurrency_limit=0)}


async def main(address: str, jobs: int) -> None:
    """Fill its queue and take from it in batches, as its queue manager does."""
    connection = await asyncpg.connect(address)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for first in range(0, jobs, 1_000):
        count = min(1_000, jobs - first)
        await queries.enqueue(["build"] * count, [b"{}"] * count, [0] * count)
    await connection.execute("VACUUM ANALYZE")
    manager = uuid4()

    async def take(count: int) -> int:
        taken = await queries.dequeue(
            batch_size=count,
            entrypoints=ENTRYPOINTS,
            queue_manager_id=manager,
            global_concurrency_limit=None,
            heartbeat_timeout=timedelta(seconds=30),
        )
        return len(taken)

    await serve(connection.get_server_pid(), take)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
