"""How fleets are: what their health says and the doctor finds, and what it never makes up."""

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from forgeyard.errors import ForgeyardError, OutOfCapacity, ProviderQuotaExceeded, Throttled
from forgeyard.fleet.doctor import OPEN, Door, examine
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.fleet import FleetHealth, FleetSpec, Offering, Scaling
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import (
    boot_times,
    breakers,
    enrolments,
    fleet_symptoms,
    fleet_tables,
    fleets,
    snapshot,
    tables,
)
from forgeyard.store.engine import database_now, read
from forgeyard.store.shares import Intent
from tests.builders import PARTITION, RNG, a_fleet_spec, a_job_spec, some_capabilities
from tests.leasing import Desk
from tests.trusting import invite, redeem

pytestmark = pytest.mark.integration
S = CapacityInstanceState
ME = Intent(actor="ann", channel="test", reason="a test")
MINUTE = 60_000
MACHINES = fleet_tables.capacity_instances
SPEC = a_fleet_spec(
    offerings=(Offering(name="small", cost=1), Offering(name="other", cost=2)),
    scaling=Scaling(min=3, max=10),
)


class Yard:
    """A store with one fleet that real decisions are made about."""

    def __init__(self, engine: sa.Engine, spec: FleetSpec = SPEC) -> None:
        self.engine, self.desk = engine, Desk(engine)
        self.fleet_id = self.desk.change(
            fleets.apply, spec, ME, expected_version=None, rng=RNG
        ).fleet_id
        self._tending = FleetActivities(engine, SchedulingPolicy(), {}, Rhythm(), rng=RNG)

    def decide(self) -> contracts.FleetTick:
        return self._tending.tick_fleet(
            contracts.Fleet(fleet_id=self.fleet_id, partition=PARTITION)
        )

    def fail(self, offering: str, error: ForgeyardError, *, times: int = 1) -> None:
        where = (SPEC.provider, self.fleet_id, offering)
        for _ in range(times):
            self.desk.change(breakers.failed, *where, error, now=self.now())

    def now(self) -> int:
        with read(self.engine) as connection:
            return database_now(connection)

    def set(self, name: str, **values: object) -> None:
        own = MACHINES.c.runner_name == name
        self.desk.change(
            lambda connection: connection.execute(sa.update(MACHINES).where(own).values(**values))
        )

    def health(self) -> tuple[FleetHealth, str]:
        """Decide, and read what is said of the fleet since."""
        self.decide()
        with read(self.engine) as connection:
            found = fleets.view(fleets.find(connection, self.fleet_id))
        return found.health, found.health_reason

    def found(self, check: str, door: Door = OPEN) -> tuple[str, str]:
        with read(self.engine) as connection:
            seen = fleet_symptoms.read_symptoms(connection, self.fleet_id)
        (one,) = (it for it in examine(seen, door=door) if it.name == f"builders: {check}")
        return one.verdict, one.sentence


@pytest.fixture
def yard(engine: sa.Engine) -> Yard:
    return Yard(engine)


@pytest.mark.requirement("FRC-023", "FRC-038")
def test_a_quota_that_is_used_up_is_the_health_of_the_fleet_and_said_so(yard: Yard) -> None:
    assert yard.health() == (FleetHealth.HEALTHY, "")
    yard.fail("small", ProviderQuotaExceeded("64 cores are the most"))
    assert yard.health() == (FleetHealth.HEALTHY, ""), "there is another offering"
    yard.fail("other", OutOfCapacity("none left"))
    health, why = yard.health()
    assert health is FleetHealth.CAPACITY_CONSTRAINED
    assert "64 cores are the most" in why
    verdict, said = yard.found("capacity")
    assert (verdict, said) == ("fail", "0 healthy, 3 wanted. None of its offerings can be had.")


@pytest.mark.requirement("FRC-023")
def test_a_provider_that_answers_nobody_degrades_its_fleets(yard: Yard) -> None:
    yard.fail("small", Throttled("slow down"), times=5)
    health, why = yard.health()
    assert (health, "slow down" in why) == (FleetHealth.PROVIDER_DEGRADED, True)
    assert yard.found("provider")[0] == "fail"


