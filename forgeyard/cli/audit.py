"""`forgeyard audit …`: who did what, and whether the record of it is what was written."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from forgeyard.cli import output
from forgeyard.cli.client import shaped
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect
from forgeyard.errors import Corrupt, InvalidFile, NotFound

app = typer.Typer(no_args_is_help=True, help="Read the audit trail, and verify it.")
API_AUDIT: Final = "/v1/audit"
COLUMNS: Final = ("line", "at", "principal", "actor", "channel", "action", "target", "detail")
MOST_KEPT: Final = 10_000
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that was done."""

    audit_id: int
    at: int
    actor: str
    channel: str
    action: str
    target: str
    detail: str = ""
    principal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some lines, the newest first."""

    lines: tuple[Line, ...]
    next: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A place in the chain of lines."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is not as it was written."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was found on the way through the chain."""

    sealed: int
    unsealed: int
    head: Head
    faults: tuple[Fault, ...]


@app.command("list")
def list_lines(
    action: Annotated[
        str | None, typer.Option("--action", help="Such as token.create, or its beginning.")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="What it was done to.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="How many lines.")] = 50,
    before: Annotated[int | None, typer.Option("--before", help="Older than this line.")] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List who did what, the newest first.

    The principal is whose token it was; the actor is who was said to use it.

    \b
    Example:
      forgeyard audit list --action policy
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(API_AUDIT, action=action, target=target, limit=limit, before=before)
    if as_json:
        output.put_json(answer)
        return
    found = shaped(Page, answer)
    rows = [
        (
            str(one.audit_id),
            output.instant(one.at),
            *(one.principal, one.actor, one.channel, one.action, one.target, one.detail),
        )
        for one in found.lines
    ]
    output.put_table(COLUMNS, rows, empty="nothing")
    if found.next is not None:
        output.say(f"older ones: --before {found.next}")


@app.command()
def head(
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Print the head of the chain, to be kept where nobody can change it.

    \b
    Example:
      forgeyard audit head >> /mnt/elsewhere/heads
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(f"{API_AUDIT}/head")
    if as_json:
        output.put_json(answer)
    else:
        found = shaped(Head, answer)
        output.put(json.dumps({"seq": found.seq, "hash": found.hash}))


@app.command()
def verify(
    kept: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            metavar="FILE|HASH",
            help="A head that was kept, or a file with one in each line; may be repeated.",
        ),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Find out whether a line was changed, taken out, put elsewhere, or the end was cut off.

    That the end was cut off shows only against a head that was kept outside the database; API
    processes append theirs to audit-heads.jsonl in their data directories. Exits 1 on any fault.

    \b
    Example:
      forgeyard audit verify --head .forgeyard/audit-heads.jsonl
    """
    heads = [one for given in kept or () for one in _heads(given)][-MOST_KEPT:]
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{API_AUDIT}:verify", {"kept": heads})
    found = shaped(Verified, answer)
    if as_json:
        output.put_json(answer)
    else:
        _put(found)
    raise typer.Exit(1 if found.faults else 0)


def _put(found: Verified) -> None:
    for one in found.faults:
        output.put(f"{output.words(one.kind)}: {one.text}")
    output.say(f"{found.sealed} lines are sealed, {found.unsealed} not yet; {found.head.hash}")
    if not found.faults:
        output.put("the audit trail is as it was written")


def _heads(given: str) -> list[dict[str, object]]:
    """Read a hash as it is, and a file line by line."""
    if _HASH.fullmatch(given):
        return [{"hash": given}]
    try:
        lines = Path(given).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise NotFound(f"there is no file {given}", field="head", value=given) from None
    except (OSError, ValueError) as error:
        raise InvalidFile(f"cannot read {given}: {error}", field="head", file=given) from None
    return [_head(line, given, number) for number, line in enumerate(lines, 1) if line.strip()]


def _head(line: str, file: str, number: int) -> dict[str, object]:
    try:
        found = shaped(Head, json.loads(line))
    except (ValueError, RecursionError, Corrupt):
        raise InvalidFile(
            f"{file}:{number}: not a head", field="head", file=file, line=number
        ) from None
    return {"seq": found.seq, "hash": found.hash}
