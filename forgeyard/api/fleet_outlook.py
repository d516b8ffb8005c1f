"""What may become of fleets: the forecast of one, and what it would do under other wishes.

Nothing here changes anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import sqlalchemy as sa
from fastapi import APIRouter
from pydantic import Field

from forgeyard.api.callers import needs
from forgeyard.api.dependencies import ApiDependencies, Deps
from forgeyard.api.fleets import READS, Count, FleetPath, Instant, spec_of
from forgeyard.api.runs import Body
from forgeyard.errors import InvalidRequest
from forgeyard.fleet import sanity
from forgeyard.fleet.forecast import Advice, Outlook
from forgeyard.fleet.simulate import Tick, more_jobs, news, play
from forgeyard.fleet.view import ClampKind, FleetDecision, FleetView
from forgeyard.model.fleet import DAY_MS, FleetSpec, Override
from forgeyard.model.permission import Permission
from forgeyard.model.units import brief_duration
from forgeyard.scheduler.demand import unmet
from forgeyard.scheduler.snapshot import SchedulingJob
from forgeyard.store import (
    boot_times,
    fleet_history,
    fleet_reading,
    fleet_views,
    fleet_wishes,
    fleets,
    snapshot,
)
from forgeyard.store.engine import read
from forgeyard.store.fleet_reading import JOBS_READ, Reading

router = APIRouter(prefix="/v1/fleets", tags=["fleets"])
MOST_TICKS: Final = 720
"""An hour of a fleet that is looked at every five seconds; what is longer is played coarsely."""
USUAL_MS: Final = 20 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetForecast:
    """What the past of a fleet says of its near future, and whether anybody goes by it."""

    fleet: str
    outlook: Outlook
    is_heeded: bool
    why: str


class SimulateFleet(Body):
    """What is to be other than it is; what is not said stays."""

    document: dict[str, object] | None = None
    """As if it were applied."""
    min: Count | None = None
    """As if the fleet were scaled, as with `max`."""
    max: Count | None = None
    jobs: Annotated[int, Field(ge=0, le=JOBS_READ)] = 0
    """So many more wait."""
    like: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """The id of a job that they are like; without it, those that most jobs wait like."""
    for_ms: Instant = USUAL_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFleet:
    """What a fleet would decide from now on, and what was taken for granted."""

    fleet: str
    every_ms: int
    """Between two decisions."""
    assumptions: tuple[str, ...]
    ticks: tuple[Tick, ...]
    """The first, the last, and those in which anything is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Boot:
    """How long the machines of a fleet are taken to need, and why so long."""

    ms: int
    text: str


@router.get("/{name}/forecast", dependencies=READS)
def show_forecast(name: FleetPath, deps: Deps) -> FleetForecast:
    """Show how many machines a fleet will soon need by its past, and how far off that has been."""
    with read(deps.engine) as connection:
        seen = fleet_views.standing(connection, name)
    found = fleet_history.outlook(deps.engine, seen.fleet.fleet_id)
    last = None if seen.last is None else seen.last.decision
    is_heeded, why = _heeding(seen.fleet.spec, found.advice, last)
    return FleetForecast(fleet=seen.fleet.name, outlook=found, is_heeded=is_heeded, why=why)


def _heeding(spec: FleetSpec, advice: Advice, last: FleetDecision | None) -> tuple[bool, str]:
    if not spec.scaling.forecast:
        return False, "scaling.forecast is off: the fleet goes by its demand"
    if advice.count is None:
        return False, "nothing is advised: the fleet goes by its demand"
    clamps = () if last is None else last.clamps
    raised = (
        f"; it raised the last decision from {it.before} to {it.after}"
        for it in clamps
        if it.kind is ClampKind.FORECAST
    )
    return True, f"it may raise what is wanted, within every bound{next(raised, '')}"


