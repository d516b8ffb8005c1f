"""`forgeyard database …`: the schema that workers and APIs of one set share."""

import typer

from forgeyard.cli import output, processes
from forgeyard.cli.options import DataDir, Json, settings

app = typer.Typer(no_args_is_help=True, help="Look after the database's schema.")


@app.command("upgrade")
def upgrade(as_json: Json = False, data_dir: DataDir = None) -> None:
    """Bring the database to this release's schema.

    Do it once, with the newest release, before its processes replace the older ones, which go on
    working meanwhile. `forgeyard up` does it by itself.

    \b
    Example:
      FORGEYARD_STORE__URL=postgresql://db/forgeyard forgeyard database upgrade
    """
    _tell(processes.upgrade_database(settings(data_dir)), as_json=as_json)


@app.command("check")
def check(as_json: Json = False, data_dir: DataDir = None) -> None:
    """Tell whether this release can work on the database as it is.

    Exits 2 if not.

    \b
    Example:
      forgeyard database check
    """
    _tell(processes.check_database(settings(data_dir)), as_json=as_json)


def _tell(found: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        output.put_json(found)
    else:
        output.put(f"database at revision {found['revision']}, release at {found['release']}")
