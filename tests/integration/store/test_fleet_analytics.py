"""What a fleet did is derived from rows: machines, their history, decisions, leases and jobs."""

import random
from typing import Any

import pytest
import sqlalchemy as sa

from forgeyard.errors import InvalidRequest, NotFound
from forgeyard.fleet.analytics import Analytics
from forgeyard.fleet.view import Launch
from forgeyard.model.capacity import CapacityInstanceState, ScaleReason
from forgeyard.model.fleet import DAY_MS, Market, Offering
from forgeyard.store import changes, fleet_analytics, fleet_tables, fleets, machines, tables
from forgeyard.store.changes import INSTANCE
from forgeyard.store.engine import database_now, read
from forgeyard.store.fleet_analytics import FleetAnalytics
from tests.builders import RNG, a_fleet_spec, a_job_spec, some_resources
from tests.integration.store.grounds import ANN
from tests.leasing import Desk

pytestmark = pytest.mark.integration
MINUTE = 60_000
HOUR = 60 * MINUTE
INSTANCES, LEASES = fleet_tables.capacity_instances, tables.leases
S = CapacityInstanceState
SPEC = a_fleet_spec(
    offerings=(
        Offering(name="steady", cost=600_000),
        Offering(name="spot", cost=60_000, market=Market.PREEMPTIBLE),
    )
)


class Yard:
    """A store with a fleet, in which things are put where a test wants them to have been."""

    def __init__(self, engine: sa.Engine) -> None:
        self.desk = Desk(engine)
        self.desk.change(fleets.apply, SPEC, ANN, expected_version=None, rng=RNG)
        with read(engine) as connection:
            self.now = database_now(connection)

    def ago(self, ms: int) -> int:
        return self.now - ms

    def machine(self, *, offering: str = "steady", **values: object) -> str:
        """Want a machine for jobs, and put it where the test wants it."""

        def want(connection: sa.Connection) -> str:
            row = fleets.find(connection, "builders")
            launch = Launch(offering=offering, reason=ScaleReason.QUEUED_DEMAND)
            (made,) = machines.intend(connection, row, SPEC, [launch], now=self.now, rng=RNG)
            return made

        made = self.desk.change(want)
        self.desk.overwrite(INSTANCES, made, **values)
        return made

    def ready(self, since: int, **values: object) -> tuple[str, str]:
        """Have a machine that is ready since; return it, and its runner."""
        usual = {"state": S.HEALTHY.value, "requested_at": since - MINUTE, "healthy_at": since}
        made = self.machine(**{**usual, **values})
        name = self.desk.row(INSTANCES, made)["runner_name"]
        room = some_resources(cpu=64_000, memory=2**38, disk=2**40, slots=64)
        runner_id = self.desk.register(name, total=room).runner_id
        self.desk.overwrite(INSTANCES, made, runner_id=runner_id)
        return made, runner_id

    def leased(self, runner_id: str, begin: int, end: int | None, *, waited: int = 0) -> None:
        """Let a runner have had a lease from one instant to another."""
        self.desk.submit(a_job_spec("one"))
        assert self.desk.cycle().granted == 1
        (lease,) = self.desk.leases(state="offered")
        times: dict[str, Any] = {"offered_at": begin, "accepted_at": begin, "state": "active"}
        if end is not None:
            times |= {"ended_at": end, "expires_at": end + MINUTE, "state": "released"}
        self.desk.overwrite(LEASES, lease.lease_id, runner_id=runner_id, **times)
        times = {"eligible_at": begin - waited, "leased_at": begin}
        self.desk.overwrite(tables.jobs, lease.job_id, **times)

    def left(self, instance_id: str, to: S, at: int) -> None:
        """Let a machine have been given up."""

        def move(connection: sa.Connection) -> None:
            row = machines.lock(connection, instance_id).row
            changes.move(connection, INSTANCE, row, to, reason="a test", now=at)

        self.desk.change(move)

    def decided(self, number: int, at: int, *, wanted: int, usable: int, launched: int) -> None:
        with read(self.desk.engine) as connection:
            fleet_id = fleets.find(connection, "builders")["fleet_id"]
        row = {"fleet_id": fleet_id, "number": number, "at": at, "wanted": wanted}
        more = {"usable": usable, "launched": launched, "drained": 0}
        said = {"demand_id": "", "decision": "{}"}
        insert = sa.insert(fleet_tables.fleet_decisions)
        self.desk.change(lambda it: it.execute(insert, [row | more | said]))

    def answer(self, ago: int = DAY_MS) -> FleetAnalytics:
        with read(self.desk.engine) as connection:
            return fleet_analytics.read_analytics(connection, "builders", since=self.ago(ago))

    def figures(self, ago: int = DAY_MS) -> Analytics:
        return self.answer(ago).figures


