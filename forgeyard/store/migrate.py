"""Bring a database to the schema of this release, from inside the process and without a file."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

SCRIPTS = Path(__file__).parent / "migrations"


def upgrade(engine: sa.Engine, revision: str = "head") -> None:
    """Apply every revision that is missing, each in its own transaction.

    Processes that do this at once take turns. Threads may not: Alembic's context is global.
    """
    with engine.connect() as connection:
        command.upgrade(_config(connection), revision)


def downgrade(engine: sa.Engine, revision: str) -> None:
    """Take revisions back down to `revision`; `base` empties the schema and loses its rows."""
    with engine.connect() as connection:
        command.downgrade(_config(connection), revision)


def current(engine: sa.Engine) -> str | None:
    """Tell which revision the database is at; None before the first."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def newest() -> str | None:
    """Tell which revision this release wants."""
    return ScriptDirectory(str(SCRIPTS)).get_current_head()


def _config(connection: sa.Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
