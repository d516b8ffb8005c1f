"""`forgeyard fleet analytics`: what fleets did in a window of time, each figure for itself."""

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.fleet import API_FLEETS
from forgeyard.cli.fleet_asking import ROUGH, money
from forgeyard.cli.fleet_shapes import Analytics, Spread, Standing
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect
from forgeyard.cli.watching import now_ms
from forgeyard.model.units import parse_duration

app = typer.Typer()
HOUR_MS: Final = 3_600_000
COLUMNS: Final = (
    *("fleet", "machines", "in use", "jobs waited", "scaled in", "provisioned in"),
    *("idle cost", "interrupted"),
)


@app.command()
def analytics(
    fleet: Annotated[
        str | None, typer.Argument(metavar="[FLEET]", help="Its name or its id; else all.")
    ] = None,
    since: Annotated[
        str, typer.Option("--since", metavar="AGO", help="How far back: 90m, 6h, 7d; 31d at most.")
    ] = "24h",
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Tell how well a fleet was used, how long jobs and machines took, and what idleness cost.

    No figure is a score of the others: what waiting may cost is for you to say.

    \b
    Examples:
      forgeyard fleet analytics
      forgeyard fleet analytics builders --since 7d
    """
    begin = now_ms() - parse_duration(since, field="--since")
    with connect(url, token_file, data_dir) as client:
        listed = () if fleet else shaped(tuple[Standing, ...], client.get(API_FLEETS))
        names = (fleet,) if fleet else tuple(one.fleet.name for one in listed)
        answers = [
            client.get(path_of("v1", "fleets", name, "analytics"), since=begin) for name in names
        ]
    if as_json:
        output.put_json(answers[0] if fleet else answers)
        return
    found = [shaped(Analytics, answer) for answer in answers]
    if fleet:
        for line in _lines(found[0]):
            output.put(line)
        return
    empty = "no fleet; make one with `forgeyard fleet apply`"
    output.put_table(COLUMNS, [_row(one) for one in found], empty=empty)


def _row(one: Analytics) -> tuple[str, ...]:
    figures = one.figures
    return (
        one.fleet,
        str(figures.machines),
        _percent(figures.utilisation),
        *(
            output.duration(it.median)
            for it in (figures.queue_wait, figures.scale_latency, figures.provision_latency)
        ),
        money(figures.idle_cost, one.currency),
        str(figures.interruptions),
    )


def _lines(one: Analytics) -> Iterator[str]:
    figures = one.figures
    begin, end = output.instant(figures.since), output.instant(figures.until)
    newest = " (the newest ones only)" if one.is_partial else ""
    yield f"{one.fleet}, {begin} to {end}: {figures.machines} machines{newest}"
    yield (
        f"in use: {_percent(figures.utilisation) or 'nothing was ready'}, "
        f"{_hours(figures.busy_ms)} of {_hours(figures.ready_ms)} machine hours with leases"
    )
    yield f"jobs waited: {_spread(figures.queue_wait, 'no job was taken')}"
    yield f"from unmet demand to a ready machine: {_spread(figures.scale_latency)}"
    yield f"from the wish for a machine to a ready one: {_spread(figures.provision_latency)}"
    yield f"machines that never came up: {figures.never_ready}"
    idle, cost = (money(it, one.currency) for it in (figures.idle_cost, figures.cost))
    yield f"idle: about {idle} of about {cost}"
    yield (
        f"interrupted by the provider: {figures.interruptions} of {figures.preemptible} "
        f"preemptible machines, {_hours(figures.preemptible_ready_ms)} hours of them ready"
    )
    yield f"costs are {ROUGH}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _hours(ms: int) -> str:
    return f"{ms / HOUR_MS:.1f}"


def _spread(one: Spread, none: str = "no machine became ready") -> str:
    if not one.count:
        return none
    each = (output.duration(it) for it in (one.median, one.p95, one.longest))
    return "median {}, 95% within {}, longest {} ({} seen)".format(*each, one.count)
