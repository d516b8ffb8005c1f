"""`forgeyard job …`: what is known of single jobs beyond their run."""

import typer

from forgeyard.cli.suggesting import suggest

app = typer.Typer(no_args_is_help=True, help="Look into single jobs.")
app.command()(suggest)


@app.callback()
def _group() -> None:
    """Keep `suggest` a command of its own while it is the only one."""
