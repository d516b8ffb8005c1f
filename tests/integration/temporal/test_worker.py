"""The worker process: starts without Temporal, outlives it, and prepares its namespace."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from temporalio.client import Client

from activities import contracts
from activities.connection import connect_later
from activities.relay import relay
from forgeyard.config import Config, StoreConfig, TemporalConfig
from tests.integration.temporal.conftest import build_house
from tests.integration.temporal.house import Driver, House, until
from tests.integration.temporal.server import Server
from worker.main import run_worker
from worker.wiring import register_search_attributes

pytestmark = pytest.mark.integration


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """Give a server that is not started, with a file to come back to."""
    server = Server(file=tmp_path / "temporal.db")
    yield server
    server.kill()


@asynccontextmanager
async def process(config: Config) -> AsyncIterator[None]:
    """Run the worker process's main coroutine."""
    stop = asyncio.Event()
    serving = asyncio.create_task(run_worker(config, stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(serving, 40)


def configured(server: Server, url: str, folder: Path) -> Config:
    """Configure a worker process for a server and a database."""
    return Config(
        data_dir=folder,
        temporal=TemporalConfig(address=server.address),
        store=StoreConfig(url=url),
    )


async def test_the_worker_waits_for_temporal_and_then_works(
    own_server: Server,
    sqlite_url: str,
    sqlite_engine: sa.Engine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "worker.main")
    client = await connect_later(TemporalConfig(address=own_server.address))
    house = default_house(client, sqlite_engine, tmp_path)
    run_id = house.submit_silently()
    async with process(configured(own_server, sqlite_url, tmp_path)):
        await until(lambda: "does not answer; trying again" in caplog.text)
        await asyncio.to_thread(own_server.start)
        async with Driver(house=house).running():
            await house.until_run(run_id, "succeeded")
    assert "FyKind, FyState, FyJob, FyRunner" in caplog.text


async def test_the_worker_outlives_a_crash_of_temporal(
    own_server: Server, sqlite_url: str, sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    own_server.start()
    client = await connect_later(TemporalConfig(address=own_server.address))
    house = default_house(client, sqlite_engine, tmp_path)
    async with process(configured(own_server, sqlite_url, tmp_path)):
        async with Driver(house=house).running():
            before = house.submit_silently()
            await house.until_run(before, "succeeded")
        own_server.kill()
        after = house.submit_silently()
        assert await relay(client, sqlite_engine, house.partition) == 0
        await asyncio.to_thread(own_server.start)
        async with Driver(house=house).running():
            await house.until_run(after, "succeeded", within_s=60)


def default_house(client: Client, engine: sa.Engine, folder: Path) -> House:
    """Build a house on the partition and the queue that a configured process serves."""
    house = build_house(client, engine, folder)
    return house.at(partition="default", queue=contracts.TASK_QUEUE)


async def test_registering_search_attributes_twice_is_harmless(client: Client) -> None:
    assert await register_search_attributes(client) == ()
