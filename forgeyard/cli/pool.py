"""`forgeyard pool …`: groups of runners, whom they serve and when they are closed."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.options import DataDir, Json, Reason, TokenFile, Url, connect
from forgeyard.cli.pool_shapes import Pool, Window
from forgeyard.cli.runner_shapes import Drained
from forgeyard.cli.submitting import because
from forgeyard.cli.watching import now_ms
from forgeyard.errors import InvalidRequest
from forgeyard.model.units import parse_duration

app = typer.Typer(no_args_is_help=True, help="Look after pools of runners.")
maintenance = typer.Typer(no_args_is_help=True, help="When a pool is closed for maintenance.")
app.add_typer(maintenance, name="maintenance")
API_POOLS = "/v1/pools"
COLUMNS = ("pool", "state", "serves", "trust", "runners")
PoolName = Annotated[str, typer.Argument(metavar="POOL", help="Its name or its id.")]
Owner = Annotated[
    str | None,
    typer.Option("--owner", metavar="SCOPE", help="Whom it is for: tenant/organization/… or id."),
]
Trust = Annotated[
    str | None, typer.Option("--trust", help="The trust class that its runners must have.")
]
Reserved = Annotated[bool, typer.Option("--reserved", help="It serves its owner alone.")]
Spillover = Annotated[
    bool, typer.Option("--spillover", help="It is reserved, but lends what its owner leaves idle.")
]


@app.command("list")
def list_pools(
    as_json: Json = False, url: Url = None, token_file: TokenFile = None, data_dir: DataDir = None
) -> None:
    """List the pools.

    \b
    Example:
      forgeyard pool list
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(API_POOLS)
    if as_json:
        output.put_json(answer)
        return
    rows = [
        (one.name, _state(one), _serves(one), one.trust or "any", str(len(one.runners)))
        for one in shaped(tuple[Pool, ...], answer)
    ]
    output.put_table(COLUMNS, rows, empty="no pool")


