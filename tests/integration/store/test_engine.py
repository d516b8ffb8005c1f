"""What a connection is held to on PostgreSQL."""

import time

import pytest
import sqlalchemy as sa

from forgeyard.config import StoreConfig
from forgeyard.errors import StoreUnavailable
from forgeyard.store import tables
from forgeyard.store.engine import open_engine, write
from tests.builders import submit_run

pytestmark = pytest.mark.integration


def test_who_falls_asleep_in_a_transaction_loses_its_locks_and_writes_nothing_later(
    postgresql_url: str,
) -> None:
    """F12: a worker that is frozen between two statements of a commit must not stop all others."""
    sleepy = open_engine(postgresql_url, StoreConfig(idle_timeout_ms=300))
    others = open_engine(postgresql_url, StoreConfig())
    runs = tables.runs
    with write(others) as connection:
        submit_run(connection)
    rename = sa.update(runs).values(name="theirs")

    def write_asleep() -> None:
        with write(sleepy) as connection:
            connection.execute(sa.update(runs).values(name="mine"))
            time.sleep(1.0)
            with write(others) as meanwhile:
                meanwhile.execute(rename)
            connection.execute(sa.update(runs).values(name="mine, late"))

    with pytest.raises(StoreUnavailable):
        write_asleep()
    with write(others) as connection:
        assert connection.execute(sa.select(runs.c.name)).scalar_one() == "theirs"
    with write(sleepy) as connection:
        connection.execute(rename)
    for engine in (sleepy, others):
        engine.dispose()
