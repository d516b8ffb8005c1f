"""`forgeyard up`, `down`, `status`, `demo`, `worker`, `api`, `agent`: processes of Forgeyard."""

import json
import math
import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated

import typer

from forgeyard import config
from forgeyard.cli import output, processes
from forgeyard.cli.endpoint import (
    Endpoint,
    checked_token,
    checked_urls,
    read_token,
    resolve_agent,
)
from forgeyard.cli.options import DataDir, Json, TokenFile, label_of, settings
from forgeyard.config import Profile
from forgeyard.errors import InvalidRequest
from forgeyard.model.enrolment import Cloud
from forgeyard.model.location import ReliabilityClass

NOTHING_RUNS = 3
MOST_COST = 1_000_000
Name = Annotated[str, typer.Option("--name", help="The runner's name; else the host's.")]
ProfileOption = Annotated[
    Profile | None,
    typer.Option("--profile", help="What it is for: `production` refuses what is for trying out."),
]


def up(
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Run in the background.")] = False,
    agents: Annotated[
        int, typer.Option("--agents", min=0, max=16, help="How many local agents to start.")
    ] = 1,
    listen: Annotated[
        str | None,
        typer.Option("--listen", help="Address to listen on; else this host only.", metavar="HOST"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run everything on this machine.

    Temporal, the store, a worker, the API and local agents; ends with Ctrl-C or `down`.

    \b
    Examples:
      forgeyard up
      forgeyard up -d && forgeyard status && forgeyard down
    """
    raise typer.Exit(
        processes.up(config=settings(data_dir), detach=detach, agents=agents, listen=listen)
    )


def down(data_dir: DataDir = None) -> None:
    """Stop what `up` runs.

    Unfinished runs go on at the next start.

    \b
    Example:
      forgeyard down
    """
    code = processes.down(settings(data_dir))
    output.say("stopped")
    raise typer.Exit(code)


def status(as_json: Json = False, data_dir: DataDir = None) -> None:
    """Tell whether a system runs here, and where it answers.

    Exits 3 if none does.

    \b
    Example:
      forgeyard status --json
    """
    found = processes.status(settings(data_dir))
    if as_json:
        output.put_json(found)
    else:
        rows = [(name.replace("_", " "), _written(value)) for name, value in found.items()]
        output.put_table(("forgeyard", "here"), rows, empty="")
    raise typer.Exit(0 if found.get("running") else NOTHING_RUNS)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else json.dumps(value).strip("{}").replace('"', "")


def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running afterwards.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print lines instead of a live table.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Show it all in a few minutes.

    Starts everything, runs this project's own CI, explains one placement, and stops.

    \b
    Example:
      forgeyard demo --keep
    """
    is_plain = plain or not output.is_live()
    raise typer.Exit(processes.demo(settings(data_dir), keep=keep, plain=is_plain))


def worker(
    build: Annotated[
        str,
        typer.Option(
            "--build",
            help="Which build this is, if Temporal is to keep builds apart.",
            metavar="ID",
        ),
    ] = "",
    profile: ProfileOption = None,
    data_dir: DataDir = None,
) -> None:
    """Run one Temporal worker until asked to stop: TERM finishes what is under way.

    \b
    Examples:
      FORGEYARD_STORE__URL=postgresql://db/forgeyard forgeyard worker
      forgeyard worker --build 2026-12-01
    """
    chosen = {"build": build} if build else {}
    raise typer.Exit(processes.worker(settings(data_dir, worker=chosen, profile=profile)))


def api(profile: ProfileOption = None, data_dir: DataDir = None) -> None:
    """Serve the APIs until asked to stop.

    \b
    Example:
      FORGEYARD_API__PORT=8800 forgeyard api
    """
    raise typer.Exit(processes.api(settings(data_dir, profile=profile)))


def agent(
    join: Annotated[
        str | None,
        typer.Option(
            "--join", metavar="URL,…", help="The agent API, several addresses or the one here."
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", help="The token itself; other users may see it: prefer --token-file."
        ),
    ] = None,
    token_file: TokenFile = None,
    enrol_token_file: Annotated[
        Path | None,
        typer.Option("--enrol-token-file", help="The token of `runner invite`, to enrol with."),
    ] = None,
    ca_pin: Annotated[
        str, typer.Option("--ca-pin", metavar="PIN", help="The root's pin, of the same place.")
    ] = "",
    cloud_identity: Annotated[
        Cloud | None,
        typer.Option("--cloud-identity", help="Whose word about this machine goes along."),
    ] = None,
    name: Name = "",
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, max=256, help="How many jobs side by side.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label to offer.")
    ] = None,
    toolchain: Annotated[
        list[str] | None,
        typer.Option("--toolchain", metavar="NAME=VERSION=BIN", help="A tool directory to offer."),
    ] = None,
    site: Annotated[
        str, typer.Option("--site", help="The rack, room or zone that this machine is in.")
    ] = "",
    region: Annotated[str, typer.Option("--region", help="The region that it is in.")] = "",
    pool: Annotated[
        str,
        typer.Option("--pool", help="The pool to ask for; `pool assign` decides."),
    ] = "",
    reliability: Annotated[
        ReliabilityClass | None,
        typer.Option("--reliability", help="How long this machine may be counted on."),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option("--cost", metavar="AMOUNT", help="What an hour of it costs, such as 0.35."),
    ] = None,
    work_dir: Annotated[
        Path | None, typer.Option("--work-dir", help="Where jobs run; one agent per directory.")
    ] = None,
    secrets_file: Annotated[
        Path | None,
        typer.Option("--secrets-file", help="A 0600 file of NAME=value that jobs may name."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run jobs on this machine until asked to stop.

    From elsewhere it needs the agent API's https URL, a token of `forgeyard runner invite` and the
    root's pin, once; then it has a certificate, and renews it. On the server's own machine it needs
    nothing. With several URLs it turns to the next when one fails.
    TERM lets jobs finish, a second one ends them.

    \b
    Examples:
      forgeyard agent --join https://ci:8701 --enrol-token-file token --ca-pin sha256/…
      forgeyard agent --join https://ci-1:8701,https://ci-2:8701 --jobs 8
      forgeyard agent --label zone=a --toolchain node=22.1.0=/opt/node/bin
      forgeyard agent --site rack-4 --region eu-1 --reliability preemptible --cost 0.12
    """
    chosen: dict[str, object] = {
        "cloud_identity": cloud_identity,
        "name": name,
        "jobs": jobs,
        "labels": dict(label_of(text) for text in label or ()),
        "toolchains": tuple(_toolchain(text) for text in toolchain or ()),
        "site": site,
        "region": region,
        "pool": pool,
        "reliability": reliability,
        "work_dir": str(work_dir or ""),
        "secrets_file": str(secrets_file or ""),
    }
    given = {key: value for key, value in chosen.items() if value}
    if cost is not None:
        given["cost_micros_per_hour"] = _micros(cost)
    found = settings(data_dir, agent=given)
    if join is not None and join.startswith("https://"):
        if token or token_file:
            raise InvalidRequest(
                "an agent elsewhere proves itself by a certificate",
                field="--token",
                allowed="--enrol-token-file and --ca-pin, as `forgeyard runner invite` prints them",
            )
        end = Endpoint(urls=checked_urls(join), token="")
    else:
        end = _endpoint(found, join, token, token_file)
    invited = _invited(enrol_token_file, ca_pin)
    given_files = (one.absolute() for one in (token_file, enrol_token_file) if one is not None)
    private = (*config.private_places(found), *given_files)
    raise typer.Exit(processes.agent(found, end, invited, private))


def _invited(enrol_token_file: Path | None, ca_pin: str) -> tuple[str, str] | None:
    """Read the token and the pin that this machine was given, if it was."""
    if enrol_token_file is None:
        return None
    if not re.fullmatch(r"sha256/[A-Za-z0-9+/]{43}=", ca_pin):
        raise InvalidRequest(
            "without the root's pin anybody could be the server",
            field="--ca-pin",
            value=ca_pin or None,
            allowed="sha256/… as `forgeyard ca export --pin` prints it",
        )
    return read_token(enrol_token_file), ca_pin


def _endpoint(
    found: config.Config, join: str | None, token: str | None, token_file: Path | None
) -> Endpoint:
    if token and token_file:
        raise InvalidRequest(
            "two tokens were given", field="--token", allowed="--token or --token-file"
        )
    token = checked_token(token, field="--token") if token else None
    if token and join:
        return Endpoint(urls=checked_urls(join), token=token)
    client = config.load_client()
    chosen = client.model_copy(update={"token": token}) if token else client
    return resolve_agent(found, chosen, url=join, token_file=token_file)


def _micros(text: str) -> int:
    """Read an amount of money exactly; what is finer than a millionth is rounded up."""
    try:
        amount = Decimal(text)
        if amount.is_finite() and 0 <= amount <= MOST_COST:
            return math.ceil(amount * 1_000_000)
    except InvalidOperation:
        pass
    raise InvalidRequest(
        f"{text!r} is no amount",
        field="--cost",
        value=text,
        allowed=f"0 to {MOST_COST}, such as 0.35",
    )


def _toolchain(text: str) -> dict[str, str]:
    """Read a tool directory; its version may not hold an equals sign, its path may."""
    name, version, place = [*text.split("=", 2), "", ""][:3]
    if not (name and version and place):
        raise InvalidRequest(
            f"{text!r} is no toolchain",
            field="--toolchain",
            value=text,
            allowed="NAME=VERSION=BIN, such as node=22.1.0=/opt/node/bin",
        )
    return {"name": name, "version": version, "bin": place}
