"""`forgeyard fleet list | status | explain | instances | demand | doctor | cost`: what is so."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.fleet import API_FLEETS, FleetName
from forgeyard.cli.fleet_outlook import Wish, put_simulated, simulate
from forgeyard.cli.fleet_shapes import Decision, Demand, Machine, Plan, Price, Standing
from forgeyard.cli.links import fleet_link, instance_link, temporal_ui
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect, settings
from forgeyard.cli.scheduler_shapes import Checkup
from forgeyard.cli.watching import now_ms
from forgeyard.errors import InvalidRequest

app = typer.Typer()
LIST_COLUMNS: Final = (
    *("fleet", "state", "health", "machines", "wanted", "bounds", "provider", "per hour"),
)
MACHINE_COLUMNS: Final = (
    *("machine", "state", "for", "jobs", "offering", "per hour", "made for", "remark"),
)
MILLIONTHS: Final = 1_000_000
ROUGH: Final = "an estimate from these prices as machines were made; no bill"
SHORT: Final = 16


@app.command("list")
def list_fleets(
    as_json: Json = False, url: Url = None, token_file: TokenFile = None, data_dir: DataDir = None
) -> None:
    """List the fleets.

    \b
    Example:
      forgeyard fleet list
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(API_FLEETS)
    if as_json:
        output.put_json(answer)
        return
    rows = [_row(one) for one in shaped(tuple[Standing, ...], answer)]
    output.put_table(LIST_COLUMNS, rows, empty="no fleet; make one with `forgeyard fleet apply`")


def _row(one: Standing) -> tuple[str, ...]:
    fleet = one.fleet
    return (
        fleet.name,
        output.words(fleet.state),
        output.words(fleet.health),
        _counts(one),
        "" if one.last is None else str(one.last.decision.wanted),
        _bounds(one),
        fleet.spec.provider + (" (frozen)" if one.provider_frozen else ""),
        money(one.hourly, fleet.spec.guardrail.currency),
    )


def _counts(one: Standing) -> str:
    counts = (f"{count} {output.words(state)}" for state, count in sorted(one.machines.items()))
    return ", ".join(counts) or "none"


def _bounds(one: Standing) -> str:
    scaling, override = one.fleet.spec.scaling, one.override
    if override is None:
        return f"{scaling.min} to {scaling.max}"
    least = scaling.min if override.min is None else override.min
    most = scaling.max if override.max is None else override.max
    return f"{least} to {most}, for now"


def money(micros: int, currency: str) -> str:
    """Write millionths of a currency, rounded to hundredths."""
    return f"{micros / MILLIONTHS:.2f} {currency}" if micros else "0"


