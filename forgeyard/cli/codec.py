"""`forgeyard codec …`: the keys that seal what Temporal keeps, in a file on this machine."""

from pathlib import Path
from typing import Annotated, Final

import typer

from forgeyard.cli import output
from forgeyard.cli.options import DataDir, Json, settings
from forgeyard.trust import sealing

app = typer.Typer(
    no_args_is_help=True, help="Make and name the keys that seal what Temporal keeps."
)
NAME: Final = "codec.keys"
File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="The file of keys; else `temporal.codec_keys_file`, else in the data directory.",
    ),
]


@app.command("new-key")
def new_key(file: File = None, as_json: Json = False, data_dir: DataDir = None) -> None:
    """Append a new key to the file, which is made if there is none.

    It seals from now on; those before it still open what they sealed. Bring the file to every
    worker and API: each reads it again when it first meets the new key.

    \b
    Example:
      forgeyard codec new-key --file /etc/forgeyard/codec.keys
    """
    path = _path(file, data_dir)
    made = sealing.add_key(path)
    if as_json:
        output.put_json({"file": str(path), "key": made})
        return
    output.put(f"key {made} in {path} seals now; temporal.codec_keys_file has to name this file")


@app.command()
def show(file: File = None, as_json: Json = False, data_dir: DataDir = None) -> None:
    """Name the keys, the oldest first; the keys themselves are never printed.

    \b
    Example:
      forgeyard codec show
    """
    path = _path(file, data_dir)
    names = sealing.read_keys(path).ids()
    if as_json:
        output.put_json({"file": str(path), "keys": names, "seals": names[-1]})
        return
    rows = [(name, "seals" if name == names[-1] else "opens") for name in names]
    output.put_table(("key", "use"), rows, empty="")


def _path(file: Path | None, data_dir: Path | None) -> Path:
    found = settings(data_dir)
    return file or Path(found.temporal.codec_keys_file or found.data_dir / NAME)
