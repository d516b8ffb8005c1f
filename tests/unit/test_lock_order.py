"""The watcher of the lock order reads statements as the product writes them."""

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from forgeyard.config import StoreConfig
from forgeyard.store import tables
from forgeyard.store.engine import open_engine, write
from tests.lock_order import LockedTooLate, locks, watch

RUNNER = sa.update(tables.runners).values(version=2)
SCOPE = sa.update(tables.scopes).values(version=2)


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        (sa.select(tables.scopes).order_by("level").with_for_update(), {"scopes"}),
        (sa.select(tables.scopes), set()),
        (sa.select(tables.jobs).with_for_update(), set()),
        (
            sa.select(tables.runners)
            .join(tables.pools, tables.pools.c.pool_id == tables.runners.c.pool_id)
            .with_for_update(of=tables.runners, skip_locked=True),
            {"runners"},
        ),
        (SCOPE, {"scopes"}),
        (
            sa.select(sa.literal(1)).add_cte(RUNNER.cte("one"), SCOPE.cte("two")),
            {"runners", "scopes"},
        ),
    ],
)
def test_a_statement_tells_what_it_locks(statement: sa.ClauseElement, found: set[str]) -> None:
    assert locks(str(statement.compile(dialect=postgresql.dialect()))) == found


def test_who_goes_back_to_a_savepoint_lets_go_and_who_releases_it_does_not(sqlite_url: str) -> None:
    engine = open_engine(sqlite_url, StoreConfig())
    watch(engine)
    with write(engine) as connection:
        tried = connection.begin_nested()
        connection.execute(RUNNER)
        tried.rollback()
        connection.execute(SCOPE)
    with write(engine) as connection:
        with connection.begin_nested():
            connection.execute(RUNNER)
        with pytest.raises(LockedTooLate):
            connection.execute(SCOPE)
    engine.dispose()


def test_scopes_after_runners_fail_and_scopes_before_them_do_not(sqlite_url: str) -> None:
    engine = open_engine(sqlite_url, StoreConfig())  # of its own: nobody else is watched
    watch(engine)
    with write(engine) as connection:
        for statement in (SCOPE, RUNNER, SCOPE):
            connection.execute(statement)
    with write(engine) as connection:
        connection.execute(RUNNER)
        with pytest.raises(LockedTooLate):
            connection.execute(SCOPE)
    with write(engine) as connection:
        connection.execute(SCOPE)
    engine.dispose()
