"""Bring a database to the schema of this release, from inside the process and without a file.

Expand, deploy, contract: a revision only adds, so that the release before it goes on working while
processes are replaced one by one. One that takes away what no release needs any more writes the
oldest revision whose release it still serves into `schema_floors`.
"""

import logging
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from forgeyard.errors import SchemaMismatch
from forgeyard.store import tables
from forgeyard.store.engine import read

SCRIPTS = Path(__file__).parent / "migrations"
HEAD = "head"
REMEDY = "run `forgeyard database upgrade` once, with the newest release"

_log = logging.getLogger(__name__)


def upgrade(engine: sa.Engine, revision: str = HEAD) -> None:
    """Apply every revision that is missing, each in its own transaction.

    Processes that do this at once take turns. Threads may not: Alembic's context is global.
    A newer schema that serves this release is left as it is.

    Raises:
        SchemaMismatch: the database is newer, and does not serve this release any more.
    """
    at = current(engine)
    if at is not None and at not in _known():
        demand_fit(engine)
        return
    with engine.connect() as connection:
        command.upgrade(_config(connection), revision)


def downgrade(engine: sa.Engine, revision: str) -> None:
    """Take revisions back down to `revision`; `base` empties the schema and loses its rows."""
    with engine.connect() as connection:
        command.downgrade(_config(connection), revision)


def current(engine: sa.Engine) -> str | None:
    """Tell which revision the database is at; None before the first."""
    with read(engine) as connection:
        return MigrationContext.configure(connection).get_current_revision()


def newest() -> str | None:
    """Tell which revision this release wants."""
    return ScriptDirectory(str(SCRIPTS)).get_current_head()


def demand_fit(engine: sa.Engine) -> None:
    """Insist that this release can work on the schema as it is: its own, or one it is served by.

    Raises:
        SchemaMismatch: it is older, or too new.
        StoreUnavailable: the database does not answer.
    """
    at, wanted = current(engine), newest()
    if at == wanted:
        return
    if at is None or at in _known():
        raise SchemaMismatch(
            f"the database is at revision {at or 'nothing'}, this release needs {wanted}",
            field="store.url",
            allowed=REMEDY,
        )
    floor = _floor(engine)
    if floor > str(wanted):
        raise SchemaMismatch(
            f"the database is at revision {at} and serves releases from {floor} on; "
            f"this one is of {wanted}",
            field="store.url",
            allowed="a newer release",
        )
    _log.warning("the database is at revision %s, newer than this release's %s", at, wanted)


def _known() -> frozenset[str]:
    scripts = ScriptDirectory(str(SCRIPTS))
    return frozenset(script.revision for script in scripts.walk_revisions())


def _floor(engine: sa.Engine) -> str:
    """Read the oldest revision whose release is still served; ids are numbers of equal length."""
    query = sa.select(sa.func.max(tables.schema_floors.c.revision))
    with read(engine) as connection:
        return connection.execute(query).scalar_one() or ""


def _config(connection: sa.Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
