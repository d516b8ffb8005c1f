"""What those hear of fleets who watch from outside: counters, gauges, and the alerts on them."""

import itertools
import time
from collections import deque
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import sqlalchemy as sa
from temporalio import activity

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from activities.provisioning import Home, Infrastructure, ProvisioningActivities
from forgeyard import telemetry
from forgeyard.api.metrics import StoreFigures
from forgeyard.fleet.lifecycle import Pace
from forgeyard.model.fleet import FleetSpec, FleetState, ScaleDown, ScaleUp, Scaling
from forgeyard.store import fleet_tables, fleets, lineage, tables
from forgeyard.store.shares import Intent
from tests.alerts import firing
from tests.builders import PARTITION, RNG, a_fleet_spec, a_job_spec, some_resources
from tests.fleet.fake import FakeProvider, Knobs
from tests.leasing import Desk
from tests.scraping import Scrape, growth, scrape_here, scraped

pytestmark = pytest.mark.integration
ME = Intent(actor="ann", channel="test", reason="a test")
INSTANCES = fleet_tables.capacity_instances
NAMES = (f"watched-{number}" for number in itertools.count(1))
"""Counters are of the whole process: each test watches a fleet of its own."""
KIND = FakeProvider.kind
EAGER = {"up": ScaleUp(per_minute=10_000, burst=10_000), "down": ScaleDown(idle_grace=0, window=0)}


