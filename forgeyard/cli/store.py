"""`forgeyard store …`: a database that was put back from a backup, and how to go on with it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from forgeyard.cli import output
from forgeyard.cli.client import shaped
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect
from forgeyard.cli.submitting import whoami
from forgeyard.cli.watching import now_ms

app = typer.Typer(no_args_is_help=True, help="Look after the store, and go on after a restore.")
API_STORE = "/v1/store"
Why = Annotated[str, typer.Option("--reason", help="Why; kept in the audit trail.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedJob:
    """A job that this store takes for leased."""

    run: str
    run_id: str
    job: str
    runner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """How the store stands."""

    store_id: str
    era: int = 0
    mark: int = 0
    held: bool = False
    held_at: int | None = None
    reason: str = ""
    held_by: str = ""
    unknown: int = 0
    unknown_leases: tuple[str, ...] = ()
    going_on: int = 0
    silent: int = 0
    silent_jobs: tuple[LeasedJob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """A hold that is over."""

    abandoned: int = 0
    going_on: int = 0
    silent: int = 0


@app.command()
def status(
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Tell whether the store is held, why, and what confirming it would mean.

    Exits 1 while it is held.

    \b
    Example:
      forgeyard store status
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(API_STORE)
    found = shaped(Store, answer)
    if as_json:
        output.put_json(answer)
    else:
        _put(found)
    raise typer.Exit(1 if found.held else 0)


def _put(found: Store) -> None:
    output.put_table(("store", "now"), list(_rows(found)), empty="")
    for lease_id in found.unknown_leases:
        output.put(f"unknown here, worked for by an agent: {lease_id}")
    for one in found.silent_jobs:
        output.put(f"would run again: {one.run}/{one.job} ({one.run_id}, leased to {one.runner})")
    if found.held:
        output.say("put a newer database back, or go on: forgeyard store confirm --reason WHY")


def _rows(found: Store) -> Iterator[tuple[str, str]]:
    yield "identity", found.store_id or "none yet"
    yield "newest mark", str(found.mark)
    yield "last restore", f"era {found.era}" if found.era else "never"
    if not found.held:
        yield "held", "no"
        return
    since = "" if found.held_at is None else output.duration(now_ms() - found.held_at)
    yield "held", f"for {since or '0 s'}: nothing is placed, ended or deleted"
    yield "because", found.reason
    yield "noticed by", found.held_by
    yield "would be abandoned", _leases(found.unknown, "that this store does not know")
    yield "would go on", _leases(found.going_on, "that agents work for")
    yield "would run again", _leases(found.silent, "of which no agent has spoken")


def _leases(number: int, which: str) -> str:
    return f"{number} {'lease' if number == 1 else 'leases'} {which}"


@app.command()
def hold(
    reason: Why,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Place, end and delete nothing until the store is confirmed.

    For whoever knows that the database is an older one; agents and workflows notice by themselves.

    \b
    Example:
      forgeyard store hold --reason "restored last night's dump"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{API_STORE}/hold", {"reason": reason, "actor": whoami()})
    said = f"the store is held: {shaped(Store, answer).reason}"
    output.put_done(answer, said, as_json=as_json)


@app.command()
def confirm(
    reason: Why,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Take the store for the one that counts, and go on.

    What agents do for leases that it does not know is abandoned; what it takes for leased, and no
    agent works for, runs again. `forgeyard store status` tells beforehand.

    \b
    Example:
      forgeyard store confirm --reason "the disk died; this is the newest dump"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{API_STORE}/confirm", {"reason": reason, "actor": whoami()})
    found = shaped(Confirmed, answer)
    said = (
        f"the store goes on: {_leases(found.going_on, 'go on')},"
        f" {_leases(found.abandoned, 'abandoned')}, {_leases(found.silent, 'without an agent')}"
    )
    output.put_done(answer, said, as_json=as_json)
