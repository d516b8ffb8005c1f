"""Single machines of fleets, their providers, and the jobs that wait for any of them."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field

from forgeyard.api.callers import FleetDrainer, FleetFreezer, FleetScaler, needs
from forgeyard.api.dependencies import Deps
from forgeyard.api.intents import Because
from forgeyard.model.fleet import DAY_MS
from forgeyard.model.permission import Permission
from forgeyard.store import fleet_views, fleet_wishes
from forgeyard.store.engine import read
from forgeyard.store.fleet_views import MachineRecord, WaitingDemand

router = APIRouter(prefix="/v1/instances", tags=["fleets"])
provider_router = APIRouter(prefix="/v1/providers", tags=["fleets"])
demand_router = APIRouter(prefix="/v1/capacity-demand", tags=["fleets"])
InstancePath = Annotated[str, Path(max_length=100)]
ProviderPath = Annotated[str, Path(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
READS = [needs(Permission.FLEET_READ)]


class PinMachine(Because):
    """Why a machine is kept, and for how long."""

    for_ms: Annotated[int, Field(ge=0, lt=2**53)] = DAY_MS


@router.get("/{instance_id}", dependencies=READS)
def show_machine(instance_id: InstancePath, deps: Deps) -> MachineRecord:
    """Show one machine."""
    with read(deps.engine) as connection:
        return fleet_views.machine(connection, instance_id)


@router.post("/{instance_id}:pin", status_code=204)
def pin_machine(
    instance_id: InstancePath, message: PinMachine, deps: Deps, who: FleetScaler
) -> None:
    """Keep a machine from being let go for a while."""
    with deps.change_for(who) as connection:
        fleet_wishes.pin(connection, instance_id, message.intent, for_ms=message.for_ms)


@router.post("/{instance_id}:unpin", status_code=204)
def unpin_machine(
    instance_id: InstancePath, message: Because, deps: Deps, who: FleetScaler
) -> None:
    """Let a machine go again when it is not needed."""
    with deps.change_for(who) as connection:
        fleet_wishes.unpin(connection, instance_id, message.intent)


@router.post("/{instance_id}:drain", status_code=204)
def drain_machine(
    instance_id: InstancePath, message: Because, deps: Deps, who: FleetDrainer
) -> None:
    """Let a machine finish what it has, then let it go."""
    with deps.change_for(who) as connection:
        fleet_wishes.drain_machine(connection, instance_id, message.intent)


@router.post("/{instance_id}:release", status_code=204)
def release_machine(
    instance_id: InstancePath, message: Because, deps: Deps, who: FleetDrainer
) -> None:
    """Let a quarantined machine go, or say that one is gone of which only people know."""
    with deps.change_for(who) as connection:
        fleet_wishes.release(connection, instance_id, message.intent)


@provider_router.post("/{provider}:freeze", status_code=204)
def freeze_provider(
    provider: ProviderPath, message: Because, deps: Deps, who: FleetFreezer
) -> None:
    """Ask nothing of a provider but to look, whatever its fleets want."""
    with deps.change_for(who) as connection:
        fleet_wishes.freeze_provider(connection, provider, message.intent)


@provider_router.post("/{provider}:thaw", status_code=204)
def thaw_provider(provider: ProviderPath, message: Because, deps: Deps, who: FleetFreezer) -> None:
    """Let the fleets of a provider make and take away machines again."""
    with deps.change_for(who) as connection:
        fleet_wishes.thaw_provider(connection, provider, message.intent)


@demand_router.get("", dependencies=READS)
def show_demand(deps: Deps) -> WaitingDemand:
    """Show the jobs that waited for room at the last decision, and which fleet serves them."""
    with read(deps.engine) as connection:
        return fleet_views.demand(connection, deps.config.partition)
