"""`forgeyard runner …`: the machines that execute jobs."""

from typing import Annotated, cast

import typer

from forgeyard.cli import output
from forgeyard.cli.capabilities import COLUMNS, capability_rows, report_line
from forgeyard.cli.client import missing, path_of, shaped
from forgeyard.cli.fleet_tables import RUNNER_COLUMNS, runner_rows
from forgeyard.cli.options import DataDir, Json, Reason, TokenFile, Url, connect
from forgeyard.cli.runner_shapes import Drained, Runner
from forgeyard.cli.submitting import whoami

app = typer.Typer(no_args_is_help=True, help="Look after the machines that execute jobs.")
RunnerName = Annotated[str, typer.Argument(metavar="RUNNER", help="Its name or its id.")]


@app.command("list")
def list_runners(
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List the registered runners and what runs on them.

    \b
    Example:
      forgeyard runner list
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get("/v1/runners")
    if as_json:
        output.put_json(answer)
        return
    found = shaped(tuple[Runner, ...], answer)
    output.put_table(RUNNER_COLUMNS, runner_rows(found), empty="no runner has registered")
    for runner in found:
        for placed in runner.placed:
            output.put(f"{runner.name}: {placed.run}/{placed.job}, try {placed.attempt}")
        if runner.admission != "verified":
            why = runner.admission_reason or "its first heartbeat is awaited"
            output.put(f"{runner.name}: {runner.admission}: {why}")
        if runner.declared_reason:
            output.put(f"{runner.name}: taken for unhealthy: {runner.declared_reason}")
        if runner.pool_wish not in ("", runner.pool):
            output.put(f"{runner.name}: asks for pool {runner.pool_wish}, is in {runner.pool}")
        if runner.drain_requested:
            output.put(f"{runner.name}: drains: {runner.drain_reason or 'no reason given'}")


@app.command("show")
def show_runner(
    runner: RunnerName,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Show what a runner said it can do, how that is known, and how old the report is.

    \b
    Example:
      forgeyard runner show build-7
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get("/v1/runners")
    listed = shaped(tuple[Runner, ...], answer)
    place = next((n for n, one in enumerate(listed) if runner in (one.name, one.runner_id)), None)
    if place is None:
        raise missing("runner", runner, [one.name for one in listed])
    if as_json:
        output.put_json(cast("list[object]", answer)[place])
        return
    output.put(report_line(listed[place]))
    output.put_table(COLUMNS, capability_rows(listed[place]), empty="nothing reported")


@app.command()
def drain(
    runner: RunnerName,
    now: Annotated[
        bool,
        typer.Option("--now", help="Also cancel the jobs it works on; they end cancelled."),
    ] = False,
    reason: Reason = "",
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let a runner finish what it has and take no more.

    With --now it finishes nothing: its jobs are cancelled, and are not tried again.

    \b
    Examples:
      forgeyard runner drain build-7 --reason "new kernel"
      forgeyard runner drain build-7 --now --reason "disk on fire"
    """
    wish = {"reason": reason, "actor": whoami(), "cancel_active": now}
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'runners', runner)}:drain", wish)
    cancelled = shaped(Drained, answer).cancelled
    jobs = "1 job" if cancelled == 1 else f"{cancelled} jobs"
    said = f"{runner} takes no more work" + (f"; cancels {jobs}" if now else "")
    done = {"runner": runner, "drain_requested": True, "cancelled": cancelled}
    output.put_done(done, said, as_json=as_json)


@app.command()
def undrain(
    runner: RunnerName,
    reason: Reason = "",
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let a runner take work again.

    \b
    Example:
      forgeyard runner undrain build-7
    """
    with connect(url, token_file, data_dir) as client:
        client.post(
            f"{path_of('v1', 'runners', runner)}:undrain", {"reason": reason, "actor": whoami()}
        )
    done = {"runner": runner, "drain_requested": False}
    output.put_done(done, f"{runner} takes work again", as_json=as_json)


@app.command("set-state")
def set_state(
    runner: RunnerName,
    state: Annotated[str, typer.Argument(metavar="STATE", help="unhealthy, or online again.")],
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Take a runner for unhealthy whatever its agent says, until it is declared online again.

    It gets no more work; what it has goes on.

    \b
    Example:
      forgeyard runner set-state build-7 unhealthy --reason "wrong results since Monday"
    """
    wish = {"state": state, "reason": reason, "actor": whoami()}
    with connect(url, token_file, data_dir) as client:
        client.post(f"{path_of('v1', 'runners', runner)}:set-state", wish)
    done = {"runner": runner, "declared": state}
    output.put_done(done, f"{runner} is declared {state}", as_json=as_json)
