"""Named runners that speak over the agent API, and the cycle's own activities."""

import json
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from activities import contracts
from activities.scheduling import SchedulingActivities
from forgeyard.model.capability import Capabilities
from forgeyard.model.location import Location
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.protocol import Heartbeat, Report
from forgeyard.store import codec, tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import read, write
from tests.builders import RNG, a_registration, some_capabilities
from tests.integration.api.house import Held, House, a_document

STORAGE = Location(site="rack-1", region="eu")
"""Where sources lie."""


@dataclass(kw_only=True)
class Ground:
    """Two runners, the API that they speak to, and the activities of a cycle."""

    house: House
    sessions: dict[str, str] = field(default_factory=dict)
    policy: SchedulingPolicy

    @property
    def body(self) -> SchedulingActivities:
        """Take the activities as a worker runs them."""
        return SchedulingActivities(self.house.engine, self.policy, rng=RNG, storage=STORAGE)

    async def register(self, name: str, location: Location | None = None) -> None:
        """Open a session; each runner has a label of its own, to be told work by."""
        message = a_registration(
            name, capabilities=able(name), location=location or Location(host=name)
        )
        answer = await self.house.agents.post(
            "/agent/v1/sessions",
            content=codec.encode(message),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 201, answer.text
        self.sessions[name] = answer.json()["session_id"]

    async def beat(self, name: str, **said: object) -> None:
        """Send a heartbeat."""
        answer = await self.house.agents.post(
            f"/agent/v1/sessions/{self.sessions[name]}/heartbeat",
            content=codec.encode(Heartbeat(**said)),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 200, answer.text

    async def report(self, name: str, **changed: object) -> None:
        """Say anew what a host can do."""
        usual = a_registration(name)
        capabilities = replace(able(name), **changed)
        message = Report(capabilities=capabilities, total=usual.total, headroom=usual.headroom)
        await self.beat(name, report=message)

    async def work(self, name: str, **job: object) -> Held:
        """Give a runner work of its own before any other, and accept it."""
        pinned = {"requires": {"labels": {"runner": name}}, "priority": "high", **job}
        await self.house.submit(a_document(build=pinned))
        assert self.cycle() == 1
        (offer,) = (await self.house.poll(self.sessions[name]))["offers"]
        held = Held(
            lease_id=offer["lease_id"],
            session_id=self.sessions[name],
            epoch=offer["epoch"],
            offer=offer,
        )
        assert (await self.house.tell(held, "accept")).status_code == 200
        return held

    def plan(self) -> tuple[int, str]:
        """Plan; return the cycle, and the runner of the first job that is placed, if any is."""
        planned = self.body.plan_cycle(contracts.Partition(partition="default"))
        placements, runners = tables.placements, tables.runners
        first = sa.select(placements.c.candidates).where(
            placements.c.cycle_id == planned.cycle_id, placements.c.position == 0
        )
        with read(self.house.engine) as connection:
            candidates = connection.execute(first).scalar_one_or_none()
            if candidates is None:
                return planned.cycle_id, ""
            winner = json.loads(candidates)[0][0]
            named = sa.select(runners.c.name).where(runners.c.runner_id == winner)
            return planned.cycle_id, str(connection.execute(named).scalar_one())

    def cycle(self) -> int:
        """Plan and commit; return how many leases were granted."""
        cycle_id, _ = self.plan()
        return self.body.commit_cycle(
            contracts.Cycle(partition="default", cycle_id=cycle_id)
        ).granted

    def placed(self, run_id: str) -> list[str]:
        """Name the runners of a run's attempts."""
        attempts, runners = tables.attempts, tables.runners
        query = (
            sa.select(runners.c.name)
            .join(attempts, attempts.c.runner_id == runners.c.runner_id)
            .where(attempts.c.run_id == run_id)
            .order_by(attempts.c.created_at, attempts.c.number)
        )
        with read(self.house.engine) as connection:
            return list(connection.execute(query).scalars())

    def overwrite(self, table: sa.Table, where: Row, **values: object) -> None:
        """Change rows as an operator would."""
        matching = [table.c[name] == value for name, value in where.items()]
        with write(self.house.engine) as connection:
            connection.execute(sa.update(table).where(*matching).values(values))


def able(name: str) -> Capabilities:
    """Describe what both can do."""
    return some_capabilities(labels={"runner": name})
