"""Machines that serve a number of jobs: not one more is leased to them, whoever is quick."""

import pytest
import sqlalchemy as sa

from forgeyard.fleet.lifecycle import Pace
from forgeyard.fleet.view import Launch
from forgeyard.model.capability import TrustClass
from forgeyard.model.capacity import MachineState, ScaleReason
from forgeyard.model.enrolment import Admission, Grant
from forgeyard.model.fleet import CapacityClass, FleetSpec, Lifetime, LifetimeKind
from forgeyard.model.protocol import Outcome, Report
from forgeyard.model.runner import RunnerState
from forgeyard.model.units import Resources
from forgeyard.store import (
    fleet_tables,
    fleets,
    machine_life,
    machines,
    overview,
    runners,
    snapshot,
    tables,
)
from forgeyard.store.engine import database_now, read
from forgeyard.store.entrance import Entry
from forgeyard.store.identities import Issued
from forgeyard.store.runner_cache import RunnerCache
from forgeyard.store.shares import Intent
from tests.builders import (
    PARTITION,
    RNG,
    a_fleet_spec,
    a_job_spec,
    a_registration,
    some_capabilities,
    some_resources,
)
from tests.leasing import Desk, Lease
from tests.trusting import invite, redeem

ME = Intent(actor="ann", channel="test", reason="a test")
TRUSTED = Grant(trust=TrustClass.TRUSTED_INTERNAL)
WIDE = some_resources(cpu=64_000, memory=2**38, disk=2**40, slots=8)


def a_machine(desk: Desk, spec: FleetSpec) -> str:
    """Want one machine of a fleet; return the name of its runner."""

    def want(connection: sa.Connection) -> str:
        record = fleets.apply(connection, spec, ME, expected_version=None, rng=RNG)
        launch = Launch(offering=spec.offerings[0].name, reason=ScaleReason.MANUAL)
        row = fleets.find(connection, record.fleet_id)
        now = database_now(connection)
        (made,) = machines.intend(connection, row, spec, [launch], now=now, rng=RNG)
        return machines.lock(connection, made).row["runner_name"]

    return desk.change(want)


def leased(desk: Desk) -> Lease:
    assert desk.cycle().granted == 1
    (lease,) = desk.leases(state="offered")
    return lease


def one_job() -> FleetSpec:
    capacity = CapacityClass(resources=some_resources(slots=1))
    lifetime = Lifetime(kind=LifetimeKind.ONE_JOB)
    return a_fleet_spec("once", lifetime=lifetime, capacity=capacity)


@pytest.mark.requirement("FOP-008", "FOP-009")
def test_a_machine_for_one_job_gets_no_second_one(engine: sa.Engine) -> None:
    """S3: its end and the drain of its runner are one statement."""
    desk = Desk(engine)
    name = a_machine(desk, one_job())
    registered = desk.register(name, total=some_resources(slots=1))
    _booted(desk, name)
    desk.submit(a_job_spec("one"), a_job_spec("two"))
    lease = leased(desk)
    desk.accept(lease)
    desk.complete(lease, Outcome.SUCCEEDED)
    runner = desk.row(tables.runners, registered.runner_id)
    assert (runner["state"], runner["jobs_left"]) == (RunnerState.DRAINING, 0)
    assert desk.commit(desk.plan()).granted == 0
    desk.heartbeat(registered.session_id)
    assert desk.commit(desk.plan()).granted == 0
    again = desk.register(name, total=some_resources(slots=1))
    assert again.runner_id == registered.runner_id
    assert desk.commit(desk.plan()).granted == 0, "another session is no other machine"


def test_an_offer_that_was_turned_down_is_no_job_served(engine: sa.Engine) -> None:
    desk = Desk(engine)
    name = a_machine(desk, one_job())
    registered = desk.register(name, total=some_resources(slots=1))
    _booted(desk, name)
    desk.submit(a_job_spec("one"))
    desk.reject(leased(desk))
    runner = desk.row(tables.runners, registered.runner_id)
    assert (runner["state"], runner["jobs_left"]) == (RunnerState.ONLINE, 1)


@pytest.mark.requirement("FOP-008")
def test_a_machine_for_three_jobs_is_drained_with_the_third(engine: sa.Engine) -> None:
    desk = Desk(engine)
    lifetime = Lifetime(kind=LifetimeKind.MAX_JOBS, jobs=3)
    name = a_machine(desk, a_fleet_spec("thrice", lifetime=lifetime))
    registered = desk.register(name, total=WIDE)
    _booted(desk, name)
    for done in range(1, 4):
        desk.submit(a_job_spec("one"))
        lease = leased(desk)
        desk.accept(lease)
        desk.complete(lease, Outcome.SUCCEEDED)
        runner = desk.row(tables.runners, registered.runner_id)
        assert runner["jobs_left"] == 3 - done
        assert (runner["state"] == RunnerState.DRAINING) is (done == 3)


@pytest.mark.requirement("DRN-002")
def test_a_runner_that_comes_up_on_a_machine_that_is_ending_gets_nothing(
    engine: sa.Engine,
) -> None:
    desk = Desk(engine)
    name = a_machine(desk, a_fleet_spec("late"))
    row = desk.rows(fleet_tables.capacity_instances, runner_name=name)[0]
    desk.overwrite(fleet_tables.capacity_instances, row["instance_id"], state="terminating")
    desk.register(name, total=WIDE)
    desk.submit(a_job_spec("one"))
    assert desk.commit(desk.plan()).granted == 0


def _booted(desk: Desk, name: str) -> None:
    """Let a machine be healthy behind the store's back."""
    row = desk.rows(fleet_tables.capacity_instances, runner_name=name)[0]
    desk.overwrite(fleet_tables.capacity_instances, row["instance_id"], state="healthy")


