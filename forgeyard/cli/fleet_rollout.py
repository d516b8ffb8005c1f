"""`forgeyard fleet rollout …`: another image for a fleet, watched and taken back."""

from typing import Annotated

import typer

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.fleet import FleetName
from forgeyard.cli.image_shapes import Rollout
from forgeyard.cli.options import DataDir, Json, Reason, TokenFile, Url, connect
from forgeyard.cli.submitting import because

app = typer.Typer(no_args_is_help=True, help="Bring another image to a fleet.")


@app.command()
def start(
    fleet: FleetName,
    image: Annotated[str, typer.Option("--image", metavar="IMAGE", help="Digest or alias.")],
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Begin to bring an image to a fleet: canaries first, then the others a few at a time.

    \b
    Example:
      forgeyard fleet rollout start builders --image linux-stable --reason "weekly build"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(_path(fleet), {"image": image, **because(reason)})
    _put(answer, as_json=as_json)


@app.command()
def status(
    fleet: FleetName,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Show how far the rollout on a fleet is, or how the last one ended.

    \b
    Example:
      forgeyard fleet rollout status builders
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(_path(fleet))
    _put(answer, as_json=as_json)


@app.command()
def pause(
    fleet: FleetName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Replace nothing more, and make nothing more of the new image, until told otherwise.

    \b
    Example:
      forgeyard fleet rollout pause builders --reason "a look at the canary"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{_path(fleet)}:pause", because(reason))
    _put(answer, as_json=as_json)


@app.command()
def resume(
    fleet: FleetName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Go on with a rollout that was paused.

    \b
    Example:
      forgeyard fleet rollout resume builders --reason "the canary is fine"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{_path(fleet)}:resume", because(reason))
    _put(answer, as_json=as_json)


@app.command()
def rollback(
    fleet: FleetName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Give a fleet back the image that it had before, if that is trusted.

    \b
    Example:
      forgeyard fleet rollout rollback builders --reason "jobs are slower on it"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{_path(fleet)}:rollback", because(reason))
    _put(answer, as_json=as_json)


def _path(fleet: str) -> str:
    return path_of("v1", "fleets", fleet, "rollout")


def _put(answer: object, *, as_json: bool) -> None:
    if as_json:
        output.put_json(answer)
        return
    found = shaped(Rollout, answer)
    paused = f", paused: {found.pause_reason}" if found.paused else ""
    output.put(f"{found.fleet}: {output.words(found.state)}{paused}")
    output.put(f"  why: {found.state_reason}")
    output.put(f"  image: {found.image}")
    output.put(f"  before: {found.before or 'none'}")
    for one in found.machines:
        states = ", ".join(f"{count} {output.words(state)}" for state, count in one.states.items())
        output.put(f"  machines of {one.image or 'no image'}: {states}")
