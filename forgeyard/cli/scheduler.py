"""`forgeyard scheduler …`: what the scheduler sees, and why it decides as it does."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated

import typer

from forgeyard.cli import output, reconciling
from forgeyard.cli.client import Client, missing, path_of, shaped
from forgeyard.cli.fleet_tables import (
    POOL_COLUMNS,
    RUNNER_COLUMNS,
    amount_row,
    free_text,
    pool_rows,
    runner_rows,
)
from forgeyard.cli.options import DataDir, Json, Reason, TokenFile, Url, connect
from forgeyard.cli.runner_shapes import Runner
from forgeyard.cli.scheduler_shapes import (
    CapacityByPool,
    Checkup,
    Held,
    JobGroup,
    Preview,
    SchedulerStatus,
)
from forgeyard.cli.shapes import (
    Explanation,
    Queue,
    Run,
)
from forgeyard.cli.submitting import whoami
from forgeyard.scheduler.room import PLAIN


class Grouping(StrEnum):
    """By what jobs are counted."""

    PRIORITY = "priority"
    TENANT = "tenant"
    PLATFORM = "platform"
    POOL = "pool"


app = typer.Typer(no_args_is_help=True, help="See what the scheduler sees.")
SLOW_RELAY_MS = 5_000
app.command()(reconciling.reconcile)
app.command()(reconciling.findings)


@app.command()
def status(
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Show how much waits and runs, and what is stuck.

    \b
    Example:
      forgeyard scheduler status
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get("/v1/scheduler/status")
    if as_json:
        output.put_json(answer)
        return
    found = shaped(SchedulerStatus, answer)
    rows = [
        ("partition", found.partition),
        ("jobs", _counts(found.jobs)),
        ("runners", _counts(found.runners)),
        ("leases", _counts(found.leases)),
        ("free", free_text(found.free, found.allocatable)),
        ("longest wait", output.duration(found.oldest_eligible_ms) or "nothing waits"),
        ("last cycle", _last_cycle(found)),
        ("relay", _relay(found.outbox_lag_ms)),
        ("lease renewal", _renewal(found)),
        ("pressure", _pressure(found)),
        *(("held room", _held(one)) for one in found.held),
        *((("nothing is decided", found.store_hold),) if found.store_hold else ()),
    ]
    output.put_table(("scheduler", "now"), rows, empty="")


def _counts(counts: Mapping[str, int]) -> str:
    """Write counts by state, or `none`."""
    shown = (f"{amount} {output.words(state)}" for state, amount in counts.items() if amount)
    return ", ".join(shown) or "none"


def _last_cycle(found: SchedulerStatus) -> str:
    cycle = found.last_cycle
    if cycle is None:
        return "none yet"
    granted = "not committed" if cycle.granted is None else f"{cycle.granted} granted"
    return f"{cycle.cycle_id}: {cycle.eligible} eligible, {cycle.planned} planned, {granted}"


def _pressure(found: SchedulerStatus) -> str:
    signals = found.last_cycle.pressure if found.last_cycle else ""
    return output.words(signals).replace(",", ", ") or "none"


def _held(one: Held) -> str:
    due = output.duration(one.due_ms) or "now"
    return f"{one.runner} is kept for {one.job} ({one.kind}), due in {due}"


def _relay(lag_ms: int | None) -> str:
    if not lag_ms:
        return "nothing waits"
    slow = ": Temporal is behind" if lag_ms > SLOW_RELAY_MS else ""
    return f"{output.duration(lag_ms)} behind{slow}"


def _renewal(found: SchedulerStatus) -> str:
    if found.renewal_beat_ms is None:
        return "never beat"
    gaps = f", {found.renewal_gaps} outages bridged" if found.renewal_gaps else ""
    return f"beat {output.duration(found.renewal_beat_ms)} ago{gaps}"


@app.command()
def doctor(
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Examine scheduling and say what to do.

    Looks at pools, sorts of jobs, quotas, stuck jobs, leases, books, outbox and renewals. Exits 1
    if a check fails; a warning is no failure.

    \b
    Example:
      forgeyard scheduler doctor
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get("/v1/scheduler/doctor")
    found = shaped(Checkup, answer)
    if as_json:
        output.put_json(answer)
    else:
        rows = [
            (
                output.words(one.name),
                one.verdict,
                " ".join(filter(None, (one.sentence, one.advice))),
            )
            for one in found.checks
        ]
        output.put_table(("check", "verdict", "found"), rows, empty="nothing was checked")
    raise typer.Exit(1 if found.verdict == "fail" else 0)


@app.command()
def rebalance(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell; do not ask for a cycle.")
    ] = False,
    reason: Reason = "",
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Have the jobs that wait looked at again at once.

    Tells where each would go now. What runs stays where it is: no lease is revoked for a better
    runner.

    \b
    Example:
      forgeyard scheduler rebalance --dry-run
    """
    with connect(url, token_file, data_dir) as client:
        if dry_run:
            answer = client.get("/v1/scheduler/plan")
        else:
            wish = {"reason": reason, "actor": whoami()}
            answer = client.post("/v1/scheduler/rebalance", wish)
    if as_json:
        output.put_json(answer)
        return
    found = shaped(Preview, answer)
    rows = [(one.job, one.run_id, one.runner, str(one.score)) for one in found.placements]
    output.put_table(("job", "run", "runner", "score"), rows, empty="no job could be placed now")
    output.say(f"{found.waiting} jobs wait; jobs that run stay where they are")