@pytest.fixture
def yard(engine: sa.Engine) -> Yard:
    return Yard(engine)


def near(amount: int, wanted: int) -> bool:
    """Tell whether an amount is what was wanted, but for the time that the test itself took."""
    return wanted <= amount <= wanted + MINUTE


@pytest.mark.requirement("MET-023", "MET-027", "MET-029")
def test_machines_are_used_while_they_have_a_lease_however_many_at_once(yard: Yard) -> None:
    _, first = yard.ready(yard.ago(10 * HOUR))
    for begin, end in ((9, 7), (8, 6), (8, 7), (5, 4)):
        yard.leased(first, yard.ago(begin * HOUR), yard.ago(end * HOUR))
    second, other = yard.ready(yard.ago(4 * HOUR))
    yard.leased(other, yard.ago(5 * HOUR), yard.ago(3 * HOUR))
    yard.left(second, S.QUARANTINED, yard.ago(2 * HOUR))
    found = yard.answer()
    assert (found.fleet, found.currency, found.is_partial) == ("builders", "USD", False)
    assert found.figures.busy_ms == (3 + 1 + 1) * HOUR
    assert near(found.figures.ready_ms, (10 + 2) * HOUR)
    assert near(found.figures.idle_cost, (6 + 1) * 600_000)
    late = yard.figures(6 * HOUR + HOUR // 2)
    assert late.busy_ms == HOUR // 2 + 2 * HOUR
    assert near(late.ready_ms, 6 * HOUR + HOUR // 2 + 2 * HOUR)


@pytest.mark.requirement("MET-023")
def test_a_lease_that_goes_on_counts_until_now_and_one_of_another_fleet_does_not(
    yard: Yard,
) -> None:
    _, own = yard.ready(yard.ago(2 * HOUR))
    yard.leased(own, yard.ago(HOUR), None)
    stranger = yard.desk.register("stranger").runner_id
    yard.leased(stranger, yard.ago(2 * HOUR), yard.ago(HOUR))
    assert near(yard.figures().busy_ms, HOUR)
    assert yard.figures().queue_wait.count == 1


@pytest.mark.requirement("MET-023")
def test_any_leases_are_merged_as_by_hand(yard: Yard) -> None:
    rng = random.Random(7)
    made, runner_id = yard.ready(yard.ago(100 * MINUTE))
    begins = [rng.randint(0, 130) for _ in range(25)]
    held = [(begin, begin - rng.randint(1, 12)) for begin in begins]
    for begin, end in held:
        yard.leased(runner_id, yard.ago(begin * MINUTE), yard.ago(max(end, 0) * MINUTE))
    yard.left(made, S.FAILED, yard.ago(10 * MINUTE))
    for ago in (60, 100, 130):
        minutes = {it for begin, end in held for it in range(max(end, 0), begin)}
        within = minutes & {*range(10, min(ago, 100))}
        assert yard.figures(ago * MINUTE).busy_ms == len(within) * MINUTE, held


@pytest.mark.requirement("MET-024")
def test_the_waits_are_those_of_jobs_that_its_machines_took(yard: Yard) -> None:
    _, own = yard.ready(yard.ago(5 * HOUR))
    for minutes in (1, 2, 9):
        yard.leased(own, yard.ago(HOUR), yard.ago(MINUTE), waited=minutes * MINUTE)
    yard.leased(own, yard.ago(4 * HOUR), yard.ago(3 * HOUR), waited=HOUR)
    refused = yard.desk.leases()[-1]
    found = yard.figures(2 * HOUR).queue_wait
    assert (found.count, found.median, found.longest) == (3, 2 * MINUTE, 9 * MINUTE)
    yard.desk.overwrite(LEASES, refused.lease_id, accepted_at=None, state="rejected")
    assert yard.figures().queue_wait.count == 3


@pytest.mark.requirement("MET-025", "MET-026")
def test_scaling_begins_with_the_decision_that_could_not_have_what_it_wanted(yard: Yard) -> None:
    yard.decided(1, yard.ago(50 * MINUTE), wanted=2, usable=0, launched=0)
    yard.decided(2, yard.ago(40 * MINUTE), wanted=2, usable=0, launched=1)
    yard.ready(yard.ago(35 * MINUTE), requested_at=yard.ago(40 * MINUTE))
    yard.machine(requested_at=yard.ago(40 * MINUTE), failure="it did not enrol in time")
    found = yard.figures()
    assert (found.scale_latency.count, found.scale_latency.median) == (1, 15 * MINUTE)
    assert (found.provision_latency.count, found.provision_latency.median) == (1, 5 * MINUTE)
    assert found.never_ready == 1


@pytest.mark.requirement("MET-028")
def test_interruptions_are_those_that_the_provider_announced(yard: Yard) -> None:
    made, _ = yard.ready(yard.ago(3 * HOUR), offering="spot", interrupted_at=yard.ago(HOUR))
    yard.left(made, S.FAILED, yard.ago(HOUR))
    yard.ready(yard.ago(3 * HOUR))
    found = yard.figures()
    assert (found.interruptions, found.preemptible, found.machines) == (1, 1, 2)
    assert found.preemptible_ready_ms == 2 * HOUR
    assert yard.figures(HOUR // 2).interruptions == 0


@pytest.mark.requirement("MET-029")
def test_what_ended_before_the_window_is_no_part_of_it(yard: Yard) -> None:
    gone, _ = yard.ready(yard.ago(20 * HOUR))
    yard.left(gone, S.FAILED, yard.ago(10 * HOUR))
    yard.desk.overwrite(INSTANCES, gone, ended_at=yard.ago(9 * HOUR), state=S.TERMINATED.value)
    assert yard.figures(5 * HOUR).machines == 0
    whole = yard.figures()
    assert (whole.machines, whole.ready_ms) == (1, 10 * HOUR)
    assert whole.cost == (20 * HOUR + MINUTE - 9 * HOUR) * 600_000 // HOUR


def test_only_the_newest_of_very_many_machines_are_looked_at(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hours in (3, 2, 1):
        yard.ready(yard.ago(hours * HOUR))
    assert not yard.answer().is_partial
    monkeypatch.setattr(fleet_analytics, "MOST_MACHINES", 2)
    found = yard.answer()
    assert (found.is_partial, found.figures.machines) == (True, 2)
    assert near(found.figures.ready_ms, 3 * HOUR)


@pytest.mark.parametrize("ago", [-HOUR, 32 * DAY_MS])
def test_a_window_that_is_to_come_or_too_long_is_refused(yard: Yard, ago: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        yard.answer(ago)
    assert caught.value.field == "since"


def test_a_fleet_that_is_not_there_did_nothing(yard: Yard) -> None:
    with read(yard.desk.engine) as connection, pytest.raises(NotFound):
        fleet_analytics.read_analytics(connection, "nobody")
