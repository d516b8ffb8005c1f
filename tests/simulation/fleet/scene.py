"""A quiet world for one story that a test tells itself: fate and operators do nothing of their own.

The ledger looks after every event here too.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from activities import contracts
from forgeyard.model.fleet import FleetSpec, Scaling
from forgeyard.store import fleet_tables, tables
from forgeyard.store.engine import read, write
from tests.builders import PARTITION, a_job_spec, submit_run
from tests.fleet.fake import FakeProvider
from tests.simulation.database import Database
from tests.simulation.fleet.agents import Sort
from tests.simulation.fleet.cloud import Cloud
from tests.simulation.fleet.story import MINUTE, SPECS, Story

INSTANCES = fleet_tables.capacity_instances


def a_spec(name: str = "beta", *, scaling: Scaling | None = None, **changed: Any) -> FleetSpec:
    """Describe a fleet like that of the simulation, without a guardrail; fields may be given."""
    plain = replace(SPECS["alpha"], name=name, provider="two")
    bounds = scaling or replace(plain.scaling, min=0)
    return replace(plain, scaling=bounds, **changed)


class Scene:
    """One story."""

    def __init__(self, database: Database, *specs: FleetSpec, sorts: Sequence[Sort] = ()) -> None:
        self.story = Story(1, database, {one.name: one for one in specs or (a_spec(),)})
        self.world = self.story.world
        self.world.weather.is_calm = True
        for cloud in self.story.clouds.values():
            cloud.odds = 0
        self.story.agents.sorts = list(sorts)

    @property
    def cloud(self) -> Cloud:
        """Give the provider that forgets keys."""
        return self.story.clouds["two"]

    @property
    def fake(self) -> FakeProvider:
        """Give the fake below it."""
        return self.cloud.fake

    def run(self, minutes: float) -> None:
        """Let so much time pass."""
        until = self.world.now_ms + round(minutes * MINUTE)
        while self.world._queue[0][0] <= until:
            self.world.step()
        self.world.database.time.reach(until)

    def run_until(self, holds: Callable[[], object], *, within: float = 12) -> float:
        """Let time pass until something holds; tell how many minutes that took."""
        began = self.world.now_ms
        while not holds():
            assert self.world.now_ms < began + within * MINUTE, self.world.lines[-40:]
            self.world.step()
        return (self.world.now_ms - began) / MINUTE

    def submit(self, count: int = 1) -> None:
        """Submit a run of so many jobs."""
        jobs = [a_job_spec(f"job-{place}") for place in range(count)]
        self.world.change(submit_run, *jobs)

    def rows(self, state: str = "") -> list[dict[str, Any]]:
        """Read the machines, all or those in a state."""
        query = sa.select(INSTANCES).order_by(INSTANCES.c.number)
        if state:
            query = query.where(INSTANCES.c.state == state)
        with read(self.world.engine) as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def states(self) -> list[str]:
        """Read the states of the machines, the oldest first."""
        return [row["state"] for row in self.rows()]

    def healthy(self, count: int = 1) -> bool:
        """Tell whether so many machines are healthy."""
        return self.states().count("healthy") == count

    def jobs(self) -> list[str]:
        """Read the states of all jobs."""
        with read(self.world.engine) as connection:
            return list(connection.execute(sa.select(tables.jobs.c.state)).scalars())

    def attempts(self) -> int:
        """Count the attempts of all jobs that a runner has taken up."""
        with read(self.world.engine) as connection:
            query = sa.select(sa.func.count(tables.leases.c.accepted_at))
            return int(connection.execute(query).scalar_one())

    def fleet(self) -> contracts.Fleet:
        """Name the one fleet."""
        with read(self.world.engine) as connection:
            fleet_id = connection.execute(sa.select(fleet_tables.fleets.c.fleet_id)).scalar_one()
        return contracts.Fleet(fleet_id=fleet_id, partition=PARTITION)

    def tick(self) -> contracts.FleetTick:
        """Decide about the one fleet, apart from its reconciler."""
        return self.story.control.fleets.tick_fleet(self.fleet())

    def overwrite(self, instance_id: str, **values: object) -> None:
        """Overwrite columns of a machine behind the product's back."""
        own = INSTANCES.c.instance_id == instance_id
        with write(self.world.engine) as connection:
            connection.execute(sa.update(INSTANCES).where(own).values(**values))
