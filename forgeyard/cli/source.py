"""Packs a source directory and uploads it, unless the server has the very same bytes already."""

import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from forgeyard import archive, selection
from forgeyard.cli import output
from forgeyard.cli.client import CHUNK, Client
from forgeyard.cli.following import Patience
from forgeyard.cli.material import Material
from forgeyard.config import Config

MOST_SKIPPED = 5
UPLOAD_PATIENCE_S = 10.0


def upload_source(client: Client, material: Material, *, config: Config, quiet: bool) -> str | None:
    """Pack a source, if there is any, upload it if need be, and return its digest.

    Our own data stays here.

    Raises:
        TooLarge: the directory holds more than the limit.
    """
    if material.directory is None:
        return None
    with tempfile.TemporaryFile() as file:
        select = partial(_files_but, config.data_dir)
        packed = archive.pack(material.directory, file, limit=config.limits.source, select=select)
        if not quiet:
            _report(material.called, packed)
        if client.has_blob(packed.digest):
            return packed.digest
        with progress("uploading", packed.size, quiet=quiet) as advance:
            Patience(patience_s=UPLOAD_PATIENCE_S).ask(lambda: _put(client, packed, file, advance))
    return packed.digest


def _put(client: Client, packed: archive.Packed, file: BinaryIO, advance: "Advance") -> None:
    """Upload an archive from its beginning."""
    file.seek(0)
    advance.again()
    client.put_blob(packed.digest, packed.size, _pieces(file, advance))


def _files_but(data_dir: Path, root: Path) -> list[str]:
    """List a source's files without those of a data directory in it, which holds the token."""
    listed = selection.source_files(root)
    try:
        own = data_dir.resolve().relative_to(root.resolve()).parts
    except ValueError:
        return listed
    return [name for name in listed if not own or tuple(name.split("/"))[: len(own)] != own]


def _report(source: str, packed: archive.Packed) -> None:
    output.say(f"source {source}: {packed.files} files, {output.size(packed.size)} packed")
    if packed.skipped:
        shown = ", ".join(packed.skipped[:MOST_SKIPPED])
        more = len(packed.skipped) - MOST_SKIPPED
        rest = f" and {more} more" if more > 0 else ""
        output.say(f"left out (links that lead out, special files): {shown}{rest}", style="yellow")


def _pieces(file: BinaryIO, advance: "Advance") -> Iterator[bytes]:
    while piece := file.read(CHUNK):
        yield piece
        advance(len(piece))


class Advance:
    """Moves a progress bar, if there is one."""

    def __init__(self, bar: Progress | None = None, task: TaskID | None = None) -> None:
        self._bar = bar
        self._task = task

    def again(self) -> None:
        """Say that it begins anew."""
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task)

    def __call__(self, amount: int) -> None:
        """Say that so many more bytes have gone."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, amount)


@contextmanager
def progress(what: str, total: int | None, *, quiet: bool) -> Generator[Advance]:
    """Show how far a transfer is: a bar on a terminal, else nothing that moves."""
    console = output.console(to_stderr=True)
    if quiet or not console.is_terminal:
        yield Advance()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=console, transient=True) as bar:
        yield Advance(bar, bar.add_task(what, total=total))
