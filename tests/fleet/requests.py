"""Requests to providers, with usual values."""

from dataclasses import replace

from forgeyard.fleet.ports import Bootstrap, Ownership, ProvisionRequest, Sought
from forgeyard.model.fleet import CapacityClass, Offering

OURS = "inst-ours"
THEIRS = "inst-theirs"


def an_owner(instance: str = "cin_1", *, installation: str = OURS) -> Ownership:
    """Own a machine of the fleet `flt_1`."""
    return Ownership(installation=installation, fleet_id="flt_1", instance_id=instance)


def a_request(instance: str = "cin_1", **changed: object) -> ProvisionRequest:
    """Wish for a machine under a key that names the instance's first generation."""
    request = ProvisionRequest(
        owner=an_owner(instance),
        operation_key=f"op-{instance.replace('_', '-')}-1",
        runner_name=f"fleet-{instance}",
        capacity=CapacityClass(),
        offering=Offering(name="default"),
        bootstrap=Bootstrap(url="http://127.0.0.1:9"),
    )
    return replace(request, **changed)


def sought(request: ProvisionRequest, ref: str = "") -> Sought:
    """Look for the machine that a request made."""
    return Sought(
        owner=request.owner,
        operation_key=request.operation_key,
        offering=request.offering,
        ref=ref,
    )
