"""The wire names and shapes that running workflows and stored histories depend on."""

import inspect
import typing
from dataclasses import fields, is_dataclass

import pytest
from temporalio import workflow
from temporalio.contrib.pydantic import pydantic_data_converter

from activities import contracts
from activities.fleets import FleetActivities
from activities.leasing import LeasingActivities
from activities.provisioning import ProvisioningActivities
from activities.relay import RelayActivities
from activities.scheduling import SchedulingActivities
from activities.upkeep import RetentionActivities, UpkeepActivities
from workflows.attempt_lease import AttemptLease
from workflows.capacity_instance import CapacityInstance
from workflows.fleet_reconcile import FleetReconcile
from workflows.scheduler_loop import SchedulerLoop
from workflows.scheduling_cycle import SchedulingCycle
from workflows.upkeep import Upkeep

WIRE_NAMES = {
    "cycle.pending",
    "cycle.plan",
    "cycle.commit",
    "outbox.relay",
    "attempt.read",
    "attempt.settle",
    "upkeep.reconcile",
    "upkeep.sweep",
    "upkeep.ensure_loop",
    "upkeep.forget",
    "fleet.tick",
    "fleet.observe",
    "fleet.command",
    "instance.advance",
}
WORKFLOWS = {
    "AttemptLease": AttemptLease,
    "SchedulerLoop": SchedulerLoop,
    "SchedulingCycle": SchedulingCycle,
    "Upkeep": Upkeep,
    "FleetReconcile": FleetReconcile,
    "CapacityInstance": CapacityInstance,
}


def _definitions(holder: object) -> dict[str, typing.Callable]:
    found = {}
    for _, member in inspect.getmembers(holder, callable):
        definition = getattr(member, "__temporal_activity_definition", None)
        if definition is not None:
            found[definition.name] = member
    return found


@pytest.fixture
def implementations() -> dict[str, typing.Callable]:
    classes = (
        SchedulingActivities,
        LeasingActivities,
        RelayActivities,
        UpkeepActivities,
        RetentionActivities,
        FleetActivities,
        ProvisioningActivities,
    )
    return {name: body for holder in classes for name, body in _definitions(holder).items()}


def test_activity_names_never_change() -> None:
    assert set(_definitions(contracts)) == WIRE_NAMES


def test_every_contract_has_one_body_of_the_same_shape(
    implementations: dict[str, typing.Callable],
) -> None:
    promised = _definitions(contracts)
    assert implementations.keys() == promised.keys()
    for name, body in implementations.items():
        given, asked = typing.get_type_hints(body), typing.get_type_hints(promised[name])
        assert given == asked, name
        assert inspect.iscoroutinefunction(body) == inspect.iscoroutinefunction(promised[name])


def test_workflow_and_message_names_never_change() -> None:
    for name, kind in WORKFLOWS.items():
        definition = workflow._Definition.must_from_class(kind)
        assert definition.name == name
    loop = workflow._Definition.must_from_class(SchedulerLoop)
    attempt = workflow._Definition.must_from_class(AttemptLease)
    assert set(loop.signals) == {"wake"}
    assert set(attempt.signals) == {"event"}
    fleet = workflow._Definition.must_from_class(FleetReconcile)
    machine = workflow._Definition.must_from_class(CapacityInstance)
    assert (set(fleet.signals), set(fleet.updates)) == ({"poke"}, {"command"})
    assert set(machine.signals) == {"poke"}


def test_workflow_ids_are_readable_paths() -> None:
    assert contracts.attempt_workflow_id("job_01", 2) == "attempt/job_01/2"
    assert contracts.loop_workflow_id("default") == "scheduler/default"
    assert contracts.cycle_workflow_id("default", 7) == "scheduler/default/cycle/7"
    assert contracts.upkeep_workflow_id("default") == "upkeep/default"
    assert contracts.fleet_workflow_id("flt_1") == "fleet/flt_1"
    assert contracts.instance_workflow_id("cin_1") == "instance/cin_1"


