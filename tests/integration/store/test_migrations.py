import subprocess
import sys
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from forgeyard.config import StoreConfig
from forgeyard.store import migrate, tables
from forgeyard.store.engine import open_engine, read, write
from tests.builders import register_runner, submit_run

pytestmark = pytest.mark.integration


@pytest.fixture(params=["sqlite_url", "own_postgresql_url"])
def engine(request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    """Open a database whose schema the test may change."""
    opened = open_engine(request.getfixturevalue(request.param), StoreConfig())
    yield opened
    opened.dispose()


def shape(engine: sa.Engine) -> dict[str, object]:
    """Read everything that a database knows about our tables."""
    inspector = sa.inspect(engine)
    found: dict[str, object] = {}
    for name in sorted(set(inspector.get_table_names()) - {"alembic_version"}):
        columns = sorted(  # a later revision appends its columns, which no query notices
            (c["name"], repr(c["type"]), c["nullable"], str(c["default"]))
            for c in inspector.get_columns(name)
        )
        found[name] = {
            "columns": columns,
            "key": inspector.get_pk_constraint(name),
            "references": _by_name(inspector.get_foreign_keys(name)),
            "unique": _by_name(inspector.get_unique_constraints(name)),
            "checks": {c["name"]: c["sqltext"] for c in inspector.get_check_constraints(name)},
            "indexes": _by_name(inspector.get_indexes(name)),
        }
    return found


def _by_name(constraints: list) -> dict[str, dict]:
    """Say conditions of indexes in words: two of SQLite's clauses are never equal."""
    return {
        one["name"]: {**one, "dialect_options": str_values(one.get("dialect_options", {}))}
        for one in constraints
    }


def str_values(options: dict) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}


def test_alembic_finds_no_difference_between_migrations_and_tables(engine: sa.Engine) -> None:
    options = {"compare_type": True}  # the next test looks at defaults as the database has them
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.metadata) == []


def test_migrations_make_what_the_tables_would_make_themselves(engine: sa.Engine) -> None:
    migrated = shape(engine)
    migrate.downgrade(engine, "base")
    with write(engine) as connection:
        tables.metadata.create_all(connection)
    assert migrated == shape(engine)


def test_up_down_up_ends_where_it_began(engine: sa.Engine) -> None:
    before = shape(engine)
    migrate.downgrade(engine, "base")
    assert shape(engine) == {}
    assert migrate.current(engine) is None
    migrate.upgrade(engine)
    assert shape(engine) == before
    assert migrate.current(engine) == migrate.newest()


def test_upgrading_what_is_up_to_date_keeps_its_rows(engine: sa.Engine) -> None:
    with write(engine) as connection:
        run_id = submit_run(connection)
        register_runner(connection)
    migrate.upgrade(engine)
    with read(engine) as connection:
        assert connection.execute(sa.select(tables.runs.c.run_id)).scalar_one() == run_id


def test_there_is_a_default_scope_of_every_level(engine: sa.Engine) -> None:
    scopes = tables.scopes
    query = sa.select(scopes.c.scope_id, scopes.c.kind, scopes.c.name).order_by(scopes.c.level)
    with read(engine) as connection:
        assert [tuple(row) for row in connection.execute(query)] == [
            ("scp_root", "root", "everything"),
            ("tnt_default", "tenant", "default"),
            ("org_default", "organization", "default"),
            ("prj_default", "project", "default"),
            ("pol_default", "pool", "default"),
            ("que_default", "queue", "default"),
        ]


UPGRADE = """
import sys
from forgeyard.config import StoreConfig
from forgeyard.config import StoreConfig
from forgeyard.store import migrate
from forgeyard.store.engine import open_engine

migrate.upgrade(open_engine(sys.argv[1], StoreConfig()))
"""


def test_processes_that_migrate_at_once_take_turns(own_postgresql_url: str) -> None:
    engine = open_engine(own_postgresql_url, StoreConfig())
    migrate.downgrade(engine, "base")
    command = [sys.executable, "-c", UPGRADE, own_postgresql_url]
    racers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    complaints = [racer.communicate()[1].decode() for racer in racers]
    at = migrate.current(engine)
    engine.dispose()
    assert [racer.returncode for racer in racers] == [0, 0, 0], complaints
    assert at == migrate.newest()


def test_a_migration_gives_its_lock_and_its_limits_back(own_postgresql_url: str) -> None:
    engine = open_engine(own_postgresql_url, StoreConfig(pool=1, lock_timeout_ms=1_234))
    migrate.downgrade(engine, "base")
    migrate.upgrade(engine)
    with read(engine) as connection:
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        assert connection.execute(sa.text(locks)).scalar_one() == 0
        limits = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
        assert connection.execute(sa.text(limits)).one() == ("1234ms", "5s")
    engine.dispose()


def test_runs_of_the_first_release_wait_for_no_other(engine: sa.Engine) -> None:
    migrate.downgrade(engine, "0001")
    row = {
        "run_id": "run_old",
        "name": "old",
        "state": "queued",
        "partition": "default",
        "tenant_id": "tnt_default",
        "document": "{}",
        "submitted_by": "somebody",
        "timeout_ms": 1_000,
        "open_jobs": 1,
        "created_at": 77,
    }
    names = ", ".join(f'"{name}"' for name in row)
    values = ", ".join(f":{name}" for name in row)
    with write(engine) as connection:
        connection.execute(sa.text(f"INSERT INTO runs ({names}) VALUES ({values})"), row)
    migrate.upgrade(engine)
    with read(engine) as connection:
        assert connection.execute(sa.select(tables.runs.c.ready_at)).scalar_one() == 77
