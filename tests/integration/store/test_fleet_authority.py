"""Whose say is what: fleets make machines and take them away, the scheduler alone gives work."""

import re
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from forgeyard.fleet.lifecycle import Pace
from forgeyard.model.fleet import ScaleDown, ScaleUp, Scaling
from forgeyard.model.protocol import Outcome
from forgeyard.store import fleet_tables, fleet_wishes, fleets, machine_life, tables
from forgeyard.store.engine import database_now, read
from forgeyard.store.fleet_wishes import Window
from tests.builders import PARTITION, RNG, a_job_spec
from tests.integration.store.grounds import ANN, a_fleet_of, healthy
from tests.leasing import POLICY, Desk

pytestmark = pytest.mark.integration
INSTANCES = fleet_tables.capacity_instances
WORK = {"runs", "jobs", "job_needs", "attempts", "leases", "reservations", "cycles", "cycle_plan"}
"""What stands in these tables is the scheduler's and the runners' to say."""
AT_ONCE = ScaleDown(idle_grace=0, window=0)
HOUR = 3_600_000


@contextmanager
def written(engine: sa.Engine) -> Generator[set[str]]:
    """Collect the names of all tables that are written to."""
    found: set[str] = set()

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        found.update(re.findall(r"(?:INSERT INTO|UPDATE|DELETE FROM) \"?(\w+)", statement))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", note)


def tick(desk: Desk) -> contracts.FleetTick:
    with read(desk.engine) as connection:
        fleet_id = fleets.find(connection, "builders")["fleet_id"]
    fleet = contracts.Fleet(fleet_id=fleet_id, partition=PARTITION)
    return FleetActivities(desk.engine, POLICY, {}, Rhythm(), rng=RNG).tick_fleet(fleet)


def step(desk: Desk, instance_id: str) -> str:
    desk.change(machine_life.advance, instance_id, Pace(), POLICY.lease)
    return str(desk.row(INSTANCES, instance_id)["state"])


@pytest.mark.requirement("ACC-036", "ACC-037", "INV-045", "INV-046", "PRI-077", "PRI-074")
@pytest.mark.requirement("GAT-012")
def test_a_fleet_writes_nothing_about_work_and_only_a_cycle_gives_any(engine: sa.Engine) -> None:
    assert set(tables.metadata.tables) >= WORK
    desk = Desk(engine)
    a_fleet_of(desk, "", scaling=Scaling(max=2, down=AT_ONCE))
    desk.submit()
    with written(engine) as told:
        assert tick(desk).launched == 1
    (wanted,) = desk.rows(INSTANCES)
    desk.overwrite(INSTANCES, wanted["instance_id"], state="terminated", may_exist=0, ended_at=1)
    made, _ = healthy(desk)
    with written(engine) as tended:
        assert tick(desk).launched == 0, "there is room for the job"
        assert step(desk, made) == "healthy"
    assert desk.leases() == []
    assert [row["state"] for row in desk.rows(tables.jobs)] == ["eligible"]

    with written(engine) as scheduled:
        assert desk.cycle().granted == 1
    (lease,) = desk.leases(state="offered")
    assert lease.runner_id == desk.row(INSTANCES, made)["runner_id"]
    with written(engine) as beside:
        assert tick(desk).drained == 0, "whoever works stays"
    desk.accept(lease)
    desk.complete(lease, Outcome.SUCCEEDED)
    with written(engine) as ended:
        assert tick(desk).drained == 1
        assert step(desk, made) == "terminating"
    for tables_of_fleets in (told, tended, beside, ended):
        assert "fleet_allocations" in tables_of_fleets
        assert tables_of_fleets & WORK == set()
    assert {"leases", "attempts", "reservations"} <= scheduled
    assert not [name for name in scheduled if name.startswith(("fleet_", "capacity_"))]


@pytest.mark.requirement("ACC-063", "INV-061", "PRI-065", "PHA-021")
def test_what_is_reserved_are_machines_and_no_rights_to_them(engine: sa.Engine) -> None:
    desk = Desk(engine)
    a_fleet_of(desk, "", scaling=Scaling(max=3, down=AT_ONCE))
    with read(engine) as connection:
        now = database_now(connection)
    window = Window(quantity=2, starts_at=now, ends_at=now + HOUR)
    with written(engine) as told:
        desk.change(fleet_wishes.reserve, "builders", window, ANN, rng=RNG)
        assert tick(desk).launched == 2
    assert told & WORK == set()
    assert desk.rows(tables.reservations) == desk.leases() == []
    for row in desk.rows(INSTANCES):
        desk.overwrite(INSTANCES, row["instance_id"], state="terminated", may_exist=0, ended_at=1)
    made = [healthy(desk)[0] for _ in range(2)]
    assert (tick(desk).launched, tick(desk).drained) == (0, 0), (
        "they are kept for nobody in particular"
    )
    desk.submit(a_job_spec("whoever-comes"))
    assert desk.cycle().granted == 1
    (lease,) = desk.leases()
    assert lease.runner_id in {desk.row(INSTANCES, one)["runner_id"] for one in made}


@pytest.mark.requirement("INV-069")
def test_that_a_fleet_is_well_makes_no_runner_of_a_machine_whose_agent_is_silent(
    engine: sa.Engine,
) -> None:
    desk = Desk(engine)
    a_fleet_of(desk, "", scaling=Scaling(min=1, max=1))
    made, _ = healthy(desk)
    assert tick(desk).health == "healthy"
    desk.later(HOUR)
    desk.sweep()
    (runner,) = desk.rows(tables.runners)
    assert (runner["state"], desk.row(INSTANCES, made)["state"]) == ("offline", "healthy")
    desk.submit()
    assert desk.cycle().granted == 0
    desk.register(runner["name"])
    assert desk.cycle().granted == 1


@pytest.mark.requirement("TST-041", "ACC-069")
def test_a_fleet_of_thousands_is_decided_about_in_one_reading(engine: sa.Engine) -> None:
    desk = Desk(engine)
    up = ScaleUp(per_minute=10_000, burst=10_000)
    a_fleet_of(desk, "", scaling=Scaling(min=2_000, max=2_500, up=up))
    assert tick(desk).launched == 2_000
    assert len({row["runner_name"] for row in desk.rows(INSTANCES)}) == 2_000
    again = tick(desk)
    assert (again.launched, again.usable, again.wanted) == (0, 2_000, 2_000)