def test_a_fleet_of_an_old_name_gives_its_machines_new_numbers(engine: sa.Engine) -> None:
    """Runners are known by name: one of a deleted fleet must not come back as another machine."""
    desk = Desk(engine)
    first = a_machine(desk, a_fleet_spec("again"))
    (fleet,) = desk.rows(fleet_tables.fleets, name="again")
    desk.overwrite(fleet_tables.fleets, fleet["fleet_id"], live=None, deleted_at=1)
    second = a_machine(desk, a_fleet_spec("again"))
    assert (first, second) == ("again-1", "again-2")


@pytest.mark.requirement("FOP-008")
def test_a_machine_gets_no_more_jobs_than_it_may_serve_however_many_fit_at_once(
    engine: sa.Engine,
) -> None:
    """S3: its slots are its agent's word, which counts for no more than its fleet's."""
    desk = Desk(engine)
    lifetime = Lifetime(kind=LifetimeKind.MAX_JOBS, jobs=3)
    name = a_machine(desk, a_fleet_spec("thrice", lifetime=lifetime))
    session = desk.register(name, total=WIDE).session_id
    _booted(desk, name)
    desk.submit(*(a_job_spec(f"job-{place}") for place in range(6)))
    assert desk.cycle().granted == 3
    report = Report(capabilities=some_capabilities(), total=WIDE, headroom=Resources())
    desk.heartbeat(session, report=report)
    assert desk.cycle().granted == 0
    first, *others = desk.leases(state="offered")
    desk.accept(first)
    desk.complete(first, Outcome.SUCCEEDED)
    assert desk.cycle().granted == 0, "two of its three are under way"
    desk.reject(others[0])
    assert desk.cycle().granted == 1, "an offer that was turned down is made to it once more"


def test_a_machine_for_one_job_has_one_slot_whatever_its_agent_says(engine: sa.Engine) -> None:
    """S3."""
    desk = Desk(engine)
    name = a_machine(desk, one_job())
    desk.register(name, total=WIDE)
    _booted(desk, name)
    desk.submit(a_job_spec("one"), a_job_spec("two"))
    assert desk.cycle().granted == 1


def test_a_job_taken_from_a_machine_that_began_anew_was_its_last(engine: sa.Engine) -> None:
    """S3: the machine has had what it may have, whether or not its agent saw the end of it."""
    desk = Desk(engine)
    name = a_machine(desk, one_job())
    desk.register(name, total=WIDE)
    _booted(desk, name)
    desk.submit(a_job_spec("one"), a_job_spec("two"))
    assert desk.cycle().granted == 1
    desk.accept(desk.leases()[0])
    desk.register(name, total=WIDE)
    (runner,) = desk.rows(tables.runners, name=name)
    assert runner["state"] == RunnerState.DRAINING
    assert desk.cycle().granted == 0


@pytest.mark.case("FLT-059")
def test_of_a_hundred_machines_that_died_in_their_job_nothing_can_come_back(
    engine: sa.Engine,
) -> None:
    """A runner stays on record as what has run, and as nothing else: nobody plans with it."""
    desk, remembered = Desk(engine), RunnerCache()
    names = [a_machine(desk, one_job()) for _ in range(100)]
    for name in names:
        _came_up(desk, name)
    desk.submit(*(a_job_spec(f"job-{place}") for place in range(100)))
    assert desk.cycle().granted == 100
    with read(engine) as connection:
        assert len(remembered.read(connection, desk.policy)) == 100
    for lease in desk.leases():
        desk.accept(lease)
    instances = fleet_tables.capacity_instances
    for row in desk.rows(instances):
        desk.overwrite(instances, row["instance_id"], machine=MachineState.GONE.value)
        desk.change(machine_life.advance, row["instance_id"], Pace(), desk.policy.lease)
    assert {row["state"] for row in desk.rows(instances)} == {"terminated"}
    assert {row["state"] for row in desk.rows(tables.sessions)} == {"lost"}
    assert all(row["revoked_at"] for row in desk.rows(tables.certificates))
    assert not [row for row in desk.rows(tables.leases) if row["ended_at"] is None]
    known = desk.rows(tables.runners)
    told = {(row["state"], row["session_id"], row["drain_requested"]) for row in known}
    assert told == {(RunnerState.OFFLINE, None, 1)}
    with read(engine) as connection:
        assert overview.runners(connection) == ()
        assert overview.scheduler_status(connection, PARTITION).runners == {}
        assert snapshot.load(connection, PARTITION, desk.policy).runners == ()
        assert remembered.read(connection, desk.policy) == ()


def _came_up(desk: Desk, name: str) -> None:
    """Let a machine enrol by its token, register and be admitted."""
    (row,) = desk.rows(fleet_tables.capacity_instances, runner_name=name)
    binding = machines.binding_of(row)
    made = desk.change(
        lambda it: redeem(it, invite(it, name, TRUSTED, binding=binding), f"sha256/{name}")
    )
    assert isinstance(made, Issued)
    runner_id = made.runner_id
    desk.change(
        runners.register,
        a_registration(name, total=some_resources(slots=1)),
        policy=desk.policy.lease,
        rng=RNG,
        entry=Entry(runner_id=runner_id),
    )
    desk.overwrite(tables.runners, runner_id, state="online", admission=Admission.VERIFIED.value)
    _booted(desk, name)
    values = {"runner_id": runner_id, "calls": 1, "provider_ref": name, "operation": "succeeded"}
    desk.overwrite(fleet_tables.capacity_instances, row["instance_id"], **values)
