"""Which reserved pools lend what is left at the end of a cycle (RES-021, RES-023).

A pool with spillover serves its owner alone while a cycle goes through its jobs. When all have had
their turn, others may have what is left, unless a job of the owner waits that could run there: it
found the pool full, and what ends next is for it.
"""

from collections.abc import Iterable

from forgeyard.scheduler.columns import Columns, fits
from forgeyard.scheduler.snapshot import SchedulingJob
from forgeyard.scheduler.standing import is_own_pool


def idle_pools(columns: Columns, waiting: Iterable[SchedulingJob]) -> frozenset[str]:
    """List the pools that lend, given the jobs that found no runner."""
    lending = {stand.pool_id: stand.pool for stand in columns.stands if stand.pool.spillover}
    seen: set[tuple[object, ...]] = set()
    for job in waiting if lending else ():
        own = [name for name, pool in lending.items() if is_own_pool(job, pool)]
        look = (*own, id(job.requirements), job.resources)
        if own and look not in seen:
            seen.add(look)
            able = columns.satisfying(job) & fits(columns.wanted(job.resources), columns.room)
            for name in own:
                if able[columns.in_pool(name)].any():
                    del lending[name]
    return frozenset(lending)
