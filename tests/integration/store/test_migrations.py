import subprocess
import sys
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from forgeyard.config import StoreConfig
from forgeyard.errors import SchemaMismatch
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


RELEASED = "0004"
"""The schema of the last release whose processes knew nothing of this rule."""


def revisions_since(first: str) -> list[str]:
    scripts = ScriptDirectory(str(migrate.SCRIPTS))
    return [one.revision for one in reversed(list(scripts.iterate_revisions("head", first)))]


def taken_away(before: dict[str, dict], after: dict[str, dict]) -> list[str]:
    """List what a release that knows only the schema before would miss, or be refused."""
    found = [f"table {name}" for name in before.keys() - after.keys()]
    for name in before.keys() & after.keys():
        old, new = before[name], after[name]
        then = {column[0]: column for column in old["columns"]}
        now = {column[0]: column for column in new["columns"]}
        found += [f"{name}.{column}" for column in then.keys() - now.keys()]
        for column, (_, kind, nullable, default) in now.items():
            if column not in then:
                if not nullable and default == "None":
                    found.append(f"{name}.{column} must be written")
            elif (kind, default) != (then[column][1], then[column][3]):
                found.append(f"{name}.{column} is another")
            elif then[column][2] and not nullable:
                found.append(f"{name}.{column} may not be empty")
        for rule in ("references", "unique", "checks"):
            found += [f"{name}: new {rule} {one}" for one in new[rule].keys() - old[rule].keys()]
        for index in new["indexes"].keys() - old["indexes"].keys():
            if new["indexes"][index]["unique"]:
                found.append(f"{name}: new unique index {index}")
    return sorted(found)


def floor_of(engine: sa.Engine) -> str | None:
    if "schema_floors" not in sa.inspect(engine).get_table_names():
        return None
    with read(engine) as connection:
        floors = sa.select(sa.func.max(tables.schema_floors.c.revision))
        return connection.execute(floors).scalar_one()


def test_every_revision_leaves_the_release_before_it_at_work_or_says_whom_it_serves(
    engine: sa.Engine,
) -> None:
    migrate.downgrade(engine, RELEASED)
    before, floor = shape(engine), floor_of(engine)
    for revision in revisions_since(RELEASED):
        migrate.upgrade(engine, revision)
        after = shape(engine)
        lost = taken_away(before, after)
        if lost:
            assert floor_of(engine) != floor, f"{revision} takes away {lost}"
        before, floor = after, floor_of(engine)


@pytest.mark.parametrize(
    ("statement", "lost"),
    [
        ("ALTER TABLE runs DROP COLUMN submitted_by", "runs.submitted_by"),
        ("ALTER TABLE runs RENAME COLUMN document TO text", "runs.document"),
        ("DROP TABLE habits", "table habits"),
        ("CREATE UNIQUE INDEX ix_only_one ON runs (name)", "runs: new unique index ix_only_one"),
        ("ALTER TABLE runs ADD COLUMN shape TEXT NOT NULL DEFAULT 'x'", ""),
        ("ALTER TABLE runs ADD COLUMN shape TEXT", ""),
        ("CREATE TABLE brand_new (shape TEXT NOT NULL)", ""),
    ],
)
def test_what_a_release_would_miss_is_seen(engine: sa.Engine, statement: str, lost: str) -> None:
    before = shape(engine)
    with write(engine) as connection:
        connection.execute(sa.text(statement))
    assert lost in (taken_away(before, shape(engine)) or [""])


def test_a_column_that_must_be_written_is_seen(own_postgresql_url: str) -> None:
    engine = open_engine(own_postgresql_url, StoreConfig())
    before = shape(engine)
    with write(engine) as connection:
        connection.execute(sa.text("ALTER TABLE runs ADD COLUMN shape TEXT NOT NULL"))
        connection.execute(sa.text("ALTER TABLE runs ALTER COLUMN source_digest SET NOT NULL"))
    assert taken_away(before, shape(engine)) == [
        "runs.shape must be written",
        "runs.source_digest may not be empty",
    ]
    engine.dispose()


def claim(engine: sa.Engine, revision: str, *, floor: str | None = None) -> None:
    """Let the database say that it is at a revision of a later release."""
    with write(engine) as connection:
        connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{revision}'"))
        if floor is not None:
            connection.execute(sa.insert(tables.schema_floors).values(revision=floor))


def test_a_release_refuses_a_schema_that_is_older_and_says_what_to_do(engine: sa.Engine) -> None:
    migrate.demand_fit(engine)
    for revision, said in (
        (RELEASED, f"at revision {RELEASED}, "),
        ("base", "at revision nothing"),
    ):
        migrate.downgrade(engine, revision)
        with pytest.raises(SchemaMismatch, match=said) as caught:
            migrate.demand_fit(engine)
        assert "forgeyard database upgrade" in str(caught.value.allowed)


def test_a_release_works_on_a_newer_schema_as_long_as_that_serves_it(engine: sa.Engine) -> None:
    claim(engine, "9998")
    migrate.demand_fit(engine)
    migrate.upgrade(engine)
    assert migrate.current(engine) == "9998"
    claim(engine, "9999", floor=str(migrate.newest()))
    migrate.demand_fit(engine)
    claim(engine, "9999", floor="9998")
    for refused in (migrate.demand_fit, migrate.upgrade):
        with pytest.raises(SchemaMismatch, match="serves releases from 9998 on"):
            refused(engine)
