"""BuildGrid's assignment, one by one: python -m benchmarks.peers.buildgrid ADDRESS JOBS.

The call that its assigner threads repeat, without the pauses that they make between two.
"""

import asyncio
import sys
from datetime import datetime, timedelta

from buildgrid.server.cas.storage.lru_memory_cache import LRUMemoryCache
from buildgrid.server.context import instance_context
from buildgrid.server.enums import BotStatus
from buildgrid.server.scheduler.impl import Scheduler
from buildgrid.server.scheduler.properties import DynamicPropertySet
from buildgrid.server.sql.models import Base, BotEntry, BotPlatformEntry, JobEntry
from buildgrid.server.sql.provider import SqlProvider
from sqlalchemy import text

from benchmarks.peers.protocol import serve

BOTS = 1_000
QUEUED = 2
"""`OperationStage.QUEUED`."""


async def main(address: str, jobs: int) -> None:
    """Fill its tables with bots and queued jobs, and let it assign."""
    provider = SqlProvider(connection_string=address.replace("postgresql:", "postgresql+psycopg2:"))
    scheduler = Scheduler(provider, LRUMemoryCache(1 << 20), property_set=_properties())
    with provider.session() as session:
        Base.metadata.create_all(session.connection())
        now = datetime.utcnow()  # noqa: DTZ003 - as it stores them
        session.add_all(_bot(number, now) for number in range(BOTS))
        session.add_all(_job(number, now) for number in range(jobs))
    with provider.session() as session:
        backend = session.execute(text("SELECT pg_backend_pid()")).scalar_one()

    async def take(count: int) -> int:
        with instance_context("main"):
            return sum(scheduler.assign_job_by_priority() for _ in range(count))

    await serve(backend, take)


def _properties() -> DynamicPropertySet:
    none: set[str] = set()
    return DynamicPropertySet(
        unique_property_keys=none, match_property_keys=none, wildcard_property_keys=none
    )


def _bot(number: int, now: datetime) -> BotEntry:
    return BotEntry(
        name=f"bot-{number}",
        bot_id=f"id-{number}",
        instance_name="main",
        bot_status=BotStatus.OK.value,
        capacity=8,
        max_capacity=8,
        expiry_time=now + timedelta(hours=1),
        last_update_timestamp=now,
        platforms=[BotPlatformEntry(platform="linux")],
    )


def _job(number: int, now: datetime) -> JobEntry:
    return JobEntry(
        name=f"job-{number}",
        instance_name="main",
        action_digest=f"{number:064}/1",
        action=b"",
        platform_requirements="linux",
        command="make",
        stage=QUEUED,
        queued_timestamp=now,
        schedule_after=now,
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
