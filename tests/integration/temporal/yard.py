"""A house with a fleet: a provider that is never consistent at once, and agents on its machines.

The agents are drivers: one comes up with each machine, and goes when its machine does.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import sqlalchemy as sa
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle

from activities import contracts
from activities.fleets import Rhythm
from activities.provisioning import Infrastructure
from forgeyard.fleet.lifecycle import Pace
from forgeyard.model.fleet import FleetSpec, ScaleDown, Scaling
from forgeyard.model.protocol import Offer
from forgeyard.store import fleet_tables, fleets, lineage, tables
from forgeyard.store.engine import write
from forgeyard.store.shares import Intent
from tests.builders import RNG, a_fleet_spec
from tests.fleet.fake import FakeProvider, Knobs
from tests.integration.temporal.house import Driver, House, until
from worker.wiring import build_provider_worker, build_worker

PROVIDER = "fake"
PACE = Pace(look=200, visibility=800, ask_again=1_000)
RHYTHM = Rhythm(look=200, observe=400)
ANN = Intent(actor="ann", channel="cli", reason="a test wants it")
UP = ("bootstrapping", "enrolling", "healthy", "draining")


def soon() -> Knobs:
    """Make a provider that is late, but not so late that a test takes minutes."""
    return Knobs(lag_ms=(0, 300), start_ms=200, stop_ms=200)


def eager(name: str = "builders", *, most: int = 4, **scaling: object) -> FleetSpec:
    """Describe a fleet that lets machines go as soon as they have nothing to do."""
    down = ScaleDown(idle_grace=300, window=0)
    bounds = replace(Scaling(max=most, down=down), **scaling)
    return a_fleet_spec(name, provider=PROVIDER, scaling=bounds)


@dataclass(frozen=True, kw_only=True)
class Yard(House):
    """A house whose worker has one provider."""

    provider: FakeProvider

    @classmethod
    def over(cls, house: House, knobs: Knobs | None = None) -> "Yard":
        """Give a house a provider, and its store the identity by which machines are found."""
        with write(house.engine) as connection:
            lineage.leave_mark(connection, rng=RNG)
        provider = FakeProvider(lambda: time.time_ns() // 1_000_000, knobs=knobs or soon())
        found = Infrastructure(provider=provider, pace=PACE)
        parts = replace(house.parts, providers={PROVIDER: found}, rhythm=RHYTHM)
        return cls(
            client=house.client,
            engine=house.engine,
            parts=parts,
            partition=house.partition,
            provider=provider,
        )

    @asynccontextmanager
    async def both_workers(self) -> AsyncIterator[None]:
        """Serve workflows, SQL and providers; nothing starts workflows but the test."""
        async with (
            build_worker(self.client, self.parts),
            build_provider_worker(self.client, self.parts),
        ):
            yield

    def apply(self, spec: FleetSpec) -> contracts.Fleet:
        """Make a fleet, as `fleet apply` does."""
        with write(self.engine) as connection:
            made = fleets.apply(connection, spec, ANN, expected_version=None, rng=RNG)
        return contracts.Fleet(fleet_id=made.fleet_id, partition=self.partition, name=made.name)

    def scale(self, fleet: contracts.Fleet, count: int) -> None:
        """Ask for so many machines, as `fleet scale` does."""
        with write(self.engine) as connection:
            fleets.scale(connection, fleet.fleet_id, count, ANN, for_ms=None, rng=RNG)

    async def reconcile(
        self, fleet: contracts.Fleet, workflow_id: str = "", **state: object
    ) -> WorkflowHandle:
        """Start the reconciler of a fleet with a state of the test's choice."""
        workflow_id = workflow_id or contracts.fleet_workflow_id(fleet.fleet_id)
        await self.client.start_workflow(
            contracts.FLEET_RECONCILE,
            contracts.FleetState(fleet=fleet, **state),
            id=workflow_id,
            task_queue=self.queue,
            search_attributes=contracts.attributes(contracts.KIND_FLEET),
        )
        return await self.this_run(workflow_id)

    async def this_run(self, workflow_id: str) -> WorkflowHandle:
        """Name the newest run of a workflow."""
        described = await self.client.get_workflow_handle(workflow_id).describe()
        return self.client.get_workflow_handle(workflow_id, run_id=described.run_id)

    def machines(self) -> list[dict]:
        """Read the rows of all machines, oldest first."""
        instances = fleet_tables.capacity_instances
        return self.rows(sa.select(instances).order_by(instances.c.number))

    def states(self) -> list[str]:
        """Read how the machines stand, oldest first."""
        return [row["state"] for row in self.machines()]

    def audited(self, fleet: contracts.Fleet) -> list[dict]:
        """Read what the audit trail says of a fleet."""
        audit = tables.audit
        query = sa.select(audit).where(audit.c.target == fleet.fleet_id)
        return self.rows(query.order_by(audit.c.audit_id))

    async def until_states(self, *states: str, within_s: float = 30.0) -> None:
        """Wait until the machines stand so, oldest first."""
        await until(
            lambda: self.states() == list(states), within_s=within_s, or_say=lambda: self.told()
        )

    async def until_empty(self, *, within_s: float = 30.0) -> None:
        """Wait until every machine has ended, in the store and at its provider."""
        await until(
            lambda: set(self.states()) <= {"terminated"} and not self.provider.existing(),
            within_s=within_s,
            or_say=self.told,
        )

    def told(self) -> str:
        """Say how every machine stands, and what its provider has."""
        names = ("number", "state", "operation", "machine", "sightings", "detail", "failure")
        rows = [{name: row[name] for name in names} for row in self.machines()]
        return f"{rows}\nthere: {self.provider.existing()}"

    async def runs_of(self, workflow_id: str) -> list[list[HistoryEvent]]:
        """Read the histories of all runs of a workflow that followed its first, oldest first."""
        handle = self.client.get_workflow_handle(workflow_id)
        run_id = (await handle.describe()).raw_description.workflow_execution_info.first_run_id
        found = []
        while run_id:
            handle = self.client.get_workflow_handle(workflow_id, run_id=run_id)
            events = list((await handle.fetch_history()).events)
            found.append(events)
            end = events[-1].workflow_execution_continued_as_new_event_attributes
            run_id = end.new_execution_run_id
        return found


@dataclass(kw_only=True)
class Agents:
    """One agent for each machine that is up."""

    yard: Yard
    hold: Callable[[Offer], Awaitable[None]] | None = None
    boots_s: float = 0.0
    """How long an agent takes to come up, once its machine runs."""
    drivers: dict[str, Driver] = field(default_factory=dict)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Agents"]:
        """Come and go with the machines until the end of the block."""
        serving = asyncio.create_task(self._serve())
        try:
            yield self
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def _serve(self) -> None:
        at_work: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                up = {row["runner_name"] for row in self.yard.machines() if row["state"] in UP}
                for name in up - at_work.keys():
                    at_work[name] = asyncio.create_task(self._live(name))
                for name in at_work.keys() - up:
                    at_work.pop(name).cancel()
                await asyncio.sleep(0.05)
        finally:
            for task in at_work.values():
                task.cancel()
            await asyncio.gather(*at_work.values(), return_exceptions=True)

    async def _live(self, name: str) -> None:
        await asyncio.sleep(self.boots_s)
        driver = self.drivers[name] = Driver(house=self.yard, name=name, hold=self.hold)
        async with driver.running():
            await asyncio.Event().wait()
