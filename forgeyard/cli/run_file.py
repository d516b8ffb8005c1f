"""`forgeyard init` and `run check`: run files on this host."""

import re
from pathlib import Path
from typing import Annotated

import typer

from forgeyard.cli import output
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect
from forgeyard.cli.submitting import API_RUNS
from forgeyard.errors import Conflict, InvalidRequest
from forgeyard.runfile.load import load_run
from forgeyard.runfile.template import run_file

DEFAULT_FILE = Path("forgeyard.yaml")
RunFilePath = Annotated[Path, typer.Argument(metavar="FILE", help="The run file.")]


def init(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to write it; a directory will do.")
    ] = DEFAULT_FILE,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented run file to start from.

    \b
    Example:
      forgeyard init && forgeyard run submit forgeyard.yaml --watch
    """
    target = path / DEFAULT_FILE if path.is_dir() else path
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", target.resolve().parent.name).strip("-.") or "run"
    try:
        with target.open("w" if force else "x", encoding="utf-8") as file:
            file.write(run_file(name[:64], file=_in_a_comment(target)))
    except FileExistsError:
        raise Conflict(
            f"{target} exists already", field="FILE", value=target, allowed="--force overwrites it"
        ) from None
    except OSError as error:
        raise InvalidRequest(
            f"cannot write {target}: {error.strerror}", field="FILE", value=target
        ) from None
    if as_json:
        output.put_json({"file": str(target)})
        return
    output.put(f"wrote {target}")
    output.say(f"next: forgeyard run submit {target} --watch")


def _in_a_comment(path: Path) -> str:
    return output.plain(str(path)).replace("\n", "\\n")


def check(
    file: RunFilePath = DEFAULT_FILE,
    server: Annotated[
        bool, typer.Option("--server", help="Ask the server too, which knows its own limits.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Say what is wrong with a run file, and where.

    Nothing is submitted.

    \b
    Example:
      forgeyard run check forgeyard.yaml
    """
    run, document = load_run(file)
    if server:
        with connect(url, token_file, data_dir) as client:
            client.post(f"{API_RUNS}:check", {"document": document})
    needs = sum(len(job.needs) for job in run.jobs)
    if as_json:
        output.put_json({"name": run.name, "jobs": len(run.jobs), "needs": needs})
        return
    output.put(
        f"{file} is fine: {run.name}, {_count(len(run.jobs), 'job')}, {_count(needs, 'need')}"
    )


def _count(amount: int, noun: str) -> str:
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"
