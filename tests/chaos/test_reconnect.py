"""F14: the API is started again, and every agent of a large fleet is back at once."""

import asyncio
import random
import time
from collections.abc import Callable
from random import Random

import pytest
import sqlalchemy as sa

from forgeyard.model.policy import LeasePolicy, SchedulingPolicy, SweepPolicy
from forgeyard.model.units import Millis
from forgeyard.store import tables
from tests.chaos.crowd import BROKEN, Agent, Tally, living
from tests.chaos.plant import Plant
from tests.chaos.rounds import Rounds

# Soak, for it judges seconds: that takes a machine that does nothing else.
pytestmark = [pytest.mark.integration, pytest.mark.soak]
SILENCE_S = 30.0
UNBRIDGED_S = 8.0
"""With a heartbeat and the longest back-off it is shorter than the silence that is allowed."""


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Expect six heartbeats in half a minute; what is not bridged, sessions outlast with that."""
    return SchedulingPolicy(
        lease=LeasePolicy(session_silence=Millis(int(SILENCE_S * 1_000))),
        sweep=SweepPolicy(renewal_gap=Millis(int(UNBRIDGED_S * 1_000))),
    )


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest) -> int:
    """Tell how many agents there are."""
    count: int = request.config.getoption("--chaos-agents")
    return count


def test_a_fleet_that_reconnects_at_once_is_all_there_again(
    plant: Plant, rounds: Rounds, fleet: int
) -> None:
    """F14: nobody's session is lost, and whoever cannot be heard now is told when to come back."""
    for rng in rounds.of("all agents lost their connections, and came back at once"):
        demand_all_back(plant, rounds, rng, fleet)


def demand_all_back(plant: Plant, rounds: Rounds, rng: Random, fleet: int) -> None:
    tally, prefix = Tally(), f"fleet-{rng.random()}-"
    agents = [
        Agent(
            name=f"{prefix}{number}",
            port=plant.agent_port,
            token=plant.token,
            tally=tally,
            rng=random.Random(rng.random()),
        )
        for number in range(fleet)
    ]
    asyncio.run(restarted_amid(plant, rounds, agents, tally))
    print(f"{fleet} agents: {dict(tally.answers)}, heartbeats p99 {tally.slowest(99):.2f} s")
    if tally.answers[BROKEN] >= fleet:
        rounds.hit()
    rounds.note("heartbeats, p99", f"{tally.slowest(99):.2f} s, {fleet} agents")
    rounds.note("answers", dict(tally.answers))
    assert not tally.answers["session lost"]
    assert not any("WITHOUT" in said for said in tally.answers)
    assert tally.slowest(99) < SILENCE_S / 3
    assert len({round(delay, 3) for delay in tally.delays_s}) > len(tally.delays_s) // 4
    assert sessions(plant, prefix) == {"open": fleet}


async def restarted_amid(plant: Plant, rounds: Rounds, agents: list[Agent], tally: Tally) -> None:
    """Let everybody register, start the API again, and wait until everybody is heard anew."""
    await living(agents, asyncio.ensure_future(_restart(plant, rounds, agents, tally)))


async def _restart(plant: Plant, rounds: Rounds, agents: list[Agent], tally: Tally) -> None:
    began = time.monotonic()
    await _until(lambda: tally.answers["registered"] >= len(agents), within_s=400)
    rounds.note("first registrations", f"{len(agents) / (time.monotonic() - began):.0f} a second")
    await _until(lambda: tally.answers["heartbeat"] >= len(agents))
    plant.processes["api"].kill()
    await asyncio.sleep(0.5)
    plant.start_api()
    await asyncio.to_thread(plant.until_ready)
    back_at, heard = time.monotonic(), tally.answers["heartbeat"]
    await _until(lambda: tally.answers["heartbeat"] >= heard + len(agents))
    rounds.took("API back to all agents heard", time.monotonic() - back_at, goal_s=SILENCE_S)
    await asyncio.sleep(SILENCE_S / 6)


async def _until(holds: Callable[[], bool], *, within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to be"
        await asyncio.sleep(0.05)


def sessions(plant: Plant, prefix: str) -> dict[str, int]:
    """Count the sessions of a fleet by their state."""
    sessions, runners = tables.sessions, tables.runners
    query = (
        sa.select(sessions.c.state, sa.func.count().label("count"))
        .join(runners, runners.c.runner_id == sessions.c.runner_id)
        .where(runners.c.name.startswith(prefix))
        .group_by(sessions.c.state)
    )
    return {row["state"]: row["count"] for row in plant.rows(query)}
