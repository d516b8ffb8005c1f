"""`forgeyard run logs`, `artifacts` and `download`: what jobs printed and what they left."""

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from forgeyard import archive
from forgeyard.cli import output
from forgeyard.cli.client import Client, missing, path_of, shaped
from forgeyard.cli.following import Patience
from forgeyard.cli.options import DataDir, Json, RunId, TokenFile, Url, connect, settings
from forgeyard.cli.shapes import Artifact, LogChunk, LogPage
from forgeyard.cli.source import progress
from forgeyard.errors import InvalidRequest, TooLarge, WrongDigest

POLL_MS = 20_000
INTERRUPTED = 130
Job = Annotated[str | None, typer.Option("--job", "-j", help="Only this job.")]


class LinePrinter:
    """Puts chunks of several jobs together to whole lines, each with its job's name."""

    def __init__(self, *, prefix: bool) -> None:
        self._prefix = prefix
        self._open: dict[tuple[str, int], str] = {}

    def add(self, chunk: LogChunk) -> str:
        """Take a chunk and return what can be printed now."""
        key = (chunk.job, chunk.attempt)
        text = self._open.pop(key, "") + chunk.text
        *lines, rest = text.split("\n")
        if rest:
            self._open[key] = rest
        return "".join(self._line(chunk.job, line) for line in lines)

    def rest(self) -> str:
        """Return the lines that never ended."""
        left = "".join(self._line(job, text) for (job, _), text in self._open.items())
        self._open.clear()
        return left

    def _line(self, job: str, line: str) -> str:
        return f"{job} | {line}\n" if self._prefix else f"{line}\n"


def logs(
    run: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")] = False,
    job: Job = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Only this try of the job.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per chunk.")
    ] = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Print what the jobs of a run printed.

    Merged in the order it arrived.

    \b
    Examples:
      forgeyard run logs run_01JD --follow
      forgeyard run logs run_01JD --job test
    """
    printer = None if as_json else LinePrinter(prefix=job is None)
    with connect(url, token_file, data_dir) as client:
        try:
            _stream(client, run, job, attempt, follow=follow, printer=printer)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _stream(
    client: Client,
    run: str,
    job: str | None,
    attempt: int | None,
    *,
    follow: bool,
    printer: LinePrinter | None,
) -> None:
    question: dict[str, str | int | None] = {"job": job, "attempt": attempt}
    question["wait_ms"] = POLL_MS if follow else 0
    path, patience = path_of("v1", "runs", run, "logs"), Patience()
    while True:
        answer = patience.ask(lambda: client.get(path, **question))
        page = shaped(LogPage, answer)
        for chunk in page.chunks:
            _print(chunk, printer)
        sys.stdout.flush()
        if page.ended or (not follow and not page.chunks):
            break
        question["after"] = page.next
    if printer is not None:
        _write(printer.rest())


def _print(chunk: LogChunk, printer: LinePrinter | None) -> None:
    if printer is not None:
        _write(printer.add(chunk))
        return
    line = {
        "job": chunk.job,
        "attempt": chunk.attempt,
        "step": chunk.step,
        "at": chunk.at,
        "text": chunk.text,
    }
    sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")


def _write(text: str) -> None:
    """Print what jobs printed: as it is, unless a terminal would obey it."""
    sys.stdout.write(output.unsteered(text) if sys.stdout.isatty() else text)


def artifacts(
    run: RunId,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List what the jobs of a run left behind.

    \b
    Example:
      forgeyard run artifacts run_01JD
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(path_of("v1", "runs", run, "artifacts"))
    if as_json:
        output.put_json(answer)
        return
    rows = [
        (one.job, one.name, one.path, output.size(one.size_bytes), one.digest)
        for one in shaped(tuple[Artifact, ...], answer)
    ]
    output.put_table(("job", "name", "path", "packed", "digest"), rows, empty="no artifacts yet")


def download(
    run: RunId,
    job: Job = None,
    name: Annotated[str | None, typer.Option("--name", help="Only this output.")] = None,
    to: Annotated[Path, typer.Option("--to", help="Where to; one directory per job.")] = Path(
        "artifacts"
    ),
    packed: Annotated[
        bool, typer.Option("--packed", help="Keep the tar.gz archives as they are.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Fetch what the jobs of a run left behind, and unpack it.

    \b
    Example:
      forgeyard run download run_01JD --job wheel --to dist
    """
    limit = settings(data_dir).limits.output
    written: list[str] = []
    with connect(url, token_file, data_dir) as client:
        known = shaped(tuple[Artifact, ...], client.get(path_of("v1", "runs", run, "artifacts")))
        for one in _wanted(known, job, name):
            target = _fetch(client, run, one, to, limit=limit, packed=packed, quiet=as_json)
            written.append(str(target))
            if not as_json:
                output.put(f"{one.job}/{one.name} → {target}")
    if as_json:
        output.put_json(written)


def _wanted(known: tuple[Artifact, ...], job: str | None, name: str | None) -> list[Artifact]:
    found = [one for one in known if job in (None, one.job) and name in (None, one.name)]
    if not found:
        wanted = "/".join(part or "*" for part in (job, name))
        raise missing("artifact", wanted, [f"{one.job}/{one.name}" for one in known])
    return found


def _fetch(
    client: Client, run: str, one: Artifact, to: Path, *, limit: int, packed: bool, quiet: bool
) -> Path:
    """Download one archive, verify it, and put it or its files in place."""
    folder = archive.safe_relative(one.job, "job")
    file_name = archive.safe_relative(f"{one.name}.tar.gz", "name")
    with tempfile.TemporaryFile() as file:
        path = path_of("v1", "runs", run, "artifacts", one.job, one.name)
        _receive(client, path, one, file, limit, quiet)
        file.seek(0)
        target = to / folder
        try:
            target.mkdir(parents=True, exist_ok=True)
            if not packed:
                archive.unpack(file, target, limit=limit)
                return target
            with (target / file_name).open("wb") as kept:
                shutil.copyfileobj(file, kept)
        except OSError as error:
            raise InvalidRequest(
                f"cannot write to {target}: {error.strerror}", field="--to", value=target
            ) from error
        return target / file_name


def _receive(
    client: Client, path: str, one: Artifact, file: BinaryIO, limit: int, quiet: bool
) -> None:
    digest, received = hashlib.sha256(), 0
    with (
        client.download(path) as (total, pieces),
        progress(f"{one.job}/{one.name}", total, quiet=quiet) as advance,
    ):
        for piece in pieces:
            received += len(piece)
            if received > limit:
                raise TooLarge(
                    f"{one.job}/{one.name} is larger than {output.size(limit)}",
                    field="artifact",
                    allowed="raise limits.output in the configuration",
                )
            digest.update(piece)
            file.write(piece)
            advance(len(piece))
    if f"sha256:{digest.hexdigest()}" != one.digest:
        raise WrongDigest(
            f"{one.job}/{one.name} arrived damaged: download it again",
            field="digest",
            value=f"sha256:{digest.hexdigest()}",
            allowed=one.digest,
        )
