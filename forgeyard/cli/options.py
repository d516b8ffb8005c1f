"""The options that commands share, and how they become a connection."""

import random
from pathlib import Path
from typing import Annotated

import typer

from forgeyard import config, entropy
from forgeyard.cli.client import Client
from forgeyard.cli.endpoint import Endpoint, resolve
from forgeyard.config import Config
from forgeyard.errors import InvalidQuantity, InvalidRequest
from forgeyard.model.units import parse_duration

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL,…",
        help="API to talk to, or its addresses; else FORGEYARD_URL, else the one running here.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with the API token; else FORGEYARD_TOKEN."),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Data directory; else FORGEYARD_DATA_DIR, else .forgeyard."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the audit trail.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run, or its beginning.")]


def settings(data_dir: Path | None, **groups: object) -> Config:
    """Read the configuration; options given here beat the environment and the file."""
    given = {name: value for name, value in groups.items() if value}
    return config.load(**given) if data_dir is None else config.load(data_dir=data_dir, **given)


def endpoint(url: str | None, token_file: Path | None, data_dir: Path | None) -> Endpoint:
    """Find the system that a command talks to."""
    return resolve(settings(data_dir), config.load_client(), url=url, token_file=token_file)


def connect(url: str | None, token_file: Path | None, data_dir: Path | None) -> Client:
    """Open a connection to the system that a command talks to."""
    return Client(endpoint(url, token_file, data_dir))


def rng() -> random.Random:
    """Give the randomness that keys and jitter are drawn from."""
    return entropy.system()


def seconds(text: str | None, option: str) -> float | None:
    """Read a duration given as an option, such as `10m`.

    Raises:
        InvalidQuantity: it cannot be read, or is nothing.
    """
    if text is None:
        return None
    found = parse_duration(text, field=option)
    if found <= 0:
        raise InvalidQuantity(
            f"{option} must be longer", field=option, value=text, allowed="such as 90s or 10m"
        )
    return found / 1000


def label_of(text: str) -> tuple[str, str]:
    """Read a label given as an option.

    Raises:
        InvalidRequest: it is none.
    """
    key, equals, value = text.partition("=")
    if not key or not equals or not value:
        raise InvalidRequest(
            f"{text!r} is no label", field="--label", value=text, allowed="KEY=VALUE"
        )
    return key, value
