"""Thousands of machines that nobody needs: a look at them is short, and few are ended at a time."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from temporalio.testing import ActivityEnvironment

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from activities.provisioning import Infrastructure
from forgeyard.errors import Denied
from forgeyard.fleet.ports import Ownership, Sought
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import fleet_tables, lineage, machines, sightings
from forgeyard.store.engine import read
from tests.builders import PARTITION, RNG
from tests.fleet.fake import FakeProvider, Knobs
from tests.integration.store.grounds import OLD, a_fleet_of, a_machine, an_image
from tests.leasing import Desk

pytestmark = pytest.mark.integration
MANY = 5_000
STATEMENTS = 40
"""The most that one look at a provider says to the database, whatever there is."""
DAY = 24 * 3_600_000


class Slow(FakeProvider):
    """A provider of which each end takes a while, in which others go on."""

    def __init__(self) -> None:
        def now() -> int:
            return time.time_ns() // 1_000_000

        super().__init__(now, knobs=Knobs(lag_ms=(0, 0), stop_ms=0, page_size=200))
        self.meanwhile: Callable[[], None] = lambda: None
        self.protected: set[str] = set()
        self.asked: list[str] = []

    def terminate(self, sought: Sought) -> None:
        """End a machine, unless it is protected."""
        self.asked.append(sought.ref)
        self.meanwhile()
        if sought.ref in self.protected:
            raise Denied("OperationNotPermitted")
        super().terminate(sought)


class Sweep:
    """A fleet whose one machine was given up, and a provider that has made it again and again."""

    def __init__(self, engine: sa.Engine, count: int) -> None:
        self.desk = desk = Desk(engine)
        desk.change(lineage.leave_mark, rng=RNG)
        an_image(desk, OLD)
        a_fleet_of(desk, OLD, provider="fake")
        made = a_machine(desk)
        now = time.time_ns() // 1_000_000
        instances = fleet_tables.capacity_instances
        desk.overwrite(instances, made, state="terminated", ended_at=now, may_exist=0)
        self.row = desk.row(instances, made)
        self.provider = Slow()
        with read(engine) as connection:
            store_id = lineage.current(connection).store_id
        owner = Ownership(installation=store_id, fleet_id=self.row["fleet_id"], instance_id=made)
        tags = owner.tags(operation_key=machines.operation_key(self.row), image="")
        for number in range(count):
            self.provider.plant(f"m-{number:05}", tags)
        self.activities = FleetActivities(
            engine,
            SchedulingPolicy(),
            {"fake": Infrastructure(provider=self.provider)},
            Rhythm(observe=0),
            rng=random.Random(1),
        )
        self.fleet = contracts.Fleet(fleet_id=self.row["fleet_id"], partition=PARTITION)

    def look(self) -> contracts.Observed:
        """Look at the provider."""
        return ActivityEnvironment().run(self.activities.observe_fleet, self.fleet)

    def tick(self) -> contracts.FleetTick:
        """Decide about the fleet."""
        return ActivityEnvironment().run(self.activities.tick_fleet, self.fleet)

    def ripen(self) -> None:
        """Let the grace of all orphans pass."""
        known = fleet_tables.provider_sightings
        self.desk.change(lambda connection: connection.execute(sa.update(known).values(first_at=1)))


@contextmanager
def counted(engine: sa.Engine) -> Iterator[list[str]]:
    """Collect what is said to the database."""
    said: list[str] = []

    def hear(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        said.append(statement)

    sa.event.listen(engine, "before_cursor_execute", hear)
    try:
        yield said
    finally:
        sa.event.remove(engine, "before_cursor_execute", hear)


@pytest.mark.case("FLT-025")
def test_a_look_at_thousands_of_orphans_is_short_and_ends_few_while_decisions_go_on(
    engine: sa.Engine, record_property: Callable[[str, object], None]
) -> None:
    """Decisions are made within each end, when the database would be locked if it ever was."""
    sweep = Sweep(engine, MANY)
    ticks: list[contracts.FleetTick] = []
    sweep.provider.meanwhile = lambda: ticks.append(sweep.tick())
    with counted(engine) as said:
        began = time.monotonic()
        assert sweep.look().machines == MANY
        record_property("seconds of a look at 5,000 orphans", round(time.monotonic() - began, 2))
    assert len(said) < STATEMENTS
    assert sweep.provider.calls["page"] == MANY // 200
    assert sweep.provider.asked == []
    sweep.ripen()
    for looks in (1, 2, 3):
        sweep.look()
        assert len(sweep.provider.existing()) == MANY - looks * sightings.MOST_ENDED
        assert len(ticks) == looks * sightings.MOST_ENDED
    assert {tick.gone for tick in ticks} == {False}
    assert len(set(sweep.provider.asked)) == 3 * sightings.MOST_ENDED


@pytest.mark.case("FLT-025")
def test_orphans_that_cannot_be_ended_hold_up_no_others(engine: sa.Engine) -> None:
    count = 4 * sightings.MOST_ENDED
    sweep = Sweep(engine, count)
    sweep.provider.protected = {f"m-{number:05}" for number in range(sightings.MOST_ENDED + 1)}
    sweep.look()
    sweep.ripen()
    for _ in range(count):
        sweep.look()
    assert set(sweep.provider.existing()) == sweep.provider.protected
