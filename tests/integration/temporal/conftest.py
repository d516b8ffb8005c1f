"""One Temporal server in memory for the session; a client, partition and queue for each test."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from temporalio.client import Client

from activities.connection import connect
from forgeyard.config import TemporalConfig
from forgeyard.store.blobs import FileBlobStore
from tests.integration.temporal.house import QUICK, House
from tests.integration.temporal.server import Server
from worker.wiring import Parts, register_search_attributes

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[Server]:
    """Run one server in memory."""
    server = Server()
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def client(temporal_server: Server) -> Client:
    """Connect to the session's server, whose namespace knows our search attributes."""
    client = await connect(TemporalConfig(address=temporal_server.address))
    await register_search_attributes(client)
    return client


def build_house(client: Client, engine: sa.Engine, folder: Path) -> House:
    """Give a test a partition and a task queue of its own."""
    name = f"part-{next(_NUMBERS)}"
    parts = Parts(
        engine=engine,
        policy=QUICK,
        blobs=FileBlobStore(folder / "blobs"),
        task_queue=name,
        upkeep_check_s=0.2,
    )
    return House(client=client, engine=engine, parts=parts, partition=name)


@pytest.fixture
def house(client: Client, sqlite_engine: sa.Engine, tmp_path: Path) -> House:
    """Build a house on SQLite."""
    return build_house(client, sqlite_engine, tmp_path)


@pytest.fixture
def any_house(client: Client, engine: sa.Engine, tmp_path: Path) -> House:
    """Build a house on each database in turn."""
    return build_house(client, engine, tmp_path)