class Watch:
    """A fleet whose provider does as it is told, tended by the product's activities."""

    def __init__(self, engine: sa.Engine, **scaling: object) -> None:
        self.desk = Desk(engine)
        self.desk.change(lineage.leave_mark, rng=RNG)
        knobs = Knobs(lag_ms=(0, 0), start_ms=0, stop_ms=0)
        self.provider = FakeProvider(lambda: time.time_ns() // 1_000_000, knobs=knobs)
        found = {KIND: Infrastructure(provider=self.provider, pace=Pace(look=0, visibility=0))}
        rhythm = Rhythm(observe=0)
        self._fleets = FleetActivities(engine, self.desk.policy, found, rhythm, rng=RNG)
        self._machines = ProvisioningActivities(
            engine, self.desk.policy, found, Home(url=""), rng=RNG
        )
        self.spec: FleetSpec = a_fleet_spec(
            next(NAMES), provider=KIND, scaling=Scaling(**{"max": 50, **EAGER, **scaling})
        )
        made = self.desk.change(fleets.apply, self.spec, ME, expected_version=None, rng=RNG)
        self.fleet = contracts.Fleet(fleet_id=made.fleet_id, partition=PARTITION)

    @property
    def name(self) -> str:
        return self.spec.name

    def scale(self, count: int) -> None:
        self.desk.change(fleets.scale, self.name, count, ME, for_ms=None, rng=RNG)

    def tick(self) -> contracts.FleetTick:
        return self._fleets.tick_fleet(self.fleet)

    def observe(self) -> None:
        self._fleets.observe_fleet(self.fleet)

    def machines(self, *states: str) -> list[dict]:
        rows = self.desk.rows(INSTANCES, fleet_id=self.fleet.fleet_id)
        return [row for row in rows if not states or row["state"] in states]

    def step(self, *states: str, **before: object) -> None:
        """Take the machines in some states as far as they go by what is known of them now."""
        for row in self.machines(*states):
            if before:
                self.desk.overwrite(INSTANCES, row["instance_id"], **before)
            self._machines.advance_instance(
                contracts.Machine(instance_id=row["instance_id"], runner_name=row["runner_name"])
            )

    def come_up(self, count: int) -> None:
        """Have so many machines, each with its runner."""
        self.scale(count)
        self.tick()
        self.step("requested")
        for row in self.machines("bootstrapping"):
            room = some_resources(cpu=8_000, memory=2**36, disk=2**40, slots=4)
            self.desk.register(row["runner_name"], total=room)
        self.step("bootstrapping")
        assert len(self.machines("healthy")) == count

    def figures(self) -> Scrape:
        """Scrape an API process."""
        registry = telemetry.published(StoreFigures(self.desk.engine, PARTITION))
        return scraped(telemetry.text(registry).decode())


@pytest.fixture(autouse=True)
def _unheard() -> Iterator[None]:
    """Let activities run outside of Temporal, where nobody hears their heartbeats."""
    with patch.object(activity, "heartbeat", lambda *_details: None):
        yield


@pytest.mark.requirement("MET-034", "MET-035", "MET-036")
def test_machines_that_are_wanted_come_up_and_are_let_go_are_counted(engine: sa.Engine) -> None:
    watch, before = Watch(engine), scrape_here()
    watch.scale(2)
    watch.tick()
    watch.tick()
    grown = growth(before, scrape_here())
    assert grown("forgeyard_fleet_scale_up_total", fleet=watch.name) == 2
    assert grown("forgeyard_fleet_provision_latency_seconds_count", fleet=watch.name) == 0
    for row in watch.machines():
        wanted = row["requested_at"] - 90_000
        watch.desk.overwrite(INSTANCES, row["instance_id"], requested_at=wanted)
    watch.come_up(2)
    watch.step()
    grown = growth(before, scrape_here())
    assert grown("forgeyard_fleet_provision_latency_seconds_count", fleet=watch.name) == 2
    took = grown("forgeyard_fleet_provision_latency_seconds_sum", fleet=watch.name)
    assert 2 * 90 <= took < 2 * 150
    assert grown("forgeyard_fleet_scale_down_total", fleet=watch.name) == 0
    watch.scale(0)
    watch.tick()
    watch.tick()
    grown = growth(before, scrape_here())
    assert grown("forgeyard_fleet_scale_down_total", fleet=watch.name) == 2
    assert grown("forgeyard_fleet_scale_up_total", fleet=watch.name) == 2
    assert grown("forgeyard_fleet_bootstrap_failures_total", fleet=watch.name) == 0


@pytest.mark.requirement("ALR-014")
def test_what_a_fleet_does_by_itself_is_counted_and_kept_and_leaves_no_line_in_the_audit_trail(
    engine: sa.Engine,
) -> None:
    watch, before = Watch(engine), scrape_here()
    watch.come_up(2)
    told = [row["action"] for row in watch.desk.rows(tables.audit)]
    assert told == ["fleet.create", "fleet.override"], "what people did is in it"
    watch.desk.overwrite(
        fleet_tables.fleet_overrides,
        watch.desk.rows(fleet_tables.fleet_overrides)[0]["override_id"],
        ended_at=1,
    )
    for _ in range(3):
        watch.tick()
    watch.step("draining")
    watch.observe()
    assert {row["state"] for row in watch.machines()} == {"terminated"}
    assert [row["action"] for row in watch.desk.rows(tables.audit)] == told
    kept = watch.desk.rows(fleet_tables.fleet_decisions)
    assert (sum(it["launched"] for it in kept), sum(it["drained"] for it in kept)) == (2, 2)
    grown = growth(before, scrape_here())
    assert grown("forgeyard_fleet_scale_down_total", fleet=watch.name) == 2


@pytest.mark.requirement("MET-037", "ALR-018")
def test_machines_that_never_come_up_are_counted_and_the_third_in_an_hour_is_an_alert(
    engine: sa.Engine,
) -> None:
    watch = Watch(engine)
    failures = "forgeyard_fleet_bootstrap_failures_total"
    _give_up_unasked(watch)
    watch.scale(3)
    watch.tick()
    watch.step("requested")
    assert len(watch.machines("bootstrapping")) == 3
    alert, before = "ForgeyardFleetMachinesNeverComeUp", scrape_here()
    assert before.value(failures, fleet=watch.name) == 0, "what was not asked for did not fail"
    for count, row in enumerate(watch.machines("bootstrapping"), 1):
        watch.desk.overwrite(INSTANCES, row["instance_id"], due_at=1)
        watch.step("bootstrapping")
        now = scrape_here()
        assert growth(before, now)(failures, fleet=watch.name) == count
        assert firing(alert, (30, before), (0, now)) == ({watch.name} if count == 3 else set())
    assert firing(alert, (90, before), (30, now), (0, now)) == set(), "that was long ago"


def _give_up_unasked(watch: Watch) -> None:
    """Want a machine, and no more before anybody asked for it."""
    watch.scale(1)
    watch.tick()
    watch.desk.change(fleets.set_state, watch.name, FleetState.DRAINING, ME)
    watch.step("requested")
    assert [row["state"] for row in watch.machines()] == ["terminated"]
    watch.desk.change(fleets.set_state, watch.name, FleetState.ACTIVE, ME)


@pytest.mark.requirement("MET-038", "ALR-016")
def test_calls_that_fail_are_counted_by_their_code_and_a_provider_that_goes_on_so_is_an_alert(
    engine: sa.Engine,
) -> None:
    watch = Watch(engine)
    alert, before = "ForgeyardFleetProviderDegraded", scrape_here()
    watch.scale(1)
    watch.tick()
    assert firing(alert, (0, watch.figures())) == set()
    watch.provider.knobs.calls = "throttled"
    watch.step()
    grown = growth(before, scrape_here())
    failures = "forgeyard_fleet_provider_failures_total"
    assert grown(failures, fleet=watch.name, code="provider.throttled") == 1
    watch.tick()
    assert firing(alert, (0, watch.figures())) == set(), "once is not always"
    for _ in range(4):
        watch.step(next_at=0)
    watch.tick()
    assert growth(before, scrape_here())(failures, fleet=watch.name, code="provider.throttled") == 5
    assert firing(alert, (0, watch.figures())) == {watch.name}
    assert firing("ForgeyardFleetOutOfCapacity", (0, watch.figures())) == set()


@pytest.mark.requirement("ALR-015")
def test_a_fleet_of_which_no_offering_can_be_had_is_an_alert_until_one_can(
    engine: sa.Engine,
) -> None:
    watch, alert = Watch(engine), "ForgeyardFleetOutOfCapacity"
    watch.provider.knobs.creates = deque(["ice"])
    watch.scale(1)
    watch.tick()
    assert firing(alert, (0, watch.figures())) == set()
    watch.step()
    watch.tick()
    assert firing(alert, (0, watch.figures())) == {watch.name}
    over = sa.update(fleet_tables.provider_breakers).values(open_until=1)
    watch.desk.change(lambda it: it.execute(over))
    watch.tick()
    assert firing(alert, (0, watch.figures())) == set()


@pytest.mark.requirement("ALR-017")
def test_a_fleet_that_its_maximum_holds_back_is_an_alert_with_how_much(engine: sa.Engine) -> None:
    watch, alert = Watch(engine, max=1), "ForgeyardFleetAtMaximum"
    wide = some_resources(cpu=4_000)
    watch.desk.submit(a_job_spec("one", resources=wide))
    watch.tick()
    assert firing(alert, (0, watch.figures())) == set(), "one is enough"
    watch.desk.submit(a_job_spec("two", resources=wide), a_job_spec("three", resources=wide))
    watch.tick()
    found = watch.figures()
    assert found.value("forgeyard_fleet_held_back_instances", fleet=watch.name) == 2
    assert firing(alert, (0, found)) == {watch.name}
    watch.scale(2)
    watch.tick()
    found = watch.figures()
    assert found.value("forgeyard_fleet_held_back_instances", fleet=watch.name) == 1
    watch.scale(3)
    watch.tick()
    assert firing(alert, (0, watch.figures())) == set()


@pytest.mark.requirement("MET-039", "ALR-019")
def test_interruptions_are_counted_once_and_far_more_than_usual_are_an_alert(
    engine: sa.Engine,
) -> None:
    watch, alert = Watch(engine), "ForgeyardInterruptionsSpike"
    watch.observe()
    long_ago = scrape_here()
    watch.come_up(9)
    refs = [row["provider_ref"] for row in watch.machines()]

    def interrupted(count: int) -> Scrape:
        for _ in range(count):
            watch.provider.announce(refs.pop(), copies=2)
        watch.observe()
        watch.observe()
        return scrape_here()

    few = interrupted(4)
    total = "forgeyard_fleet_spot_interruptions_total"
    assert growth(long_ago, few)(total, provider_kind=KIND) == 4
    assert firing(alert, (300, long_ago), (14, long_ago), (0, few)) == set()
    more = interrupted(5)
    assert growth(few, more)(total, provider_kind=KIND) == 5
    assert firing(alert, (300, long_ago), (14, few), (0, more)) == {KIND}
    refs += [f"more-{number}" for number in range(30)]
    usual = _planted(watch, refs)
    assert firing(alert, (300, long_ago), (14, long_ago), (0, usual)) == {KIND}
    last = interrupted(5)
    assert firing(alert, (300, long_ago), (14, usual), (0, last)) == set(), "as often as ever"


def _planted(watch: Watch, refs: list[str]) -> Scrape:
    """Let there be more machines, all but five of which are interrupted."""
    watch.scale(45)
    watch.tick()
    for row, ref in zip(watch.machines("requested"), refs, strict=False):
        watch.provider.plant(ref, {})
        watch.desk.overwrite(INSTANCES, row["instance_id"], provider_ref=ref)
    while len(refs) > 5:
        watch.provider.announce(refs.pop())
    watch.observe()
    return scrape_here()
