"""`forgeyard scope …`: who shares the runners, in which parts, up to which limits."""

from typing import Annotated, Final

import typer

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect
from forgeyard.cli.share_shapes import Scope, Shares
from forgeyard.cli.submitting import whoami
from forgeyard.errors import InvalidQuantity
from forgeyard.model.units import Rounding, parse_bytes, parse_cpu

app = typer.Typer(no_args_is_help=True, help="Share the runners among tenants and their queues.")
API_SCOPES: Final = "/v1/scopes"
COLUMNS: Final = ("scope", "kind", "weight", "jobs", "cpu", "memory", "burst", "state")
NO_LIMIT: Final = "none"
ScopePath = Annotated[
    str,
    typer.Argument(
        metavar="SCOPE", help="TENANT, TENANT/ORGANIZATION/PROJECT/QUEUE, pool:NAME or everything."
    ),
]
Why = Annotated[str, typer.Option("--reason", help="Why; kept in the audit trail.")]
Weight = Annotated[
    int | None, typer.Option("--weight", min=1, max=1000, help="Its share among its siblings.")
]
MaxJobs = Annotated[
    str | None, typer.Option("--max-jobs", help="Jobs on runners at once, or none.")
]
MaxCpu = Annotated[
    str | None, typer.Option("--max-cpu", help="Cores that its jobs hold: 8, 500m, or none.")
]
MaxMemory = Annotated[
    str | None, typer.Option("--max-memory", help="Memory that its jobs hold: 32Gi, or none.")
]
Burst = Annotated[
    int | None,
    typer.Option(
        "--burst", min=0, max=1000, help="Percent above its limits while nobody else wants it."
    ),
]


@app.command("list")
def list_scopes(
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List every scope with its share, and what its jobs hold of its limits.

    \b
    Example:
      forgeyard scope list
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(API_SCOPES)
    if as_json:
        output.put_json(answer)
        return
    rows = [_row(one) for one in shaped(tuple[Scope, ...], answer)]
    output.put_table(COLUMNS, rows, empty="no scopes")


@app.command("create")
def create_scope(
    scope: ScopePath,
    reason: Why,
    parents: Annotated[
        bool, typer.Option("--parents", "-p", help="Declare the scopes around it where missing.")
    ] = False,
    weight: Weight = None,
    max_jobs: MaxJobs = None,
    max_cpu: MaxCpu = None,
    max_memory: MaxMemory = None,
    burst: Burst = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Declare a tenant, or an organization, project or queue inside one.

    \b
    Example:
      forgeyard scope create acme/core/web/main -p --weight 3 --reason "a new team"
    """
    shares = _shares(Shares(), weight, (max_jobs, max_cpu, max_memory), burst)
    with connect(url, token_file, data_dir) as client:
        wish = {**_wish(reason), **shares, "expected_version": 0, "parents": parents}
        answer = client.put(_address(scope), wish)
    _show(answer, as_json=as_json)


@app.command("set")
def set_scope(
    scope: ScopePath,
    reason: Why,
    weight: Weight = None,
    max_jobs: MaxJobs = None,
    max_cpu: MaxCpu = None,
    max_memory: MaxMemory = None,
    burst: Burst = None,
    expected: Annotated[
        int | None,
        typer.Option("--expect", metavar="VERSION", help="Refuse if it is at another version."),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Change the share or the limits of a scope; what is not named stays.

    \b
    Examples:
      forgeyard scope set acme --weight 5 --reason "paid for more"
      forgeyard scope set acme/core --max-jobs 20 --burst 50 --reason "a fair limit"
      forgeyard scope set pool:default --max-cpu none --reason "no limit any more"
    """
    with connect(url, token_file, data_dir) as client:
        before = shaped(Scope, client.get(_address(scope)))
        shares = _shares(before.shares, weight, (max_jobs, max_cpu, max_memory), burst)
        seen = before.version if expected is None else expected
        answer = client.put(_address(scope), {**_wish(reason), **shares, "expected_version": seen})
    _show(answer, as_json=as_json)


@app.command()
def pause(
    scope: ScopePath,
    reason: Why,
    note: Annotated[
        str, typer.Option("--note", help="Shown to everybody whose job waits; default the reason.")
    ] = "",
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let no job of a scope start until it is resumed.

    What runs goes on, and what waits keeps its place.

    \b
    Example:
      forgeyard scope pause acme/core/web/deploy --reason "database migration until 15:00"
    """
    with connect(url, token_file, data_dir) as client:
        wish = {**_wish(reason), "note": note or reason[:200]}
        answer = client.post(f"{_address(scope)}:pause", wish)
    _show(answer, as_json=as_json)


@app.command()
def resume(
    scope: ScopePath,
    reason: Why,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let the jobs of a paused scope start again.

    \b
    Example:
      forgeyard scope resume acme/core/web/deploy --reason "the migration is done"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{_address(scope)}:resume", _wish(reason))
    _show(answer, as_json=as_json)


def _address(scope: str) -> str:
    return path_of("v1", "scopes", *scope.split("/"))


def _wish(reason: str) -> dict[str, object]:
    return {"reason": reason, "actor": whoami()}


def _shares(
    before: Shares,
    weight: int | None,
    limits: tuple[str | None, str | None, str | None],
    burst: int | None,
) -> dict[str, object]:
    """Put what was named in the place of what was."""
    jobs, cpu, memory = limits
    return {
        "weight": before.weight if weight is None else weight,
        "max_jobs": before.max_jobs if jobs is None else _jobs(jobs),
        "max_cpu_milli": before.max_cpu_milli if cpu is None else _cpu(cpu),
        "max_memory_bytes": before.max_memory_bytes if memory is None else _memory(memory),
        "burst_percent": before.burst_percent if burst is None else burst,
    }


def _jobs(text: str) -> int | None:
    if text == NO_LIMIT:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidQuantity(
            f"--max-jobs: {text!r} is no number of jobs",
            field="--max-jobs",
            value=text,
            allowed="a whole number, or none",
        )
    return int(text)


def _cpu(text: str) -> int | None:
    if text == NO_LIMIT:
        return None
    return parse_cpu(text, field="--max-cpu", rounding=Rounding.CAPACITY)


def _memory(text: str) -> int | None:
    if text == NO_LIMIT:
        return None
    return parse_bytes(text, field="--max-memory", rounding=Rounding.CAPACITY)


def _show(answer: object, *, as_json: bool) -> None:
    if as_json:
        output.put_json(answer)
        return
    output.put_table(COLUMNS, [_row(shaped(Scope, answer))], empty="")


def _row(scope: Scope) -> tuple[str, ...]:
    shares, used = scope.shares, scope.used
    return (
        scope.path,
        scope.kind,
        str(shares.weight),
        _of(str(used.jobs), None if shares.max_jobs is None else str(shares.max_jobs)),
        _of(output.cores(used.cpu), output.cores(shares.max_cpu_milli)),
        _of(output.size(used.memory), output.size(shares.max_memory_bytes)),
        f"+{shares.burst_percent}%" if shares.burst_percent else "",
        f"paused: {scope.note}" if scope.paused else "",
    )


def _of(used: str, limit: str | None) -> str:
    return f"{used or '0'} of {limit}" if limit else used or "0"
