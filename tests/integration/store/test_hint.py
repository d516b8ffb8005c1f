"""The hint that spares a poll its period: an event was appended."""

import sqlalchemy as sa

from forgeyard.store import outbox
from forgeyard.store.engine import write
from tests.builders import grant, jobs_of, register_runner, submit_run


def test_a_grant_is_hinted_once_and_nothing_else_is(sqlite_engine: sa.Engine) -> None:
    with outbox.watching(sqlite_engine) as appended:
        assert not appended()
        with write(sqlite_engine) as connection:
            runner = register_runner(connection)
            run_id = submit_run(connection)
        assert not appended()
        with write(sqlite_engine) as connection:
            grant(connection, jobs_of(connection, run_id)["build"]["job_id"], runner)
        assert appended()
        assert not appended()


def test_postgresql_gives_no_hint(postgresql_engine: sa.Engine) -> None:
    with outbox.watching(postgresql_engine) as appended:
        assert not appended()