@router.post("/{name}:simulate", dependencies=[needs(Permission.FLEET_READ)])
def simulate_fleet(name: FleetPath, message: SimulateFleet, deps: Deps) -> SimulatedFleet:
    """Play the planner forward with other wishes; nothing is written and nothing is made."""
    sanity.demand_span("for_ms", message.for_ms, most=DAY_MS)
    every = max(int(deps.config.fleets.look_s * 1000), -(-message.for_ms // MOST_TICKS))
    with read(deps.engine) as connection:
        fleet_id = str(fleets.find(connection, name)["fleet_id"])
        found = fleet_reading.read(connection, deps.config.partition, deps.policy(connection))
        found = _changed(connection, found, fleet_id, message)
        boots = {it.fleet_id: _boot(connection, it) for it in found.fleets}
        like = _like(connection, found, message)
    found = _advised(deps, found, fleet_id)
    if like is not None:
        found = replace(found, snapshot=more_jobs(found.snapshot, like, message.jobs))
    ticks = play(
        fleet_id,
        found.fleets,
        unmet(found.snapshot, found.policy),
        boots={own: boot.ms for own, boot in boots.items()},
        now=found.now,
        every=every,
        ticks=1 + message.for_ms // every,
    )
    return SimulatedFleet(
        fleet=next(it.spec.name for it in found.fleets if it.fleet_id == fleet_id),
        every_ms=every,
        assumptions=(
            f"every fleet decides every {brief_duration(every)}",
            *_assumptions(found.fleets, fleet_id, boots[fleet_id]),
        ),
        ticks=news(ticks),
    )


def _changed(
    connection: sa.Connection, found: Reading, fleet_id: str, message: SimulateFleet
) -> Reading:
    """Change one fleet as applying a document or scaling would."""
    views = tuple(
        _wished(connection, it, message, now=found.now) if it.fleet_id == fleet_id else it
        for it in found.fleets
    )
    return replace(found, fleets=views)


def _wished(
    connection: sa.Connection, view: FleetView, message: SimulateFleet, *, now: int
) -> FleetView:
    spec, override = view.spec, view.override
    if message.document is not None:
        spec = spec_of(spec.name, message.document)
        sanity.demand_sane(spec)
        spec = fleets.settled(connection, spec)
    if (message.min, message.max) != (None, None):
        sanity.demand_bounds(spec.scaling, message.min, message.max)
        lasts = now + fleets.OVERRIDE_MS
        override = Override(min=message.min, max=message.max, expires_at=lasts)
    booked = fleet_wishes.reservations(connection, view.fleet_id)
    return replace(
        view,
        spec=spec,
        override=override,
        reservations=tuple(it.reservation for it in booked),
    )


def _boot(connection: sa.Connection, view: FleetView) -> _Boot:
    took = boot_times.boot_time(connection, view.fleet_id)
    if took is not None:
        text = f"machines come up after {brief_duration(took)}, as the last ones did"
        return _Boot(ms=took, text=text)
    phases = view.spec.deadlines
    longest = phases.provision + phases.bootstrap + phases.enrol
    text = (
        f"machines come up after {brief_duration(longest)}, the longest that the document allows,"
        " for none has come up yet"
    )
    return _Boot(ms=longest, text=text)


def _like(
    connection: sa.Connection, found: Reading, message: SimulateFleet
) -> SchedulingJob | None:
    """Find what the jobs are like that are added, if any are."""
    if not message.jobs:
        return None
    if message.like is not None:
        return snapshot.load_with(connection, message.like, found.policy)[0]
    classes = [it for it in unmet(found.snapshot, found.policy).classes if it.count]
    if not classes:
        raise InvalidRequest(
            "no job waits for room, so nobody knows what these are like",
            field="like",
            allowed="the id of a job that they are like",
        )
    return max(classes, key=lambda it: it.count).example


def _advised(deps: ApiDependencies, found: Reading, fleet_id: str) -> Reading:
    """Add the forecast of the fleet, where it is heeded."""
    view = found.fleet(fleet_id)
    if view is None or not view.spec.scaling.forecast:
        return found
    count = fleet_history.outlook(deps.engine, fleet_id).advice.count
    advised = replace(view, forecast=count)
    return replace(
        found, fleets=tuple(advised if it.fleet_id == fleet_id else it for it in found.fleets)
    )


def _assumptions(views: Sequence[FleetView], fleet_id: str, boot: _Boot) -> tuple[str, ...]:
    heed = [it.spec.name for it in views if it.spec.scaling.forecast and it.fleet_id != fleet_id]
    others = (f"the forecasts of other fleets say nothing: {', '.join(heed)}",) if heed else ()
    return (
        boot.text,
        "every machine that is made comes up and stays well",
        "jobs that have a machine keep it, and no others are submitted or cancelled",
        "what is let go is gone with the next decision, once no job is on it",
        *others,
    )
