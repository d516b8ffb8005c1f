"""Procrastinate's fetch, one by one: python -m benchmarks.peers.procrastinate ADDRESS JOBS."""

import asyncio
import sys

from procrastinate import App, PsycopgConnector

from benchmarks.peers.protocol import serve


async def main(address: str, jobs: int) -> None:
    """Fill its queue and fetch from it as its worker does."""
    app = App(connector=PsycopgConnector(conninfo=address, min_size=1, max_size=1))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        build = app.configure_task("build", allow_unknown=True)
        for first in range(0, jobs, 500):
            await build.batch_defer_async(*({"n": n} for n in range(first, min(jobs, first + 500))))
        worker = await app.job_manager.register_worker()
        query = "SELECT pg_backend_pid() AS pid"
        found = await app.connector.execute_query_one_async(query)

        async def take(count: int) -> int:
            fetched = [
                await app.job_manager.fetch_job(queues=None, worker_id=worker) for _ in range(count)
            ]
            return sum(job is not None for job in fetched)

        await serve(found["pid"], take)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
