"""Both applications over a real database, spoken to over HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.integration.api.house import House, open_house


@pytest.fixture
async def house(engine: sa.Engine, tmp_path: Path) -> AsyncIterator[House]:
    """Open the applications on each database in turn."""
    async with open_house(engine, tmp_path) as opened:
        yield opened


@pytest.fixture
async def sqlite_house(sqlite_engine: sa.Engine, tmp_path: Path) -> AsyncIterator[House]:
    """Open the applications on SQLite, where the database does not matter."""
    async with open_house(sqlite_engine, tmp_path) as opened:
        yield opened
