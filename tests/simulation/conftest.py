"""One database for all seeds of a module: to open one costs more than to play a short seed."""

from collections.abc import Iterator

import pytest

from tests.simulation.database import Database, on_sqlite


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Give a SQLite file that every seed begins anew."""
    opened = on_sqlite(tmp_path_factory.mktemp("simulation"))
    yield opened
    opened.close()