@app.command()
def queues(
    by: Annotated[
        Grouping | None, typer.Option("--by", help="Count by this instead of by queue.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List the queues and what waits in them.

    \b
    Example:
      forgeyard scheduler queues --by tenant
    """
    with connect(url, token_file, data_dir) as client:
        path = f"/v1/scheduler/queues/by/{by}" if by else "/v1/scheduler/queues"
        answer = client.get(path)
    if as_json:
        output.put_json(answer)
        return
    if by:
        _put_groups(by, shaped(tuple[JobGroup, ...], answer))
        return
    rows = [
        (
            queue.path or queue.name,
            str(queue.pending),
            _counts(queue.eligible),
            str(queue.running),
            output.duration(queue.oldest_eligible_ms),
            f"paused: {queue.note}" if queue.paused else "",
        )
        for queue in shaped(tuple[Queue, ...], answer)
    ]
    columns = ("queue", "pending", "eligible", "on runners", "longest wait", "state")
    output.put_table(columns, rows, empty="no queues")


def _put_groups(by: str, groups: Iterable[JobGroup]) -> None:
    rows = [
        (one.name, str(one.eligible), str(one.running), output.duration(one.oldest_eligible_ms))
        for one in groups
    ]
    columns = (by, "eligible", "on runners", "longest wait")
    output.put_table(columns, rows, empty="no job waits or runs")


@app.command()
def capacity(
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Sum up what runners offer, hold and have left.

    \b
    Example:
      forgeyard scheduler capacity
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get("/v1/scheduler/capacity")
    if as_json:
        output.put_json(answer)
        return
    found = shaped(CapacityByPool, answer)
    rows = [
        amount_row("allocatable", found.allocatable),
        amount_row("reserved", found.reserved),
        amount_row("free", found.free),
        amount_row("wanted by waiting jobs", found.wanted),
    ]
    output.put_table(("", "cpu", "memory", "disk", "slots"), rows, empty="")
    if found.pools:
        output.put()
        output.put_table(POOL_COLUMNS, pool_rows(found.pools), empty="")
    output.say(f"{found.runners} runners take work, {found.absent} do not")
    if found.cpu_percent != PLAIN:
        output.say(f"jobs may hold {found.cpu_percent} % of the CPU that is there")


@app.command()
def runners(
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List every registered runner as the scheduler sees it.

    \b
    Example:
      forgeyard scheduler runners
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get("/v1/scheduler/runners")
    if as_json:
        output.put_json(answer)
        return
    rows = runner_rows(shaped(tuple[Runner, ...], answer))
    output.put_table(RUNNER_COLUMNS, rows, empty="no runner has registered")


@app.command("explain-job")
def explain_job(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, or RUN/JOB.")],
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Explain where a job would go now, or why nowhere.

    Lists every runner, with its score or every reason against it.

    \b
    Example:
      forgeyard scheduler explain-job run_01JD/test
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(path_of("v1", "jobs", job_id_of(client, job), "scheduling"))
    if as_json:
        output.put_json(answer)
        return
    explain(shaped(Explanation, answer))


def explain(found: Explanation) -> None:
    """Print an explanation: the outcome, then what it rests on."""
    outcome, *lines = found.text.splitlines()
    output.put(outcome, style="bold")
    for line in lines:
        output.put(line)


def job_id_of(client: Client, job: str) -> str:
    """Find the id behind RUN/JOB.

    Raises:
        NotFound: the run has no such job.
    """
    run, slash, name = job.partition("/")
    if not slash:
        return job
    found = shaped(Run, client.get(path_of("v1", "runs", run)))
    for one in found.jobs:
        if one.name == name:
            return one.job_id
    raise missing("job", name, [one.name for one in found.jobs])
