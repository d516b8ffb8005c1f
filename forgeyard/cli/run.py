"""`forgeyard run …`: submit runs, look at them, and stop them."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from forgeyard.cli import job_details, output, run_file, run_order, run_outputs
from forgeyard.cli.client import Client, path_of, shaped
from forgeyard.cli.following import Patience
from forgeyard.cli.links import attempt_link, temporal_ui
from forgeyard.cli.material import Choice, gathered
from forgeyard.cli.options import (
    DataDir,
    Json,
    Reason,
    RunId,
    TokenFile,
    Url,
    connect,
    seconds,
    settings,
)
from forgeyard.cli.run_file import DEFAULT_FILE, RunFilePath
from forgeyard.cli.shapes import Run, RunPage, RunSummary
from forgeyard.cli.submitting import API_RUNS, submit_run, whoami
from forgeyard.cli.watching import exit_code, headline, jobs_shown, now_ms, watch
from forgeyard.errors import InvalidRequest
from forgeyard.model.transitions import RunState

DEFAULT_QUEUE = "default/default/default/default"
INTERRUPTED = 130
TIMED_OUT = 6
COLUMNS = ("run", "name", "state", "jobs", "took", "age", "commit", "by")
NARROW = COLUMNS[:-2]
app = typer.Typer(no_args_is_help=True, help="Submit runs and follow them.")

Timeout = Annotated[
    str | None, typer.Option("--timeout", help="Stop watching after this long, such as 10m.")
]
Source = Annotated[
    Path | None,
    typer.Option("--source", help="Directory that every job gets a fresh copy of; else this one."),
]
Elevate = Annotated[
    str | None,
    typer.Option("--elevate", metavar="REASON", help="Why its jobs may be emergencies; audited."),
]
Git = Annotated[
    str | None,
    typer.Option("--git", help="Repository: a commit's files are the source, and hold FILE."),
]
Ref = Annotated[
    str | None, typer.Option("--ref", help="Branch, tag or full commit id; default HEAD.")
]


@app.command()
def submit(
    file: RunFilePath = DEFAULT_FILE,
    source: Source = None,
    no_source: Annotated[
        bool, typer.Option("--no-source", help="Send no files; jobs start empty.")
    ] = False,
    git: Git = None,
    ref: Ref = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", help="tenant/organization/project/queue; else the file's."),
    ] = None,
    elevate: Elevate = None,
    watch_it: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow the run; exit 1 unless it succeeds.")
    ] = False,
    timeout: Timeout = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", help="The same key never starts a second run."),
    ] = None,
    proposal: Annotated[
        bool,
        typer.Option("--proposal", help="It comes from outside: let no trusted runner see it."),
    ] = False,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Send a run file and the source it works on.

    \b
    Examples:
      forgeyard run submit ci.yaml --watch
      forgeyard run submit ci.yaml --source ../app --idempotency-key "$COMMIT"
      forgeyard run submit --git https://example.org/app.git --ref v1.2
    """
    timeout_s = seconds(timeout, "--timeout")
    key = _checked_key(idempotency_key)
    system = (url, token_file, data_dir)
    choice = Choice(source=source, no_source=no_source, git=git, ref=ref)
    config = settings(data_dir)
    with gathered(file, choice, quiet=as_json) as material, connect(*system) as client:
        wish = {"queue": queue, "elevate": elevate, "proposal": proposal or None}
        answer = submit_run(
            client, material, wish, config=config, idempotency_key=key, quiet=as_json
        )
    run = shaped(Run, answer)
    if not watch_it:
        _show_submitted(run, answer, as_json=as_json)
        return
    if not as_json:
        output.say(f"submitted {run.run_id} ({run.name}, {len(run.jobs)} jobs)")
    with connect(*system) as client:
        _watch(client, run.run_id, timeout_s, as_json=as_json)


def _checked_key(key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable() and 0 < len(key) <= 200):
        raise InvalidRequest(
            "the idempotency key cannot be sent",
            field="--idempotency-key",
            value=key,
            allowed="1 to 200 printable ASCII characters",
        )
    return key


def _show_submitted(run: Run, answer: object, *, as_json: bool) -> None:
    if as_json:
        output.put_json(answer)
        return
    output.put(run.run_id)
    if run.aside:
        output.say(f"it {run.aside} of its concurrency group to end")
    output.say(f"submitted {run.name}, {len(run.jobs)} jobs; follow it with")
    output.say(f"  forgeyard run watch {shlex.quote(run.run_id)}")


def _watch(client: Client, run_id: str, timeout_s: float | None, *, as_json: bool) -> None:
    """Follow a run to its end, and end this command as the run has ended."""
    try:
        run = watch(client, run_id, patience=Patience(), timeout_s=timeout_s, quiet=as_json)
    except KeyboardInterrupt:
        output.say(f"the run goes on; stop it with: forgeyard run cancel {run_id}")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        output.put_json(client.get(path_of("v1", "runs", run.run_id)))
    if not run.is_over:
        output.say(f"still {output.words(run.state)} when the time was up; the run goes on")
        raise typer.Exit(TIMED_OUT)
    raise typer.Exit(exit_code(run))


