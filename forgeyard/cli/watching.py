"""Follows a run until it is over: a live table for people, one line per change elsewhere."""

from collections.abc import Callable
from typing import Final

from rich.console import Group
from rich.live import Live
from rich.text import Text

from forgeyard import clock
from forgeyard.cli import output
from forgeyard.cli.client import Client, path_of, shaped
from forgeyard.cli.following import Patience
from forgeyard.cli.shapes import Job, Run

FAILED: Final = 1
TIMED_OUT: Final = 6
JOB_COLUMNS: Final = ("job", "state", "try", "runner", "time", "why")
_EXITS: Final = {"succeeded": 0, "timed_out": TIMED_OUT}


def exit_code(run: Run) -> int:
    """Tell how the command ends when the run has ended so."""
    return _EXITS.get(run.state, FAILED)


def fetch(client: Client, run_id: str) -> Run:
    """Read a run."""
    return shaped(Run, client.get(path_of("v1", "runs", run_id)))


def now_ms() -> int:
    """Read this host's clock, only to show how long ago something was."""
    return int(clock.now().timestamp() * 1000)


def watch(
    client: Client, run_id: str, *, patience: Patience, timeout_s: float | None, quiet: bool
) -> Run:
    """Show a run until it is over or the time is up; return it as it was last seen."""
    until = None if timeout_s is None else clock.monotonic() + timeout_s

    def expired() -> bool:
        return until is not None and clock.monotonic() >= until

    if output.is_live() and not quiet:
        return _live(client, run_id, patience, expired)
    return _lines(client, run_id, patience, expired, output.put if not quiet else _drop)


def _drop(_line: str) -> None:
    """Say nothing: the run itself is printed at the end."""


def _live(client: Client, run_id: str, patience: Patience, expired: Callable[[], bool]) -> Run:
    run = patience.ask(lambda: fetch(client, run_id))
    console = output.console()
    with Live(_picture(run, console.width), console=console, auto_refresh=False) as live:
        while not run.is_over and not expired():
            patience.pause()
            run = patience.ask(lambda: fetch(client, run_id))
            live.update(_picture(run, console.width), refresh=True)
    return run


def _lines(
    client: Client,
    run_id: str,
    patience: Patience,
    expired: Callable[[], bool],
    tell: Callable[[str], None],
) -> Run:
    told: dict[str, str] = {}
    while True:
        run = patience.ask(lambda: fetch(client, run_id))
        for line in changes(run, told):
            tell(line)
        if run.is_over or expired():
            return run
        patience.pause()


def changes(run: Run, told: dict[str, str]) -> list[str]:
    """List what is new since the last time, and remember it in `told`."""
    lines: list[str] = []
    for job in run.jobs:
        state = f"{output.words(job.state)}{f' on {job.runner}' if job.runner else ''}"
        if told.get(job.name, "pending") != state:
            told[job.name] = state
            took = output.duration(job.took_ms(now_ms()) if job.finished_at else None)
            said = f" ({job.why})" if job.why else ""
            lines.append(f"{job.name}: {state}{f' after {took}' if took else ''}{said}")
    state = f"{output.words(run.state)}{f' ({run.aside})' if run.aside else ''}"
    if told.get("") != state:
        told[""] = state
        lines.append(f"run {run.run_id} ({run.name}): {state}")
    return lines


def _picture(run: Run, width: int) -> Group:
    return Group(headline(run), jobs_shown(run, width=width))


def headline(run: Run) -> Text:
    """Say in one line which run this is and how it stands."""
    over = sum(1 for job in run.jobs if job.finished_at is not None)
    line = Text(output.plain(f"{run.name}  {run.run_id}  "))
    line.append_text(output.cell(output.words(run.state)))
    line.append(f"  {over}/{len(run.jobs)} jobs over  {output.duration(run.took_ms(now_ms()))}")
    if run.aside:
        line.append(output.plain(f"  {run.aside}"))
    elif run.ending:
        line.append(output.plain(f"  ending: {run.ending}"))
    return line


def jobs_shown(run: Run, *, width: int) -> Group:
    """Lay out a run's jobs and say why each waits: beside it, or below on a small screen."""
    now = now_ms()
    rows = [row for job in run.jobs for row in (*_matrix_row(run, job), job_row(job, now))]
    if width >= output.ROOMY:
        return Group(output.table(JOB_COLUMNS, rows))
    whys = [Text(output.plain(f"{job.name}: {job.why}")) for job in run.jobs if job.why]
    return Group(output.table(JOB_COLUMNS[:-1], [row[:-1] for row in rows]), *whys)


def _matrix_row(run: Run, job: Job) -> list[tuple[str, ...]]:
    """Head the cells of a matrix with a row that counts them."""
    cells = [one for one in run.jobs if job.matrix is not None and one.matrix == job.matrix]
    if not cells or cells[0] is not job:
        return []
    over = sum(1 for cell in cells if cell.finished_at is not None)
    told = f"matrix of {len(cells)}: {', '.join(dict.fromkeys(_axes(cells)))}"
    return [(str(job.matrix), f"{over}/{len(cells)} over", "", "", "", told)]


def _axes(cells: list[Job]) -> list[str]:
    return [name for cell in cells for name in cell.matrix_values or ()]


def job_row(job: Job, now: int) -> tuple[str, ...]:
    """Write one job as a row."""
    tries = str(len(job.attempts)) if job.attempts else ""
    took = output.duration(job.took_ms(now))
    return (job.name, output.words(job.state), tries, job.runner, took, job.why)
