"""Fleets, for those who say how much capacity there shall be, and for those who ask why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Query
from pydantic import Field

from forgeyard.addresses import LOOPBACK
from forgeyard.api.callers import (
    FleetDrainer,
    FleetFreezer,
    FleetManager,
    FleetReserver,
    FleetScaler,
    needs,
)
from forgeyard.api.checkup import Checkup
from forgeyard.api.dependencies import ApiDependencies, Deps
from forgeyard.api.intents import Because
from forgeyard.errors import InvalidRequest, NotFound
from forgeyard.fleet import doctor, sanity
from forgeyard.fleet.differences import Difference, differences
from forgeyard.fleet.doctor import Door
from forgeyard.model import fleet_document
from forgeyard.model.caller import Caller
from forgeyard.model.fleet import FleetSpec, FleetState, Override
from forgeyard.model.permission import Permission
from forgeyard.scheduler.doctor import worst
from forgeyard.store import fleet_analytics, fleet_symptoms, fleet_views, fleet_wishes, fleets
from forgeyard.store.engine import read
from forgeyard.store.fleet_analytics import FleetAnalytics
from forgeyard.store.fleet_views import DecisionRecord, FleetStanding, MachineRecord
from forgeyard.store.fleet_wishes import LEAD_MS, ReservationRecord, Window
from forgeyard.store.fleets import Bounds, FleetRecord, Outcome

router = APIRouter(prefix="/v1/fleets", tags=["fleets"])
FleetPath = Annotated[str, Path(max_length=100)]
"""A fleet's name or its id."""
READS = [needs(Permission.FLEET_READ)]
Instant = Annotated[int, Field(ge=0, lt=2**53)]
Count = Annotated[int, Field(ge=0, lt=2**31)]


class ApplyFleet(Because):
    """The document of a fleet, which version the caller has seen, and whether it is only asked."""

    document: dict[str, object]
    expected_version: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    """0 if there must be no such fleet yet; without it, whatever there is is replaced."""
    dry_run: bool = False


class ScaleFleet(Because):
    """Other bounds for a while, a day unless it says; both alike are so many machines."""

    min: Count | None = None
    max: Count | None = None
    for_ms: Instant | None = None


class ReserveCapacity(Because):
    """How many machines are wanted from when to when; instants are epoch milliseconds."""

    quantity: Count
    starts_at: Instant
    ends_at: Instant
    lead: Instant = LEAD_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNote:
    """What is allowed in a document, and may surprise."""

    field: str
    text: str
    allowed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedFleet:
    """What became of a document, or would."""

    name: str
    outcome: Outcome
    version: int
    """Of the fleet as it is now; 0 if there is none."""
    dry_run: bool
    differences: tuple[Difference, ...]
    notes: tuple[FleetNote, ...]


@router.get("", dependencies=READS)
def list_fleets(deps: Deps) -> tuple[FleetStanding, ...]:
    """List every fleet with its machines, its bounds and its last decision."""
    with read(deps.engine) as connection:
        return fleet_views.standings(connection)


@router.get(":doctor", dependencies=READS)
def examine_fleets(
    deps: Deps, fleet: Annotated[str | None, Query(max_length=100)] = None
) -> Checkup:
    """Examine a fleet, or all: document, reconciler, provider, machines, runners, budget."""
    with read(deps.engine) as connection:
        seen = fleet_symptoms.read_symptoms(connection, fleet)
        waiting = fleet_views.demand(connection, deps.config.partition)
    checks = doctor.examine(seen, waiting.unserved, door=_door(deps))
    return Checkup(verdict=worst(checks), checks=checks)


def _door(deps: ApiDependencies) -> Door:
    """Tell where new machines are told to enrol, and what is asked of them there."""
    config, url = deps.config, deps.config.fleet_url()
    takes_certificates = config.api.agent_identity != "token"
    return Door(
        url=url,
        is_local=urlsplit(url).hostname in LOOPBACK,
        takes_certificates=takes_certificates,
        trouble=_signing_trouble(deps) if takes_certificates else "",
        agent_versions=config.api.agent_versions,
        at_home=frozenset(
            name
            for name, provider in config.fleets.providers.items()
            if provider.kind in ("local", "manual")
        ),
    )


def _signing_trouble(deps: ApiDependencies) -> str:
    try:
        deps.trust.issuing()
    except NotFound as error:
        return error.message
    return ""


@router.get("/{name}", dependencies=READS)
def show_fleet(name: FleetPath, deps: Deps) -> FleetStanding:
    """Show a fleet with its machines, its bounds and its last decision."""
    with read(deps.engine) as connection:
        return fleet_views.standing(connection, name)


@router.put("/{name}")
def apply_fleet(
    name: FleetPath, message: ApplyFleet, deps: Deps, who: FleetManager
) -> AppliedFleet:
    """Make a fleet, or replace its document; machines that exist keep what they were made with."""
    spec = spec_of(name, message.document)
    if message.dry_run:
        return _would(deps, spec)
    with deps.change_for(who) as connection:
        before = fleets.present(connection, name)
        found = fleets.apply(
            connection,
            spec,
            message.intent,
            expected_version=message.expected_version,
            rng=deps.rng,
            keys=deps.trust.image_keys,
        )
    return _applied(before, found.spec, found.outcome, version=found.version, dry_run=False)


def spec_of(name: str, document: Mapping[str, object]) -> FleetSpec:
    """Read the document of a fleet.

    Raises:
        InvalidRequest: it cannot be read, or is that of another fleet.
    """
    spec = fleet_document.read(document)
    if spec.name != name:
        raise InvalidRequest(
            "the document is that of another fleet", field="name", value=spec.name, allowed=name
        )
    return spec


