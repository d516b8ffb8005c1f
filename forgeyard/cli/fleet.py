"""`forgeyard fleet …`: what people say to fleets: documents, states, bounds for a while."""

from pathlib import Path
from typing import Annotated

import typer

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.fleet_file import load_fleets
from forgeyard.cli.fleet_shapes import Applied, Override
from forgeyard.cli.options import DataDir, Json, Reason, TokenFile, Url, connect
from forgeyard.cli.submitting import because
from forgeyard.cli.watching import now_ms
from forgeyard.errors import InvalidRequest
from forgeyard.model.units import parse_duration

app = typer.Typer(no_args_is_help=True, help="Look after fleets: machines that come and go.")
API_FLEETS = "/v1/fleets"
FleetName = Annotated[str, typer.Argument(metavar="FLEET", help="Its name or its id.")]
For = Annotated[
    str | None, typer.Option("--for", metavar="DURATION", help="How long: 30m, 2h; else a day.")
]


@app.command()
def apply(
    file: Annotated[
        Path, typer.Option("-f", "--file", metavar="FILE", help="One fleet, or several.")
    ],
    reason: Reason,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")
    ] = False,
    expected: Annotated[
        int | None,
        typer.Option("--expect", metavar="VERSION", help="Refuse at another version; 0: if any."),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Make the fleets of a file, or change them; the same file again changes nothing.

    Machines that exist keep what they were made with; what is changed is for those to come.

    \b
    Examples:
      forgeyard fleet apply -f fleet.yaml --dry-run --reason "a look"
      forgeyard fleet apply -f fleet.yaml --reason "more builders before the release"
    """
    written = load_fleets(file)
    answers: list[object] = []
    with connect(url, token_file, data_dir) as client:
        for one in written:
            wish = {"document": one.document, "dry_run": dry_run, "expected_version": expected}
            path = path_of("v1", "fleets", one.spec.name)
            answers.append(client.put(path, {**wish, **because(reason)}))
            if not as_json:
                _put_applied(shaped(Applied, answers[-1]))
    if as_json:
        output.put_json(answers)


def _put_applied(found: Applied) -> None:
    would = "would be " if found.dry_run and found.outcome != "unchanged" else ""
    version = f", version {found.version}" if found.version else ""
    output.put(f"{found.name}: {would}{found.outcome}{version}")
    for one in found.differences:
        before = "" if one.before is None else f"{one.before} -> "
        output.put(f"  {one.field}: {before}{'nothing' if one.after is None else one.after}")
    for note in found.notes:
        output.say(f"note: {note.field}: {note.text}; think of {note.allowed}", style="yellow")


@app.command()
def scale(
    fleet: FleetName,
    reason: Reason,
    to: Annotated[
        int | None, typer.Option("--to", min=0, metavar="N", help="Exactly so many machines.")
    ] = None,
    least: Annotated[int | None, typer.Option("--min", min=0, help="At least so many.")] = None,
    most: Annotated[int | None, typer.Option("--max", min=0, help="At most so many.")] = None,
    lasts: For = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let other bounds hold for a while, a day unless you say, 30 days at most.

    The fleet's own bounds hold again by themselves, or with `fleet unscale`.

    \b
    Examples:
      forgeyard fleet scale builders --to 8 --for 2h --reason "release day"
      forgeyard fleet scale builders --max 40 --reason "the queue is long"
    """
    wish = {"min": least if to is None else to, "max": most if to is None else to}
    if to is not None and (least, most) != (None, None):
        raise InvalidRequest("--to says both bounds", field="--to", value=to, allowed="it alone")
    if lasts is not None:
        wish["for_ms"] = parse_duration(lasts, field="--for")
    with connect(url, token_file, data_dir) as client:
        path = f"{path_of('v1', 'fleets', fleet)}:scale"
        answer = client.post(path, {**wish, **because(reason)})
    found = shaped(Override, answer)
    bounds = ", ".join(
        f"{name} {value}"
        for name, value in (("min", found.min), ("max", found.max))
        if value is not None
    )
    left = output.duration(found.expires_at - now_ms())
    output.put_done(answer, f"fleet {fleet}: {bounds} for the next {left}", as_json=as_json)


@app.command()
def unscale(
    fleet: FleetName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let the bounds of the fleet's document hold again at once.

    \b
    Example:
      forgeyard fleet unscale builders --reason "released"
    """
    with connect(url, token_file, data_dir) as client:
        client.post(f"{path_of('v1', 'fleets', fleet)}:unscale", because(reason))
    output.put_done({"fleet": fleet}, f"fleet {fleet} has its own bounds again", as_json=as_json)


@app.command()
def drain(
    fleet: FleetName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Make no more machines, and let those go that there are, once their jobs have ended.

    \b
    Example:
      forgeyard fleet drain builders --reason "another region"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'fleets', fleet)}:drain", because(reason))
    said = f"fleet {fleet} drains; see `forgeyard fleet instances {fleet}`"
    output.put_done(answer, said, as_json=as_json)


@app.command()
def freeze(
    fleet: FleetName,
    reason: Reason,
    grow: Annotated[
        bool, typer.Option("--scale-up-only", help="Let it grow; only let nothing go.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Leave a fleet as it is: nothing is asked of its provider but to look.

    \b
    Examples:
      forgeyard fleet freeze builders --reason "incident 12"
      forgeyard fleet freeze builders --scale-up-only --reason "nothing may stop today"
    """
    verb = "scale-up-only" if grow else "freeze"
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'fleets', fleet)}:{verb}", because(reason))
    said = f"fleet {fleet} only grows" if grow else f"fleet {fleet} is frozen"
    output.put_done(answer, said, as_json=as_json)


@app.command()
def activate(
    fleet: FleetName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let a fleet follow demand again.

    \b
    Example:
      forgeyard fleet activate builders --reason "incident 12 is over"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'fleets', fleet)}:activate", because(reason))
    output.put_done(answer, f"fleet {fleet} follows demand", as_json=as_json)


@app.command()
def delete(
    fleet: FleetName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Drain a fleet, and forget it once its provider says that nothing of it is left.

    Nobody takes that back.

    \b
    Example:
      forgeyard fleet delete builders --reason "moved to the other region"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'fleets', fleet)}:delete", because(reason))
    said = f"fleet {fleet} goes once its machines are gone"
    output.put_done(answer, said, as_json=as_json)
