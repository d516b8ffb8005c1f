"""What people and programs see: tables, sentences, JSON. Data to stdout, talk to stderr.

Nothing a server sends may steer a terminal: cells are printed without markup and control
characters. Colours obey NO_COLOR, and nothing moves where there is no terminal.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from forgeyard.errors import Corrupt, ForgeyardError, InvalidFile, Unavailable
from forgeyard.model.units import brief_duration

WIDE: Final = 240
"""Columns where there is no terminal, so that nothing is cut off for the next program."""

ROOMY: Final = 110
"""From so many columns on, sentences stand beside what they are about."""

STATE_STYLES: Final[Mapping[str, str]] = {
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
    "succeeded": "green",
    "online": "green",
    "running": "cyan",
    "preparing": "cyan",
    "uploading_outputs": "cyan",
    "leased": "cyan",
    "failed": "bold red",
    "lost": "bold red",
    "timed_out": "bold red",
    "unhealthy": "bold red",
    "unadmitted": "bold red",
    "cancelled": "yellow",
    "cancelling": "yellow",
    "draining": "yellow",
    "saturated": "yellow",
    "retry_waiting": "yellow",
    "suspect": "yellow",
    "skipped": "dim",
    "pending": "dim",
    "queued": "dim",
    "offline": "dim",
}


def console(*, to_stderr: bool = False) -> Console:
    """Open a console on stdout or stderr as they are now."""
    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def is_live() -> bool:
    """Tell whether a person looks at stdout, so that things may move."""
    return console().is_terminal and not console().is_dumb_terminal


def say(message: str, *, style: str = "") -> None:
    """Talk to the person, apart from the data."""
    console(to_stderr=True).print(Text(plain(message), style=style), soft_wrap=True)


def put(line: str = "", *, style: str = "") -> None:
    """Print one line of data."""
    console().print(Text(plain(line), style=style), soft_wrap=True)


def put_json(value: object) -> None:
    """Print data for programs."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def put_done(done: object, said: str, *, as_json: bool) -> None:
    """Tell what a command has done: as data for programs, or in a sentence for people."""
    if as_json:
        put_json(done)
    else:
        put(said)


def put_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print data for people; states take their colour."""
    listed = list(rows)
    if not listed:
        say(empty)
        return
    console().print(table(columns, listed))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Lay cells out in columns."""
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, column in enumerate(columns):
        # What a row is called stays whole: people copy it.
        found.add_column(Text(column.upper()), overflow="fold", no_wrap=place == 0)
    for row in rows:
        found.add_row(*(cell(value) for value in row))
    return found


def cell(value: str) -> Text:
    """Make a cell, coloured if it is a state."""
    text = plain(value)
    return Text(text, style=STATE_STYLES.get(text.replace(" ", "_"), ""))


def plain(text: str) -> str:
    """Show what a terminal would obey, except line ends, instead of sending it."""
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode()
        for one in text
    )


_STEERING = re.compile(r"\x1b\[[0-9;:]*m|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def unsteered(text: str) -> str:
    """Show the escapes in a job's output that would do more to a terminal than colour it."""

    def shown(found: re.Match[str]) -> str:
        one = found.group()
        return one if len(one) > 1 else one.encode("unicode_escape").decode()

    return _STEERING.sub(shown, text)


def words(state: str) -> str:
    """Write a state as people say it: `timed out`."""
    return state.replace("_", " ")


def duration(milliseconds: int | None) -> str:
    """Write a duration in at most two units, tenths below a minute: `4.2s`, `3m 10s`, `2h 5m`."""
    if milliseconds is None:
        return ""
    seconds = max(0, milliseconds) / 1000
    return f"{seconds:.1f}s" if seconds < 59.95 else brief_duration(round(seconds) * 1000)


def size(amount: int | None) -> str:
    """Write bytes in binary units, rounded to one digit."""
    if amount is None:
        return ""
    value = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def cores(milli: int | None) -> str:
    """Write thousandths of a core as cores."""
    return "" if milli is None else f"{milli / 1000:g}"


def complain(error: ForgeyardError, *, as_json: bool) -> None:
    """Print an error to stderr: what, where, what was given and what would do."""
    if as_json:
        print(json.dumps(as_problem(error), ensure_ascii=False), file=sys.stderr)
        return
    console(to_stderr=True).print(
        Text("error: ", style="bold red"), Text(plain(error.message)), sep="", soft_wrap=True
    )
    for name, value in _particulars(error):
        say(f"  {name:8} {value}")


def as_problem(error: ForgeyardError) -> dict[str, object]:
    """Write an error as the API would: problem+json."""
    found: dict[str, object] = {
        "type": f"urn:forgeyard:problem:{error.code}",
        "title": type(error).__name__,
        "status": error.status,
        "detail": error.message,
        "code": error.code,
        "field": error.field,
        "value": error.value,
        "allowed": error.allowed,
    }
    if isinstance(error, InvalidFile):
        found |= {"file": error.file, "line": error.line, "column": error.column}
    notes = _notes(error)
    if notes:
        found["request_id"] = notes[0].removeprefix("request ")
    return found


def _particulars(error: ForgeyardError) -> list[tuple[str, str]]:
    place = ""
    if isinstance(error, InvalidFile) and error.file:
        place = ":".join(str(part) for part in (error.file, error.line, error.column) if part)
    pairs = (
        ("at", place),
        ("field", error.field or ""),
        ("value", error.value or ""),
        ("allowed", error.allowed or ""),
        ("hint", _hint(error)),
        ("server", ", ".join(_notes(error))),
    )
    return [(name, value) for name, value in pairs if value]


def _hint(error: ForgeyardError) -> str:
    if isinstance(error, Unavailable):
        return "nothing was wrong with the request: try again"
    return "this is a bug; please report it" if isinstance(error, Corrupt) else ""


def _notes(error: ForgeyardError) -> list[str]:
    return list(getattr(error, "__notes__", []))


def instant(ms: int) -> str:
    """Print epoch milliseconds for people, in UTC."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
