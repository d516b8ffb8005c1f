"""`forgeyard job …`: single jobs: what they might request, and their order while they wait."""

from typing import Annotated

import typer

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect
from forgeyard.cli.scheduler import job_id_of
from forgeyard.cli.scope import Why
from forgeyard.cli.share_shapes import Reordered
from forgeyard.cli.submitting import whoami
from forgeyard.cli.suggesting import suggest
from forgeyard.errors import InvalidRequest
from forgeyard.model.job import Priority

app = typer.Typer(no_args_is_help=True, help="Look into single jobs, and change their order.")
app.command()(suggest)
NewPriority = Annotated[
    Priority | None, typer.Option("--priority", help="Its priority from now on.")
]
Adjust = Annotated[
    int | None,
    typer.Option(
        "--adjust", min=-400, max=400, help="Points added to its priority; 0 takes them away."
    ),
]


@app.command()
def reprioritise(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, or RUN/JOB.")],
    reason: Why,
    priority: NewPriority = None,
    adjust: Adjust = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Push a waiting job ahead in its queue, or behind.

    It counts from the next cycle on; waiting still lifts every job.

    \b
    Example:
      forgeyard job reprioritise run_01JD/test --priority high --reason "blocks the release"
    """
    wish = order_wish(priority, adjust, reason)
    with connect(url, token_file, data_dir) as client:
        what = path_of("v1", "jobs", job_id_of(client, job))
        answer = client.post(f"{what}:reprioritise", wish)
    if as_json:
        output.put_json(answer)
        return
    put_reordered(shaped(Reordered, answer))


def order_wish(priority: Priority | None, adjust: int | None, reason: str) -> dict[str, object]:
    """Write what the API is asked for.

    Raises:
        InvalidRequest: nothing is to change.
    """
    if priority is None and adjust is None:
        raise InvalidRequest(
            "nothing is to change", field="--priority", allowed="--priority, --adjust, or both"
        )
    named = {"priority": priority, "adjustment": adjust}
    given = {name: value for name, value in named.items() if value is not None}
    return {"reason": reason, "actor": whoami(), **given}


def put_reordered(job: Reordered) -> None:
    """Print a job's new priority."""
    adjusted = f" {job.adjustment:+}" if job.adjustment else ""
    output.put(f"{job.name}: {job.priority}{adjusted}, {output.words(job.state)}")
