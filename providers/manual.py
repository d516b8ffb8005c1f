"""Machines that people set up and take away; the system only waits for their word.

Nothing is started here. An operator invites the machine under the name of its runner, like others
(`forgeyard runner invite`), and says with `forgeyard fleet release` that it is no more.
"""

from dataclasses import replace
from typing import Protocol

from forgeyard.fleet.ports import (
    Check,
    CheckLevel,
    Interruption,
    Listing,
    Machine,
    ProvisionRequest,
    Sought,
)
from forgeyard.model.capacity import MachineState
from forgeyard.model.fleet import Offering


class Confirmations(Protocol):
    """What is known of machines that only people can see."""

    def confirmed(self, instance_id: str) -> MachineState | None:
        """Tell how a machine is, by its runner or by an operator; `None`: nobody has said."""
        ...


class ManualProvider:
    """Machines that exist when their runner enrolled, and are gone when an operator says so."""

    def __init__(self, confirmations: Confirmations) -> None:
        self._confirmations = confirmations

    @property
    def kind(self) -> str:
        """Name the sort of infrastructure."""
        return "manual"

    def provision(self, request: ProvisionRequest) -> Machine:
        """Wish for a machine; the wish itself is all there is until somebody sets it up."""
        tags = request.owner.tags(operation_key=request.operation_key, image=request.capacity.image)
        made = self._machine(request.owner.instance_id, tags=tags, offering=request.offering)
        if made.state is not MachineState.PENDING:
            return made
        how = f"forgeyard runner invite {request.runner_name}"
        return replace(made, detail=f"an operator has to set it up: {how}")

    def inspect(self, sought: Sought) -> Machine | None:
        """Tell what people say of a machine; nobody can say that one was never wished for."""
        tags = sought.owner.tags(operation_key=sought.operation_key, image="")
        return self._machine(sought.owner.instance_id, tags=tags, offering=sought.offering)

    def list_machines(self, installation: str) -> Listing:
        """List nothing, and say that this proves nothing: there is nobody to be asked."""
        return Listing(machines=(), complete=False)

    def terminate(self, sought: Sought) -> None:
        """Do nothing: an operator sees the machine among those that are to go."""

    def interruptions(self) -> tuple[Interruption, ...]:
        """Tell of nothing."""
        return ()

    def acknowledge(self, receipts: tuple[str, ...]) -> None:
        """Do nothing."""

    def check(self, offerings: tuple[Offering, ...]) -> tuple[Check, ...]:
        """Say that there is nothing to be looked at."""
        return (Check(name="operator", level=CheckLevel.OK, text="machines are set up by hand"),)

    def _machine(self, instance_id: str, *, tags: dict[str, str], offering: Offering) -> Machine:
        said = self._confirmations.confirmed(instance_id)
        return Machine(
            ref=f"manual-{instance_id}",
            state=said or MachineState.PENDING,
            tags=tags,
            machine=offering.machine,
            region=offering.region,
            zone=offering.zone,
            detail="" if said else "an operator has to set it up",
        )
