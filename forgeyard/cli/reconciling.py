"""`forgeyard scheduler reconcile|findings`: what contradicts itself in the store."""

from collections.abc import Iterable
from typing import Annotated

import typer

from forgeyard.cli import output
from forgeyard.cli.client import shaped
from forgeyard.cli.options import DataDir, Json, Reason, TokenFile, Url, connect
from forgeyard.cli.scheduler_shapes import Finding, Reconciliation
from forgeyard.cli.submitting import whoami
from forgeyard.cli.watching import now_ms

PATH = "/v1/scheduler/reconciliation"
_OUTCOMES = {"found": "would be repaired"}


def reconcile(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be repaired.")
    ] = False,
    partition: Annotated[
        str | None, typer.Option("--partition", help="Look at the jobs of this partition alone.")
    ] = None,
    reason: Reason = "",
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Compare what must agree, and repair what does not.

    Reservations, keys, devices, leases, runs, deadlines, queues. What could only be repaired by
    taking work from somebody is reported. Exits 1 if a repair failed.

    \b
    Example:
      forgeyard scheduler reconcile --dry-run
    """
    with connect(url, token_file, data_dir) as client:
        if dry_run:
            answer = client.get(PATH, partition=partition)
        else:
            wish = {"reason": reason, "actor": whoami(), "partition": partition}
            answer = client.post(PATH, wish)
    found = shaped(Reconciliation, answer)
    if as_json:
        output.put_json(answer)
    else:
        _put(found.findings)
        if found.more:
            output.say("there is more to repair; run this again")
    raise typer.Exit(1 if found.failed else 0)


def _put(findings: Iterable[Finding]) -> None:
    rows = [_row(one) for one in findings]
    columns = ("kind", "entity", "is", "should be", "outcome")
    output.put_table(columns, rows, empty="nothing contradicts anything")


def _row(one: Finding) -> tuple[str, ...]:
    outcome = _OUTCOMES.get(one.outcome, one.outcome)
    return (output.words(one.kind), one.entity, one.found, one.expected, outcome)


def findings(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many.")] = 50,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List what was found and repaired before, the newest first.

    \b
    Example:
      forgeyard scheduler findings
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get("/v1/scheduler/findings", limit=limit)
    if as_json:
        output.put_json(answer)
        return
    now = now_ms()
    rows = [
        (f"{output.duration(now - one.seen_at) or '0s'} ago", *_row(one))
        for one in shaped(tuple[Finding, ...], answer)
    ]
    columns = ("when", "kind", "entity", "was", "should be", "outcome")
    output.put_table(columns, rows, empty="nothing was found yet")