@app.command()
def status(
    fleet: FleetName,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Show how a fleet stands.

    \b
    Example:
      forgeyard fleet status builders
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(path_of("v1", "fleets", fleet))
    if as_json:
        output.put_json(answer)
        return
    found = shaped(Standing, answer)
    for line in _status(found):
        output.put(line)
    ui = temporal_ui(settings(data_dir), url)
    if ui is not None:
        output.put(f"in the Temporal UI: {fleet_link(ui, found.fleet.fleet_id)}")


def _status(one: Standing) -> Iterator[str]:
    fleet, spec = one.fleet, one.fleet.spec
    state = output.words(fleet.state)
    state += f" ({fleet.state_reason})" if fleet.state_reason else ""
    yield f"{fleet.name} ({fleet.fleet_id}), version {fleet.version}: {state}"
    sick = f": {fleet.health_reason}" if fleet.health_reason else ""
    yield f"health: {output.words(fleet.health)}{sick}"
    yield f"machines: {_counts(one)}; bounds: {_bounds(one)}; warm: {spec.scaling.warm}"
    amounts = spec.capacity.resources
    yield (
        f"each: {spec.capacity.platform}/{spec.capacity.architecture}, "
        f"{output.cores(amounts.cpu)} cores, {output.size(amounts.memory)} memory, "
        f"{amounts.slots} jobs at once, {spec.capacity.trust}, isolation {spec.capacity.isolation}"
    )
    frozen = ", frozen by an operator" if one.provider_frozen else ""
    yield f"provider: {spec.provider}{frozen}; pool: {spec.pool or 'default'}"
    if one.override is not None:
        yield f"other bounds until {output.instant(one.override.expires_at)}"
    if one.reservations:
        yield f"reservations: {one.reservations}; see `forgeyard fleet reservation list`"
    for shut in one.shut:
        what = shut.offering or "anything"
        yield f"not asked for {what} until {output.instant(shut.until)}: {shut.reason}"
    yield _cost_line(one)
    if one.last is None:
        yield "nobody has decided about it yet"
    else:
        yield _sentence(one.last, one.now)


def _cost_line(one: Standing) -> str:
    guardrail = one.fleet.spec.guardrail
    hourly, today = (money(it, guardrail.currency) for it in (one.hourly, one.spent_today))
    return f"cost: about {hourly} an hour, about {today} today"


def _sentence(one: Decision, now: int) -> str:
    plan = one.decision
    return (
        f"decision {one.number}, {output.duration(now - one.at)} ago: {plan.needed} needed, "
        f"{plan.wanted} wanted, {plan.usable} there or coming"
    )


@app.command()
def explain(
    fleet: FleetName,
    last: Annotated[int, typer.Option("--last", min=1, max=200, help="How many decisions.")] = 1,
    would: Annotated[
        bool, typer.Option("--simulate", help="Say what it would do from now on; do nothing.")
    ] = False,
    bounds: Annotated[
        list[str] | None, typer.Option("--with", metavar="BOUND=N", help="If min or max were N.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="If that were applied.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="If so many more jobs waited.")] = 0,
    like: Annotated[
        str | None, typer.Option("--like", metavar="JOB", help="Like this one: its id, or RUN/JOB.")
    ] = None,
    lasts: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="How far; else 20 minutes.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Say why a fleet makes or lets go of as many machines as it does, and no more.

    With --simulate: what it would do from now on, under other wishes. Nothing is changed.

    \b
    Examples:
      forgeyard fleet explain builders
      forgeyard fleet explain builders --last 10
      forgeyard fleet explain builders --simulate --with max=20 --jobs 50
    """
    wish = Wish(bounds=bounds or (), file=file, jobs=jobs, like=like, lasts=lasts)
    if not would and not wish.is_empty:
        raise InvalidRequest("these are for a simulation", field="--simulate", allowed="with them")
    with connect(url, token_file, data_dir) as client:
        if would:
            answer, standing = simulate(client, fleet, wish), None
        else:
            answer = client.get(path_of("v1", "fleets", fleet, "decisions"), limit=last)
            standing = None if as_json else client.get(path_of("v1", "fleets", fleet))
    if as_json:
        output.put_json(answer)
    elif would:
        put_simulated(answer)
    else:
        _explain(fleet, answer, standing)


def _explain(fleet: str, answer: object, standing: object) -> None:
    found = shaped(tuple[Decision, ...], answer)
    if not found:
        output.say(f"nobody has decided about fleet {fleet} yet; is a worker running?")
    now = now_ms()
    for one in found:
        output.put(_sentence(one, now))
        for line in _reasons(one.decision):
            output.put(f"  {line}")
    for line in _prices(shaped(Standing, standing)):
        output.put(line)


def _prices(one: Standing) -> Iterator[str]:
    """Say of each offering what an hour of it is reckoned with now, and who says so."""
    currency = one.fleet.spec.guardrail.currency
    for price in one.prices:
        yield (
            f"price of {price.offering}: {price.cost / MILLIONTHS:g} {currency} an hour, "
            f"by {price.source}{_age(price, one.now)}"
        )


def _age(price: Price, now: int) -> str:
    if price.at is not None:
        return f", {output.duration(now - price.at)} ago"
    return f"; its provider's is not known: {price.remark}" if price.remark else ""


def _reasons(plan: Plan) -> Iterator[str]:
    for clamp in plan.clamps:
        change = f"{clamp.before} -> {clamp.after}" if clamp.before != clamp.after else "held"
        yield f"{output.words(clamp.kind)}, {change}: {clamp.text}"
    launches = Counter((one.offering, one.reason) for one in plan.launch)
    for (offering, reason), count in launches.items():
        yield f"makes {count} of {offering}: {output.words(reason)}"
    for one in plan.drain:
        yield f"lets {one.instance_id} go: {output.words(one.reason)}"
    for kept in plan.keep:
        yield f"takes {kept} back, for it is needed after all"
    if not (plan.launch or plan.drain or plan.keep):
        yield "makes none, and lets none go"


@app.command()
def instances(
    fleet: FleetName,
    every: Annotated[bool, typer.Option("--all", help="Those that are gone, too.")] = False,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List the machines of a fleet.

    \b
    Example:
      forgeyard fleet instances builders
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(path_of("v1", "fleets", fleet, "capacity"))
    if as_json:
        output.put_json(answer)
        return
    found = shaped(tuple[Machine, ...], answer)
    now = now_ms()
    listed = [one for one in found if every or one.state != "terminated"]
    rows = [_machine_row(one, now) for one in listed]
    output.put_table(MACHINE_COLUMNS, rows, empty=f"fleet {fleet} has no machine")
    ui = temporal_ui(settings(data_dir), url)
    for one in listed if ui is not None else ():
        output.put(f"  {one.runner_name}  {instance_link(ui, one.instance_id)}")


def _machine_row(one: Machine, now: int) -> tuple[str, ...]:
    late = " (late)" if one.due_at is not None and one.due_at < now else ""
    return (
        f"{one.runner_name} {one.instance_id}",
        output.words(one.state),
        output.duration(now - one.since) + late,
        str(one.leases),
        one.offering,
        f"{one.cost / MILLIONTHS:g}",
        output.words(one.reason),
        _remark(one, now),
    )


def _remark(one: Machine, now: int) -> str:
    if one.pinned_until is not None and one.pinned_until > now:
        return f"pinned for {output.duration(one.pinned_until - now)}: {one.pin_reason or ''}"
    cold = f"warm-up: {one.warmup.problem}" if one.warmup and one.warmup.problem else ""
    told = (one.failure, one.drain_reason, one.admission_reason, cold, one.detail)
    return output.words(next((text for text in told if text), ""))


@app.command()
def demand(
    as_json: Json = False, url: Url = None, token_file: TokenFile = None, data_dir: DataDir = None
) -> None:
    """Show the jobs that waited for room at the last decision, and which fleet serves them.

    \b
    Example:
      forgeyard fleet demand
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get("/v1/capacity-demand")
    if as_json:
        output.put_json(answer)
        return
    found = shaped(Demand, answer)
    rows = [
        (
            one.requirement_class[:SHORT],
            str(one.count),
            str(one.excluded),
            output.duration(one.oldest_wait_ms),
            one.priority,
            f"{output.cores(one.requested.cpu)} cores, {output.size(one.requested.memory)}",
            _served(found, one.requirement_class),
        )
        for one in found.classes
    ]
    columns = ("class", "jobs", "held back", "oldest", "priority", "asked for", "served by")
    output.put_table(columns, rows, empty="no job waits for room")
    wants = {one.requirement_class: ", ".join(one.wants) for one in found.classes}
    for left in found.unserved:
        output.put(f"{left.requirement_class[:SHORT]}: {left.count} jobs that no fleet serves")
        if wants.get(left.requirement_class):
            output.put(f"  each wants {wants[left.requirement_class]}")
        for fleet, reason in sorted(left.reasons.items()):
            output.put(f"  {fleet}: {reason}")


def _served(found: Demand, kind: str) -> str:
    shares = ((fleet, share.get(kind, 0)) for fleet, share in sorted(found.shares.items()))
    return ", ".join(f"{fleet} ({count})" for fleet, count in shares if count) or "nobody"


@app.command()
def doctor(
    fleet: Annotated[
        str | None, typer.Argument(metavar="[FLEET]", help="Its name or its id; else all.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Examine fleets and say what to do.

    Exits 1 if a check fails; a warning is no failure.

    \b
    Example:
      forgeyard fleet doctor builders
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(f"{API_FLEETS}:doctor", fleet=fleet)
    found = shaped(Checkup, answer)
    if as_json:
        output.put_json(answer)
    else:
        rows = [
            (one.name, one.verdict, " ".join(filter(None, (one.sentence, one.advice))))
            for one in found.checks
        ]
        output.put_table(("check", "verdict", "found"), rows, empty="nothing was checked")
    raise typer.Exit(1 if found.verdict == "fail" else 0)


@app.command()
def cost(
    fleet: FleetName,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Estimate what a fleet costs, by its provider's prices or its document's; it is no bill.

    \b
    Example:
      forgeyard fleet cost builders
    """
    with connect(url, token_file, data_dir) as client:
        found = shaped(Standing, client.get(path_of("v1", "fleets", fleet)))
        listed = client.get(path_of("v1", "fleets", fleet, "capacity"))
    idle = _idle(shaped(tuple[Machine, ...], listed))
    guardrail = found.fleet.spec.guardrail
    amounts = {
        "hourly_micros": found.hourly,
        "idle_hourly_micros": idle,
        "today_micros": found.spent_today,
        "most_hourly_micros": guardrail.hourly,
        "most_daily_micros": guardrail.daily,
    }
    if as_json:
        said = {"fleet": fleet, "currency": guardrail.currency, "approximate": True, **amounts}
        prices = [asdict(one) for one in found.prices]
        output.put_json({**said, "prices": prices, "note": ROUGH})
        return
    currency = guardrail.currency
    output.put(_cost_line(found))
    output.put(f"of that idle: about {money(idle, currency)} an hour")
    for name, most in (("hour", guardrail.hourly), ("day", guardrail.daily)):
        limit = "without limit" if most is None else f"at most {money(most, currency)}"
        output.put(f"allowed in one {name}: {limit}")
    for line in _prices(found):
        output.put(line)
    output.put(ROUGH)


def _idle(machines: Iterable[Machine]) -> int:
    """Add up what machines cost for an hour that are ready and have no job."""
    return sum(one.cost for one in machines if one.state == "healthy" and not one.leases)