def _would(deps: ApiDependencies, spec: FleetSpec) -> AppliedFleet:
    """Say what a document would change, and change nothing."""
    sanity.demand_sane(spec)
    with read(deps.engine) as connection:
        settled = fleets.settled(connection, spec, keys=deps.trust.image_keys)
        before = fleets.present(connection, spec.name)
    if before is None:
        return _applied(None, settled, Outcome.CREATED, version=0, dry_run=True)
    outcome = Outcome.UNCHANGED if before.spec == settled else Outcome.CHANGED
    return _applied(before, settled, outcome, version=before.version, dry_run=True)


def _applied(
    before: FleetRecord | None, after: FleetSpec, outcome: Outcome, *, version: int, dry_run: bool
) -> AppliedFleet:
    return AppliedFleet(
        name=after.name,
        outcome=outcome,
        version=version,
        dry_run=dry_run,
        differences=differences(None if before is None else before.spec, after),
        notes=tuple(
            FleetNote(field=one.field, text=one.text, allowed=one.allowed)
            for one in sanity.notes(after)
        ),
    )


@router.post("/{name}:delete")
def delete_fleet(name: FleetPath, message: Because, deps: Deps, who: FleetManager) -> FleetRecord:
    """Let a fleet go: it drains, and is forgotten once nothing of it is left."""
    return _set_state(name, FleetState.DELETING, message, deps, who)


@router.post("/{name}:drain")
def drain_fleet(name: FleetPath, message: Because, deps: Deps, who: FleetDrainer) -> FleetRecord:
    """Make nothing more, and let go of what there is, once its work is done."""
    return _set_state(name, FleetState.DRAINING, message, deps, who)


@router.post("/{name}:freeze")
def freeze_fleet(name: FleetPath, message: Because, deps: Deps, who: FleetFreezer) -> FleetRecord:
    """Ask nothing of the provider of a fleet but to look."""
    return _set_state(name, FleetState.FROZEN, message, deps, who)


@router.post("/{name}:scale-up-only")
def keep_fleet(name: FleetPath, message: Because, deps: Deps, who: FleetFreezer) -> FleetRecord:
    """Let a fleet grow and let nothing of it go."""
    return _set_state(name, FleetState.SCALE_UP_ONLY, message, deps, who)


@router.post("/{name}:activate")
def activate_fleet(name: FleetPath, message: Because, deps: Deps, who: FleetFreezer) -> FleetRecord:
    """Let a fleet follow demand again."""
    return _set_state(name, FleetState.ACTIVE, message, deps, who)


def _set_state(
    name: str, state: FleetState, message: Because, deps: ApiDependencies, who: Caller
) -> FleetRecord:
    with deps.change_for(who) as connection:
        return fleets.set_state(connection, name, state, message.intent)


@router.post("/{name}:scale")
def scale_fleet(name: FleetPath, message: ScaleFleet, deps: Deps, who: FleetScaler) -> Override:
    """Let other bounds hold for a while; they end those that held before."""
    bounds = Bounds(min=message.min, max=message.max)
    with deps.change_for(who) as connection:
        return fleets.override(
            connection, name, bounds, message.intent, for_ms=message.for_ms, rng=deps.rng
        )


@router.post("/{name}:unscale", status_code=204)
def unscale_fleet(name: FleetPath, message: Because, deps: Deps, who: FleetScaler) -> None:
    """Let the bounds of the document hold again at once."""
    with deps.change_for(who) as connection:
        fleets.end_override(connection, name, message.intent)


@router.get("/{name}/capacity", dependencies=READS)
def list_machines(name: FleetPath, deps: Deps) -> tuple[MachineRecord, ...]:
    """List the machines of a fleet: those that have not ended, then the last ones that have."""
    with read(deps.engine) as connection:
        return fleet_views.machines(connection, name)


@router.get("/{name}/decisions", dependencies=READS)
def list_decisions(
    name: FleetPath, deps: Deps, limit: Annotated[int, Query(ge=1, le=200)] = 20
) -> tuple[DecisionRecord, ...]:
    """List what a fleet decided and why, the newest first."""
    with read(deps.engine) as connection:
        return fleet_views.decisions(connection, name, limit=limit)


@router.get("/{name}/analytics", dependencies=READS)
def analyse_fleet(
    name: FleetPath, deps: Deps, since: Annotated[Instant | None, Query()] = None
) -> FleetAnalytics:
    """Tell what a fleet did since an instant, for the last day unless told: use, waits, cost."""
    with read(deps.engine) as connection:
        return fleet_analytics.read_analytics(connection, name, since=since)


@router.get("/{name}/reservations", dependencies=READS)
def list_reservations(name: FleetPath, deps: Deps) -> tuple[ReservationRecord, ...]:
    """List the reservations of a fleet that have not ended, the next one first."""
    with read(deps.engine) as connection:
        return fleet_wishes.reservations(connection, name)


@router.post("/{name}/reservations", status_code=201)
def reserve_capacity(
    name: FleetPath, message: ReserveCapacity, deps: Deps, who: FleetReserver
) -> ReservationRecord:
    """Want capacity in a window of time, whoever's jobs come; it is no lease of anybody."""
    window = Window(
        quantity=message.quantity,
        starts_at=message.starts_at,
        ends_at=message.ends_at,
        lead=message.lead,
    )
    with deps.change_for(who) as connection:
        return fleet_wishes.reserve(connection, name, window, message.intent, rng=deps.rng)


@router.post("/reservations/{reservation_id}:cancel", status_code=204)
def cancel_reservation(
    reservation_id: FleetPath, message: Because, deps: Deps, who: FleetReserver
) -> None:
    """Want that capacity no more."""
    with deps.change_for(who) as connection:
        fleet_wishes.cancel_reservation(connection, reservation_id, message.intent)
