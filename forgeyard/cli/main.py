"""The entry point `forgeyard`: puts the commands together and turns errors into exit codes."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Final

import typer

from forgeyard.cli import (
    audit,
    ca,
    codec,
    database,
    enrolment,
    fleet,
    fleet_analytics,
    fleet_asking,
    fleet_outlook,
    fleet_rollout,
    fleet_wishing,
    image,
    job,
    login,
    output,
    policy,
    pool,
    run,
    run_file,
    runner,
    scheduler,
    scope,
    server,
    store,
    token,
)
from forgeyard.errors import ForgeyardError

BUG: Final = 70
BROKEN_PIPE: Final = 128 + signal.SIGPIPE

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Forgeyard decides where CI work runs, and runs it.",
    epilog="Exit codes: 0 ok, 1 the work failed, 2 usage or rejected, 3 not found, 4 conflict,"
    " 5 denied, 6 timed out, 7 unavailable, 70 bug, 75 an agent gave up, 130 interrupted.",
)
app.add_typer(run.app, name="run")
app.add_typer(job.app, name="job")
app.add_typer(scheduler.app, name="scheduler")
app.add_typer(runner.app, name="runner")
# Commands of one group that stand in two files.
runner.app.registered_commands += enrolment.app.registered_commands
app.add_typer(pool.app, name="pool")
app.add_typer(fleet.app, name="fleet")
fleet.app.registered_commands += fleet_asking.app.registered_commands
fleet.app.registered_commands += fleet_outlook.app.registered_commands
fleet.app.registered_commands += fleet_analytics.app.registered_commands
fleet.app.registered_commands += fleet_wishing.app.registered_commands
fleet.app.add_typer(fleet_wishing.reservation, name="reservation")
fleet.app.add_typer(fleet_wishing.provider, name="provider")
fleet.app.add_typer(fleet_rollout.app, name="rollout")
app.add_typer(image.app, name="image")
app.add_typer(policy.app, name="policy")
app.add_typer(scope.app, name="scope")
app.add_typer(store.app, name="store")
app.add_typer(token.app, name="token")
app.add_typer(audit.app, name="audit")
app.add_typer(ca.app, name="ca")
app.add_typer(codec.app, name="codec")
app.add_typer(database.app, name="database")
COMMANDS: Final[tuple[Callable[..., None], ...]] = (
    *(server.up, server.down, server.status, server.demo, run_file.init),
    *(server.worker, server.api, server.agent),
    *(login.login, login.logout, login.whoami),
)
for command in COMMANDS:
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        output.put(f"forgeyard {version('forgeyard')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Forgeyard decides where CI work runs, and runs it."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        app(given, prog_name="forgeyard")
    except ForgeyardError as error:
        output.complain(error, as_json="--json" in given)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE)
    except Exception:
        traceback.print_exc()
        output.say("this is a bug of Forgeyard; please report it with the lines above")
        sys.exit(BUG)


if __name__ == "__main__":
    main()