@app.command("watch")
def watch_run(
    run: RunId,
    timeout: Timeout = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Follow a run to its end.

    Exits 0 if it succeeds, 6 if it times out, else 1.

    \b
    Example:
      forgeyard run watch run_01JD --timeout 30m
    """
    timeout_s = seconds(timeout, "--timeout")
    with connect(url, token_file, data_dir) as client:
        _watch(client, run, timeout_s, as_json=as_json)


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500)] = 20,
    state: Annotated[
        RunState | None, typer.Option("--state", help="Only runs in this state.")
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", help="Go on from the page before.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List runs, the newest first.

    \b
    Example:
      forgeyard run list --state failed --json
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(API_RUNS, limit=limit, state=state, before=before)
    if as_json:
        output.put_json(answer)
        return
    page, now = shaped(RunPage, answer), now_ms()
    rows = [_row(run, now) for run in page.runs]
    # On a small screen whole ids and names matter more than who it was.
    shown = len(COLUMNS if output.console().width >= output.ROOMY else NARROW)
    output.put_table(COLUMNS[:shown], [row[:shown] for row in rows], empty="no runs")
    for run in page.runs:
        if run.aside:
            output.put(f"{run.run_id} {run.aside}")
    if page.next:
        filtered = f" --state {state.value}" if state else ""
        more = f"--limit {limit}{filtered} --before {shlex.quote(page.next)}"
        output.say(f"more: forgeyard run list {more}")


def _row(run: RunSummary, now: int) -> tuple[str, ...]:
    return (
        run.run_id,
        run.name,
        output.words(run.state),
        f"{run.jobs - run.open_jobs}/{run.jobs}",
        output.duration((run.finished_at or now) - run.created_at),
        output.duration(now - run.created_at),
        run.git.short if run.git else "",
        run.submitted_by,
    )


@app.command()
def show(
    run: RunId,
    job: Annotated[
        str | None, typer.Option("--job", "-j", help="Only this job, with its steps and timings.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Show a run and why each of its jobs waits.

    Links to the Temporal Web UI, which tells the story of each attempt.

    \b
    Examples:
      forgeyard run show run_01JD
      forgeyard run show run_01JD --job test
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(path_of("v1", "runs", run))
        whole = shaped(Run, answer)
        found = whole if job is None else job_details.only(whole, job)
        suggestion = None if job is None else job_details.suggestion(client, found.jobs[0])
    if as_json:
        output.put_json(answer if job is None else job_details.as_sent(answer, job))
        return
    console = output.console()
    console.print(headline(whole))
    if found.rerun_of:
        output.put(f"a rerun of {found.rerun_of}")
    if found.concurrency_group:
        output.put(f"in the concurrency group {found.concurrency_group}")
    if found.queue and found.queue != DEFAULT_QUEUE:
        output.put(f"in the queue {found.queue}")
    if found.git:
        output.put(f"{found.git.ref} of {found.git.repository}, commit {found.git.commit}")
    console.print(jobs_shown(found, width=console.width))
    job_details.put_estimates(found)
    if suggestion is None:
        job_details.put_tests(found)
    else:
        job_details.put_attempts(found.jobs[0])
        output.put()
        output.put(suggestion)
    _show_links(found, temporal_ui(settings(data_dir), url))


def _show_links(run: Run, ui: str | None) -> None:
    """Print a link a line and whole, however narrow the terminal: they are there to be clicked."""
    links = [
        f"  {job.name} {attempt.number}  {attempt_link(ui, job.job_id, attempt.number)}"
        for job in run.jobs
        for attempt in job.attempts
        if ui is not None
    ]
    if links:
        output.put()
        output.put("in the Temporal Web UI, by job and try", style="bold")
        for link in links:
            output.put(link)


@app.command()
def cancel(
    run: RunId,
    job: Annotated[
        str | None, typer.Option("--job", help="Only this job; its dependents are judged.")
    ] = None,
    reason: Reason = "",
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Stop a run, or one job of it.

    \b
    Example:
      forgeyard run cancel run_01JD --reason "wrong branch"
    """
    what = path_of("v1", "runs", run, *(() if job is None else ("jobs", job)))
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{what}:cancel", {"reason": reason, "actor": whoami()})
    _show_changed(answer, as_json=as_json)


@app.command()
def rerun(
    run: RunId,
    watch_it: Annotated[bool, typer.Option("--watch", "-w", help="Follow the new run.")] = False,
    elevate: Elevate = None,
    timeout: Timeout = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Run again what did not succeed.

    A new run begins, and takes over what did succeed.

    \b
    Example:
      forgeyard run rerun run_01JD --watch
    """
    timeout_s = seconds(timeout, "--timeout")
    with connect(url, token_file, data_dir) as client:
        wish = {"actor": whoami(), **({"elevate": elevate} if elevate else {})}
        answer = client.post(f"{path_of('v1', 'runs', run)}:rerun-failed", wish)
        new = shaped(Run, answer)
        if not watch_it:
            _show_submitted(new, answer, as_json=as_json)
            return
        _watch(client, new.run_id, timeout_s, as_json=as_json)


def _show_changed(answer: object, *, as_json: bool) -> None:
    if as_json:
        output.put_json(answer)
    else:
        output.console().print(headline(shaped(Run, answer)))


app.command("reprioritise")(run_order.reprioritise)
app.command("check")(run_file.check)
app.command("logs")(run_outputs.logs)
app.command("artifacts")(run_outputs.artifacts)
app.command("download")(run_outputs.download)
