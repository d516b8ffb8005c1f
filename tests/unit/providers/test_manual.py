"""A machine that people set up is there when they or its runner say so."""

from dataclasses import dataclass, field

import pytest

from forgeyard.model.capacity import MachineState
from providers.manual import ManualProvider
from tests.fleet.requests import OURS, a_request, sought


@dataclass
class Said:
    """What operators have said."""

    states: dict[str, MachineState] = field(default_factory=dict)

    def confirmed(self, instance_id: str) -> MachineState | None:
        return self.states.get(instance_id)


@pytest.mark.requirement("PRV-015")
def test_a_machine_waits_for_people_to_set_it_up_and_to_take_it_away() -> None:
    said = Said()
    provider, request = ManualProvider(said), a_request()
    made = provider.provision(request)
    assert made.state is MachineState.PENDING
    assert f"forgeyard runner invite {request.runner_name}" in made.detail
    said.states["cin_1"] = MachineState.RUNNING
    assert provider.inspect(sought(request)) == provider.provision(request)
    assert provider.provision(request).state is MachineState.RUNNING
    provider.terminate(sought(request, made.ref))
    found = provider.inspect(sought(request, made.ref))
    assert found is not None
    assert found.state is MachineState.RUNNING
    said.states["cin_1"] = MachineState.GONE
    found = provider.inspect(sought(request, made.ref))
    assert found is not None
    assert found.state is MachineState.GONE


def test_a_listing_of_what_only_people_can_see_proves_nothing() -> None:
    assert not ManualProvider(Said()).list_machines(OURS).complete