@app.command("show")
def show_pool(
    pool: PoolName,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Show a pool, its runners, who asks to be in it, and when it is closed.

    \b
    Example:
      forgeyard pool show ios
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(path_of("v1", "pools", pool))
    if as_json:
        output.put_json(answer)
        return
    found = shaped(Pool, answer)
    output.put(f"{found.name} ({found.pool_id}): {_state(found)}, serves {_serves(found)}")
    output.put(f"trust of its runners: {found.trust or 'any'}")
    output.put(f"runners: {', '.join(found.runners) or 'none'}")
    if found.wished_by:
        output.put(f"asked for by: {', '.join(found.wished_by)}; see `forgeyard pool assign`")
    for window in found.maintenance:
        output.put(_window_line(window))


@app.command("create")
def create_pool(
    pool: PoolName,
    reason: Reason,
    owner: Owner = None,
    trust: Trust = None,
    reserved: Reserved = False,
    spillover: Spillover = False,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Make a pool; runners are put into it with `forgeyard pool assign`.

    \b
    Example:
      forgeyard pool create ios --owner acme/apps --reserved --spillover --reason "new phones"
    """
    wish = _rules(owner, trust, reserved=reserved, spillover=spillover)
    with connect(url, token_file, data_dir) as client:
        answer = client.post(API_POOLS, {"name": pool, **wish, **because(reason)})
    _put_changed(answer, as_json=as_json)


@app.command("set")
def set_pool(
    pool: PoolName,
    reason: Reason,
    owner: Owner = None,
    trust: Trust = None,
    reserved: Reserved = False,
    spillover: Spillover = False,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Say anew whom a pool serves; what is left out is as for a new pool. Running jobs go on.

    \b
    Example:
      forgeyard pool set ios --owner acme/apps --reserved --reason "no lending before the release"
    """
    wish = _rules(owner, trust, reserved=reserved, spillover=spillover)
    with connect(url, token_file, data_dir) as client:
        answer = client.put(path_of("v1", "pools", pool), {**wish, **because(reason)})
    _put_changed(answer, as_json=as_json)


@app.command()
def drain(
    pool: PoolName,
    reason: Reason,
    now: Annotated[
        bool, typer.Option("--now", help="Also cancel the jobs on its runners; they end cancelled.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let the runners of a pool finish what they have and take no more.

    With --now they finish nothing: their jobs are cancelled, and are not tried again.

    \b
    Examples:
      forgeyard pool drain ios --reason "new phones"
      forgeyard pool drain ios --now --reason "they leak keys"
    """
    wish = {**because(reason), "cancel_active": now}
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'pools', pool)}:drain", wish)
    cancelled = shaped(Drained, answer).cancelled
    jobs = "1 job" if cancelled == 1 else f"{cancelled} jobs"
    said = f"pool {pool} takes no more work" + (f"; cancels {jobs}" if now else "")
    output.put_done(answer, said, as_json=as_json)


@app.command()
def undrain(
    pool: PoolName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let the runners of a pool take work again.

    \b
    Example:
      forgeyard pool undrain ios --reason "all phones are there"
    """
    with connect(url, token_file, data_dir) as client:
        client.post(f"{path_of('v1', 'pools', pool)}:undrain", because(reason))
    done = {"pool": pool, "state": "open"}
    output.put_done(done, f"pool {pool} takes work again", as_json=as_json)


@app.command()
def assign(
    runner: Annotated[str, typer.Argument(metavar="RUNNER", help="Its name or its id.")],
    pool: PoolName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Put a runner into a pool; what its agent asks for is only a wish.

    \b
    Example:
      forgeyard pool assign mac-7 ios --reason "it has phones"
    """
    with connect(url, token_file, data_dir) as client:
        wish = {"runner": runner, **because(reason)}
        client.post(f"{path_of('v1', 'pools', pool)}:assign", wish)
    done = {"runner": runner, "pool": pool}
    output.put_done(done, f"{runner} is in pool {pool}", as_json=as_json)


@maintenance.command("add")
def add_maintenance(
    pool: PoolName,
    lasts: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long: 30m, 2h.")],
    reason: Reason,
    starts: Annotated[
        str,
        typer.Option("--at", metavar="TIME", help="When: 2026-12-01T22:00Z, or in: 90m. Or now."),
    ] = "now",
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Close a pool for a while. Before, it takes only jobs that end in time.

    \b
    Example:
      forgeyard pool maintenance add ios --at 2026-12-01T22:00Z --for 2h --reason "new racks"
    """
    starts_at = instant_of(starts)
    ends_at = starts_at + parse_duration(lasts, field="--for")
    wish = {"starts_at": starts_at, "ends_at": ends_at, **because(reason)}
    with connect(url, token_file, data_dir) as client:
        answer = client.post(path_of("v1", "pools", pool, "maintenance"), wish)
    if as_json:
        output.put_json(answer)
        return
    output.put(_window_line(shaped(Window, answer)))


@maintenance.command("list")
def list_maintenance(
    pool: PoolName,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List when a pool was, is or will be closed.

    \b
    Example:
      forgeyard pool maintenance list ios
    """
    with connect(url, token_file, data_dir) as client:
        found = shaped(Pool, client.get(path_of("v1", "pools", pool)))
    if as_json:
        output.put_json([_as_json(window) for window in found.maintenance])
        return
    for window in found.maintenance:
        output.put(_window_line(window))


@maintenance.command("cancel")
def cancel_maintenance(
    window: Annotated[str, typer.Argument(metavar="WINDOW", help="Its id.")],
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Open a pool again, or do not close it.

    \b
    Example:
      forgeyard pool maintenance cancel mwn_01J… --reason "the racks are late"
    """
    with connect(url, token_file, data_dir) as client:
        client.post(f"{path_of('v1', 'pools', 'maintenance', window)}:cancel", because(reason))
    done = {"window_id": window, "cancelled": True}
    output.put_done(done, f"{window} is cancelled", as_json=as_json)


def _rules(
    owner: str | None, trust: str | None, *, reserved: bool, spillover: bool
) -> dict[str, object]:
    sharing = "reserved" if reserved or spillover else "shared"
    return {"owner": owner, "trust": trust, "sharing": sharing, "spillover": spillover}


def _put_changed(answer: object, *, as_json: bool) -> None:
    if as_json:
        output.put_json(answer)
        return
    found = shaped(Pool, answer)
    output.put(f"pool {found.name} serves {_serves(found)}")


def _state(pool: Pool) -> str:
    now = now_ms()
    if any(window.starts_at <= now < window.ends_at for window in pool.maintenance):
        return "closed"
    return pool.state


def _serves(pool: Pool) -> str:
    if pool.sharing == "shared":
        return "everybody"
    return f"{pool.owner or pool.owner_id}{', lends the rest' if pool.spillover else ''}"


def _window_line(window: Window) -> str:
    starts, ends = _time(window.starts_at), _time(window.ends_at)
    return f"{window.window_id}: closed from {starts} to {ends}: {window.reason}"


def _as_json(window: Window) -> dict[str, object]:
    names = ("window_id", "starts_at", "ends_at", "reason", "actor")
    return {name: getattr(window, name) for name in names}


def _time(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def instant_of(text: str) -> int:
    """Read an instant, or how long it is until then.

    Raises:
        InvalidRequest: it is neither.
    """
    if text == "now":
        return now_ms()
    if text[-1:].isalpha() and "T" not in text:
        return now_ms() + parse_duration(text, field="--at")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequest(
            "this is no instant",
            field="--at",
            value=text,
            allowed="now, 90m, or a time with its zone such as 2026-12-01T22:00Z",
        )
    return int(moment.timestamp() * 1000)