@pytest.mark.requirement("FRC-023", "FRC-027")
def test_machines_that_do_not_come_up_are_the_health_of_the_fleet(yard: Yard) -> None:
    yard.decide()
    late = {"state": S.TERMINATING.value, "failure": "it did not enrol in time"}
    for number in (1, 2):
        yard.set(f"builders-{number}", **late)
    assert yard.health()[0] is FleetHealth.HEALTHY, "two are bad luck"
    yard.set("builders-3", **late)
    assert yard.health() == (
        FleetHealth.UNHEALTHY,
        "3 did not come up: it did not enrol in time",
    )
    yard.set("builders-4", state=S.HEALTHY.value, healthy_at=yard.now())
    assert yard.health()[0] is FleetHealth.BOOTSTRAP_DEGRADED
    verdict, said = yard.found("bootstrap")
    assert (verdict, said[:40]) == ("fail", "3 failed within the last hour, mostly: it"[:40])


@pytest.mark.requirement("FRC-028", "FRC-035", "FRC-036")
def test_machines_that_ran_and_never_came_are_told_from_those_that_did(yard: Yard) -> None:
    yard.decide()
    now = yard.now()
    bootstrap = SPEC.deadlines.bootstrap
    up = {"state": S.BOOTSTRAPPING.value, "running_at": now - bootstrap + MINUTE}
    yard.set("builders-1", **up)
    assert yard.found("egress")[0] == "ok", "it has time yet"
    yard.set("builders-1", running_at=now - bootstrap)
    assert yard.found("egress") == (
        "fail",
        "Seen running, and never came to the agent API: builders-1.",
    )
    yard.set("builders-2", state=S.ENROLLING.value, running_at=1, enrolled_at=now)
    assert yard.found("egress")[0] == "warn"
    assert yard.found("enrolment") == ("ok", "1 machines used their token within the last hour.")
    # One that was ended before its time was over may have been about to come.
    yard.set("builders-1", ending_at=now - MINUTE)
    assert yard.found("egress")[0] == "ok"


@pytest.mark.requirement("FRC-028", "FRC-035")
def test_a_token_that_came_with_two_keys_is_found_at_its_fleet(yard: Yard) -> None:
    yard.decide()
    made = yard.desk.change(invite, "builders-1")
    for key in ("sha256/one", "sha256/two"):
        answer = yard.desk.change(redeem, made, key)
    assert isinstance(answer, enrolments.Alarm)
    assert yard.found("enrolment") == (
        "warn",
        "Tokens that led nobody in: builders-1: its token came with two keys.",
    )


@pytest.mark.requirement("FRC-037")
def test_an_agent_that_is_let_in_no_more_is_found_by_its_version(yard: Yard) -> None:
    yard.decide()
    runner = yard.desk.register("builders-1", capabilities=some_capabilities(agent_version="0.2.9"))
    yard.set("builders-1", runner_id=runner.runner_id, state=S.HEALTHY.value)
    assert yard.found("versions", Door(agent_versions=">=0.2"))[0] == "ok"
    verdict, said = yard.found("versions", Door(agent_versions=">=0.3"))
    assert (verdict, "builders-1 has 0.2.9" in said) == ("fail", True)


@pytest.mark.requirement("FRC-024", "FRC-025", "DEM-024")
def test_machines_that_a_fleet_believes_in_are_no_runners(engine: sa.Engine) -> None:
    """Jobs wait for a runner that registered, however well the machines are said to be."""
    yard = Yard(engine, replace(SPEC, scaling=Scaling(max=10)))
    run_id = yard.desk.submit(a_job_spec("one"))
    assert yard.decide().launched == 1
    yard.set("builders-1", state=S.HEALTHY.value, healthy_at=yard.now(), runner_id="rnr_nobody")
    with read(engine) as connection:
        assert snapshot.load(connection, PARTITION, yard.desk.policy).runners == ()
    assert yard.desk.cycle().granted == 0
    assert _states(yard, run_id) == ["eligible"]
    yard.desk.register("builders-1")
    assert yard.desk.cycle().granted == 1
    assert _states(yard, run_id) == ["leased"]


def _states(yard: Yard, run_id: str) -> list[Any]:
    return [row["state"] for row in yard.desk.rows(tables.jobs, run_id=run_id)]


def test_a_machine_takes_as_long_as_the_last_ones_usually_took(yard: Yard) -> None:
    yard.decide()
    with read(yard.engine) as connection:
        assert boot_times.boot_time(connection, yard.fleet_id) is None
    for number, took in ((1, 9), (2, 2), (3, 3)):
        at = yard.now()
        yard.set(f"builders-{number}", requested_at=at - took * MINUTE, healthy_at=at)
    with read(yard.engine) as connection:
        assert boot_times.boot_time(connection, yard.fleet_id) == 3 * MINUTE