def test_search_attributes_fit_the_ten_keywords_of_a_development_server() -> None:
    names = [key.name for key in contracts.SEARCH_ATTRIBUTES]
    assert names == ["FyKind", "FyState", "FyJob", "FyRunner"]


FLEET = contracts.Fleet(fleet_id="flt_1", partition="default", name="builders")
MACHINE = contracts.Machine(instance_id="cin_1", runner_name="builders-1")
ORDER = contracts.FleetOrder(
    fleet_id="flt_1",
    command=contracts.FleetCommand(action="scale", reason="a release", count=3, for_ms=60_000),
)
MESSAGES = [
    contracts.Partition(partition="default"),
    contracts.Wake(generation=3, reason="a run was submitted"),
    contracts.CyclePlan(cycle_id=1, eligible=2, runners=3, planned=2, full=True),
    contracts.Cycle(cycle_id=1, partition="default"),
    contracts.CycleCommit(granted=1, refused=1),
    contracts.CycleSummary(cycle_id=1, eligible=2, planned=2, granted=1),
    contracts.LoopState(
        partition="default",
        newest=contracts.Wake(generation=4),
        last=contracts.CycleSummary(cycle_id=1, eligible=2, planned=2, granted=1),
    ),
    contracts.UpkeepState(partition="default", rounds=7),
    contracts.Relayed(delivered=2),
    contracts.AttemptStart(
        attempt_id="att_1",
        job_id="job_1",
        number=1,
        job_name="build",
        run_name="demo",
        runner_name="runner-1",
    ),
    contracts.AttemptEvent(event_id="evt_1", kind=contracts.ATTEMPT_FINISHED, detail="lost"),
    contracts.Attempt(attempt_id="att_1"),
    contracts.AttemptView(state="running", ended=False, settled=False, backstop_ms=1_000),
    contracts.Settled(attempt_state="failed", job_state="eligible", decision="try again"),
    contracts.SweepSummary(
        expired=1, due=2, settled=3, relayed=4, repaired=5, alert="many", more=True
    ),
    contracts.ReconcileSummary(repaired=1, reported=2, failed=3, first="key_stray of db"),
    contracts.Forgotten(logs=1, artifacts=2, blobs=3),
    FLEET,
    contracts.FleetState(fleet=FLEET, rounds=3),
    ORDER,
    ORDER.command,
    contracts.Ordered(line="it is frozen"),
    MACHINE,
    contracts.FleetTick(wanted=3, usable=2, launched=1, state="active", untended=(MACHINE,)),
    contracts.Observed(machines=3, orphans=1, interrupted=1, skipped=""),
    contracts.InstanceState(machine=MACHINE),
    contracts.Advanced(state="healthy", ended=False, wait_ms=60_000, line="well"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
async def test_every_message_survives_the_wire(message: object) -> None:
    payloads = await pydantic_data_converter.encode([message])
    assert await pydantic_data_converter.decode(payloads, [type(message)]) == [message]


def test_no_message_was_forgotten_above() -> None:
    declared = {
        kind
        for _, kind in inspect.getmembers(contracts, inspect.isclass)
        if is_dataclass(kind) and kind.__module__ == contracts.__name__
    }
    assert declared == {type(message) for message in MESSAGES}


@pytest.mark.parametrize(
    ("kind", "oldest"),
    [
        (contracts.LoopState, {"partition": "default"}),
        (contracts.UpkeepState, {"partition": "default"}),
        (contracts.CyclePlan, {"cycle_id": 1, "eligible": 2, "runners": 3, "planned": 1}),
        (contracts.CycleSummary, {"cycle_id": 1, "eligible": 2, "planned": 1, "granted": 1}),
    ],
)
async def test_fields_added_later_have_defaults(kind: type, oldest: dict[str, object]) -> None:
    payloads = await pydantic_data_converter.encode([oldest])
    (decoded,) = await pydantic_data_converter.decode(payloads, [kind])
    assert {field.name for field in fields(kind)} > oldest.keys()
    assert isinstance(decoded, kind)
