"""What fleets rest on is killed and started again while machines come and go."""

import time
from collections.abc import Callable, Iterator, Mapping
from random import Random

import pytest

from forgeyard.model.policy import SchedulingPolicy
from tests.chaos.fleet import (
    PROMPT,
    SETTINGS,
    a_fleet,
    agents,
    let_go,
    life_of,
    machines,
    scale,
    states,
    until_states,
)
from tests.chaos.outage import KilledServer, killable_postgresql
from tests.chaos.plant import Plant, until
from tests.chaos.rounds import Rounds

pytestmark = pytest.mark.integration
AWAY_S = 2.0


@pytest.fixture(scope="module")
def gone() -> Iterator[tuple[str, KilledServer]]:
    """Run a server whose commits survive a kill, and give the way to kill it."""
    with killable_postgresql("machines") as it:
        yield it


@pytest.fixture(scope="module")
def database(gone: tuple[str, KilledServer]) -> str:
    """Give the database to the plant."""
    return gone[0]


@pytest.fixture(scope="module")
def settings() -> Mapping[str, str]:
    """Look at fleets often."""
    return SETTINGS


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Start what looks at them soon."""
    return PROMPT


@pytest.mark.requirement("ACC-065", "GAT-020")
def test_machines_that_come_and_go_while_temporal_is_killed_do_both_once(
    plant: Plant, rounds: Rounds
) -> None:
    for rng in rounds.of("one machine was coming and another one going when it was killed"):
        demand_convergence(plant, rounds, rng, away=plant.temporal.kill, back=plant.temporal.start)


@pytest.mark.requirement("ACC-065", "GAT-020", "TST-032")
def test_machines_that_come_and_go_while_postgresql_is_killed_do_both_once(
    plant: Plant, rounds: Rounds, gone: tuple[str, KilledServer]
) -> None:
    for rng in rounds.of("one machine was coming and another one going when it was killed"):
        demand_convergence(plant, rounds, rng, away=gone[1].begin, back=gone[1].end)


def demand_convergence(
    plant: Plant,
    rounds: Rounds,
    rng: Random,
    *,
    away: Callable[[], None],
    back: Callable[[], None],
) -> None:
    """Let one fleet of two shrink and the other grow, and take something from both meanwhile."""
    old, new = a_fleet(plant, rng), a_fleet(plant, rng)
    scale(plant, old, 1, rng)
    until_states(plant, old, "healthy")
    (first,) = agents(plant)
    scale(plant, old, 0, rng)
    scale(plant, new, 1, rng)
    until(lambda: is_coming(plant, new) and is_going(plant, old), every_s=0.05, or_say=plant.tails)
    time.sleep(rng.uniform(0, 0.5))
    met = is_coming(plant, new) and is_going(plant, old)
    away()
    if met:
        rounds.hit()
    time.sleep(rng.uniform(0, AWAY_S))
    back()
    until(plant.has_database, or_say=plant.tails)
    began = time.monotonic()
    until_states(plant, old, "terminated")
    until_states(plant, new, "healthy")
    rounds.took("back to both where they were to be", time.monotonic() - began, goal_s=90)
    demand_once_each(plant, old, new, first)
    let_go(plant, old)
    let_go(plant, new)
    assert not agents(plant)


def is_coming(plant: Plant, fleet: str) -> bool:
    """Tell whether the machine of a fleet may be there, and is not well yet."""
    rows = machines(plant, fleet)
    return [row["calls"] for row in rows] == [1] and rows[0]["state"] != "healthy"


def is_going(plant: Plant, fleet: str) -> bool:
    """Tell whether the machine of a fleet is on its way out."""
    return states(plant, fleet) in (["draining"], ["terminating"])


def demand_once_each(plant: Plant, old: str, new: str, first: int) -> None:
    """Insist that one machine ended, once, and another one came, once, and lives."""
    (ended,), (lives,) = machines(plant, old), machines(plant, new)
    assert life_of(plant, ended["instance_id"]).count("terminating") == 1
    assert life_of(plant, lives["instance_id"])[-1] == "healthy"
    assert set(life_of(plant, lives["instance_id"])) & {"failed", "terminating"} == set()
    there = agents(plant)
    assert first not in there
    assert list(there.values()) == [lives["provider_ref"]]
    assert ended["provider_ref"] != lives["provider_ref"]
