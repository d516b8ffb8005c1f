"""`forgeyard fleet forecast`, and what `fleet explain --simulate` prints: what may become so."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from forgeyard.cli import output
from forgeyard.cli.client import Client, path_of, shaped
from forgeyard.cli.fleet import FleetName
from forgeyard.cli.fleet_file import load_fleets
from forgeyard.cli.fleet_shapes import Forecast, Simulated, SimulatedTick
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect
from forgeyard.cli.scheduler import job_id_of
from forgeyard.errors import InvalidRequest
from forgeyard.model.units import parse_duration

app = typer.Typer()
BOUNDS: Final = ("min", "max")
MODEL_COLUMNS: Final = ("model", "off by", "compared", "held")


@app.command()
def forecast(
    fleet: FleetName,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Tell how many machines a fleet will soon need by its past, and how far off that has been.

    \b
    Example:
      forgeyard fleet forecast builders
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(path_of("v1", "fleets", fleet, "forecast"))
    if as_json:
        output.put_json(answer)
        return
    found = shaped(Forecast, answer)
    for line in _told(found):
        output.put(line)
    rows = [
        (
            one.model,
            f"{one.mae:.2f} machines",
            f"{one.origins} times",
            "" if one.coverage is None else f"{one.coverage:.0%}",
        )
        for one in found.outlook.considered
    ]
    if rows:
        output.put_table(MODEL_COLUMNS, rows, empty="")


def _told(found: Forecast) -> Iterator[str]:
    advice = found.outlook.advice
    if advice.count is None:
        yield f"{found.fleet}: nothing is advised: {advice.reason}"
    else:
        until = output.instant(found.outlook.until)
        yield (
            f"{found.fleet}: up to {advice.count} machines until {until}, nine times in ten "
            f"{advice.low} to {advice.high}; {advice.model}, version {advice.version}"
        )
        yield f"how good that is: {advice.reason}"
    if found.outlook.reserved:
        yield f"reserved beside that: {found.outlook.reserved}"
    yield f"{'heeded' if found.is_heeded else 'not heeded'}: {found.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be other than it is, as it was typed."""

    bounds: Sequence[str]
    file: Path | None
    jobs: int
    like: str | None
    lasts: str | None

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing was typed."""
        return not (self.bounds or self.file or self.jobs or self.like or self.lasts)


def simulate(client: Client, fleet: str, wish: Wish) -> object:
    """Ask what a fleet would do under other wishes.

    Raises:
        InvalidRequest: a wish cannot be read.
    """
    body: dict[str, object] = {"jobs": wish.jobs, **dict(map(_bound, wish.bounds))}
    if wish.file is not None:
        body["document"] = _document(wish.file, fleet)
    if wish.like is not None:
        body["like"] = job_id_of(client, wish.like)
    if wish.lasts is not None:
        body["for_ms"] = parse_duration(wish.lasts, field="--for")
    return client.post(f"{path_of('v1', 'fleets', fleet)}:simulate", body)


def _bound(text: str) -> tuple[str, int]:
    name, _, count = text.partition("=")
    if name not in BOUNDS or not count.isdecimal():
        raise InvalidRequest(
            "this is no bound of a fleet",
            field="--with",
            value=text,
            allowed="min=N or max=N; for all else a changed document with --file",
        )
    return name, int(count)


def _document(file: Path, fleet: str) -> object:
    written = load_fleets(file)
    chosen = [one for one in written if one.spec.name == fleet] or written
    return chosen[0].document


def put_simulated(answer: object) -> None:
    """Print what a fleet would do, and what was taken for granted."""
    found = shaped(Simulated, answer)
    for one in found.assumptions:
        output.put(f"assumed: {one}")
    for tick in found.ticks:
        when = f"+{output.duration(tick.after)}" if tick.after else "now"
        output.put(f"{when}: {_events(tick)}{tick.line}")


def _events(tick: SimulatedTick) -> str:
    parts = [
        f"{tick.came} came up" if tick.came else "",
        f"{tick.gone} gone" if tick.gone else "",
        f"{tick.waiting} jobs wait" if tick.waiting else "",
    ]
    told = ", ".join(filter(None, parts))
    return f"{told}; " if told else ""
